"""Choosing with LitData: `subset`, `subsample`, CombinedStreamingDataset, and `optimize` that appends."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import bench_litdata
from benchmarks._choosing import (
    APPENDED,
    CHANGE,
    CHOSEN,
    CLASS_SIZES,
    GLOBAL_BATCH,
    LATER_SHARES,
    PER_CLASS,
    SHARES,
    SOURCES,
    Feed,
    LoaderFeed,
    Place,
    of_class,
    row,
)

REQUIREMENTS = bench_litdata.REQUIREMENTS
VERSIONS = ("litdata", "torch")
IMPORTS = ("litdata",)
ENVIRONMENT = bench_litdata.ENVIRONMENT
HOW = {
    "all": "StreamingDataset",
    "select": "StreamingDataset.subset",
    "repeat": "StreamingDataset(subsample=2.5)",
    "balanced": "a dataset per class with subsample, CombinedStreamingDataset",
    "mix": "CombinedStreamingDataset with weights",
    "stages": "CombinedStreamingDataset, its state taken with other weights",
    "grow": 'optimize(mode="append")',
}
CHUNK = 64


def prepare(folder: Path) -> None:
    """Write a dataset per source, and one per class."""
    for name, numbers in zip("abc", SOURCES, strict=True):
        _write(folder / name, list(numbers))
    _write(folder / "grown", list(SOURCES[0]))
    for number in range(len(CLASS_SIZES)):
        _write(folder / f"class-{number}", of_class(number))


def grow(folder: Path) -> None:
    """Append to the dataset in place."""
    _write(folder / "grown", list(APPENDED), mode="append")


def _write(path: Path, numbers: list[int], **options: Any) -> None:
    import litdata

    litdata.optimize(
        row,
        numbers,
        output_dir=str(path),
        chunk_size=CHUNK,
        num_workers=1,
        start_method="fork",
        keep_data_ordered=True,
        **options,
    )


def feed(task: str, place: Place) -> Feed:
    """A loader for a task."""
    if task == "stages":
        return _Stages(place)
    return LoaderFeed(_loader(_dataset(task, place.folder), place))


def _dataset(task: str, folder: Path) -> Any:
    import litdata

    if task == "all":
        return _stream(folder / "a")
    if task == "select":
        return _stream(folder / "a").subset(CHOSEN.tolist())
    if task == "repeat":
        return _stream(folder / "a", subsample=2.5)
    if task == "balanced":
        times = [(PER_CLASS + 0.5) / size for size in CLASS_SIZES]  # it rounds down
        parts = [_stream(folder / f"class-{number}", subsample=factor) for number, factor in enumerate(times)]
        return litdata.CombinedStreamingDataset(parts, seed=0)
    if task == "mix":
        return _mixed(folder, SHARES)
    return _stream(folder / "grown")


def _mixed(folder: Path, shares: tuple[int, ...]) -> Any:
    import litdata

    parts = [_stream(folder / name) for name in "abc"]
    return litdata.CombinedStreamingDataset(parts, seed=0, weights=shares, iterate_over_all=False)


def _stream(path: Path, **options: Any) -> Any:
    import litdata

    return litdata.StreamingDataset(str(path), shuffle=True, seed=0, **options)


def _loader(data: Any, place: Place) -> Any:
    import litdata

    return litdata.StreamingDataLoader(data, batch_size=place.batch_size, num_workers=0)


class _Stages(LoaderFeed):
    """The mixture with the first weights, then one with the others that takes its state."""

    def __init__(self, place: Place) -> None:
        super().__init__(_loader(_mixed(place.folder, SHARES), place))
        self._place, self._taken = place, 0

    def __iter__(self) -> Iterator[list[int]]:
        batches = iter(self.loader)
        while True:
            if self._taken == CHANGE // GLOBAL_BATCH:
                state = self.loader.state_dict()
                self.loader = _loader(_mixed(self._place.folder, LATER_SHARES), self._place)
                self.loader.load_state_dict(state)
                batches = iter(self.loader)
            self._taken += 1
            batch = next(batches, None)
            if batch is None:
                return
            yield batch["id"].tolist()

    def state(self) -> Any:
        """The steps taken, and the loader's state."""
        return self._taken, super().state()

    def restore(self, state: Any) -> None:
        """Take a state."""
        self._taken, loader = state
        super().restore(loader)
