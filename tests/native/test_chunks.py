"""Compiled code gives what Python gives for chunks of HDF5 and Zarr: the same numbers, or the same error."""

import json
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardio import containers, native
from shardio.containers import Reader
from shardio.containers.extents import Blocks
from shardio.errors import ShardCorrupt
from shardio.format.fields import Field

pytestmark = pytest.mark.skipif(native.library() is None, reason="there is no compiled part")

SHAPE, CHUNK = (5, 9, 14), (2, 4, 5)
FILTERS: dict[str, dict[str, Any]] = {
    "gzip": {"compression": "gzip"}, "lzf": {"compression": "lzf"}, "zstd": {**hdf5plugin.Zstd()},
    "lz4": {**hdf5plugin.LZ4(nbytes=64)}, "blosc": {**hdf5plugin.Blosc(cname="zstd")}, "none": {},
}  # fmt: skip


def outcome(reader: Reader, rows: list[int], blocks: Blocks | None) -> Any:
    """Return the numbers that reading gives, or the text of its error."""
    try:
        if blocks is None:
            return np.asarray(reader.read(np.array(rows), "x")).tolist()
        return np.asarray(reader.read_blocks(np.array(rows), "x", blocks)).tolist()
    except ShardCorrupt as error:
        return str(error)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from([*FILTERS]),
    also=st.fixed_dictionaries({"shuffle": st.booleans(), "fletcher32": st.booleans()}),
    dtype=st.sampled_from(["u1", "<i2", ">i2", "<f4", ">f4", ">u8", "<f8"]),
    partly=st.booleans(),
    damage=st.one_of(st.none(), st.tuples(st.integers(0, 10**6), st.integers(1, 255))),
    data=st.data(),
)
def test_the_same_numbers_or_the_same_error(
    tmp_path_factory: pytest.TempPathFactory, name: str, also: Any, dtype: str, partly: bool, damage: Any, data: Any
) -> None:
    """Rows and blocks of any filters are the same with compiled code and without, and of whole files those stored."""
    path: Path = tmp_path_factory.mktemp("chunks") / "x.h5"
    values = np.random.default_rng(1).integers(0, 50, SHAPE).astype(dtype)
    with h5py.File(path, "w") as file:
        stored = file.create_dataset("x", SHAPE, dtype, chunks=CHUNK, fillvalue=7, **FILTERS[name], **also)
        stored[: 2 if partly else None] = values[: 2 if partly else None]
        values = stored[...]
        spans = [
            (one.byte_offset, one.size) for one in map(stored.id.get_chunk_info, range(stored.id.get_num_chunks()))
        ]
    if damage is not None:
        offset, size = spans[damage[0] % len(spans)]
        content = bytearray(path.read_bytes())
        content[offset + damage[0] % size] ^= damage[1]
        path.write_bytes(content)
    rows = data.draw(st.lists(st.integers(0, SHAPE[0] - 1), min_size=1, max_size=8))
    blocks = None
    if data.draw(st.booleans()):
        size_ = tuple(data.draw(st.integers(1, n)) for n in SHAPE[1:])
        begins = [[data.draw(st.integers(0, n - k)) for n, k in zip(SHAPE[1:], size_, strict=True)] for _ in rows]
        blocks = Blocks(np.array(begins), size_)
    field = Field("array", dtype=np.dtype(dtype).newbyteorder("=").name, shape=SHAPE[1:])
    found = []
    for library in (native.library, lambda: None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "library", library)
            reader = containers.get("hdf5").reader(path, {"x": field})
            found.append([outcome(reader, rows, blocks), outcome(reader, rows, blocks)])  # kept chunks, the second time
            reader.close()
    assert json.dumps(found[0], default=str) == json.dumps(found[1], default=str)
    if damage is None:
        wanted = [values[row] if blocks is None else values[row][blocks.place(i)] for i, row in enumerate(rows)]
        assert found[0][0] == np.array(wanted).tolist()
