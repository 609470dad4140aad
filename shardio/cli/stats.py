"""`shardio stats`: show statistics of a dataset."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..dataset.store_access import StoreAccess
from ..errors import ConfigError
from ._output import JsonFile, write_json
from ._progress import progress
from ._store_options import DATASET, with_store_options


@with_store_options
def stats(
    dataset: Annotated[str, typer.Argument(help=DATASET, metavar="DATASET")],
    stores: StoreAccess,
    sample: Annotated[
        str, typer.Option(help="Number of random samples to decode images, texts and arrays of, or all.")
    ] = "1000",
    seed: Annotated[int, typer.Option(help="Seed of the choice of samples.")] = 0,
    fill_value: Annotated[
        list[str] | None,
        typer.Option(
            help="A number that stands for a missing value, counted and left out as NaN is: grid=-32768. May be given "
            "several times.",
            metavar="FIELD=VALUE",
        ),
    ] = None,
    channel_axis: Annotated[
        list[str] | None,
        typer.Option(
            help="Axis of arrays with a mean and standard deviation for each place, such as channels: grid=-1, or "
            "grid=none. By default, the first, if it has at most 64 places.",
            metavar="FIELD=AXIS",
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Number of threads; by default one per core.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Draw the figures as a PNG to this file; needs matplotlib.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Show what a dataset holds: sizes, classes, images, mean and standard deviation of pixels, values.

    Examples:

      shardio stats data/photos

      shardio stats data/photos --sample 5000 -o photos.png

      shardio stats data/climate --sample all --fill-value t2m=-32768 --channel-axis t2m=none

      shardio stats s3://bucket/photos --cache /local/cache --cache-size 200GB --store-option region=eu-west-1

      shardio stats data/photos --json - | jq .fields.image.images.channels
    """
    from ..care.stats import picture, report
    from ..care.stats import stats as dataset_stats  # imported here because it loads a decoder

    if output is not None:
        picture.check(output)
    access = stores.check_needed(dataset).keywords_for(dataset)
    with progress("samples") as show:
        figures = dataset_stats(
            dataset,
            sample=_sample(sample),
            seed=seed,
            fill_values=_fill_values(fill_value or []),
            channel_axis=_channel_axis(channel_axis or []),
            workers=workers,
            progress=show,
            **access,
        )
    if not write_json(json_file, figures.to_dict()):
        print(report.text(figures))
    if output is not None:
        picture.draw(figures, output)


def _sample(text: str) -> int | Literal["all"]:
    if text == "all":
        return "all"
    try:
        return int(text)
    except ValueError:
        raise ConfigError("{sample} must be a whole number of at least 0, or all, got {!r}", text) from None


def _fill_values(pairs: Sequence[str]) -> dict[str, list[float]]:
    """Return the numbers in texts such as `grid=-32768` by field; a field may have several."""
    found: dict[str, list[float]] = {}
    for pair in pairs:
        name, _, value = pair.rpartition("=")
        try:
            found.setdefault(name, []).append(int(value) if value.lstrip("+-").isdecimal() else float(value))
        except ValueError:
            name = ""
        if not name:
            raise ConfigError("{fill_value} must be a field and a number such as grid=-32768, got {!r}", pair)
    return found


def _channel_axis(pairs: Sequence[str]) -> dict[str, int | None]:
    """Return the axes in texts such as `grid=-1` and `grid=none` by field."""
    found: dict[str, int | None] = {}
    for pair in pairs:
        name, _, axis = pair.rpartition("=")
        try:
            found[name] = None if axis == "none" else int(axis)
        except ValueError:
            name = ""
        if not name:
            raise ConfigError("{channel_axis} must be a field and an axis such as grid=-1 or grid=none, got {!r}", pair)
    return found
