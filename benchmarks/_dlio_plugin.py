"""Feeds the DLIO benchmark from a shardio Loader: its `data_loader_classname`. Imported by DLIO, in its environment."""

import os
from collections.abc import Iterator
from typing import Any

from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader

import shardio


class ShardioDataLoader(BaseDataLoader):  # type: ignore[misc]  # DLIO is not installed where types are checked
    """A Loader in the place of DLIO's own loaders."""

    def __init__(self, format_type: Any, dataset_type: Any, epoch: int) -> None:
        super().__init__(format_type, dataset_type, epoch, DataLoaderType.PYTORCH)

    def read(self) -> None:
        """Make the Loader, once."""
        rank, ranks = self._args.my_rank, self._args.comm_size
        world = shardio.World(rank, ranks, rank, ranks)
        threads = int(os.environ["SHARDIO_DLIO_THREADS"])
        dataset = shardio.open(os.environ["SHARDIO_DLIO_DATASET"])
        self._loader = shardio.Loader(dataset, self.batch_size, world=world, threads=threads, tail="drop")

    def next(self) -> Iterator[Any]:
        """Return the batches of the next epoch."""
        return iter(self._loader if self.dataset_type is DatasetType.TRAIN else ())

    def finalize(self) -> None:
        """Do nothing: the Loader goes on with the next epoch."""
