"""`shardio show`: draw a contact sheet."""

from pathlib import Path
from typing import Annotated

import typer

from ..dataset.dataset import open as open_dataset


def show(
    dataset: Annotated[Path, typer.Argument(help="The dataset's directory.", metavar="DATASET")],
    output: Annotated[Path, typer.Option("--output", "-o", help="PNG to write.")] = Path("sheet.png"),
    samples: Annotated[int, typer.Option(help="Number of samples to show.")] = 32,
    columns: Annotated[int, typer.Option(help="Samples per row.")] = 8,
    augment: Annotated[bool, typer.Option("--augment", help="Crop and flip at random, as for training.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the choice of samples and of the crops.")] = 0,
) -> None:
    """Draw a contact sheet: images in one picture, with their indices and labels. Arrays are not drawn.

    Examples:

      shardio show data/photos -o sheet.png

      shardio show data/photos -o augmented.png --augment --samples 64
    """
    from ..care.contact_sheet import contact_sheet  # imported here because it loads torch

    count = contact_sheet(open_dataset(dataset), output, samples=samples, columns=columns, augment=augment, seed=seed)
    print(f"{output}: {count} samples of {dataset}")
