"""`shardio stats`: what is in a dataset."""

from pathlib import Path
from typing import Annotated

import typer

from ..dataset.dataset import open as open_dataset
from ._output import write_json
from ._progress import progress


def stats(
    dataset: Annotated[Path, typer.Argument(help="The dataset's directory.", metavar="DATASET")],
    sample: Annotated[
        int, typer.Option(help="Samples, chosen at random, whose images, texts and arrays are decoded.")
    ] = 1000,
    seed: Annotated[int, typer.Option(help="Which samples.")] = 0,
    workers: Annotated[int | None, typer.Option(help="Threads; without it one per core.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Draw the figures to this PNG; needs matplotlib.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write all figures to this file; - is standard output.", metavar="FILE")
    ] = None,
) -> None:
    """Tell what is in a dataset: sizes, classes, images, mean and deviation of pixels, values.

    Examples:

      shardio stats data/photos

      shardio stats data/photos --sample 5000 -o photos.png

      shardio stats data/photos --json - | jq .fields.image.images.channels
    """
    from ..care.stats import picture, report
    from ..care.stats import stats as dataset_stats  # here and not above, as it loads a decoder

    if output is not None:
        picture.check(output)
    with progress("samples") as show:
        found = dataset_stats(open_dataset(dataset), sample=sample, seed=seed, workers=workers, progress=show)
    if not write_json(json_file, found.to_dict()):
        print(report.text(found))
    if output is not None:
        picture.draw(found, output)
