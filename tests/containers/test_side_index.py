"""Side indexes have one layout, whichever way they are written."""

import io
from pathlib import Path

import numpy as np
import pytest

from shardio.containers import side_index
from shardio.errors import ShardCorrupt
from shardio.format.fields import as_fields, with_hidden
from shardio.system.directory import Directory

FIELDS = with_hidden(as_fields({"image": "image", "x": ("float32", (2, 3)), "label": "int16", "text": "text"}))


def rows(count: int) -> np.ndarray:
    """An index of `count` rows whose bytes are all different from zero."""
    dtype = side_index.dtype_of(FIELDS)
    return np.frombuffer(np.random.default_rng(0).integers(1, 99, count * dtype.itemsize, np.uint8).tobytes(), dtype)


@pytest.mark.parametrize("count", [0, 1, 12345])
def test_row_by_row_or_at_once(tmp_path: Path, count: int) -> None:
    """Both ways of writing give the file of `numpy.save`, and reading returns the same rows."""
    index, shard = rows(count), tmp_path / "shard-000000.tar"
    side_index.write(Directory(tmp_path), shard.name, index)
    with open(tmp_path / "streamed", "wb") as file:
        writer = side_index.SideIndexWriter(file, FIELDS, io.BytesIO)
        for row in index:
            spans = [int(row[f"{name}.{part}"]) for name in side_index.located(FIELDS) for part in ("offset", "size")]
            writer.append(spans, {name: row[name].tobytes() for name in side_index.held(FIELDS)})
        writer.finish(count)
    np.save(tmp_path / "numpy.npy", index)
    files = [side_index.path_of(shard), tmp_path / "streamed", tmp_path / "numpy.npy"]
    assert files[0].name == "shard-000000.idx.npy"
    assert len({file.read_bytes() for file in files}) == 1
    np.testing.assert_array_equal(side_index.load(shard), index)


def test_many_fields(tmp_path: Path) -> None:
    """An index may have thousands of columns, for which its header uses version 2 of the .npy format."""
    fields = as_fields({f"field{number:04d}": "bytes" for number in range(2000)})
    shard = tmp_path / "shard-000000.tar"
    side_index.write(Directory(tmp_path), shard.name, np.zeros(3, side_index.dtype_of(fields)))
    assert side_index.path_of(shard).read_bytes()[6] == 2
    assert len(side_index.read(shard, fields)) == 3


def test_damage(tmp_path: Path) -> None:
    """A missing or damaged index, or one of other fields, is ShardCorrupt."""
    shard = tmp_path / "shard-000000.tar"
    with pytest.raises(ShardCorrupt, match=r"its index shard-000000.idx.npy is missing"):
        side_index.load(shard)
    side_index.write(Directory(tmp_path), shard.name, rows(3))
    with pytest.raises(ShardCorrupt, match=r"the index has no column 'other.offset'"):
        side_index.read(shard, {**FIELDS, "other": FIELDS["text"]})
    with pytest.raises(ShardCorrupt, match=r"idx\.npy, column 'label': expected int64, got int16"):
        side_index.read(shard, with_hidden(as_fields({"label": "int64"})))
    side_index.path_of(shard).write_bytes(b"\x93NUMPY")
    with pytest.raises(ShardCorrupt, match="the index is cut short or damaged"):
        side_index.load(shard)
