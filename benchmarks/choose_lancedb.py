"""Choosing with LanceDB: `filter` of a StreamingDataset, tables that grow, columns, and splits by hash."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks._choosing import (
    ADDED,
    APPENDED,
    BESIDE,
    CHOSEN,
    LEAST_SCORE,
    RANKS,
    REST,
    SOURCES,
    WANTED_LABELS,
    Feed,
    Place,
    checked,
    decoded,
    payload,
    row,
)

REQUIREMENTS = ("torch==2.13.0", "numpy==2.4.6", "lancedb==0.40.0", "pylance==14.0.2")
VERSIONS = ("lancedb", "pylance", "torch")
IMPORTS = ("torch.utils.data",)  # lancedb has a thread of its own, which a fork would lose
HOW = {
    "all": "StreamingDataset",
    "where": "StreamingDataset(filter=...)",
    "select": 'StreamingDataset(filter="id IN (...)")',
    "grow": "Table.add; a state goes on with the table's version of then",
    "column": "LanceDataset.merge by id",
    "relabel": 'merge_insert("id").when_matched_update_all()',
    "features": "LanceDataset.add_columns with batch_udf(checkpoint_file=...), in one process",
    "three": "StreamingDataset(num_splits=60)",
    "five": "StreamingDataset(num_splits=60)",
    "bad": 'StreamingDataset(on_transform_error="skip")',
    "grouped": 'split_hash(["patient"], [9, 1]), a Permutation in a DataLoader',
}
WHERE = f"label IN {WANTED_LABELS} AND score > {LEAST_SCORE}"


def prepare(folder: Path) -> None:
    """Write a table, and others that get a column, new labels and a bad sample."""
    import lance
    import lancedb
    import pyarrow

    data = lancedb.connect(str(folder))
    for name in ("a", *BESIDE):
        data.create_table(name, [row(number) for number in SOURCES[0]])
    columns = {name: pyarrow.table({"id": list(SOURCES[0]), beside: ADDED}) for name, beside in BESIDE.items()}
    lance.dataset(str(folder / "column.lance")).merge(columns["column"], "id")
    data.open_table("relabel").merge_insert("id").when_matched_update_all().execute(columns["relabel"])
    data.create_table("bad", [{"payload": payload(number)} for number in SOURCES[0]])


def grow(folder: Path) -> None:
    """Add rows to the table."""
    _table(folder).add([row(number) for number in APPENDED])


def _table(folder: Path, name: str = "a") -> Any:
    import lancedb

    return lancedb.connect(str(folder)).open_table(name)


def derive(place: Place, name: str, compute: Callable[[int], int]) -> None:
    """Add a column to a table, on the first rank."""
    import lance
    import pyarrow

    if place.rank:
        return
    path = place.folder / f"{name}.lance"
    if not path.is_dir():
        lance.write_dataset(pyarrow.table({"id": list(SOURCES[0])}), path)

    def features(batch: Any) -> Any:
        values = pyarrow.array([compute(number) for number in batch.column("id").to_pylist()], pyarrow.int64())
        return pyarrow.RecordBatch.from_arrays([values], ["feature"])

    schema = pyarrow.schema({"feature": pyarrow.int64()})
    made = lance.batch_udf(schema, checkpoint_file=path.with_suffix(".checkpoint"))(features)
    lance.dataset(path).add_columns(made, read_columns=["id"], batch_size=64)


def derived(folder: Path, name: str) -> list[tuple[int, int]]:
    """Read the table's columns."""
    import lance

    return [(row["id"], row["feature"]) for row in lance.dataset(folder / f"{name}.lance").to_table().to_pylist()]


def feed(task: str, place: Place) -> Feed:
    """A loader for a task."""
    if task.startswith("grouped"):
        return _Part(task, place)
    return _Feed(task, place)


class _Feed(Feed):
    """Batches of a StreamingDataset."""

    def __init__(self, task: str, place: Place) -> None:
        self._task, self._place = task, place
        self._table = _table(place.folder, task if task in ("bad", *BESIDE) else "a")
        if task not in ("grow", *BESIDE):
            self._table.checkout(1)
        self._data: Any = None

    def _open(self) -> Any:
        from lancedb.streaming import StreamingDataset

        if self._data is None:
            numbers = ", ".join(str(number) for number in CHOSEN)
            world, splits = self._place.world, RANKS  # what is left over is dropped; 2 ranks take the splits of 4
            if self._task in ("three", "five"):
                splits = self._place.global_batch
            bad = {"transform": _decoded, "on_transform_error": "skip"}
            self._data = StreamingDataset(
                self._table,
                num_splits=1 if world == 1 else splits,
                shuffle_seed=0,
                rank=self._place.rank,
                world_size=world,
                filter={"where": WHERE, "select": f"id IN ({numbers})"}.get(self._task),
                **(bad if self._task == "bad" else {}),
            )
        return self._data

    def __iter__(self) -> Iterator[list[int]]:
        from torch.utils.data import DataLoader

        for batch in DataLoader(self._open(), batch_size=self._place.batch_size, num_workers=0):
            numbers = batch["id"].tolist()
            if self._task in BESIDE:
                numbers = checked(numbers, batch[BESIDE[self._task]].tolist())
            yield numbers

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


def _decoded(batch: Any) -> list[dict[str, int]]:
    return [{"id": decoded(data)} for data in batch.column("payload").to_pylist()]


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
