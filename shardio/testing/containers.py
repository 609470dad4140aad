"""The contract of a container, as a test suite. Subclass `ContainerContract` and set `container`; pytest runs it.

`ReaderContract` is the part for containers that only read what other programs wrote.

Example:
    class TestMine(ContainerContract):
        container = MyContainer()
"""

import multiprocessing
import os
import pickle
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ..containers.base import Container, Reader
from ..containers.side_index import SUFFIX as INDEX_SUFFIX
from ..errors import BadSample, ConfigError, ShardCorrupt
from ..format.fields import CHECKSUM, Field, shape_column, with_hidden
from ..system.types import Stored
from .samples import COUNT, FIELDS, FIRST, raw_of, sample, stored, values_of, write


class ReaderContract:
    """Tests of what every container that reads must do, whoever wrote its files.

    Attributes:
        container: the container under test.
        fields: those of `shardio.testing.samples.FIELDS` that its files hold.
    """

    container: Container
    fields: Mapping[str, Field] = FIELDS

    def write(self, path: Path, count: int = COUNT) -> Path:
        """Write a shard of the first `count` samples at `path`; return the path."""
        return write(self.container, path, count)

    def files(self, path: Path) -> tuple[Path, ...]:
        """Return the files of the shard at `path` in which damage is detected."""
        return self.container.files(path)

    def _digest(self, reader: Reader) -> list[bytes]:
        return [b"".join(raw_of(reader, [4, 1, 4], name)) for name in self.fields]

    def _read_all(self, path: Path) -> None:
        with closing(self.container.reader(path, with_hidden(self.fields))) as reader:
            for name in with_hidden(self.fields):
                reader.read(np.arange(len(reader)), name)

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """The path of a test's shard."""
        return tmp_path / f"shard-000000{self.container.suffix}"

    @pytest.fixture
    def reader(self, path: Path) -> Iterator[Reader]:
        """An open shard with every kind of field."""
        with closing(self.container.reader(self.write(path), with_hidden(self.fields))) as reader:
            yield reader

    @pytest.mark.parametrize(
        "rows",
        [
            list(range(COUNT)),  # all, in order
            [7, 3, 3, 22, 0, 4, 5, 6, 7],  # out of order, with repeats and a run
            [COUNT - 1],  # the last alone
        ],
    )
    def test_round_trip(self, reader: Reader, rows: list[int]) -> None:
        """Every kind of field is read as it was written, in the order of the rows."""
        for name in self.fields:
            for found, row in zip(values_of(reader, rows, name), rows, strict=True):
                expected = sample(row)[name]
                assert type(found) is type(expected)
                np.testing.assert_array_equal(found, expected)

    def test_dtype_and_shape(self, reader: Reader) -> None:
        """A fixed field's column has the field's dtype and shape, even without rows."""
        for name, field in with_hidden(self.fields).items():
            for rows in (np.array([2, 1]), np.array([], np.int64)):
                column = reader.read(rows, name)
                assert len(column) == len(rows)
                if field.fixed:
                    assert isinstance(column, np.ndarray)
                    assert (column.dtype, column.shape) == (field.row_dtype, (len(rows), *field.row_shape))
                else:
                    assert isinstance(column, list)

    def test_out(self, reader: Reader) -> None:
        """`read` fills `out` in place and touches nothing around it."""
        rows = np.array([9, 2, 3, 4, 9])
        for name, field in with_hidden(self.fields).items():
            if field.fixed:
                buffer = np.zeros((9, *field.row_shape), field.row_dtype)
                expected = buffer.copy()
                expected[2:7] = reader.read(rows, name)
                assert reader.read(rows, name, out=buffer[2:7]) is not None
                np.testing.assert_array_equal(buffer, expected)

    def test_out_that_does_not_fit(self, reader: Reader) -> None:
        """ValueError unless `out` has the right shape and dtype, and the field is fixed."""
        wrong: list[tuple[str, NDArray[Any]]] = [
            ("tensor", np.zeros((3, 3, 5), np.float32)),  # one row too many
            ("tensor", np.zeros((2, 3, 5), np.float64)),  # another dtype
            ("tensor", np.zeros((3, 5, 2), np.float32).T[:, ::-1].transpose(0, 2, 1)),  # not C-contiguous
            ("caption", np.zeros(2, np.uint8)),  # a field that differs in size
        ]
        wrong = [one for one in wrong if one[0] in self.fields]
        for name, out in wrong:
            with pytest.raises(ValueError, match="out"):
                reader.read(np.array([0, 1]), name, out=out)

    @pytest.mark.parametrize("row", [-1, COUNT, 2**40])
    def test_row_out_of_range(self, reader: Reader, row: int) -> None:
        """IndexError names a row outside the shard, for every field."""
        for name in with_hidden(self.fields):
            with pytest.raises(IndexError, match=rf"\[0, {COUNT}\), got {row}"):
                reader.read(np.array([0, row]), name)

    def test_unknown_field(self, reader: Reader) -> None:
        """KeyError names a field that the shard does not have."""
        with pytest.raises(KeyError, match="nothing"):
            reader.read(np.array([0]), "nothing")

    def test_len(self, reader: Reader) -> None:
        """The length is the number of samples."""
        assert len(reader) == COUNT

    def test_pickle(self, reader: Reader) -> None:
        """A reader that was pickled and unpickled reads the same values."""
        with closing(pickle.loads(pickle.dumps(reader))) as copy:  # noqa: S301
            for name in self.fields:
                np.testing.assert_array_equal(copy.read(np.array([8, 1]), name), reader.read(np.array([8, 1]), name))
            assert len(copy) == COUNT

    def test_fork(self, reader: Reader) -> None:
        """A forked child reads with the reader that it inherits, and the parent can still read."""
        expected = self._digest(reader)
        ours, theirs = multiprocessing.Pipe()
        child = os.fork()
        if not child:
            try:
                theirs.send(self._digest(reader))
                reader.close()
            finally:
                os._exit(0)
        theirs.close()
        try:
            assert ours.poll(30)
            assert ours.recv() == expected
        finally:
            os.waitpid(child, 0)
            ours.close()
        assert self._digest(reader) == expected

    def test_threads(self, reader: Reader) -> None:
        """Eight threads read at once, and each gets the rows that it asked for."""
        barrier = threading.Barrier(8)
        names = list(self.fields)

        def work(number: int) -> None:
            chance = np.random.default_rng(number)
            barrier.wait(30)
            for turn in range(20):
                rows = chance.integers(0, COUNT, 11).tolist()
                name = names[(number + turn) % len(names)]
                for found, row in zip(values_of(reader, rows, name), rows, strict=True):
                    np.testing.assert_array_equal(found, sample(row)[name])

        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(work, number) for number in range(8)]:
                done.result(60)

    def test_close(self, path: Path) -> None:
        """You may close a reader twice; other readers stay open; a closed one raises ValueError."""
        self.write(path)
        first, second = (self.container.reader(path, with_hidden(self.fields)) for _ in range(2))
        first.close()
        first.close()
        assert values_of(second, [3], "label") == [sample(3)["label"]]
        second.close()
        with pytest.raises(ValueError, match="closed"):
            second.read(np.array([0]), "label")

    def test_no_samples(self, path: Path) -> None:
        """A shard without samples can be written and read."""
        with closing(self.container.reader(self.write(path, count=0), with_hidden(self.fields))) as reader:
            assert len(reader) == 0
            for name in with_hidden(self.fields):
                assert len(reader.read(np.array([], np.int64), name)) == 0
                with pytest.raises(IndexError):
                    reader.read(np.array([0]), name)

    @pytest.mark.parametrize("part", [0, 0.01, 0.3, 0.7])
    def test_cut_short(self, path: Path, part: float) -> None:
        """Opening or reading a shard raises ShardCorrupt, with its name, if any of its files is cut short."""
        files = self.files(self.write(path))
        if not files:
            pytest.skip("the container has no files")
        for file in files:
            with _restored(file):
                os.truncate(file, int(file.stat().st_size * part))
                with pytest.raises(ShardCorrupt, match=path.stem):
                    self._read_all(path)
        self._read_all(path)

    def test_missing_file(self, path: Path) -> None:
        """ShardCorrupt names the file of a shard that is missing."""
        with pytest.raises(ShardCorrupt, match=path.name):
            self.container.reader(path, with_hidden(self.fields))
        for file in self.files(self.write(path)):
            with _restored(file):
                file.unlink()
                with pytest.raises(ShardCorrupt, match=file.name):
                    self._read_all(path)


class ContainerContract(ReaderContract):
    """Tests of what every container must do.

    Attributes:
        container: the container under test; a subclass sets it, and nothing else.
    """

    def test_stored_bytes(self, reader: Reader) -> None:
        """Values that differ in size are read as bytes, exactly those that were written."""
        for name in ("image", "points", "track", "tokens", "caption", "blob", "meta"):
            column = reader.read(np.arange(COUNT), name)
            assert column == [stored(i)[name] for i in range(COUNT)]
            assert all(type(value) is bytes for value in column)

    def test_hidden_columns(self, reader: Reader) -> None:
        """Checksums and image shapes are read like any other column."""
        rows = np.array([5, 0, 5, 22])
        checksums, shapes = reader.read(rows, CHECKSUM), reader.read(rows, shape_column("image"))
        np.testing.assert_array_equal(checksums, np.array([2**64 - 1 - int(row) for row in rows], np.uint64))
        np.testing.assert_array_equal(shapes, np.stack([rows, rows + 1], 1).astype(np.int32))

    def test_largest_value(self, reader: Reader) -> None:
        """BadSample for a value of more bytes than `most`; values of up to that are read."""
        for name, row in (("blob", 3), ("image", 5)):
            size = len(stored(row)[name])
            assert raw_of(reader, [row], name) == reader.read(np.array([row]), name, most=size)
            with pytest.raises(BadSample, match=f"{size} bytes.*max_value_bytes allows {size - 1}"):
                reader.read(np.array([0, row]), name, most=size - 1)

    def test_missing_field(self, path: Path) -> None:
        """ShardCorrupt names a field that the file lacks."""
        write(self.container, path)
        for kind in (Field("scalar", dtype="int8"), Field("text"), Field("array", dtype="int8", shape=(2,))):
            with pytest.raises(ShardCorrupt, match="absent"):
                self.container.reader(path, with_hidden({**FIELDS, "absent": kind}))

    def test_same_bytes(self, path: Path, tmp_path: Path) -> None:
        """The same samples give the same files, and the writer leaves no other files behind."""
        again = tmp_path / "again" / path.name
        again.parent.mkdir()
        files = [self.container.files(write(self.container, place)) for place in (path, again)]
        assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]
        assert sorted(again.parent.iterdir()) == sorted(files[1])

    def test_description(self, path: Path) -> None:
        """The container's statements about its files and a shard's fields are true."""
        files = self.container.files(write(self.container, path))
        assert self.container.on_disk == bool(files)
        if files:
            assert files[0] == path
            assert all(file.is_file() for file in files)
        assert all(file.name.endswith(INDEX_SUFFIX) for file in files[1:])
        assert self.container.read_fields(path) in (None, FIELDS)

    def test_refused_samples(self, path: Path) -> None:
        """The writer refuses a sample with other fields or a wrong size, and the shard is intact without it."""
        writer = self.container.writer(path, with_hidden(FIELDS), FIRST)
        writer.append(stored(0))
        lacking: Stored = {name: value for name, value in stored(1).items() if name != "caption"}
        for wrong, error, match in (
            (lacking, ConfigError, "caption"),  # a field too few
            ({**stored(1), "other": b""}, ConfigError, "other"),  # a field too many
            ({**stored(1), "tensor": b"123"}, BadSample, "tensor.*60 bytes, got 3"),  # a fixed field cut short
            ({**stored(1), "label": bytes(9)}, BadSample, "label.*8 bytes, got 9"),  # a byte too many
        ):
            with pytest.raises(error, match=match):
                writer.append(wrong)
        writer.append(stored(1))
        writer.close()
        writer.close()
        with closing(self.container.reader(path, with_hidden(FIELDS))) as reader:
            assert [values_of(reader, [0, 1], name) for name in ("label", "caption")] == [[-5, -4], ["", "plain1"]]

    def test_unknown_option(self, path: Path) -> None:
        """ConfigError names an option that the container does not have."""
        with pytest.raises(ConfigError, match="colour"):
            self.container.writer(path, with_hidden(FIELDS), FIRST, colour="red")

    def test_buffers(self, path: Path) -> None:
        """Samples may be any kind of buffer."""
        writer = self.container.writer(path, with_hidden(FIELDS), FIRST)
        writer.append({name: memoryview(bytearray(value)) for name, value in stored(4).items()})
        writer.append({name: bytearray(value) for name, value in stored(3).items()})
        writer.close()
        with closing(self.container.reader(path, with_hidden(FIELDS))) as reader:
            for name in with_hidden(FIELDS):
                assert raw_of(reader, [0, 1], name) == [stored(4)[name], stored(3)[name]]


@contextmanager
def _restored(file: Path) -> Iterator[None]:
    """Leave a file as it was, with its time."""
    data, status = file.read_bytes(), file.stat()
    yield
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
