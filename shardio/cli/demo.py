"""`shardio demo`: the whole way once, from raw images to a trained model."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    src: Annotated[Path, typer.Argument(help="A folder with train/ and test/ in IDX format.", metavar="SRC")],
    output: Annotated[Path, typer.Option(help="Where everything goes; replaced if it is there.")] = Path("demo-output"),
    epochs: Annotated[int, typer.Option(help="Epochs to train.")] = 10,
    ranks: Annotated[int, typer.Option(help="Processes that train together.")] = 2,
) -> None:
    """Convert, verify, compare, measure, train: everything once, on a small real data set.

    Examples:

      shardio demo examples/fashion-mnist

      shardio demo examples/fashion-mnist --epochs 3 --output /tmp/demo
    """
    from ._demo import run  # here and not above, as it loads torch

    run(src, output, epochs, ranks)
