"""Choosing with MosaicML Streaming: streams with `repeat`, `choose` and `proportion`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import bench_streaming
from benchmarks._choosing import (
    APPENDED,
    CHANGE,
    CLASS_SIZES,
    GLOBAL_BATCH,
    LATER_SHARES,
    MIXED,
    PER_CLASS,
    SHARES,
    SOURCES,
    Feed,
    LoaderFeed,
    Place,
    of_class,
    row,
)

REQUIREMENTS = bench_streaming.REQUIREMENTS
WITHOUT_DEPENDENCIES = bench_streaming.WITHOUT_DEPENDENCIES
STAND_INS = bench_streaming.STAND_INS
VERSIONS = ("mosaicml-streaming", "torch")
IMPORTS = ("streaming",)
HOW = {
    "all": "StreamingDataset",
    "repeat": "Stream(repeat=2.5)",
    "balanced": "a Stream per class with choose",
    "mix": "Streams with proportion, and epoch_size",
    "stages": "the state taken with other proportions",
    "grow": "another folder of shards, merge_index",
    "three": "StreamingDataset",
    "five": "StreamingDataset",
}
COLUMNS = {"id": "int", "label": "int", "score": "float64", "patient": "int"}


def prepare(folder: Path) -> None:
    """Write a folder of shards per source, and one per class."""
    for name, numbers in zip("abc", SOURCES, strict=True):
        _write(folder / name, list(numbers))
    for number in range(len(CLASS_SIZES)):
        _write(folder / f"class-{number}", of_class(number))
    _write(folder / "grown" / "0", list(SOURCES[0]))
    _merge(folder / "grown")


def grow(folder: Path) -> None:
    """Write new shards into a folder next to the old ones, and merge the indexes."""
    _write(folder / "grown" / "1", list(APPENDED))
    _merge(folder / "grown")


def _write(path: Path, numbers: list[int]) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(path), columns=COLUMNS, size_limit=1 << 12) as writer:
        for number in numbers:
            writer.write(row(number))


def _merge(folder: Path) -> None:
    from streaming.base.util import merge_index

    (folder / "index.json").unlink(missing_ok=True)
    merge_index(str(folder))


def feed(task: str, place: Place) -> Feed:
    """A loader for a task."""
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    if task == "stages":
        return _Stages(place)
    return LoaderFeed(_loader(place, **_data(task, place.folder)))


def _data(task: str, folder: Path) -> dict[str, Any]:
    from streaming import Stream

    if task in ("all", "three", "five"):
        return {"local": str(folder / "a")}
    if task == "repeat":
        return {"streams": [Stream(local=str(folder / "a"), repeat=2.5)]}
    if task == "balanced":
        classes = range(len(CLASS_SIZES))
        return {"streams": [Stream(local=str(folder / f"class-{number}"), choose=PER_CLASS) for number in classes]}
    if task == "mix":
        return _mixed(folder, SHARES)
    return {"local": str(folder / "grown")}


def _mixed(folder: Path, shares: tuple[int, ...]) -> dict[str, Any]:
    from streaming import Stream

    parts = [Stream(local=str(folder / name), proportion=share) for name, share in zip("abc", shares, strict=True)]
    return {"streams": parts, "epoch_size": MIXED}


def _loader(place: Place, **data: Any) -> Any:
    from streaming import StreamingDataLoader, StreamingDataset

    samples = StreamingDataset(batch_size=place.batch_size, shuffle=True, shuffle_seed=0, **data)
    return StreamingDataLoader(samples, batch_size=place.batch_size, num_workers=0)


class _Stages(Feed):
    """The mixture with the first proportions, then one with the others that takes its state."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._taken = 0
        self._state: dict[str, Any] | None = None
        self._loader: Any = None

    def __iter__(self) -> Iterator[list[int]]:
        from streaming.base.util import clean_stale_shared_memory

        change = CHANGE // GLOBAL_BATCH
        for first, last, shares in ((0, change, SHARES), (change, MIXED // GLOBAL_BATCH, LATER_SHARES)):
            if not first <= self._taken < last:
                continue
            if self._loader is not None:
                self._state, self._loader = self._loader.state_dict(), None
                clean_stale_shared_memory()
            self._loader = _loader(self._place, **_mixed(self._place.folder, shares))
            if self._state is not None:
                self._loader.load_state_dict(self._state)
            for batch in self._loader:
                self._taken += 1
                yield batch["id"].tolist()
                if self._taken == last:
                    break

    def state(self) -> Any:
        """The steps taken, and the loader's state."""
        return self._taken, self._loader.state_dict()

    def restore(self, state: Any) -> None:
        """Take a state."""
        self._taken, self._state = state
