"""`shardio demo`: every step once, from raw images to a trained model."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    src: Annotated[Path, typer.Argument(help="A folder with train/ and test/ in IDX format.", metavar="SRC")],
    output: Annotated[
        Path, typer.Option(help="The directory for all results; those of an earlier demo are replaced.")
    ] = Path("demo-output"),
    epochs: Annotated[int, typer.Option(help="The number of epochs to train.")] = 10,
    ranks: Annotated[int, typer.Option(help="The number of processes that train together.")] = 2,
) -> None:
    """Convert, verify, compare, measure and train: every step once, on a small real data set.

    Examples:

      shardio demo examples/fashion-mnist

      shardio demo examples/fashion-mnist --epochs 3 --output /tmp/demo
    """
    from ._demo import run  # not above, because it loads torch

    run(src, output, epochs, ranks)
