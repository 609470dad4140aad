"""`shardio stats`: show statistics of a dataset."""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

import typer

from ..care.stats import report
from ..care.stats import stats as dataset_stats
from ..errors import ConfigError
from ._options import Shown, options_of, with_options
from ._output import JsonFile, write_json
from ._progress import progress
from ._store_options import with_store_options
from ._view_options import DATASET, ViewChoice, with_view_options

OPTIONS = options_of(
    dataset_stats,
    {"": "sample seed fill_values channel_axis workers"},
    {
        "sample": Shown(help="Number of random samples to decode images, texts and arrays of, or all."),
        "fill_values": Shown(
            "--fill-value",
            kind=list[str] | None,
            help="A number that stands for a missing value, counted and left out as NaN is: grid=-32768. May be given "
            "several times.",
            metavar="FIELD=VALUE",
        ),
        "channel_axis": Shown(
            kind=list[str] | None,
            help="Axis of arrays with a mean and standard deviation for each place, such as channels: grid=-1, "
            "grid=0,1 for levels of variables, or grid=none. By default, the first, if it has at most 64 places.",
            metavar="FIELD=AXIS",
        ),
        "workers": Shown(help="Number of threads; by default one per core."),
    },
)


@with_store_options
@with_view_options
@with_options("options", OPTIONS)
def stats(
    dataset: Annotated[str, typer.Argument(help=DATASET, metavar="DATASET")],
    stores: dict[str, Any],
    choice: ViewChoice,
    options: dict[str, Any],
    json_file: JsonFile = None,
) -> None:
    """Show what a dataset holds: sizes, classes, images, mean and standard deviation of pixels, values.

    Examples:

      shardio stats data/photos

      shardio stats data/photos --sample 5000

      shardio stats data/photos --where "label in (0, 3)"

      shardio stats data/climate --sample all --fill-value t2m=-32768 --channel-axis t2m=none

      shardio stats s3://bucket/photos --cache /local/cache --cache-size 200GB --store-option region=eu-west-1

      shardio stats data/photos --json - | jq .fields.image.images.channels
    """
    options["sample"] = _sample(options["sample"])
    fill_values: dict[str, list[float]] = {}
    fill_rule = "{fill_values} must be a field and a number such as grid=-32768"
    for name, number in _by_field(options["fill_values"], _number, fill_rule):
        fill_values.setdefault(name, []).append(number)
    axis_rule = "{channel_axis} must be a field and an axis such as grid=-1, grid=0,1 or grid=none"
    options |= {"fill_values": fill_values, "channel_axis": dict(_by_field(options["channel_axis"], _axis, axis_rule))}
    opened = choice.opened(dataset, stores)
    with progress("samples") as show:
        figures = dataset_stats(opened, **options, progress=show)
    if not write_json(json_file, figures.to_dict()):
        print(report.text(figures))


def _sample(text: str) -> int | Literal["all"]:
    if text == "all":
        return "all"
    try:
        return int(text)
    except ValueError:
        raise ConfigError("{sample} must be an integer of at least 0, or all, got {!r}", text) from None


def _by_field(pairs: Sequence[str] | None, parse: Callable[[str], Any], rule: str) -> Iterator[tuple[str, Any]]:
    """Yield the field and the value of strings such as `grid=-32768`; raise ConfigError, by the rule, for others."""
    for pair in pairs or ():
        name, _, value = pair.rpartition("=")
        try:
            yield name, parse(value if name else "")
        except ValueError:
            raise ConfigError(f"{rule}, got {{!r}}", pair) from None


def _number(text: str) -> float:
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


def _axis(text: str) -> int | tuple[int, ...] | None:
    if text == "none":
        return None
    return tuple(map(int, text.split(","))) if "," in text else int(text)
