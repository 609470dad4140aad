"""Choosing with LitData: `subset`, `subsample`, Combined- and ParallelStreamingDataset, and `optimize` that appends."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import bench_litdata
from benchmarks._choosing import (
    ADDED,
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

REQUIREMENTS = (*bench_litdata.REQUIREMENTS, "polars==2.1.0")
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
    "column": "ParallelStreamingDataset of both, with a transform",
    "relabel": "build_keys_index, dataset_update",
    "features": "optimize(use_checkpoint=True) with as many workers as ranks",
    "three": "StreamingDataset",
    "five": "StreamingDataset",
}
CHUNK = 64


def prepare(folder: Path) -> None:
    """Write a dataset per source, one per class, one of a column, and one whose labels are replaced."""
    import litdata

    for name, numbers in zip("abc", SOURCES, strict=True):
        _write(folder / name, list(numbers))
    _write(folder / "grown", list(SOURCES[0]))
    for number in range(len(CLASS_SIZES)):
        _write(folder / f"class-{number}", of_class(number))
    _optimize(_added, folder / "added", inputs=list(SOURCES[0]))
    _write(folder / "relabel", list(SOURCES[0]))
    litdata.build_keys_index(str(folder / "relabel"), _key)
    with litdata.dataset_update(str(folder / "relabel")) as update:
        for number in SOURCES[0]:
            update[number] = row(number) | {"label": int(ADDED[number])}
        update.commit()


def _added(number: int) -> dict[str, int]:
    return {"added": int(ADDED[number])}


def _key(sample: dict[str, Any]) -> int:
    return int(sample["id"])


def grow(folder: Path) -> None:
    """Append to the dataset in place."""
    _write(folder / "grown", list(APPENDED), mode="append")


def _write(path: Path, numbers: list[int], **options: Any) -> None:
    _optimize(row, path, inputs=numbers, **options)


def _optimize(function: Callable[[int], Any], path: Path, **options: Any) -> None:
    import litdata

    given = {"chunk_size": CHUNK, "num_workers": 1, "start_method": "fork", "keep_data_ordered": True}
    litdata.optimize(function, output_dir=str(path), **(given | options))


def derive(place: Place, name: str, compute: Callable[[int], int]) -> None:
    """Write a dataset of features, with as many workers as ranks."""
    if not place.rank:
        options = {"num_workers": place.world, "use_checkpoint": True}
        _optimize(partial(_feature, compute), place.folder / name, inputs=list(SOURCES[0]), **options)


def _feature(compute: Callable[[int], int], number: int) -> dict[str, int]:
    return {"added": compute(number)}


def derived(folder: Path, name: str) -> list[tuple[int, int]]:
    """Read the dataset and its features together."""
    import litdata

    parts = [litdata.StreamingDataset(str(folder / one), shuffle=False) for one in ("a", name)]
    return [(int(one["id"]), int(one["added"])) for one in litdata.ParallelStreamingDataset(parts, transform=_merged)]


def _merged(samples: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    first, second = samples
    return first | second


def feed(task: str, place: Place) -> Feed:
    """A loader for a task."""
    if task == "stages":
        return _Stages(place)
    return LoaderFeed(_loader(_dataset(task, place.folder), place), task)


def _dataset(task: str, folder: Path) -> Any:
    import litdata

    if task in ("all", "three", "five"):
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
    if task == "relabel":
        return _stream(folder / "relabel")
    if task == "column":
        parts = [_stream(folder / name) for name in ("a", "added")]
        return litdata.ParallelStreamingDataset(parts, transform=_merged)
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
