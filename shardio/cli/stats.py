"""`shardio stats`: show statistics of a dataset."""

from pathlib import Path
from typing import Annotated

import typer

from ._output import write_json
from ._progress import progress
from ._store_options import DATASET, StoreOptions, with_store_options


@with_store_options
def stats(
    dataset: Annotated[str, typer.Argument(help=DATASET, metavar="DATASET")],
    stores: StoreOptions,
    sample: Annotated[int, typer.Option(help="Number of random samples to decode images, texts and arrays of.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the choice of samples.")] = 0,
    workers: Annotated[int | None, typer.Option(help="Number of threads; by default one per core.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Draw the figures as a PNG to this file; needs matplotlib.")
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option("--json", help="Write all figures as JSON to this file; - is standard output.", metavar="FILE"),
    ] = None,
) -> None:
    """Show what a dataset holds: sizes, classes, images, mean and standard deviation of pixels, values.

    Examples:

      shardio stats data/photos

      shardio stats data/photos --sample 5000 -o photos.png

      shardio stats s3://bucket/photos --cache /local/cache --cache-size 200GB --store-option region=eu-west-1

      shardio stats data/photos --json - | jq .fields.image.images.channels
    """
    from ..care.stats import picture, report
    from ..care.stats import stats as dataset_stats  # imported here because it loads a decoder

    if output is not None:
        picture.check(output)
    access = stores.access(dataset).keywords_for(dataset)
    with progress("samples") as show:
        figures = dataset_stats(dataset, sample=sample, seed=seed, workers=workers, progress=show, **access)
    if not write_json(json_file, figures.to_dict()):
        print(report.text(figures))
    if output is not None:
        picture.draw(figures, output)
