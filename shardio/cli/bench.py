"""`shardio bench`: how fast each rank is fed, what limits that, and what to change."""

import itertools
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..bench import ACCELERATORS, BenchConfig
from ..dataset.store_access import StoreAccess
from ..errors import ConfigError
from ..stores.url import as_url
from ._bench_display import comparison_text, live
from ._options import Shown, count_or_auto, options_of, with_options
from ._output import check_place, write_json, write_text
from ._progress import progress
from ._store_options import DATASET, with_store_options

if TYPE_CHECKING:
    from ..bench import BenchResult
    from ..bench.limit_search import Probe

OPTIONS = options_of(
    BenchConfig,
    {
        "": "batch_size epochs seconds warmup ranks",
        "Loader": (
            "transforms image_size floats map map_by decode shuffle seed threads prefetch isolate engine "
            "device hw_decoder_load on_bad_sample"
        ),
        "Training step": "emulate step_time barrier",
    },
    {
        "shuffle": Shown(kind=Literal["global", "block", "none"]),
        "emulate": Shown(kind=Literal[tuple(ACCELERATORS)] | None),
    },
)
MORE = "More than one measurement"

SLOWER = 3
"""The exit code of a comparison that finds B slower than A."""


@with_store_options
@with_options("options", OPTIONS)
def bench(
    stores: StoreAccess,
    options: dict[str, Any],
    dataset: Annotated[str | None, typer.Argument(help=DATASET, metavar="DATASET", show_default=False)] = None,
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
    from ..bench import measure, tune_decoder  # imported here because it loads torch

    access = stores.check_needed(dataset, versus)
    if storage and as_url(dataset) is not None:
        raise ConfigError(f"--storage reads local files, got the URL {dataset}")
    options |= {name: count_or_auto(options[name], name) for name in ("threads", "prefetch")}
    options["shuffle"] = None if options["shuffle"] == "none" else options["shuffle"]
    cache = None if access.cache is None else str(access.cache)
    config = BenchConfig(
        dataset, cache=cache, cache_size=access.cache_size, store_options=access.store_options, **options
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


def _find_limit(config: BenchConfig, json_file: str | None) -> None:
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


def _versus(config: BenchConfig, other: str, rounds: int, json_file: str | None) -> None:
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
