"""Wherever offsets, sizes and pages point, all readers, compiled or not, give bytes of the field or an error."""

import itertools
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from _datasets import packed
from numpy.typing import NDArray

import shardio
from shardio import containers
from shardio.containers.packed_values import Scratch
from shardio.errors import ShardCorrupt
from shardio.format.fields import as_fields

COUNT, ROW, VALUE = 6, 2, 40
MOST = 2**63 - 1

# Spans to stand in row 2, in bytes from where the field's data begins; there are `room` bytes of data.
SPANS: dict[str, Callable[[int], tuple[int, int]]] = {
    "its own": lambda room: (ROW * VALUE, VALUE),
    "all data": lambda room: (0, room),
    "nothing, at the end": lambda room: (room, 0),
    "a neighbour's": lambda room: (0, VALUE),
    "parts of two neighbours": lambda room: (VALUE // 2, VALUE),
    "the last byte": lambda room: (room - 1, 1),
    "a byte before": lambda room: (-1, 1),
    "a value before": lambda room: (-VALUE, VALUE),
    "across the beginning": lambda room: (-8, VALUE),
    "nothing, before": lambda room: (-1, 0),
    "a byte too many": lambda room: (room - VALUE + 1, VALUE),
    "all data and a byte": lambda room: (0, room + 1),
    "nothing, behind": lambda room: (room + 1, 0),
    "far behind": lambda room: (1 << 40, VALUE),
    "size below 0": lambda room: (VALUE, -1),
    "size below 0, at the end": lambda room: (room, -VALUE),
    "the smallest size": lambda room: (5, -MOST - 1),
    "the largest size": lambda room: (0, MOST),
    "the smallest offset": lambda room: (-MOST - 1, VALUE),
    "the largest offset": lambda room: (MOST, VALUE),
    "a sum beyond 2^63": lambda room: (MOST - 3, VALUE),
    "a sum of twice 2^62": lambda room: (1 << 62, 1 << 62),
    "a difference beyond 2^63": lambda room: (-(1 << 62), MOST),
    "from the smallest to the end": lambda room: (-MOST - 1, MOST),
}


def wrapped(number: int) -> int:
    """A number as the int64 that its last 64 bits are."""
    return (number + MOST + 1) % (1 << 64) - MOST - 1


def index_of(path: Path) -> NDArray[np.void]:
    """The side index of the only shard, writable."""
    (index,) = (file for file in path.glob("shard-*.idx.npy") if ".sums." not in file.name)
    return np.lib.format.open_memmap(index, "r+")


def in_index(name: str) -> Callable[[Path], Iterator[tuple[str, bytes | None]]]:
    """Plant each span in the side index of a tar, whose values may be anywhere in the file."""

    def plant(path: Path) -> Iterator[tuple[str, bytes | None]]:
        (shard,) = path.glob("shard-*.tar")
        data, index = shard.read_bytes(), index_of(path)
        for case, span in SPANS.items():
            start, size = span(len(data))
            index[f"{name}.offset"][ROW], index[f"{name}.size"][ROW] = start, size
            index.flush()
            inside = start >= 0 and size >= 0 and start + size <= len(data)
            right = name == "value" or size == VALUE  # a fixed field has rows of one size
            yield case, data[start : start + size] if inside and right else None

    return plant


def in_offsets(dtype: str, **options: object) -> Callable[[Path], Iterator[tuple[str, bytes | None]]]:
    """Plant each span in the offsets of an HDF5 group, which are stored in this way."""

    def plant(path: Path) -> Iterator[tuple[str, bytes | None]]:
        shard, other = path / "shard-000000.h5", path / "other.h5"
        for case, span in SPANS.items():
            shutil.copy(shard, other)  # h5py may hold the last one open
            with h5py.File(other, "r+") as file:
                data, stored = file["value/data"][:].tobytes(), file["value/offsets"][:].astype(object)
                start, size = span(len(data))
                stored[:] = [VALUE * number for number in range(COUNT + 1)]
                stored[ROW], stored[ROW + 1] = start, wrapped(start + size)
                del file["value/offsets"]
                stored = stored % (1 << 64) if dtype[1] == "u" else stored
                file.create_dataset("value/offsets", data=stored.astype(dtype), **options)
            other.replace(shard)
            inside = 0 <= start <= wrapped(start + size) <= len(data)
            yield case, data[start : start + size] if inside else None

    return plant


FIELDS = {"value": "bytes", "fixed": ("uint8", (VALUE,))}

# container, field, how it is damaged
READERS = {
    "tar": ("tar", "value", in_index("value")),
    "tar, fixed": ("tar", "fixed", in_index("fixed")),
    "hdf5": ("hdf5", "value", in_offsets("<i8")),
    "hdf5, big-endian": ("hdf5", "value", in_offsets(">i8")),
    "hdf5, unsigned": ("hdf5", "value", in_offsets("<u8")),
    "hdf5, chunked": ("hdf5", "value", in_offsets("<i8", chunks=(3,), compression="gzip")),
}


def written(path: Path, container: str) -> Path:
    """A dataset of one shard whose values are bytes of their row's number."""
    values = [np.full(VALUE, number + 1, np.uint8) for number in range(COUNT)]
    rows = [{"value": value.tobytes(), "fixed": value} for value in values]
    return Path(packed(path, rows, FIELDS, container=container, shard_size="1GB").path)


def deliveries(path: Path, name: str) -> set[bytes | None]:
    """What each way to read row 2, alone or among others, gives for it; None where it raises ShardCorrupt."""
    dataset = shardio.open(path)
    ways: list[Callable[[NDArray[np.int64]], Any]] = [
        lambda rows: dataset.shards[0].read(rows, name),  # the container's own
        lambda rows: dataset.selection(rows).stored(name),  # many rows of many shards in one compiled call
        lambda rows: dataset.selection(rows).stored(name, None, Scratch()),  # the same, as a loader does
        lambda rows: dataset.read(rows, [name])[name],
    ]
    found: set[bytes | None] = set()
    for read, rows in itertools.product(ways, ([ROW], [5, ROW, 4], [ROW, 0, ROW])):
        try:
            found.add(bytes(read(np.array(rows))[rows.index(ROW)]))
        except ShardCorrupt as error:
            found.add(None if f"field {name!r}, row {ROW}" in f"{error}" else f"{error}".encode())
    return found


@pytest.mark.usefixtures("part")
@pytest.mark.parametrize("reader", READERS)
def test_spans(reader: str, tmp_path: Path) -> None:
    """A span within the field's data gives its bytes, any other is refused by name, however it is read.

    Sizes that are asked for without reading lie within the data too.
    """
    container, name, plant = READERS[reader]
    path = written(tmp_path / "d", container)
    for case, expected in plant(path):
        assert deliveries(path, name) == {expected}, case
        selection = shardio.open(path).selection(np.array([ROW]))
        if name == "fixed":
            continue
        if expected is not None:
            assert selection.sizes(name).tolist() == [len(expected)], case
        else:
            with pytest.raises(ShardCorrupt):
                selection.sizes(name)


@pytest.mark.parametrize(
    "offsets",
    [
        np.full(COUNT + 1, np.nan),
        np.arange(COUNT + 1, dtype=np.float64),
        np.arange(COUNT + 1).reshape(1, -1),
        np.arange(0),
        np.arange(COUNT),  # one too few: a sample less
        np.arange(COUNT + 2),
        np.array([b"0"] * (COUNT + 1)),
        np.zeros(COUNT + 1, np.bool_),
    ],
)
def test_offsets_that_are_none(offsets: NDArray[Any], tmp_path: Path) -> None:
    """Offsets of another type, shape or number are refused when the shard is opened."""
    path = written(tmp_path / "d", "hdf5")
    with h5py.File(path / "shard-000000.h5", "r+") as file:
        del file["value/offsets"]
        file["value/offsets"] = offsets
    with pytest.raises(ShardCorrupt, match="shard-000000"):
        shardio.open(path).read([ROW], ["value"])


def test_chunks_outside_of_the_file_and_tables_of_chunks_without_end(tmp_path: Path) -> None:
    """A chunk that begins or ends outside of the file is refused; chunks that were never written cost no memory."""
    path = written(tmp_path / "d", "hdf5")
    shard = path / "shard-000000.h5"
    with h5py.File(shard, "r+") as file:
        del file["fixed"]
        file.create_dataset("fixed", data=np.ones((COUNT, VALUE), np.uint8), chunks=(1, VALUE), compression="gzip")
        places = [file["fixed"].id.get_chunk_info(number).byte_offset for number in range(COUNT)]
    whole = shard.read_bytes()
    for place in (len(whole) - 2, 1 << 40, MOST, 2**64 - 2**12):
        shard.write_bytes(whole.replace(struct.pack("<Q", places[ROW]), struct.pack("<Q", place)))
        with pytest.raises(ShardCorrupt, match="shard-000000"):
            shardio.open(path).read([ROW], ["fixed"])
    with h5py.File(shard, "w") as file:
        file.create_dataset("fixed", (1 << 50, 8), np.uint8, chunks=(1, 8), compression="gzip")[ROW] = 7
    reader = containers.get("hdf5").reader(shard, as_fields({"fixed": ("uint8", (8,))}))
    assert reader.read(np.array([ROW, 1 << 49]), "fixed").tolist() == [[7] * 8, [0] * 8]


def test_unfiltered_chunks_that_are_too_short(tmp_path: Path) -> None:
    """A chunk without filters whose table gives it fewer bytes than it has does not borrow the next one's."""
    path = written(tmp_path / "d", "hdf5")
    shard = path / "shard-000000.h5"
    with h5py.File(shard, "r+") as file:
        del file["fixed"]
        file.create_dataset("fixed", data=np.ones((COUNT, VALUE), np.uint8), chunks=(2, VALUE))
    whole = shard.read_bytes()
    # A key of the B-tree: bytes of the chunk (4), filters (4), then the offsets of its first element (8 each).
    key = struct.pack("<IIQ", 2 * VALUE, 0, ROW)
    assert whole.count(key) == 1
    shard.write_bytes(whole.replace(key, struct.pack("<IIQ", VALUE, 0, ROW)))
    with pytest.raises(ShardCorrupt, match=f"a chunk has {VALUE} of {2 * VALUE} bytes"):
        shardio.open(path).read([ROW], ["fixed"])
