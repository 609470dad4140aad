"""The hdf5 container reads no other file than the shard, whatever the shard says."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from _builders import overwrite
from _hdf5_files import write_hdf5
from _time_limit import within

from shardio import containers
from shardio.containers import hdf5_index
from shardio.errors import ShardCorrupt
from shardio.format.fields import CHECKSUM, Field, as_fields, with_hidden
from shardio.system.directory import Directory

from ._shards import written

HDF5 = containers.get("hdf5")
COUNT = 4
FIELDS = with_hidden(as_fields({"x": ("int32", (3,)), "text": "text"}))
SECRET = b"root:x:0:0:root:/root:/bin/bash\n"

Outside = Callable[[Any, str, Any], None]
"""Puts something in place of the dataset at a path of a file, which holds the given values elsewhere."""


def external_storage(file: Any, name: str, values: Any) -> None:
    secret = Path(file.filename).with_name("secret")
    file.create_dataset(name, values.shape, values.dtype, external=[(str(secret), 0, values.nbytes)])


def external_link(file: Any, name: str, values: Any) -> None:
    file[name] = h5py.ExternalLink("other.h5", f"/{values.dtype}")


def soft_link_to_an_external_link(file: Any, name: str, values: Any) -> None:
    file["hop"] = h5py.ExternalLink("other.h5", f"/{values.dtype}")
    file["hop2"] = h5py.SoftLink("/hop")
    file[name] = h5py.SoftLink("/hop2")


def soft_link_through_an_external_group(file: Any, name: str, values: Any) -> None:
    file["away"] = h5py.ExternalLink("other.h5", "/")
    file[name] = h5py.SoftLink(f"/away/{values.dtype}")


def soft_link_to_external_storage(file: Any, name: str, values: Any) -> None:
    external_storage(file, "hop", values)
    file[name] = h5py.SoftLink("/hop")


def hard_link_to_external_storage(file: Any, name: str, values: Any) -> None:
    external_storage(file, "hop", values)
    file[name] = file["hop"]


def virtual(file: Any, name: str, values: Any, source: str = "other.h5") -> None:
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    layout[...] = h5py.VirtualSource(source, str(values.dtype), values.shape)
    file.create_virtual_dataset(name, layout)


def virtual_of_this_file(file: Any, name: str, values: Any) -> None:
    external_storage(file, str(values.dtype), values)
    virtual(file, name, values, ".")


def virtual_of_a_pipe(file: Any, name: str, values: Any) -> None:
    """Whoever opens a pipe waits until someone writes to it."""
    os.mkfifo(Path(file.filename).with_name("pipe"))
    layout = h5py.VirtualLayout(values.shape, values.dtype, maxshape=(None, *values.shape[1:]))
    source = h5py.VirtualSource("pipe", "x", values.shape, maxshape=(None, *values.shape[1:]))
    layout[: h5py.h5s.UNLIMITED] = source[: h5py.h5s.UNLIMITED]
    file.create_virtual_dataset(name, layout)


def external_link_to_a_pipe(file: Any, name: str, values: Any) -> None:
    os.mkfifo(Path(file.filename).with_name("pipe"))
    file[name] = h5py.ExternalLink("pipe", "/x")


def soft_link_to_itself(file: Any, name: str, values: Any) -> None:
    file[name] = h5py.SoftLink(f"/{name}")


def many_soft_links(file: Any, name: str, values: Any) -> None:
    file["here"] = h5py.SoftLink("here/here")
    file[name] = h5py.SoftLink("/here")


OUTSIDE: dict[Outside, str] = {
    external_storage: "its data are in other files",
    external_link: "a link to another file",
    soft_link_to_an_external_link: "a link to another file",
    soft_link_through_an_external_group: "a link to another file",
    soft_link_to_external_storage: "its data are in other files",
    hard_link_to_external_storage: "its data are in other files",
    virtual: "a virtual dataset, whose data are elsewhere, is not read",
    virtual_of_this_file: "a virtual dataset, whose data are elsewhere, is not read",
    virtual_of_a_pipe: "a virtual dataset, whose data are elsewhere, is not read",
    external_link_to_a_pipe: "a link to another file",
    soft_link_to_itself: "more than 16 links in a row",
    many_soft_links: "more than 16 links in a row",
}
"""What is refused, and what the error says."""

PLACES = ["x", "text/data", "text/offsets", CHECKSUM]


def shard(path: Path) -> Path:
    """A shard of four samples, and the files beside it that it must not lead to."""
    path.with_name("secret").write_bytes(SECRET * 10)
    more = {"uint64": np.arange(4, dtype=np.uint64), "uint8": np.frombuffer(SECRET[:20], np.uint8)}
    integers = np.arange(12, dtype=np.int32).reshape(4, 3)
    write_hdf5(path.with_name("other.h5"), int32=integers, int64=np.arange(0, 25, 5), **more)
    samples = ({"x": integers[i] * 0 + i, "text": b"four%d" % i, CHECKSUM: bytes(8)} for i in range(COUNT))
    return written(HDF5, path, FIELDS, ({**sample, "x": sample["x"].tobytes()} for sample in samples))


@pytest.mark.parametrize("place", [*PLACES, "text"])
@pytest.mark.parametrize("outside", OUTSIDE, ids=lambda outside: outside.__name__)
def test_shards_lead_nowhere(tmp_path: Path, outside: Outside, place: str) -> None:
    """Links to other files, external storage and virtual datasets are refused in place of any dataset or group."""
    path = shard(tmp_path / "s.h5")
    with h5py.File(path, "a") as file:
        values = file["text/data" if place == "text" else place][...]
        del file[place]
        outside(file, place, values)
    with within(20), pytest.raises(ShardCorrupt, match=rf"field '.*': {OUTSIDE[outside]}"):
        HDF5.reader(path, FIELDS)


def test_links_within_the_file_are_followed(tmp_path: Path) -> None:
    """Soft and hard links to data in the file itself lead to it, at every depth."""
    path = shard(tmp_path / "s.h5")
    with h5py.File(path, "a") as file:
        file["deep/x"] = file["x"]
        file.move("text", "deep/stored")
        file["deep/bytes"] = file["deep/stored/data"]
        del file["x"], file["deep/stored/data"]
        file["x"], file["text"] = h5py.SoftLink("deep/x"), h5py.SoftLink("/deep/./relative")
        file["deep/relative"], file["deep/stored/data"] = h5py.SoftLink("stored"), h5py.SoftLink("/deep/bytes")
    reader = HDF5.reader(path, FIELDS)
    rows = np.arange(COUNT)
    assert reader.read(rows, "text") == [b"four0", b"four1", b"four2", b"four3"]
    np.testing.assert_array_equal(reader.read(rows, "x"), np.repeat(rows, 3).reshape(COUNT, 3))


@pytest.mark.parametrize("outside", OUTSIDE, ids=lambda outside: outside.__name__)
def test_adopted_files_lead_nowhere(tmp_path: Path, outside: Outside) -> None:
    """Neither do files that others wrote."""
    path = shard(tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        file["strings"] = ["a", "b", "c", "d"]
    layout = hdf5_index.Layout({"strings": "strings"})
    hdf5_index.write(Directory(path.parent), path.name, layout, {"label": np.arange(COUNT)})
    fields = as_fields({"strings": "text", "label": "int64"})
    reader = HDF5.reader(path, fields)
    assert reader.read(np.array([2]), "strings") == [b"c"]
    reader.close()
    with h5py.File(path, "a") as file:
        del file["strings"]
        outside(file, "strings", np.frombuffer(b"root", "S1"))
    with within(20), pytest.raises(ShardCorrupt, match=rf"field '.*': {OUTSIDE[outside]}"):
        HDF5.reader(path, fields)


def test_a_link_of_another_kind(tmp_path: Path) -> None:
    """A link of a class that someone registered with libhdf5 is not followed."""
    path = shard(tmp_path / "s.h5")
    with h5py.File(path, "a", libver="latest") as file:
        del file["text"]
        file["new/x"] = h5py.ExternalLink("other.h5", "/int32")
    data = path.read_bytes()
    kind = data.rindex(b"\x40", 0, data.index(b"other.h5\0/int32"))  # the external link's class, 64
    overwrite(path, kind, b"\x41")
    with pytest.raises(ShardCorrupt):
        HDF5.reader(path, {"new/x": Field("array", dtype="int32", shape=(3,))})


@pytest.mark.parametrize("what", ["a.h5", "a.h5.idx.npy"])
def test_a_pipe_in_place_of_a_file(tmp_path: Path, what: str) -> None:
    """A shard or an index that is no regular file is refused at once."""
    path = shard(tmp_path / "a.h5")
    hdf5_index.write(Directory(path.parent), path.name, hdf5_index.Layout({"x": "x"}), {})
    (tmp_path / what).unlink()
    os.mkfifo(tmp_path / what)
    with within(20), pytest.raises(ShardCorrupt, match="is not a regular file"):
        HDF5.reader(path, as_fields({"x": ("int32", (3,))}))
