"""`shardio show`: draw a contact sheet."""

from pathlib import Path
from typing import Annotated

import typer

from ..dataset.dataset import open as open_dataset
from ..dataset.store_access import StoreAccess
from ._store_options import DATASET, with_store_options


@with_store_options
def show(
    dataset: Annotated[str, typer.Argument(help=DATASET, metavar="DATASET")],
    stores: StoreAccess,
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

      shardio show s3://bucket/photos --cache /local/cache --cache-size 200GB --store-option region=eu-west-1
    """
    from ..care.contact_sheet import contact_sheet  # imported here because it loads torch

    opened = open_dataset(dataset, **stores.check_needed(dataset).keywords_for(dataset))
    count = contact_sheet(opened, output, samples=samples, columns=columns, augment=augment, seed=seed)
    print(f"{output}: {count} samples of {dataset}")
