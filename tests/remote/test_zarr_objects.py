"""Zarr stores in a bucket are indexed there, by a listing, and read in place: chunk by chunk, each checked."""

import json
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from _bucket import opened, options_of, store_options
from _bucket import uploaded as upload
from _s3 import S3Server
from _zarr_stores import column as zarr_column
from _zarr_stores import write_group
from numpy.typing import NDArray
from typer.testing import CliRunner

import shardio
from shardio.cli import app
from shardio.conversion import indexing
from shardio.errors import ConfigError, ShardCorrupt, SourceError, SourceWarning
from shardio.stores import RemoteStore, RetryingStore, open_store
from shardio.stores.base import ObjectInfo
from shardio.stores.url import Url, as_url
from shardio.testing.stores import Faults, FaultyStore

pytestmark = pytest.mark.filterwarnings("ignore:the values of", "ignore:left out")

ROWS = 24
LAYOUTS: dict[str, dict[str, Any]] = {"format 2": {}, "format 3": {}, "sharded": {"shards": (8, 90, 120)}}


def grouped(path: Path, layout: str = "format 3", rows: int = ROWS) -> NDArray[Any]:
    """A group of `x` [rows, 90, 120], packed, with dimensions, and `t` [rows]; return the numbers of `x`."""
    data = np.random.default_rng(rows).integers(-99, 99, (rows, 90, 120)).astype(np.int16)
    arrays: dict[str, Any] = {"x": (data, (2, 45, 60), "time lat lon"), "t": (np.arange(rows), (10,), "time")}
    write_group(path, {name: arrays[name] for name in ("x",)}, 2 if layout == "format 2" else 3, **LAYOUTS[layout])
    group = write_group(path, {"t": arrays["t"]}, 2 if layout == "format 2" else 3)
    group["x"].attrs["scale_factor"] = 0.5
    return data


column = partial(zarr_column, name="x")


class Counted:
    """The stores that `index` opens, what it reads of them, and how often it lists."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads: list[tuple[str, int, int | None]] = []
        self.lists: list[str] = []

        def counted(place: Url, options: dict[str, str]) -> RetryingStore:
            store = FaultyStore(RemoteStore(place.root, options), Faults())
            self.reads, listed = store.reads, store.list

            def list_counted(prefix: str) -> Any:
                self.lists.append(prefix)
                return listed(prefix)

            monkeypatch.setattr(store, "list", list_counted)
            return RetryingStore(store)

        monkeypatch.setattr(indexing, "open_store", counted)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_local_stores_give(s3: S3Server, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexed by one listing, without a chunk; rows, batches, crops and decoded numbers are those of a local store."""
    data, at = grouped(tmp_path / "d/a.zarr", layout), layout.replace(" ", "")
    url = upload(s3, tmp_path / "d", f"s3://zarrs/{at}")
    seen = Counted(monkeypatch)
    shardio.index(f"{url}/a.zarr", url, axis="time", decode_cf=True, store_options=s3.options)
    assert not any("/c/" in name or name.rpartition("/")[2][0].isdecimal() for name, _, _ in seen.reads
                   if "/.converting/" not in name)  # fmt: skip
    assert [prefix for prefix in seen.lists if ".converting" not in prefix] == [f"{at}/a.zarr"]
    far = opened(s3, url, tmp_path / "cache")
    shardio.index(tmp_path / "d/a.zarr", tmp_path / "e", axis="time", decode_cf=True)
    near = shardio.open(tmp_path / "e")
    assert far.fields == near.fields
    rows = [5, 0, 23, 6]
    np.testing.assert_array_equal(column(far, rows), data[rows] * np.float32(0.5))
    crops: dict[str, Any] = {
        "transforms": {"x": [shardio.RandomSpatialCrop((8, 8))]}, "world": shardio.World(), "seed": 1
    }  # fmt: skip
    for batch, same in zip(shardio.Loader(far, 4, **crops), shardio.Loader(near, 4, **crops), strict=True):
        assert all(batch[name].equal(same[name]) for name in ("x", "t", "index"))
    done = shardio.verify(far, deep=True)
    assert (done.problems, done.unchecked, done.samples) == ((), True, ROWS)


def test_crops_ask_for_the_chunks_that_they_touch(s3: S3Server, tmp_path: Path) -> None:
    """Crops ask for the bytes of the chunks that they touch, ahead too, in a request each; opening lists nothing."""
    grouped(tmp_path / "d/a.zarr")
    url = upload(s3, tmp_path / "d", "s3://zarrs/counted")
    shardio.index(f"{url}/a.zarr", url, fields="x", store_options=s3.options)
    far = opened(s3, url, tmp_path / "cache")
    column(far, [0])
    before = far.fetched
    options: dict[str, Any] = {"world": shardio.World(), "seed": 1, "batch_size": 1}
    options["transforms"] = {"x": [shardio.RandomSpatialCrop((8, 8), offset=True)]}
    touched = set[tuple[int, int, int]]()
    for batch in shardio.Loader(far.select(range(2, 10)), **options):
        (top, left), row = batch["x_offset"][0].tolist(), 2 + int(batch["index"][0])
        touched |= {(row // 2, y // 45, x // 60) for y in (top, top + 7) for x in (left, left + 7)}
    came = far.fetched - before
    sizes = [(tmp_path / "d/a.zarr/x/c" / "/".join(map(str, cell))).stat().st_size for cell in touched]
    assert (came.bytes, came.requests) == (sum(sizes), len(sizes))


def test_several_stores_and_a_command(s3: S3Server, tmp_path: Path) -> None:
    """The stores of a folder are shards in the order of their names; commands index, verify, show, stage and copy."""
    for month in (1, 2):
        grouped(tmp_path / f"d/m{month}.zarr", rows=8 * month)
    url = upload(s3, tmp_path / "d", "s3://zarrs/months")
    options = store_options(s3)
    for pattern in (f"{url}/*.zarr", url):
        done = CliRunner().invoke(app, ["index", pattern, "-o", url, "--axis", "time", "--overwrite", *options])
        assert done.exit_code == 0, f"{done.output}{done.exception}"
    again = shardio.index(url, url, axis="time", resume=True, store_options=s3.options)
    far = opened(s3, url, tmp_path / "cache")
    assert again.manifest.digest == far.digest
    assert zarr_column(far, [7, 8, 23], "t").tolist() == [7, 0, 15]
    far.close()
    more = options_of(s3, tmp_path / "cache")
    for line in (["verify", url, "--deep"], ["stage", url], ["stats", url], ["reshard", url, str(tmp_path / "copy")]):
        done = CliRunner().invoke(app, [*line, *more])
        assert done.exit_code == 0, f"{line}: {done.output}{done.exception}"
    done = CliRunner().invoke(app, ["info", url, "--json", *options])
    assert json.loads(done.stdout)["container"] == "zarr"
    done = CliRunner().invoke(app, ["info", url, "--cost", *options])
    assert "no cost is estimated" in f"{done.exception}"
    done = CliRunner().invoke(app, ["doctor", url, "--json", *more])
    assert "answers in" in done.output
    np.testing.assert_array_equal(column(shardio.open(tmp_path / "copy"), [9]), column(far, [9]))


def test_a_series_with_coordinates_and_stacks(s3: S3Server, tmp_path: Path) -> None:
    """The coordinates of several stores are compared, also in a bucket, and variables are stacked."""
    expected = []
    for month, lat in ((1, [0.0, 1.0, 2.0]), (2, [0.0, 1.0, 2.0]), (3, [0.0, 1.0, 3.0])):
        group = zarr.open_group(tmp_path / f"d/{month}.zarr", mode="w")
        for number, name in enumerate("uv"):
            array = group.create_array(name, shape=(4, 3), chunks=(2, 3), dtype="f4", dimension_names=("time", "lat"))
            array[...] = np.arange(12).reshape(4, 3) + 100 * month + 1000 * number
        group.create_array("lat", data=np.array(lat), dimension_names=("lat",))
        expected.append(np.stack([group["u"][...], group["v"][...]], axis=1))
    url = upload(s3, tmp_path / "d", "s3://zarrs/series")
    given: dict[str, Any] = {"axis": "time", "stack": "x=u,v", "store_options": s3.options}
    with pytest.raises(SourceError, match="stores must agree on their grid"):
        shardio.index(f"{url}/*.zarr", url, **given)
    shardio.index([f"{url}/1.zarr", f"{url}/2.zarr"], url, **given)
    far = opened(s3, url, tmp_path / "cache")
    np.testing.assert_array_equal(column(far, np.arange(8)), np.concatenate(expected[:2]))


def lose(store: Any, name: str) -> None:
    store.delete([name])


def rewrite(store: Any, name: str) -> None:
    data = bytearray(store.read(name).data)
    data[len(data) // 2] ^= 1
    store.write(name, bytes(data))


@pytest.mark.parametrize(("change", "told"), [(lose, "is missing"), (rewrite, "was written anew since it was indexed")])
@pytest.mark.parametrize("layout", ["format 3", "sharded"])
def test_a_chunk_that_is_not_as_it_was(
    s3: S3Server, tmp_path: Path, layout: str, change: Callable[[Any, str], None], told: str
) -> None:
    """A chunk lost or written anew after indexing is named, and is no fill value; verify names it, and new ones."""
    data, at = grouped(tmp_path / "d/a.zarr", layout), f"{change.__name__}-{layout[-1]}"
    url = upload(s3, tmp_path / "d", f"s3://zarrs/{at}")
    shardio.index(f"{url}/a.zarr", url, axis="time", store_options=s3.options)
    store, (key, bad) = open_store(as_url(url), s3.options), ("c/1/0/0", 2 if layout == "format 3" else 8)
    change(store, f"{at}/a.zarr/x/{key}")
    far = opened(s3, url, tmp_path / "cache")
    np.testing.assert_array_equal(column(far, [0, 23]), data[[0, 23]])
    with pytest.raises(ShardCorrupt, match=rf"{url}/a.zarr, field 'x': the chunk {key} {told}"):
        column(far, [bad])
    assert f"the chunk {key} {told}" in shardio.verify(far).problems[0]


def test_metadata_and_chunks_written_later(s3: S3Server, tmp_path: Path) -> None:
    """`verify` tells of metadata that changed, and of chunks where there were none."""
    grouped(tmp_path / "d/a.zarr")
    (tmp_path / "d/a.zarr/x/c/3/0/0").unlink()
    url = upload(s3, tmp_path / "d", "s3://zarrs/later")
    with pytest.raises(SourceError, match="field 'x': 1 of 48 chunks are not there, the first is c/3/0/0 of a"):
        shardio.index(f"{url}/a.zarr", url, axis="time", store_options=s3.options, missing_chunks="refuse")
    with pytest.warns(SourceWarning, match="field 'x': 1 of 48 chunks are not there, the first is c/3/0/0 of a"):
        shardio.index(f"{url}/a.zarr", url, axis="time", store_options=s3.options)
    store, far = open_store(as_url(url), s3.options), opened(s3, url, tmp_path / "cache")
    assert not shardio.verify(far).problems
    assert not column(far, [6])[0, :45, :60].any()
    store.write("later/a.zarr/x/c/3/0/0", b"new")
    assert "the chunk c/3/0/0 was written since the store was indexed" in shardio.verify(far).problems[0]
    store.write("later/a.zarr/x/zarr.json", b"{}")
    assert "field 'x': its metadata are not those that were indexed" in shardio.verify(far).problems[0]


def test_what_is_refused(s3: S3Server, tmp_path: Path) -> None:
    """Checksums, zips, an index elsewhere, and one that lies where it was not made are refused in words."""
    grouped(tmp_path / "d/a.zarr")
    with zipfile.ZipFile(tmp_path / "d/b.zip", "w") as file:
        file.write(tmp_path / "d/a.zarr/zarr.json", "zarr.json")
    url = upload(s3, tmp_path / "d", "s3://zarrs/refused")
    given: dict[str, Any] = {"axis": "time", "store_options": s3.options}
    with pytest.raises(ConfigError, match="checksums=True reads Zarr stores on a local disk"):
        shardio.index(f"{url}/a.zarr", url, checksums=True, **given)
    with pytest.raises(SourceError, match="zip file of one is adopted on a local disk"):
        shardio.index(f"{url}/b.zip", url, **given)
    with pytest.raises(ConfigError, match="out must be the URL that the objects are directly in"):
        shardio.index(f"{url}/a.zarr", "s3://zarrs/other", **given)
    store = open_store(as_url(url), s3.options)
    store.write("refused/a.zarr.sums/zarr.json", b"{}")
    with pytest.raises(ConfigError, match=r"a.zarr and a.zarr.sums would have the same index"):
        shardio.index([f"{url}/a.zarr", f"{url}/a.zarr.sums"], url, **given)
    store.write("refused/a.zarr.idx.npy", b"mine")
    with pytest.raises(ConfigError, match=r"a.zarr.idx.npy: not an index that shardio wrote"):
        shardio.index(f"{url}/a.zarr", url, **given)
    store.delete(["refused/a.zarr.idx.npy"])
    shardio.index(f"{url}/a.zarr", url, **given)
    for name in ("shardio.json", "a.zarr.idx.npy", "a.zarr.sums.idx.npy"):
        (tmp_path / "d" / name).write_bytes(store.read(f"refused/{name}").data)
    with pytest.raises(ShardCorrupt, match="was indexed in a bucket, and is on a disk"):
        column(shardio.open(tmp_path / "d"), [0])


def test_hostile_names(s3: S3Server, tmp_path: Path) -> None:
    """Objects whose names lead elsewhere are no arrays, and nothing is written outside the temporary folder."""
    grouped(tmp_path / "d/a.zarr", rows=4)
    url = upload(s3, tmp_path / "d", "s3://zarrs/hostile")

    class Hostile:
        """A bucket that lists an object under a name with `..`."""

        def __init__(self, store: Any) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        def list(self, prefix: str) -> Any:
            found = list(self._store.list(prefix))
            if prefix.endswith(".zarr"):
                found.append(ObjectInfo(f"{prefix}/../../../zarr.json", 2, '"a"'))
            return iter(found)

    store = Hostile(open_store(as_url(url), s3.options))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexing, "open_store", lambda *given: store)
        shardio.index(f"{url}/a.zarr", url, axis="time", store_options=s3.options)
    assert len(opened(s3, url, tmp_path / "cache")) == 4
