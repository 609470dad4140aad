"""`shardio bench`: how fast each rank is fed, what limits that, and what to change."""

import itertools
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from ..errors import ConfigError
from ..stores.url import as_url
from ._bench_display import comparison_text, live
from ._options import threads_option
from ._output import check_place, write_json, write_text
from ._progress import progress
from ._store_options import DATASET, StoreOptions, with_store_options

if TYPE_CHECKING:
    from ..bench import BenchConfig, BenchResult
    from ..bench.limit_search import Probe

# The words that a Loader takes; its own types would load torch.
Engine: TypeAlias = Literal["auto", "cpu", "dali", "nvimgcodec"]
OnBadSample: TypeAlias = Literal["raise", "replace", "mask"]
MapBy: TypeAlias = Literal["batch", "sample"]
Decode: TypeAlias = Literal["exact", "fast"]
Shuffle: TypeAlias = Literal["global", "block", "none"]
Accelerator: TypeAlias = Literal[
    "unet3d-a100", "unet3d-h100", "unet3d-b200", "resnet50-a100", "resnet50-h100", "cosmoflow-a100", "cosmoflow-h100",
    "retinanet-h100", "retinanet-b200",
]  # fmt: skip

LOADER, CONSUMER, MORE = "The loader", "What takes the batches", "More than one measurement"

SLOWER = 3
"""The exit code of a comparison that finds B slower than A."""


@with_store_options
def bench(
    stores: StoreOptions,
    dataset: Annotated[str | None, typer.Argument(help=DATASET, metavar="DATASET", show_default=False)] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Samples per rank and step; 256, or that of --emulate.", show_default=False),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Whole epochs to measure, after one to three that warm up.")] = 3,
    seconds: Annotated[
        float | None, typer.Option(help="Measure so many seconds instead of whole epochs.", show_default=False)
    ] = None,
    warmup: Annotated[
        float, typer.Option(help="Seconds before those of --seconds; 0 leaves out the warm-up of --epochs, too.")
    ] = 2.0,
    ranks: Annotated[int, typer.Option(help="Number of processes, each with its own loader.")] = 1,
    transforms: Annotated[
        str | None,
        typer.Option(
            help="none, train (random crop and flip), evaluate (centre crop), or your own as MODULE:NAME. By default "
            "train if --image-size is given, else none.",
            show_default=False,
            rich_help_panel=LOADER,
        ),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            help="Side of the square images of train and evaluate, in pixels.",
            show_default="224",
            rich_help_panel=LOADER,
        ),
    ] = None,
    floats: Annotated[
        bool,
        typer.Option("--floats", help="Deliver float32 NCHW instead of uint8 NHWC.", rich_help_panel=LOADER),
    ] = False,
    map_function: Annotated[
        str | None,
        typer.Option(
            "--map",
            help="A function of your own, as MODULE:NAME.",
            show_default=False,
            rich_help_panel=LOADER,
        ),
    ] = None,
    map_by: Annotated[MapBy, typer.Option(help="What --map takes at a time.", rich_help_panel=LOADER)] = "batch",
    decode: Annotated[Decode, typer.Option(help="How images are decoded.", rich_help_panel=LOADER)] = "exact",
    shuffle: Annotated[Shuffle, typer.Option(help="The order.", rich_help_panel=LOADER)] = "global",
    seed: Annotated[int, typer.Option(help="Seed of the order and the crops.", rich_help_panel=LOADER)] = 0,
    threads: Annotated[
        str,
        typer.Option(help="Worker threads per rank; auto divides the cores among the ranks.", rich_help_panel=LOADER),
    ] = "auto",
    prefetch: Annotated[str, typer.Option(help="Batches made ahead.", rich_help_panel=LOADER)] = "auto",
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Work in processes instead of threads.", rich_help_panel=LOADER)
    ] = False,
    engine: Annotated[
        Engine, typer.Option(help="What decodes and transforms images.", rich_help_panel=LOADER)
    ] = "auto",
    device: Annotated[
        str | None,
        typer.Option(help="Device to deliver batches on, such as cuda.", show_default=False, rich_help_panel=LOADER),
    ] = None,
    hw_decoder_load: Annotated[
        float | None,
        typer.Option(
            help="Share of the images that the GPU's JPEG decoder gets, 0 to 1.",
            show_default=False,
            rich_help_panel=LOADER,
        ),
    ] = None,
    on_bad_sample: Annotated[
        OnBadSample,
        typer.Option(
            help="raise ends the run at a bad sample; replace and mask continue and count them.",
            rich_help_panel=LOADER,
        ),
    ] = "raise",
    emulate: Annotated[
        Accelerator | None,
        typer.Option(
            help="Stand in for a model on an accelerator; the result is MLPerf-style.",
            show_default=False,
            rich_help_panel=CONSUMER,
        ),
    ] = None,
    step_time: Annotated[
        float, typer.Option(help="Seconds of computation to simulate per step.", rich_help_panel=CONSUMER)
    ] = 0.0,
    barrier: Annotated[
        bool,
        typer.Option(
            help="Whether ranks wait for each other after each step, as for an allreduce.", rich_help_panel=CONSUMER
        ),
    ] = True,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply", help="Try the change that the verdict names, and say what it gains.", rich_help_panel=MORE
        ),
    ] = False,
    find_limit: Annotated[
        bool,
        typer.Option("--find-limit", help="Search the shortest step that input keeps up with.", rich_help_panel=MORE),
    ] = False,
    storage: Annotated[
        bool,
        typer.Option(
            "--storage", help="Also read the shards without shardio, past the page cache.", rich_help_panel=MORE
        ),
    ] = False,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="Try several values of --hw-decoder-load for one epoch each, and keep the best.",
            rich_help_panel=MORE,
        ),
    ] = False,
    versus: Annotated[
        str | None,
        typer.Option(
            help="Compare, in turns within one run, with another dataset, other settings such as "
            "threads=4,decode=fast, or both: DATASET,threads=4.",
            show_default=False,
            rich_help_panel=MORE,
        ),
    ] = None,
    rounds: Annotated[
        int,
        typer.Option(
            help="Turns of each side of --versus, 8 at least. A turn lasts half a second, or longer with long "
            "steps. With --seconds, all turns of a side take about so long, and there may be fewer.",
            rich_help_panel=MORE,
        ),
    ] = 40,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            help="Compare two files of --json.", metavar="A.json B.json", show_default=False, rich_help_panel=MORE
        ),
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json",
            help="Write all figures as JSON to this file; - prints them in place of the text.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a report with pictures to this file.", show_default=False)
    ] = None,
) -> None:
    """Measure how fast each rank is fed, name what limits it, and the setting to change.

    With --versus and --compare the exit code is 3 if B is slower than A.

    Examples:

      shardio bench data/photos --image-size 224 --seconds 10

      shardio bench data/photos --image-size 224 --ranks 2 --emulate resnet50-a100 --html report.html

      shardio bench data/photos --image-size 224 --emulate resnet50-h100 --find-limit

      shardio bench data/photos --image-size 224 --apply

      shardio bench data/photos --image-size 224 --versus decode=fast

      shardio bench data/photos --storage --json bench.json

      shardio bench s3://bucket/photos --cache /local/cache --cache-size 200GB --store-option region=eu-west-1

      shardio bench --compare before.json after.json

      shardio bench data/photos --image-size 224 --device cuda --engine dali --tune
    """
    if compare is not None:
        _compare(*compare)
        return
    if dataset is None:
        raise ConfigError("give a DATASET to measure, or two files with --compare")
    check_place(json_file, "--json")
    check_place(html, "--html")
    from ..bench import BenchConfig, measure, tune_decoder  # imported here because it loads torch

    access = stores.access(dataset, versus)
    if storage and as_url(dataset) is not None:
        raise ConfigError(f"--storage reads local files, got the URL {dataset}")
    config = BenchConfig(
        dataset=dataset,
        batch_size=batch_size,
        epochs=epochs,
        seconds=seconds,
        warmup=warmup,
        ranks=ranks,
        barrier=barrier,
        transforms=transforms,
        image_size=image_size,
        floats=floats,
        map=map_function,
        map_by=map_by,
        decode=decode,
        shuffle=None if shuffle == "none" else shuffle,
        threads=threads_option(threads),
        prefetch=threads_option(prefetch, "prefetch"),
        isolate=isolate,
        emulate=emulate,
        step_time=step_time,
        seed=seed,
        engine=engine,
        device=device,
        hw_decoder_load=hw_decoder_load,
        on_bad_sample=on_bad_sample,
        cache=None if access.cache is None else str(access.cache),
        cache_size=access.cache_size,
        store_options=access.store_options,
    )
    alone = {"--versus": versus, "--find-limit": find_limit}
    beside = {"--html": html, "--storage": storage, "--apply": apply, "--tune": tune}
    for name, other in itertools.product(_given(alone), _given(beside)):
        raise ConfigError(f"{name} takes no {other}: run the command once with each")
    for other in _given({"--apply": apply, "--tune": tune}) if json_file == "-" else ():
        raise ConfigError(f"{other} prints text, and --json - prints nothing else than JSON; give --json a file")
    if versus is not None:
        _versus(config, versus, rounds, json_file)
        return
    if find_limit:
        _find_limit(config, json_file)
        return
    if tune:
        best = tune_decoder(
            config, lambda load, result: print(f"{load:4.2f}  {result.samples_per_second.median:,.0f} samples/s")
        )
        config = replace(config, hw_decoder_load=best.config.hw_decoder_load)
    with live(config.ranks) as show:
        result = measure(config, show)
    _report(result, storage=storage, json_file=json_file, html=html)
    if tune:
        print(f"best for this GPU   engine_options={{'hw_decoder_load': {config.hw_decoder_load}}}")
    if apply:
        _apply(result)


def _given(options: Mapping[str, object]) -> list[str]:
    """The names of the options that were given."""
    return [name for name, value in options.items() if value not in (None, False)]


def _report(result: "BenchResult", *, storage: bool, json_file: str | None, html: Path | None) -> None:
    from ..bench.html import page
    from ..bench.storage import storage_rates
    from ..bench.text import storage_text, summary

    text, figures = summary(result), result.to_json()
    if storage:
        rates = storage_rates(result.config.dataset)
        figures["storage"] = asdict(rates)
        text += f"\n{storage_text(result, rates)}"
    if not write_json(json_file, figures):
        print(text)
    if html is not None:
        write_text(html, page(result))


def _apply(result: "BenchResult") -> None:
    """Try the verdict's change beside the setting that was measured."""
    from ..bench.versus import versus

    change = result.verdict.change
    known = {field.name for field in fields(result.config)}
    if change is None or change.value is None or change.setting not in known:
        print("applied             nothing: the verdict names no setting that could be tried here")
        return
    changes: dict[str, Any] = {change.setting: change.value}
    other = replace(result.config, **changes)
    with progress("rounds") as show:
        found = versus(result.config, other, rounds=20, progress=partial(show, "in turns"))
    expected = "" if change.expected is None else f", expected up to {change.expected:.2f}"
    print(f"applied             {change.setting}={change.value!r}: {comparison_text(found.comparison)}{expected}")


def _find_limit(config: "BenchConfig", json_file: str | None) -> None:
    from ..bench.limit_search import find_limit
    from ..bench.text import limit_text

    stream = sys.stderr if json_file == "-" else sys.stdout
    heading = "step time    utilisation of the slowest rank\n"

    def show(probe: "Probe") -> None:
        nonlocal heading
        print(f"{heading}{probe.step_seconds:9.5f} s  {probe.utilisation:.1%}", file=stream, flush=True)
        heading = ""

    limit = find_limit(config, show)
    if not write_json(json_file, limit.to_json()):
        print(limit_text(limit))


def _versus(config: "BenchConfig", other: str, rounds: int, json_file: str | None) -> None:
    from ..bench.versus import other_side, versus

    with progress("rounds") as show:
        found = versus(config, other_side(config, other), rounds=rounds, progress=partial(show, "in turns"))
    if not write_json(json_file, found.to_json()):
        print(f"A  {mean(found.a_rates):,.0f} samples/s  {config.dataset}")
        print(f"B  {mean(found.b_rates):,.0f} samples/s  {other}")
        print(f"B is {comparison_text(found.comparison)}")
    if found.comparison.finding == "slower":
        raise typer.Exit(SLOWER)


def _compare(a: Path, b: Path) -> None:
    from ..bench.compare_files import compare_files

    comparison, notes = compare_files(a, b)
    print(f"B is {comparison_text(comparison)}")
    for note in notes:
        print(f"note: {note}")
    if comparison.finding == "slower":
        raise typer.Exit(SLOWER)
