"""`shardio clean`: remove from a store what unfinished and replaced conversions left."""

from pathlib import Path
from typing import Annotated

import typer

from ..care.clean import clean as run
from ..dataset.store_access import StoreAccess
from ..stores.url import as_url
from ..system.units import counted, format_size
from ._store_options import with_store_option


@with_store_option
def clean(
    stores: StoreAccess,
    dataset: Annotated[Path, typer.Argument(help="The dataset's URL: s3://bucket/photos.", metavar="URL")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing; list what would go.")] = False,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Also what is younger than a day, or of a conversion that wrote something within a day: it ends "
            "conversions that are running, and loaders that read a dataset replaced within that day.",
        ),
    ] = False,
) -> None:
    """Remove shards and records of unfinished and replaced conversions from a store: what no manifest there names.

    Only objects go that have names which shardio alone gives, and nothing below the dataset's place: a split is a
    dataset of its own.

    Examples:

      shardio clean s3://bucket/photos --dry-run

      shardio clean s3://bucket/photos
    """
    result = run(dataset, dry_run=dry_run, everything=everything, store_options=stores.store_options)
    for info in result.removed:
        print(f"{info.name}  {format_size(info.size)}")
    done = "would be removed" if dry_run else "removed"
    place = as_url(dataset) or dataset
    print(f"{place}: {counted(len(result.removed), 'object')} {done}, {format_size(result.bytes)}")
    if result.kept:
        print(
            f"{counted(len(result.kept), 'object')} may be of a conversion that is running, within the last day, and "
            "stay; --all removes them too"
        )
