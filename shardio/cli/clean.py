"""`shardio clean`: remove what killed and replaced writers left at a dataset's place."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..care.clean import clean as run
from ..stores.url import as_url
from ..system.units import counted, format_size
from ._options import Shown, options_of, with_options
from ._store_options import with_store_option

OPTIONS = options_of(
    run, {"": "dry_run older_than everything"}, {"older_than": Shown(metavar="AGE"), "everything": Shown("--all")}
)


@with_store_option
@with_options("options", OPTIONS)
def clean(
    stores: dict[str, Any],
    dataset: Annotated[
        Path, typer.Argument(help="The dataset's directory, or its URL: s3://bucket/photos.", metavar="DATASET")
    ],
    options: dict[str, Any],
) -> None:
    """Remove what killed writers and replaced conversions left at a dataset's place: what no manifest there names.

    Only files and objects go that have names which shardio alone gives, and nothing below the dataset's place: a split
    is a dataset of its own. In a folder, nothing goes that a running process holds a lock on.

    Examples:

      shardio clean packed --dry-run

      shardio clean packed --older-than 2h

      shardio clean s3://bucket/photos
    """
    result = run(dataset, **options, **stores)
    for info in result.removed:
        print(f"{info.name}  {format_size(info.size)}")
    done = "would be removed" if options["dry_run"] else "removed"
    url = as_url(dataset)
    noun = "item" if url is None else "object"
    print(f"{url or dataset}: {counted(len(result.removed), noun)} {done}, {format_size(result.bytes)}")
    if result.kept:
        print(
            f"{counted(len(result.kept), noun)} kept, which a writer may be at work on or which are younger than "
            f"{options['older_than']}; --all removes what no process holds"
        )
