"""Choosing with WebDataset: `select`, and RandomMix. Its pipelines have no state to resume from."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks._choosing import APPENDED, SHARES, SOURCES, Feed, Place, decoded, is_wanted, payload, row

REQUIREMENTS = ("torch==2.13.0", "numpy==2.4.6", "webdataset==1.0.2")
VERSIONS = ("webdataset", "torch")
IMPORTS = ("webdataset", "torch.utils.data")
HOW = {
    "all": "split_by_node",
    "where": "select",
    "mix": "RandomMix with probabilities",
    "grow": "another tar",
    "bad": "map with handler=ignore_and_continue",
}
SHARD = 64


def prepare(folder: Path) -> None:
    """Write tars of 64 samples for each source."""
    folder.mkdir(parents=True)
    for name, numbers in zip("abc", SOURCES, strict=True):
        write(folder, name, numbers)


def grow(folder: Path) -> None:
    """Write more tars."""
    write(folder, "new", APPENDED)


def write(folder: Path, name: str, numbers: range) -> None:
    """Write tars `name-000000.tar` and so on, whose samples are JSON files and payloads."""
    import webdataset

    with webdataset.ShardWriter(str(folder / f"{name}-%06d.tar"), maxcount=SHARD, verbose=0) as writer:
        for number in numbers:
            files = {"json": json.dumps(row(number)).encode(), "bin": payload(number)}
            writer.write({"__key__": f"{number:06d}", **files})


def feed(task: str, place: Place) -> Feed:
    """A loader for a task."""
    return _Feed(task, place)


class _Feed(Feed):
    """Batches of a WebLoader's pipeline."""

    def __init__(self, task: str, place: Place) -> None:
        self._task, self._place = task, place

    def __iter__(self) -> Iterator[list[int]]:
        import webdataset

        if self._task == "mix":
            parts = [self._source(f"{name}-") for name in "abc"]
            data = webdataset.RandomMix(parts, [share / sum(SHARES) for share in SHARES])
        else:
            data = self._source("a-", *(["new-"] if self._task == "grow" else []))
        batch: list[int] = []
        for sample in data:
            batch.append(sample["json"]["id"])
            if len(batch) == self._place.batch_size:
                yield batch
                batch = []
        if batch:
            yield batch

    def _source(self, *names: str) -> Any:
        import webdataset

        tars = sorted(str(path) for name in names for path in self._place.folder.glob(f"{name}*.tar"))
        data: Any = webdataset.WebDataset(tars, shardshuffle=len(tars), nodesplitter=webdataset.split_by_node, seed=0)
        data = data.shuffle(2 * SHARD).decode()
        if self._task == "bad":
            data = data.map(_decoded, handler=webdataset.ignore_and_continue)
        return data.select(_wanted) if self._task == "where" else data


def _decoded(sample: dict[str, Any]) -> dict[str, Any]:
    return {"json": {"id": decoded(sample["bin"])}}


def _wanted(sample: dict[str, Any]) -> bool:
    return is_wanted(sample["json"])
