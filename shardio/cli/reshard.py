"""`shardio reshard`: write the same samples to other shards."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..conversion.dataset_source import DatasetSource
from ..dataset.store_access import StoreAccess
from ._conversion import OUTPUT, convert, with_conversion_options
from ._store_options import DATASET, with_store_options


@with_store_options
@with_conversion_options
def reshard(
    dataset: Annotated[str, typer.Argument(help=DATASET, metavar="IN")],
    out: Annotated[str, typer.Argument(help=OUTPUT, metavar="OUT")],
    conversion: dict[str, Any],
    stores: StoreAccess,
) -> None:
    """Rewrite a dataset in another container, in shards of another size, or in another order.

    Samples are copied as they are stored, and checked on the way. The digest stays the same unless options choose,
    reorder or change samples.

    Examples:

      shardio reshard data/photos data/photos-h5 --to hdf5 --shard-size 1GB

      shardio reshard data/photos data/shuffled --shuffle 1

      shardio reshard s3://bucket/photos data/photos --cache /local/cache --cache-size 200GB \
          --store-option region=eu-west-1

      shardio reshard data/photos data/parts --split train=0.9,val=0.1
    """
    source = DatasetSource([dataset], stores.check_needed(dataset, out))
    convert(source, Path(out), conversion, stores.store_options)
