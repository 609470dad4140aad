"""Choosing with shardio: views."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._choosing import (
    ADDED,
    APPENDED,
    BESIDE,
    CHANGE,
    CHOSEN,
    CLASS_SIZES,
    LATER_SHARES,
    LEAST_SCORE,
    MIXED,
    PER_CLASS,
    REST,
    SAMPLES,
    SHARES,
    SOURCES,
    TRAIN,
    WANTED_LABELS,
    WINDOW,
    Feed,
    LoaderFeed,
    Place,
    checked,
    decoded,
    payload,
    row,
)

REQUIREMENTS = ()  # it runs in the environment of choosing.py
VERSIONS = ("shardio-data", "torch")
IMPORTS = ("shardio", "torch")
HOW = {
    "all": "open",
    "where": "where",
    "select": "select",
    "repeat": "weighted with equal weights",
    "weighted": "weighted",
    "balanced": "balanced",
    "mix": "mix with weights",
    "stages": "mix with stages of weights",
    "grow": "convert(..., append=True)",
    "windows": "windows",
    "split": "split(by=...)",
    "grouped": "split(group=...)",
    "column": "join by position",
    "relabel": "join(..., replace=True)",
    "features": "derive",
    "three": "open",
    "five": "open",
    "bad": 'Loader(on_bad_sample="mask")',
}
WHERE = f"label in {WANTED_LABELS} and score > {LEAST_SCORE}"


def prepare(folder: Path) -> None:
    """Convert a dataset per source, and write one with a bad sample."""
    import shardio

    for name, numbers in zip((*"abc", "grown"), (*SOURCES, SOURCES[0]), strict=True):
        _convert(folder / name, numbers)
    with shardio.create(folder / "bad", fields={"payload": "bytes"}) as writer:
        for number in SOURCES[0]:
            writer.append({"payload": payload(number)})


def grow(folder: Path) -> None:
    """Append to the dataset in place."""
    _convert(folder / "grown", APPENDED, append=True)


def _convert(path: Path, numbers: range, **options: Any) -> None:
    import numpy as np

    import shardio

    rows = [row(number) for number in numbers]
    source = path.with_suffix(".npz")
    source.parent.mkdir(parents=True, exist_ok=True)
    columns: dict[str, Any] = {name: np.array([one[name] for one in rows]) for name in rows[0]}
    np.savez(source, **columns)
    shardio.convert(source, path, converter="numpy", **options)


def derive(place: Place, name: str, compute: Callable[[int], int]) -> None:
    """Derive the features together with the other ranks."""
    import shardio

    shardio.derive(
        place.folder / "a",
        partial(_features, compute),
        place.folder / name,
        version="1",
        fields=["id"],
        batch_size=16,
        shard_samples=16,
        threads=1,
        resume=True,
        world=shardio.World(place.rank, place.world),
    )


def _features(compute: Callable[[int], int], batch: dict[str, Any]) -> dict[str, Any]:
    return {"feature": batch["id"].new_tensor([compute(number) for number in batch["id"].tolist()])}


def derived(folder: Path, name: str) -> list[tuple[int, int]]:
    """Read the dataset joined with its features."""
    import shardio

    data = shardio.open(folder / "a").join(folder / name)
    return [(int(one["id"]), int(one["feature"])) for one in (data[number] for number in range(len(data)))]


def feed(task: str, place: Place) -> Feed:
    """A loader for a task."""
    import shardio

    world = shardio.World(place.rank, place.world)
    data = _dataset(task, place.folder)
    options: dict[str, Any] = {"tail": "pad", "world": world, "threads": 1}
    if task == "bad":
        options |= {"map": _decoded, "map_by": "sample", "on_bad_sample": "mask"}
    return _Feed(shardio.Loader(data, place.batch_size, **options), task)


def _decoded(sample: dict[str, Any]) -> dict[str, int]:
    return {"id": decoded(sample["payload"])}


def _dataset(task: str, folder: Path) -> Any:
    import numpy as np

    import shardio

    data: Any = shardio.open(folder / "a")
    if task in ("all", "three", "five"):
        return data
    if task in BESIDE:
        return data.join({BESIDE[task]: ADDED}, replace=task == "relabel")
    if task == "bad":
        return shardio.open(folder / "bad")
    if task == "where":
        return data.where(WHERE)
    if task == "select":
        return data.select(CHOSEN)
    if task == "repeat":
        return data.weighted(np.ones(SAMPLES), samples=SAMPLES * 5 // 2)
    if task == "weighted":
        return data.weighted("score")
    if task == "balanced":
        return data.balanced("label", samples=PER_CLASS * len(CLASS_SIZES))
    if task in ("mix", "stages"):
        parts = {name: folder / name for name in "abc"}
        first, later = (dict(zip(parts, shares, strict=True)) for shares in (SHARES, LATER_SHARES))
        weights: Any = first if task == "mix" else [(0, first), (CHANGE, later)]
        return shardio.mix(parts, weights, samples=MIXED)
    if task == "windows":
        return data.windows(WINDOW, within="dataset")
    if task == "grow":
        return shardio.open(folder / "grown")
    by = {"group": "patient"} if task.startswith("grouped") else {"by": "label"}
    parts = data.split({"train": TRAIN, "val": 1 - TRAIN}, seed=0, **by)
    return parts["val" if task.endswith(REST) else "train"]


class _Feed(LoaderFeed):
    """Batches of a Loader, without the samples that fill the last one."""

    def __init__(self, loader: Any, task: str) -> None:
        super().__init__(loader)
        self._task = task

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.loader:
            numbers = batch["id"][batch["valid"]]
            if self._task in BESIDE:
                yield checked(numbers.tolist(), batch[BESIDE[self._task]][batch["valid"]].tolist())
                continue
            if self._task == "windows":
                follow = (numbers == numbers[:, :1] + numbers.new_tensor(range(WINDOW))).all(1)
                numbers = numbers[:, 0].where(follow, -1)
            yield numbers.tolist()
