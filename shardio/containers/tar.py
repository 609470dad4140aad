"""The `tar` container: a plain WebDataset tar, and beside it an index of where each value is.

Other programs read the tar alone. Scalars and hidden columns stand in the index as well, where they need no parsing.
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np

from ..errors import BadSample
from ..format.fields import Field
from ..system.types import Buffer, Stored
from . import _tar_layout as layout
from . import indexed
from ._writing import OutputFiles, Stream, check_options, check_sample, fixed_sizes, size_of
from .indexed import IndexedReader

_MOST_TEXTS = 4096


@final
class TarWriter:
    """See `base.Writer`; the index is written row by row beside the tar, so memory stays bounded."""

    def __init__(self, path: Path, fields: Mapping[str, Field], first: int) -> None:
        layout.check_names(fields)
        dtype = indexed.index_dtype(fields)
        self._path, self._fields, self._first = path, dict(fields), first
        self._members = indexed.visible(fields)
        self._packed = indexed.packed(fields)
        self._places = struct.Struct(f"<{2 * len(self._members)}q")
        self._array_headers = {n: layout.array_header(f) for n, f in fields.items() if f.kind == "array" and f.fixed}
        self._extensions = {n: layout.extension_of(n, f, b"") for n, f in self._members.items() if f.kind != "image"}
        self._texts: dict[tuple[str, bytes], bytes] = {}
        self._descr = np.lib.format.dtype_to_descr(dtype)
        self._sizes = fixed_sizes(fields)
        self._count = 0
        self._whole, self._closed = True, False
        self._files = OutputFiles()
        self._tar = Stream(self._files.create(path))
        self._index = self._files.create(indexed.index_path(path))
        self._index.write(self._index_header())

    def append(self, sample: Stored) -> None:
        """Adds one sample; ConfigError for other fields, BadSample for a wrong or too large size."""
        if self._closed or not self._whole:
            raise ValueError(f"{self._path}: the writer is closed, or an earlier append failed")
        check_sample(sample, self._fields, self._sizes, self._first + self._count, self._path)
        contents = [self._content(name, field, sample[name]) for name, field in self._members.items()]
        # What fails from here on leaves half a sample behind, which `close` must not pass off as a shard.
        self._whole = False
        key = f"{self._first + self._count:0{layout.KEY_DIGITS}d}"
        places: list[int] = []
        parts: list[Buffer] = []
        at = self._tar.position
        for extension, before, value, size in contents:
            full = len(before) + size
            places += at + layout.BLOCK + len(before), size
            parts += (
                layout.member_header(f"{key}.{extension}", full) + before,
                value,
                layout.PADDING[-full % layout.BLOCK],
            )
            at += layout.BLOCK + full + -full % layout.BLOCK
        self._tar.write(*parts)
        self._index.write(self._places.pack(*places))
        for name in self._packed:
            self._index.write(sample[name])
        self._count += 1
        self._whole = True

    def close(self) -> None:
        """Ends both files and syncs them; after a failed append it only lets go."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._whole:
                self._tar.write(bytes(2 * layout.BLOCK))
                self._tar.flush()
                self._index.seek(0)
                self._index.write(self._index_header())
                self._files.sync()
        finally:
            self._files.drop()

    def _content(self, name: str, field: Field, stored: Buffer) -> tuple[str, bytes, Buffer, int]:
        value = self._text(name, field, bytes(stored)) if field.kind == "scalar" else stored
        before, size = self._array_headers.get(name, b""), size_of(value)
        if len(before) + size > layout.LARGEST_MEMBER:
            raise BadSample(
                f"{self._path.name}, sample {self._first + self._count}, field {name!r}: "
                f"a tar member has at most {layout.LARGEST_MEMBER} bytes, got {size}"
            )
        extension = self._extensions.get(name) or layout.extension_of(name, field, stored)
        return extension, before, value, size

    def _text(self, name: str, field: Field, stored: bytes) -> bytes:
        """`layout.member_text`; values that come often, as labels do, are put into words once."""
        text = self._texts.get((name, stored))
        if text is None:
            text = layout.member_text(field, stored)
            if len(self._texts) < _MOST_TEXTS:
                self._texts[name, stored] = text
        return text

    def _index_header(self) -> bytes:
        return layout.npy_header({"descr": self._descr, "fortran_order": False, "shape": (self._count,)})


@final
class TarContainer:
    """WebDataset tars with a side index."""

    name = "tar"
    suffix = ".tar"

    def writer(self, path: Path, fields: Mapping[str, Field], first: int, **options: Any) -> TarWriter:
        """A tar to be written at `path`, its index beside it; takes no options."""
        check_options(options, (), self.name)
        return TarWriter(Path(path), fields, first)

    def reader(self, path: Path, fields: Mapping[str, Field]) -> IndexedReader:
        """The tar and index at `path`; ShardCorrupt if either is missing, cut short or damaged."""
        return IndexedReader(Path(path), fields)

    def described(self, path: Path) -> None:
        """Nothing: a tar holds what other programs look for in it, and no more."""

    def files(self, path: Path) -> tuple[Path, ...]:
        """The tar and its index."""
        return path, indexed.index_path(path)
