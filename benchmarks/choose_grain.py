"""Choosing with Grain: `filter`, selection maps, `repeat` and `mix` of a MapDataset, ElasticIterator."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import bench_grain
from benchmarks._choosing import (
    APPENDED,
    CHANGE,
    CHOSEN,
    CLASS_SIZES,
    GLOBAL_BATCH,
    LATER_SHARES,
    MIXED,
    PER_CLASS,
    SAMPLES,
    SHARES,
    SOURCES,
    Feed,
    LoaderFeed,
    Place,
    is_wanted,
    of_class,
    row,
)

REQUIREMENTS = bench_grain.REQUIREMENTS
VERSIONS = ("grain", "array-record")
IMPORTS = ("grain",)
ELASTIC = "ElasticIterator"
HOW = {
    "all": "MapDataset.shuffle",
    "where": "MapDataset.filter",
    "select": "select_from_datasets with a map of your own",
    "repeat": "shuffle().repeat(3)[:2560]",
    "balanced": "MapDataset.mix of a dataset per class",
    "mix": "MapDataset.mix",
    "stages": "IterDataset.mix, its state taken with other weights",
    "grow": "a longer list of files",
}


def prepare(folder: Path) -> None:
    """Write an ArrayRecord file per source."""
    folder.mkdir(parents=True)
    for name, numbers in zip("abc", SOURCES, strict=True):
        _write(folder / f"{name}-0.array_record", numbers)


def grow(folder: Path) -> None:
    """Write another file."""
    _write(folder / "a-1.array_record", APPENDED)


def _write(path: Path, numbers: range) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for number in numbers:
        writer.write(json.dumps(row(number)).encode())
    writer.close()


def feed(task: str, place: Place) -> Feed:
    """A loader for a task."""
    if task == "stages":
        return _Stages(place)
    return _Feed(_iterator(_dataset(task, place.folder), place))


def _dataset(task: str, folder: Path) -> Any:
    import grain

    files = sorted(folder.glob("a-*.array_record"))
    data = _source(files if task == "grow" else files[:1])
    if task == "where":
        return data.filter(is_wanted).seed(0).shuffle()
    if task == "select":
        return _chosen(data, CHOSEN.tolist()).seed(0).shuffle()
    if task == "repeat":
        return data.seed(0).shuffle().repeat(3)[: SAMPLES * 5 // 2]
    if task == "balanced":
        classes = range(len(CLASS_SIZES))
        parts = [_chosen(data, of_class(number)).seed(number).shuffle().repeat() for number in classes]
        return grain.MapDataset.mix(parts)[: PER_CLASS * len(classes)]
    if task == "mix":
        parts = [_source([folder / f"{name}-0.array_record"]).seed(0).shuffle().repeat() for name in "abc"]
        return grain.MapDataset.mix(parts, SHARES)[:MIXED]
    return data.seed(0).shuffle()


def _source(files: list[Path]) -> Any:
    import grain

    records = grain.sources.ArrayRecordDataSource([str(path) for path in files])
    return grain.MapDataset.source(records).map(json.loads)


def _chosen(data: Any, numbers: list[int]) -> Any:
    import grain

    return grain.MapDataset.select_from_datasets([data], _Chosen(numbers))


class _Chosen:
    """A selection map: the numbers in their order."""

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> tuple[int, int]:
        return 0, self._numbers[index % len(self._numbers)]


def _iterator(data: Any, place: Place) -> Any:
    import grain

    if place.elastic:
        from grain.sharding import ShardOptions

        shard = ShardOptions(shard_index=place.rank, shard_count=place.world)
        return iter(grain.experimental.ElasticIterator(data, GLOBAL_BATCH, shard))
    return iter(data[place.rank :: place.world].to_iter_dataset().batch(place.batch_size))


class _Feed(LoaderFeed):
    """Batches of an iterator of Grain."""

    def state(self) -> Any:
        """The iterator's state."""
        return self.loader.get_state()

    def restore(self, state: Any) -> None:
        """Take a state."""
        self.loader.set_state(state)


class _Stages(Feed):
    """The mixture with the first weights, then one with the others that takes its state."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._taken = 0
        self._iterator = self._mixed(SHARES)

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            if self._taken == CHANGE // GLOBAL_BATCH:
                state = self._iterator.get_state()
                self._iterator = self._mixed(LATER_SHARES)
                self._iterator.set_state(state)
            self._taken += 1
            yield next(self._iterator)["id"].tolist()

    def _mixed(self, shares: tuple[int, ...]) -> Any:
        import grain

        files = [self._place.folder / f"{name}-0.array_record" for name in "abc"]
        rank, world = self._place.rank, self._place.world
        parts = [_source([file]).seed(0).shuffle()[rank::world].to_iter_dataset() for file in files]
        return iter(grain.IterDataset.mix(parts, shares).batch(self._place.batch_size))

    def state(self) -> Any:
        """The steps taken, and the iterator's state."""
        return self._taken, self._iterator.get_state()

    def restore(self, state: Any) -> None:
        """Take a state."""
        self._taken, iterator = state
        self._iterator = self._mixed(SHARES if self._taken < CHANGE // GLOBAL_BATCH else LATER_SHARES)
        self._iterator.set_state(iterator)
