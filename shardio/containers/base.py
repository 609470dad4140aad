"""The contract of a container: writing and reading a shard of any kind."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Protocol

from numpy.typing import NDArray

from ..errors import BadSample, ConfigError, Option
from ..format.fields import Field
from ..format.limits import MAX_VALUE_BYTES
from ..system import allocation
from ..system.types import Column, Rows
from ._writing import Writer
from .row_locator import RowLocator, Scratch


class Reader(Protocol):
    """Reads one shard. Any number of threads may call `read` at once; a reader survives fork and pickling."""

    def __len__(self) -> int:
        """The number of samples in the shard."""

    def read(self, rows: Rows, field: str, out: NDArray[Any] | None = None, *, most: int = MAX_VALUE_BYTES) -> Column:
        """Read one field of many samples.

        Args:
            rows: the samples' numbers in the shard, int64 [n], in any order, repeats allowed.
            field: a field or a hidden column.
            out: for a fixed field, the array to fill: C-contiguous `[n, *shape]` of the field's dtype.
            most: the most bytes of a value of any other field, and of what is decompressed for a value.

        Returns:
            For a fixed field `out`, or an array like it; for any other field a list with the bytes of each sample. The
            samples are in the order of `rows`.

        Raises:
            IndexError: a row is outside the shard.
            KeyError: there is no such field.
            BadSample: a value claims more than `most` bytes; no memory is taken for it.
            ShardCorrupt: the file is cut short or damaged.
        """

    def locator(self, field: str) -> RowLocator | None:
        """Return a locator of the field's rows, to read rows of many shards in one call; None if only `read` can."""

    def close(self) -> None:
        """Close all files; you may call it twice."""


class Container:
    """A kind of shard, such as `"tar"`; `containers.CONTAINERS` lists all of them.

    What it says here suits files that only other programs write; each kind overrides what differs.

    Attributes:
        name: what users call it.
        suffix: the suffix of the shards that its writer makes; "" if it has none.
        index_suffix: the suffix of the index that may lie beside a shard, `.idx.` and more; "" if there never is one.
        on_disk: whether its shards are files.
        options: the writer's options: for each a line of help, with the values that it takes.
        writer_type, reader_type: what `writer` and `reader` make.
    """

    name = ""
    suffix = ""
    index_suffix = ""
    on_disk = True
    options: Mapping[str, str] = MappingProxyType({})
    writer_type: type[Writer] | None = None
    reader_type: type[Any]

    def writer(self, path: Path, fields: Mapping[str, Field], first: int, **options: Any) -> Writer:
        """Begin the shard at `path`.

        Args:
            path: the shard's path.
            fields: the shard's fields, with hidden columns.
            first: the index of its first sample in the dataset.
            options: the writer's options.

        Raises:
            ConfigError: an option or a field is not possible in this container, or it has no writer.
        """
        if self.writer_type is None:
            raise ConfigError(f"container {self.name!r} only reads files that other programs wrote: see shardio index")
        if unknown := sorted(set(options) - set(self.options)):
            has = f"the options {', '.join(self.options)}" if self.options else "no options"
            raise ConfigError("container {!r} has {}, got {}", self.name, has, Option(unknown[0]))
        return self.writer_type(path, fields, first, **options)

    def reader(self, path: Path, fields: Mapping[str, Field]) -> Reader:
        """Open the shard at `path`; ShardCorrupt if it is missing, cut short, damaged or lacks a field."""
        reader: Reader = self.reader_type(path, fields)
        return reader

    def files(self, path: Path) -> tuple[Path, ...]:
        """Return the paths of all files of the shard at `path`, the shard itself first."""
        return (path,)

    def companions(self, name: str, *, adopted: bool) -> tuple[str, ...]:
        """Return the names of the other files that a shard has, of a dataset whose files are `adopted` or not."""
        return ()

    def touch(self, file: BinaryIO, fields: Mapping[str, Field], *, adopted: bool) -> bool:
        """Read, from a shard in a store, what opening the shard reads, so that a cache has it.

        Returns:
            Whether rows of the shard are then read by their spans alone; False if reading them needs the whole file.
        """
        return False

    def read_fields(self, path: Path) -> Mapping[str, Field] | None:
        """Return the fields that the shard at `path` states itself, so that a lost manifest can be rebuilt.

        Returns:
            None if it states none, because its kind never does or another program wrote it.

        Raises:
            ShardCorrupt: the shard is missing, cut short or damaged.
        """
        return None


def check_value_bytes(claimed: int, most: int, place: str) -> None:
    """Raise BadSample if a value, at `place`, claims more bytes than `most`."""
    if claimed > most:
        raise BadSample(f"{place}: {claimed} bytes are claimed, max_value_bytes allows {most}")


def check_out(out: NDArray[Any] | None, count: int, field: Field) -> NDArray[Any]:
    """Return `out` if it fits `count` rows of a fixed field, or a new array.

    Raises ValueError if it does not fit, MemoryError if there is not enough for a new one.
    """
    shape = (count, *field.row_shape)
    return allocation.empty(shape, field.row_dtype) if out is None else _fitting(out, shape, field)


def part_memory(out: NDArray[Any] | None, count: int, field: Field, scratch: Scratch | None) -> NDArray[Any]:
    """Return `out` if it fits `count` entries of a ragged field, or memory for them, of `scratch` if there is one.

    Raises ValueError if it does not fit, MemoryError if there is not enough for a new one.
    """
    shape = (count, *field.entry_shape)
    if out is None and scratch is not None:
        return scratch.take(count * field.entry_bytes).view(field.row_dtype).reshape(shape)
    return allocation.empty(shape, field.row_dtype) if out is None else _fitting(out, shape, field)


def _fitting(out: NDArray[Any], shape: tuple[int, ...], field: Field) -> NDArray[Any]:
    if out.shape != shape or out.dtype != field.row_dtype or not out.flags.c_contiguous:
        raise ValueError(f"out must be C-contiguous, {shape} of {field.row_dtype}, got {out.shape} of {out.dtype}")
    return out
