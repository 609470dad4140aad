"""`shardio index`: make a dataset of files that other programs wrote, in place."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..conversion.api import convert
from ..conversion.indexing import index as adopt_files
from ..dataset.opening import as_dataset
from ..dataset.store_access import StoreAccess
from ..errors import ConfigError, Message
from ..format.keys import KEY
from ..stores.url import Url
from ..views.key_table import key_table
from ._conversion import WORKERS, print_dataset, run
from ._options import Shown, options_of, with_options
from ._store_options import with_store_option

OPTIONS = options_of(
    adopt_files,
    {
        "": (
            "fields optional mask key format axis decode_cf stack merge sample missing_chunks checksums workers dask "
            "resume overwrite on_error max_bad report strict sort files"
        ),
    },
    {"report": Shown(kind=Path | None), "workers": WORKERS},
    like=convert,
)


@with_store_option
@with_options("options", OPTIONS)
def index(
    stores: dict[str, Any],
    paths: Annotated[
        list[str],
        typer.Argument(
            help="Files, directories of files, or patterns, all of one format, whatever their names; or URLs of such "
            "objects. With --keys, a dataset, and the field of its keys if that is not called key.",
            metavar="PATH...",
        ),
    ],
    options: dict[str, Any],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="The dataset's directory; the URL that objects are in.", metavar="OUT"),
    ] = None,
    keys: Annotated[
        bool, typer.Option("--keys", help="Write the index by which find looks up the keys of a dataset.")
    ] = False,
) -> None:
    """Adopt tars, TFRecords, LMDBs, HDF5 files or Zarr stores in place: write an index and a manifest, copy nothing.

    All samples are read once, for their checksums, but those of Zarr stores only with --checksums. If OUT is the
    files' own directory, the index is written next to them; otherwise OUT holds links to them. The files must not be
    changed afterwards. Tars and TFRecords in a store are streamed once each; OUT is the URL that they are in, and the
    index is written there.

    Examples:

      shardio index shards/*.tar -o data/photos

      shardio index shards -o shards --fields image=jpg,label=cls --files "train-*"

      shardio index train.h5 -o data/train --fields image=data/images,label=data/labels

      shardio index demos.h5 -o data/demos --sample group

      shardio index months -o data/months --fields t2m,time --decode-cf

      shardio index months -o data/months --fields time --stack x=t2m,u10,v10 --decode-cf

      shardio index era5.zarr -o data/era5 --axis time --decode-cf

      shardio index u10.nc v10.nc -o data/wind --merge --fields time --stack wind=u10,v10

      shardio index records -o data/records --strict

      shardio index 's3://bucket/photos/*.tar' -o s3://bucket/photos --store-option region=eu-west-1 --resume

      shardio index --keys data/photos
    """
    if keys:
        place, on = (*paths, KEY)[:2]
        if len(paths) > 2 or output is not None:
            rule = "{keys} takes a dataset and at most one field of it, and writes no {output}; got {}"
            raise ConfigError(Message(rule, ", ".join(paths)))
        table = key_table(as_dataset(place, StoreAccess.of(place, **stores)), on, always=True)
        print(f"{place}: an index finds {len(table):,} samples by {on!r}")
        return
    if output is None:
        raise ConfigError(Message("{output} must name the dataset's directory, or its URL"))
    made = run(partial(adopt_files, paths, output), **stores, **options)
    if made is not None:
        (dataset,) = made.datasets.values()
        print_dataset(dataset.path if isinstance(dataset.path, Url) else Path(output), dataset)
