"""`shardio bench`: how fast each rank is fed, what limits that, and what to change."""

import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..bench.accelerators import ACCELERATORS
from ..bench.config import BenchConfig
from ..dataset.store_access import StoreAccess
from ..errors import ConfigError
from ._batch_options import SHUFFLE
from ._options import Shown, count_or_auto, options_of, with_options
from ._output import JsonFile, check_place, write_json, write_text
from ._progress import progress
from ._store_options import with_store_options
from ._view_options import DATASET, ViewChoice, with_view_options

if TYPE_CHECKING:
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
        "shuffle": SHUFFLE,
        "emulate": Shown(kind=Literal[tuple(ACCELERATORS)] | None),
    },
)
MORE = "More than one measurement"

SLOWER = 3
"""The exit code of a comparison that finds B slower than A."""


@with_store_options
@with_view_options
@with_options("options", OPTIONS)
def bench(
    stores: dict[str, Any],
    choice: ViewChoice,
    options: dict[str, Any],
    dataset: Annotated[str, typer.Argument(help=DATASET, metavar="DATASET")],
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
    versus: Annotated[
        str | None,
        typer.Option(
            help="Compare, in turns within one run, with another dataset, other settings such as "
            "threads=4,decode=fast, or both: DATASET,threads=4.",
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
    json_file: JsonFile = None,
    html: Annotated[Path | None, typer.Option(help="Write a report with pictures to this file.")] = None,
) -> None:
    """Measure how fast each rank is fed, name what limits it, and the setting to change.

    With --versus the exit code is 3 if B is slower than A.

    Examples:

      shardio bench data/photos --image-size 224 --seconds 10

      shardio bench data/photos --image-size 224 --ranks 2 --emulate retinanet-b200 --html report.html

      shardio bench data/photos --image-size 224 --emulate retinanet-b200 --find-limit

      shardio bench data/photos --image-size 224 --versus decode=fast

      shardio bench data/photos --where "label in (0, 3)" --seconds 10

      shardio bench data/photos --storage --json bench.json

      shardio bench s3://bucket/photos --cache /local/cache --cache-size 200GB --store-option region=eu-west-1

      shardio bench data/photos --image-size 224 --device cuda --engine dali --versus hw-decoder-load=0.8
    """
    check_place(json_file, "--json")
    check_place(html, "--html")
    place = choice.place(dataset, stores, versus)
    if storage and StoreAccess.of(place, versus, **stores).goes_by_cache(place):
        raise ConfigError(f"--storage reads local files without a cache, got {dataset}")
    given = {"--versus": versus, "--find-limit": find_limit, "--html": html, "--storage": storage}
    names = [name for name, value in given.items() if value]
    if len(names) > 1 and (versus or find_limit):
        raise ConfigError(f"{names[0]} takes no {names[1]}: run the command once with each")
    options |= {name: count_or_auto(options[name], name) for name in ("threads", "prefetch")}
    config = BenchConfig(place, **stores, **options)
    if versus is not None:
        _versus(config, versus, rounds, json_file)
    elif find_limit:
        _find_limit(config, json_file)
    else:
        _measure(config, storage, json_file, html)


def _measure(config: BenchConfig, storage: bool, json_file: str | None, html: Path | None) -> None:
    from ..bench.html import page
    from ..bench.measurement import measure
    from ..bench.rank import suited_to_dataset
    from ..bench.storage import storage_rates
    from ..bench.text import storage_text, summary

    with progress("%") as show:
        result = measure(suited_to_dataset(config), lambda done: show("measuring", round(100 * done), 100))
    text, figures = summary(result), result.to_json()
    if storage:
        rates = storage_rates(config.dataset)
        figures["storage"] = asdict(rates)
        text += f"\n{storage_text(result, rates)}"
    if not write_json(json_file, figures):
        print(text)
    if html is not None:
        write_text(html, page(result))


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
    from ..bench.rank import suited_to_dataset
    from ..bench.versus import other_side, versus

    config = suited_to_dataset(config)
    with progress("rounds") as show:
        found = versus(config, other_side(config, other), rounds=rounds, progress=partial(show, "in turns"))
    if not write_json(json_file, found.to_json()):
        print(f"A  {mean(found.a_rates):,.0f} samples/s  {config.dataset}")
        print(f"B  {mean(found.b_rates):,.0f} samples/s  {other}")
        print(f"B is {found.comparison}")
    if found.comparison.finding == "slower":
        raise typer.Exit(SLOWER)
