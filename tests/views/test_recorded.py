"""Views as they were recorded: digests, saved files, orders, places and values stay what they are, byte for byte.

`python tests/views/test_recorded.py` records them anew, in `recorded.json` beside this file.
"""

import dataclasses
import json
import pickle
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import shardio

RECORDED = Path(__file__).with_name("recorded.json")
FIELDS = {
    "n": "int64", "label": "int64", "w": "float32", "key": "text", "x": ("float32", (3,)), "t": ("uint16", (None,)),
}  # fmt: skip
PLACES = ("memory", "folder", "cache")
"""Where the data are; what is read by way of a cache is read as from a store."""


def samples(first: int, count: int, names: int) -> Iterator[dict[str, Any]]:
    """Samples of every kind of field, with labels below `names` and documents of 0 to 12 entries."""
    for n in range(first, first + count):
        yield {
            "n": n,
            "label": n * 7 % names,
            "w": np.float32(n % 5) / 4,
            "key": f"k{n % 4}",
            "x": np.arange(3, dtype=np.float32) + n,
            "t": np.arange(n * 5 % 13, dtype=np.uint16) + n,
        }


SOURCES = {
    "a": (0, 40, ["cat", "dog", "bird"]),
    "b": (100, 25, ["dog", "fish"]),
    "c": (200, 30, ["cat", "dog", "bird"]),
}
"""The first number, the number of samples and the names of the classes of each dataset."""


def stacks(a: Any, b: Any, c: Any) -> dict[str, Callable[[], Any]]:
    """Views of every kind, and of these stacked on each other."""
    parts = {"train": 0.7, "val": 0.2}

    def joined() -> Any:
        return shardio.concat({"a": a.where("label != 2"), "c": c[::2]})

    def union() -> Any:
        return shardio.concat({"a": a, "b": b, "c": c}, classes="union")

    return {
        "where": lambda: a.where("label == 'cat' or w > 0.5"),
        "where text": lambda: a.where("key == 'k1'").where("n > 9")[1:],
        "slice": lambda: a[5:-3:2],
        "back": lambda: a[::-1][3:],
        "list": lambda: a.select([7, 0, -1, 7, 12]),
        "mask": lambda: a[2:].select([n % 3 == 0 for n in range(38)]),
        "split": lambda: a.split(parts, seed=3)["val"],
        "split by": lambda: a.split(parts, by="label", seed=3)["train"],
        "split groups": lambda: a[3:].split({"train": 0.5, "val": 0.5}, group="key")["train"][1:],
        "weights": lambda: a.weighted(np.arange(1, 41) / 7, 12),
        "weights of a field": lambda: a[4:].weighted("w", replacement=True),
        "balanced": lambda: a.where("n < 30").balanced("label", 50),
        "concat": joined,
        "concat of concat": lambda: shardio.concat({"x": joined(), "y/z": c.select([3, 3, 1])})[4::3],
        "grown last": lambda: shardio.concat({"c": c, "a": a[::3]}),
        "classes": union,
        "chosen classes": lambda: union().where("label == 'fish'"),
        "windows": lambda: a.windows(4, stride=2, within="dataset"),
        "windows step": lambda: a[1:].windows(3, step=2, stride=3, within="dataset").select([1, 0, 1]),
        "windows of a column": lambda: c.where("label != 1").windows(1, within="key"),
        "windows contiguous": lambda: a.where("n % 11 != 5").windows(3, contiguous="n")[::2],
        "windows back": lambda: a[::-1].windows(5, stride=2, within="dataset").select([6, 2, 2]),
        "windows of concat": lambda: joined().windows(3, within="dataset"),
        "weighted windows": lambda: joined().windows(3, within="dataset").weighted(np.arange(40) + 1.0, 20),
        "cut": lambda: a.cut("t", 16, positions=True, documents=True, cu_seqlens=True),
        "cut concat": lambda: joined().cut("t", 9),
        "packed": lambda: a[2:].packed("t", 16, value=7, positions=True, documents=True, cu_seqlens=True),
        "packed concat": lambda: union().packed("t", 20)[1:5],
        "mix": lambda: shardio.mix({"a": a, "c": c}, {"a": 3, "c": 1}, samples=48),
        "stages": lambda: shardio.mix(
            {"a": a, "b": b}, [(0, {"a": 1, "b": 2}), (20, {"a": 1, "b": 0})], classes="union"
        ),
        "mix of all": lambda: shardio.mix(
            {"w": a.weighted("w"), "m": shardio.mix({"c": c[1:], "j": joined()}, {"c": 1, "j": 2})}, {"w": 1, "m": 2}
        ),
        "mix of cut": lambda: shardio.mix({"a": a.cut("t", 8), "c": c.cut("t", 8)}, {"a": 1, "c": 1}),
        "mix of windows": lambda: shardio.mix(
            {"a": a.windows(2, within="dataset"), "b": b.windows(2, within="dataset")}, {"a": 1, "b": 1},
            classes="ignore",
        ),
    }  # fmt: skip


def hashed(value: Any) -> str:
    """A hash of JSON values, arrays and bytes."""

    def plain(each: Any) -> Any:
        if isinstance(each, np.ndarray):
            return [each.dtype.str, list(each.shape), each.tolist()]
        return bytes(each).hex() if isinstance(each, bytes | memoryview) else each.item()

    return xxhash.xxh3_64_hexdigest(json.dumps(value, default=plain).encode())


def opened(place: str, folder: Path) -> list[Any]:
    """The datasets, in some place."""
    found = []
    for name, (first, count, classes) in SOURCES.items():
        metadata, rows = {"classes": classes}, samples(first, count, len(classes))
        if place == "memory":
            found.append(shardio.from_samples(rows, FIELDS, shard_samples=9, metadata=metadata))
            continue
        if not (folder / "data" / name).exists():
            with shardio.create(folder / "data" / name, fields=FIELDS, shard_size="8KB", metadata=metadata) as writer:
                for sample in rows:
                    writer.append(sample)
        cache = {"cache": folder / "cache", "cache_size": "100MB"} if place == "cache" else {}
        found.append(shardio.open(folder / "data" / name, **cache))
    return found


def stated(field: shardio.Field) -> str:
    """The attributes that a field has other than by default, so that it is recorded whatever fields learn to state."""
    usual = {each.name: each.default for each in dataclasses.fields(field)}
    return repr({name: value for name, value in dataclasses.asdict(field).items() if value != usual[name]})


def facts(view: Any, folder: Path) -> dict[str, Any]:
    """Return the recorded form of a view: values as they are, or hashes of many values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        orders = [
            view.plan(5, shuffle, 4, 2).at_epoch(epoch) for shuffle in (None, "global", "block") for epoch in (0, 3)
        ]
        numbers = [order.lookup(np.arange(len(view)))[0] for order in orders]
    some = np.arange(view.numbers)[::3]
    columns = {name: np.asarray(column) for name, column in view.sample_ids(some).items()}
    read = view.read(some)
    selection = view.selection(some)
    view.save(folder / "view.json")
    saved = {path.name: path.read_bytes() for path in sorted(folder.glob("view.*"))}
    return {
        "repr": hashed(re.sub(r"/\S*", "", f"{view!r}")),
        "digest": view.digest,
        "samples": [len(view), view.numbers],
        "saved": hashed({name: content.decode("latin-1") for name, content in saved.items()}),
        "orders": hashed(numbers),
        "ids": hashed(columns),
        "origin": hashed(view.origin(some)),
        "shards": hashed([view.shard_numbers(some), view.shard_means, [view.shard_of(n) for n in some.tolist()]]),
        "places": hashed([f"{view.locate(n)}" for n in some.tolist()]),
        "values": hashed({name: [*map(np.asarray, column)] for name, column in read.items()}),
        "sizes": hashed([selection.sizes(name) for name in view.fields]),
        "fields": hashed({name: stated(field) for name, field in view.fields.items()}),
        "earlier": view.earlier,
    }


def recorded(place: str, name: str) -> dict[str, Any]:
    """The facts of a view that were recorded, in the place where its data are."""
    found: dict[str, Any] = json.loads(RECORDED.read_text())["memory" if place == "memory" else "folder"][name]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recorded")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", stacks(None, None, None))
def test_a_view_is_what_it_was(name: str, place: str, folder: Path) -> None:
    """So are the same view when it is pickled, and when its file is opened."""
    data = dict(zip(SOURCES, opened(place, folder), strict=True))
    view = stacks(**data)[name]()
    assert facts(view, folder) == recorded(place, name)
    assert facts(pickle.loads(pickle.dumps(view)), folder) == recorded(place, name)  # noqa: S301  # our own
    digests = {each.digest: each for each in data.values()}
    nodes = shardio.views.saved.load(folder / "view.json").datasets
    of = {source: digests[node.digest] for source, node in nodes.items()}
    again = shardio.open(folder / "view.json", of=of if [*of] != [""] else of[""])
    assert facts(again, folder) == recorded(place, name)


def told(folder: Path) -> list[str]:
    """Append to the first dataset; return which views then tell the digests that they had before."""
    before = {name: make().digest for name, make in stacks(*opened("folder", folder)).items()}
    with shardio.create(folder / "more", fields=FIELDS, metadata={"classes": SOURCES["a"][2]}) as writer:
        for sample in samples(40, 6, 3):
            writer.append(sample)
    shardio.convert(folder / "more", folder / "data" / "a", append=True)
    after = stacks(*opened("folder", folder))
    # Views that give numbers for each sample are none of more samples.
    given = {"mask", "weights", "weighted windows"}
    return [name for name, make in after.items() if name not in given and before[name] in make().earlier]


def test_views_of_what_grew_tell_their_earlier_digests(tmp_path: Path) -> None:
    """The views that are extensions of those of fewer samples are those that were recorded."""
    assert told(tmp_path) == json.loads(RECORDED.read_text())["told"]


def record() -> None:
    """Write what is true now."""
    found: dict[str, Any] = {}
    for place in ("memory", "folder"):
        with tempfile.TemporaryDirectory() as folder:
            data = opened(place, Path(folder))
            found[place] = {name: facts(make(), Path(folder)) for name, make in stacks(*data).items()}
    with tempfile.TemporaryDirectory() as folder:
        found["told"] = told(Path(folder))
    RECORDED.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(record())
