"""The `tar` container: a plain WebDataset tar, with a side index beside it that says where each value is.

Other programs read the tar alone. The index also holds scalars and hidden columns, so that shardio need not parse them.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, final

from ..errors import BadSample
from ..format.fields import Field, present_column
from ..system.types import Buffer, Stored
from . import side_index
from . import tar_layout as layout
from ._writing import OutputFiles, Stream, check_options, check_sample, fixed_sizes, size_of
from .indexed import IndexedReader

_MOST_TEXTS = 4096


@final
class TarWriter:
    """A `Writer` that writes tar and index side by side, so that memory stays bounded."""

    def __init__(self, path: Path, fields: Mapping[str, Field], first: int) -> None:
        layout.check_names(fields)
        side_index.dtype_of(fields)  # raises before anything is written
        self._path, self._fields, self._first = path, dict(fields), first
        self._members = side_index.located(fields)
        self._array_headers = {n: layout.array_header(f) for n, f in fields.items() if f.kind != "scalar" and f.fixed}
        self._extensions = {n: layout.extension_of(n, f, b"") for n, f in self._members.items() if f.kind != "image"}
        self._texts: dict[tuple[str, bytes], bytes] = {}
        self._sizes = fixed_sizes(fields)
        self._count = 0
        self._intact, self._closed = True, False
        self._files = OutputFiles()
        self._tar = Stream(self._files.create(path))
        self._index = side_index.SideIndexWriter(self._files.create(side_index.path_of(path)), fields)

    def append(self, sample: Stored) -> None:
        if self._closed or not self._intact:
            raise ValueError(f"{self._path}: the writer is closed, or an earlier append failed")
        check_sample(sample, self._fields, self._sizes, self._first + self._count, self._path)
        # A value that the sample lacks is no member, as in tars that others write.
        contents = [
            None if sample.get(present_column(name)) == b"\0" else self._content(name, field, sample[name])
            for name, field in self._members.items()
        ]
        # A failure from here on leaves half a sample behind, which `close` must not pass off as a shard.
        self._intact = False
        key = f"{self._first + self._count:0{layout.KEY_DIGITS}d}"
        locations: list[int] = []
        parts: list[Buffer] = []
        position = self._tar.position
        for content in contents:
            if content is None:
                locations += 0, 0
                continue
            extension, header, value, size = content
            member_size = len(header) + size
            padding = layout.PADDING[-member_size % layout.BLOCK]
            locations += position + layout.BLOCK + len(header), size
            parts += layout.member_header(f"{key}.{extension}", member_size) + header, value, padding
            position += layout.BLOCK + member_size + len(padding)
        self._tar.write(*parts)
        self._index.append(locations, sample)
        self._count += 1
        self._intact = True

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self._intact:
                self._tar.write(bytes(2 * layout.BLOCK))
                self._tar.flush()
                self._index.finish(self._count)
                self._files.sync()
        finally:
            self._files.close()

    def _content(self, name: str, field: Field, stored: Buffer) -> tuple[str, bytes, Buffer, int]:
        """Return a member's extension, its array header, its value, and the value's size in bytes."""
        value = self._text(name, field, bytes(stored)) if field.kind == "scalar" else stored
        header, size = self._array_headers.get(name, b""), size_of(value)
        if len(header) + size > layout.LARGEST_MEMBER:
            raise BadSample(
                f"{self._path.name}, sample {self._first + self._count}, field {name!r}: "
                f"a tar member has at most {layout.LARGEST_MEMBER} bytes, got {size}"
            )
        extension = self._extensions.get(name) or layout.extension_of(name, field, stored)
        return extension, header, value, size

    def _text(self, name: str, field: Field, stored: bytes) -> bytes:
        """Return `layout.member_text`, cached for recurring values such as labels."""
        text = self._texts.get((name, stored))
        if text is None:
            text = layout.member_text(field, stored)
            if len(self._texts) < _MOST_TEXTS:
                self._texts[name, stored] = text
        return text


@final
class TarContainer:
    """WebDataset tars, each with a side index."""

    name = "tar"
    suffix = ".tar"
    index_suffix = side_index.SUFFIX
    on_disk = True
    options: Mapping[str, str] = MappingProxyType({})

    def writer(self, path: Path, fields: Mapping[str, Field], first: int, **options: Any) -> TarWriter:
        check_options(options, self)
        return TarWriter(Path(path), fields, first)

    def reader(self, path: Path, fields: Mapping[str, Field]) -> IndexedReader:
        return IndexedReader(Path(path), fields)

    def companions(self, name: str, *, adopted: bool) -> tuple[str, ...]:
        return (side_index.path_of(Path(name)).name,)

    def touch(self, file: BinaryIO, fields: Mapping[str, Field], *, adopted: bool) -> bool:
        return True  # the index says all

    def read_fields(self, path: Path) -> None:
        return None  # a tar holds only members that other programs expect

    def files(self, path: Path) -> tuple[Path, ...]:
        return path, side_index.path_of(path)
