"""Choosing with LanceDB: `filter` of a StreamingDataset, tables that grow, and splits by hash."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks._choosing import (
    APPENDED,
    CHOSEN,
    LEAST_SCORE,
    RANKS,
    REST,
    SOURCES,
    WANTED_LABELS,
    Feed,
    Place,
    row,
)

REQUIREMENTS = ("torch==2.13.0", "numpy==2.4.6", "lancedb==0.40.0")
VERSIONS = ("lancedb", "torch")
IMPORTS = ("torch.utils.data",)  # lancedb has a thread of its own, which a fork would lose
HOW = {
    "all": "StreamingDataset",
    "where": "StreamingDataset(filter=...)",
    "select": 'StreamingDataset(filter="id IN (...)")',
    "grow": "Table.add; a state goes on with the table's version of then",
    "grouped": 'split_hash(["patient"], [9, 1]), a Permutation in a DataLoader',
}
WHERE = f"label IN {WANTED_LABELS} AND score > {LEAST_SCORE}"


def prepare(folder: Path) -> None:
    """Write a table."""
    import lancedb

    lancedb.connect(str(folder)).create_table("a", [row(number) for number in SOURCES[0]])


def grow(folder: Path) -> None:
    """Add rows to the table."""
    _table(folder).add([row(number) for number in APPENDED])


def _table(folder: Path) -> Any:
    import lancedb

    return lancedb.connect(str(folder)).open_table("a")


def feed(task: str, place: Place) -> Feed:
    """A loader for a task."""
    if task.startswith("grouped"):
        return _Part(task, place)
    return _Feed(task, place)


class _Feed(Feed):
    """Batches of a StreamingDataset."""

    def __init__(self, task: str, place: Place) -> None:
        self._task, self._place = task, place
        self._table = _table(place.folder)
        if task != "grow":
            self._table.checkout(1)
        self._data: Any = None

    def _open(self) -> Any:
        from lancedb.streaming import StreamingDataset

        if self._data is None:
            numbers = ", ".join(str(number) for number in CHOSEN)
            world = self._place.world
            self._data = StreamingDataset(
                self._table,
                num_splits=1 if world == 1 else RANKS,  # what is left over is dropped; 2 ranks take the splits of 4
                shuffle_seed=0,
                rank=self._place.rank,
                world_size=world,
                filter={"where": WHERE, "select": f"id IN ({numbers})"}.get(self._task),
            )
        return self._data

    def __iter__(self) -> Iterator[list[int]]:
        from torch.utils.data import DataLoader

        for batch in DataLoader(self._open(), batch_size=self._place.batch_size, num_workers=0):
            yield batch["id"].tolist()

    def save(self, path: Path) -> None:
        """Write this rank's state, and the version of the table."""
        path.write_text(json.dumps([self._table.version, self._open().state_dict()]))

    def load(self, path: Path) -> None:
        """Merge the states of all ranks, as the manual says."""
        from lancedb.streaming import StreamingDataset

        stem = path.name.rpartition("-")[0]
        found = [json.loads(path.with_name(f"{stem}-{rank}").read_text()) for rank in range(RANKS)]
        self._table.checkout(found[0][0])
        self._open().load_state_dict(StreamingDataset.merge_state_dicts([state for _, state in found]))


class _Part(Feed):
    """Batches of one part of a split, which a DistributedSampler shares out; it has no state."""

    def __init__(self, task: str, place: Place) -> None:
        self._part, self._place = int(task.endswith(REST)), place

    def __iter__(self) -> Iterator[list[int]]:
        from lancedb.permutation import Permutation, permutation_builder
        from torch.utils.data import DataLoader, DistributedSampler

        table = _table(self._place.folder)
        table.checkout(1)
        made = permutation_builder(table).split_hash(["patient"], [9, 1], discard_weight=0).execute()
        data: Any = Permutation.from_tables(table, made, split=self._part)
        sampler: Any = DistributedSampler(data, self._place.world, self._place.rank, seed=0)
        for batch in DataLoader(data, batch_size=self._place.batch_size, sampler=sampler, num_workers=0):
            yield batch["id"].tolist()
