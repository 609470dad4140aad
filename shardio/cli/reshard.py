"""`shardio reshard`: write the same samples to other shards."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..conversion.dataset_source import DatasetSource
from ..dataset.store_access import StoreAccess
from ..errors import ConfigError, Option
from ._conversion import OUTPUT, convert, with_conversion_options
from ._store_options import with_store_options
from ._view_options import DATASET, ViewChoice, with_part_options


@with_store_options
@with_part_options
@with_conversion_options
def reshard(
    dataset: Annotated[str, typer.Argument(help=DATASET, metavar="IN")],
    out: Annotated[str, typer.Argument(help=OUTPUT, metavar="OUT")],
    conversion: dict[str, Any],
    choice: dict[str, Any],
    stores: dict[str, Any],
) -> None:
    """Rewrite a dataset in another container, in shards of another size, or in another order.

    Samples are copied as they are stored, and checked on the way. The digest stays the same unless options choose,
    reorder or change samples. IN may be a view. --split writes every part as a dataset, or with --part that part alone.

    Examples:

      shardio reshard data/photos data/photos-h5 --to hdf5 --shard-size 1GB

      shardio reshard data/photos data/shuffled --shuffle 1

      shardio reshard data/photos data/val --split train=0.9,val=0.1 --part val --split-by label

      shardio reshard s3://bucket/photos data/photos --cache /local/cache --store-option region=eu-west-1

      shardio reshard data/photos data/parts --split train=0.9,val=0.1
    """
    for name in ("split_by", "split_group"):
        if choice[name] is not None and choice["part"] is None:
            raise ConfigError("{} goes with {part}", Option(name))
    if choice["part"] is not None:
        choice |= {name: conversion.pop(name) for name in ("where", "split")}
    place = ViewChoice(**choice).place(dataset, stores, out)
    source = DatasetSource([place], StoreAccess.of(place, out, **stores))
    convert(source, Path(out), conversion, stores["store_options"])
