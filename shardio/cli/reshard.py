"""`shardio reshard`: write the same samples to other shards."""

from pathlib import Path
from typing import Annotated

import typer

from ..conversion.dataset_source import DatasetSource
from ._packing import OUTPUT, PackingOptions, with_packing_options
from ._store_options import DATASET, StoreOptions, with_store_options


@with_store_options
@with_packing_options
def reshard(
    dataset: Annotated[str, typer.Argument(help=DATASET, metavar="IN")],
    out: Annotated[str, typer.Argument(help=OUTPUT, metavar="OUT")],
    packing: PackingOptions,
    stores: StoreOptions,
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
    source = DatasetSource([dataset], stores.access(dataset, out))
    packing.convert(source, Path(out), stores.for_output(out))
