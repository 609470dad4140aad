"""Shards written by columns, sample by sample and with a known number of rows are the same."""

import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from _builders import png
from _small_disk import small_disk
from _time_limit import wait_until
from hypothesis import given, settings
from hypothesis import strategies as st

from shardio import containers
from shardio.containers import memory, piece_sums
from shardio.errors import BadSample, ShardCorrupt
from shardio.format.fields import Field, as_fields, presence, with_optional
from shardio.output.shard_writer import ShardWriter, WrittenShard
from shardio.testing.samples import FIELDS
from shardio.testing.samples import sample as of_every_kind

CONTAINERS = ("tar", "hdf5", "lmdb", "memory")
OPTIONAL = ("image", "tensor", "track", "weight", "caption", "meta")
FIXED = {name: field for name, field in FIELDS.items() if field.fixed}
FIRST = 7


def sample(index: int) -> dict[str, Any]:
    """A sample with a value of every kind, of which images have two sizes."""
    return of_every_kind(index) | {"image": png(4 + index // 3 % 2, 5, seed=index)}


def values(index: int, fields: Mapping[str, Field], missing: set[tuple[int, str]]) -> dict[str, Any]:
    """A sample; some of its optional fields are missing."""
    return {name: None if (index, name) in missing else sample(index)[name] for name in fields}


def batch(indices: range, fields: Mapping[str, Field], missing: set[tuple[int, str]], masks: bool) -> dict[str, Any]:
    """Samples by column: arrays of fixed fields, lists of others, with None for missing values or with `masks`."""
    columns: dict[str, Any] = {name: [values(index, fields, missing)[name] for index in indices] for name in fields}
    for name, field in fields.items():
        present = [(index, name) not in missing for index in indices]
        if field.optional and masks:
            columns[presence(name)] = np.array(present)
            columns[name] = [sample(index)[name] for index in indices]
        if field.fixed and (masks or all(present)):
            columns[name] = np.array(columns[name], field.dtype or np.uint8).reshape(len(indices), *field.row_shape)
    return columns


def files_of(container: str, folder: Path, shard: WrittenShard) -> dict[str, Any]:
    """All bytes that a shard consists of, by file name; of one in memory, by field."""
    if container != "memory":
        return {path.name: path.read_bytes() for path in folder.iterdir()}
    opened = memory._SHARDS[str(folder / shard.name)]
    return {name: np.asarray(column, object).tolist() for name, column in opened.columns.items()}


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_batch_is_its_samples(data: st.DataObject) -> None:
    """Appended or extended in turns, with values missing or not: files, checksums and sizes are the same."""
    container = data.draw(st.sampled_from(CONTAINERS))
    names = data.draw(st.sampled_from([tuple(FIELDS), tuple(FIXED), ("tensor",), ("caption", "tokens"), ("image",)]))
    optional = data.draw(st.sets(st.sampled_from(OPTIONAL))) & set(names)
    fields = with_optional({name: FIELDS[name] for name in names}, sorted(optional))
    compression = data.draw(st.sampled_from([None, "lzf", "gzip"])) if container == "hdf5" else None
    options = {"compression": compression} if compression else {}
    parts = data.draw(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), min_size=1, max_size=5))
    count = sum(size for size, _, _ in parts)
    lacked = st.tuples(st.integers(0, max(count - 1, 0)), st.sampled_from(sorted(optional) or [""]))
    missing = data.draw(st.sets(lacked)) if optional else set()
    known = data.draw(st.booleans())

    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        expected = ShardWriter(Path(one), container, fields, 3, FIRST, options)
        for index in range(count):
            expected.append(values(index, fields, missing))
        actual = ShardWriter(Path(other), container, fields, 3, FIRST, options, count if known else None)
        start = 0
        for size, whole, masks in parts:
            indices = range(start, start + size)
            if whole:
                actual.extend(batch(indices, fields, missing, masks))
            else:
                for index in indices:
                    actual.append(values(index, fields, missing))
            start += size
        assert (actual.samples, actual.payload) == (expected.samples, expected.payload)
        shards = [expected.finish(), actual.finish()]
        assert files_of(container, Path(one), shards[0]) == files_of(container, Path(other), shards[1])
        assert shards[0].sample_checksums.tolist() == shards[1].sample_checksums.tolist()
        described = [(s.name, s.samples, s.bytes, s.checksum, s.image_shapes) for s in shards]
        assert described[0] == described[1]
        for folder in (one, other):
            memory.forget(Path(folder, shards[0].name))


LARGE = {"x": ("float32", (1000,)), "n": "int64", "y": ("uint8", (3000,))}


@pytest.mark.parametrize("names", [("x",), ("x", "n"), ("n", "x"), ("x", "y", "n"), ("n", "y", "x")])
@pytest.mark.parametrize("count", [1, 300, 3000])
def test_batches_of_many_megabytes(names: tuple[str, ...], count: int, tmp_path: Path) -> None:
    """Rows of several blocks are those of `append`, and of an unknown number; files have the checksums that are told.

    With 300 rows, the column of checksums stands before the first field in the file, with 3000 behind all of them.
    """
    fields = as_fields({name: LARGE[name] for name in names})
    random = np.random.default_rng(0)
    rows = {"x": random.random((count, 1000), np.float32), "n": np.arange(count), "y": random.bytes(3000 * count)}
    rows["y"] = np.frombuffer(rows["y"], np.uint8).reshape(count, 3000)
    written = []
    for name, known in (("columns", count), ("samples", count), ("unknown", None)):
        (tmp_path / name).mkdir()
        writer = ShardWriter(tmp_path / name, "hdf5", fields, 0, FIRST, {}, known)
        if name == "columns":
            for part in (slice(1100), slice(1100, 1101), slice(1101, 2300), slice(2300, None)):
                writer.extend({field: rows[field][part] for field in names})
        else:
            for number in range(count):
                writer.append({field: rows[field][number] for field in names})
        shard = writer.finish()
        files = containers.get("hdf5").files(tmp_path / name / shard.name)
        assert (shard.bytes, shard.checksum) == piece_sums.of_files(files)[:2]
        written.append((shard.checksum, shard.sample_checksums.tolist(), files_of("hdf5", tmp_path / name, shard)))
    assert written[0] == written[1] == written[2]


def test_a_shard_is_dropped_while_it_is_written(tmp_path: Path) -> None:
    """A writer that nobody closes leaves no open file, discarded or not; neither it nor its copy in a child waits."""
    before = len(os.listdir("/dev/fd"))
    fields = as_fields({"x": ("float32", (1000,))})
    batch = {"x": np.zeros((3000, 1000), np.float32)}
    for discarded in (False, True):
        writer = ShardWriter(tmp_path, "hdf5", fields, 0, 0, {}, 30_000)
        writer.extend(batch)
        if (child := os.fork()) == 0:
            del writer  # which waits for no thread of its parent
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        writer.extend(batch)
        if discarded:
            writer.discard()
        del writer
        wait_until(lambda: len(os.listdir("/dev/fd")) == before)


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_bad_batch_changes_nothing(container: str, tmp_path: Path) -> None:
    """A batch with one bad value is refused by samples, field and reason, and none of it is in the shard."""
    fields = with_optional(as_fields({"x": ("float32", (2,)), "n": "int64", "t": "text"}), ["x"])
    good = {"x": np.ones((3, 2), np.float32), "n": np.arange(3), "t": ["a", "b", "c"]}
    bad: dict[str, dict[str, Any]] = {
        r"samples 13 to 15: field 'x': expected shape \(None, 2\), got \(3, 3\)": {"x": np.ones((3, 3), np.float32)},
        r"samples 13 to 15: field 'x': float32 cannot hold 0\.1 ": {"x": np.full((3, 2), 0.1)},
        r"samples 13 to 15: field 'n': expected int64, got <U1": {"n": np.array(["a", "b", "c"])},
        r"samples 13 to 15: field 'n': expected 3 values, as others have, got 2": {"n": np.arange(2)},
        r"samples 13 to 15: field 'x_present': expected shape \(None,\)": {"x_present": np.ones((3, 1), bool)},
        r"samples 13 to 15: not a field: y": {"y": np.arange(3)},
        r"sample 14: field 't': expected str, got int": {"t": ["a", 5, "c"]},
        r"sample 15: field 't': there is no value": {"t": ["a", "b", None]},
        r"sample 13: field 'n': expected shape": {"n": [[1], 2, 3]},
    }
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    writer = ShardWriter(tmp_path / "a", container, fields, 0, 10, {})
    writer.extend(good)
    for reason, change in bad.items():
        with pytest.raises(BadSample, match=reason):
            writer.extend(good | change)
    with pytest.raises(BadSample, match="missing n"):
        writer.extend({"x": good["x"], "t": good["t"]})
    writer.extend(good)
    whole = ShardWriter(tmp_path / "b", container, fields, 0, 10, {})
    for _ in range(2):
        whole.extend(good)
    assert writer.finish().sample_checksums.tolist() == whole.finish().sample_checksums.tolist()


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("names", [["label", "tensor"], ["caption", "tensor"]])
def test_another_number_of_rows_than_stated(container: str, names: list[str], tmp_path: Path) -> None:
    """A shard with fewer samples than were stated is no shard, and more are refused before they are written."""
    fields = {name: FIELDS[name] for name in names}
    (tmp_path / "d").mkdir()
    for batches, more in (([2, 2], 2), ([5], 1), ([3], 3)):
        writer = ShardWriter(tmp_path / "d", container, fields, 0, 0, {}, 5)
        for size in batches:
            writer.extend(batch(range(size), fields, set(), masks=False))
        if sum(batches) + more > 5:
            with pytest.raises(ValueError, match="expected 5 samples, got 6 or more"):
                writer.extend(batch(range(more), fields, set(), masks=False))
        if sum(batches) == 5:
            with pytest.raises(ValueError, match="expected 5 samples, got 6 or more"):
                writer.append(values(5, fields, set()))
            writer.finish()
            continue
        with pytest.raises(ValueError, match=f"expected 5 samples, got {sum(batches)}"):
            writer.finish()
        writer.discard()
    assert not list(tmp_path.glob("d/.*"))


def test_an_unfinished_shard_is_no_hdf5_file(tmp_path: Path) -> None:
    """A shard whose rows were known and not all written is refused where it stands, with or without its writer."""
    fields = {"label": FIELDS["label"]}
    container = containers.get("hdf5")
    writer = container.writer(tmp_path / "a.h5", fields, 0, 3)
    writer.append({"label": bytes(8)})
    with pytest.raises(ShardCorrupt, match=r"a\.h5"):
        container.reader(tmp_path / "a.h5", fields).read(np.array([0]), "label")
    with pytest.raises(ValueError, match="expected 3 samples, got 1"):
        writer.close()
    with pytest.raises(ShardCorrupt, match=r"a\.h5"):
        container.reader(tmp_path / "a.h5", fields).read(np.array([0]), "label")


def test_a_full_disk_names_the_shard(tmp_path: Path) -> None:
    """Rows that find no space in a shard that was laid out raise OSError with its path, and nothing is left behind."""
    with small_disk(tmp_path / "small", "4m") as folder:
        writer = ShardWriter(folder, "hdf5", as_fields({"x": ("float32", (1024,))}), 0, 0, {}, 4000)
        with pytest.raises(OSError, match=r"No space left on device.*shard-000000\.h5"):
            writer.extend({"x": np.ones((4000, 1024), np.float32)})
        writer.discard()
        assert not list(folder.iterdir())
