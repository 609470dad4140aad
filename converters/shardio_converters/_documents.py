"""Documents in text files: whole files, paragraphs, or the lines of JSON lines (https://jsonlines.org)."""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeAlias, final

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample
from shardio.foreign.files import File, open_file
from shardio.foreign.names import printable, source_errors
from shardio.foreign.text_tables import MOST_LINE, Types
from shardio.format.limits import MAX_VALUE_BYTES
from shardio.source import Field, Missing, Sample, check_index

from ._files import parse_json
from ._opened_array import Stream
from ._source_base import DataclassSource, OneOpenFile

COMPRESSIONS = ("gzip", "bzip2", "xz", "zstd")
_MARK = b"\xef\xbb\xbf"  # with which some editors begin a file in UTF-8
_BUFFER = 1 << 20  # bytes: with Python's 8 KiB, long lines cost many calls

Kind: TypeAlias = Literal["files", "paragraphs", "objects"]
"""The kind of document: a whole file, a paragraph (lines without a blank one between them), or a line of JSON."""


class Scan(NamedTuple):
    """Where a file's documents are, int64 `[n, 3]` of offset, size and line, and the types of JSON values by key."""

    places: NDArray[np.int64]
    types: Mapping[str, Types]


@final
@dataclass(frozen=True, eq=False)
class Documents(DataclassSource):
    """The documents of text files. It pickles as paths and offsets; each worker opens, and unpacks, the files itself.

    Attributes:
        files: the files, which must not change while they are converted.
        kind: what a document is.
        names: by field, the key in JSON; the field `text` alone for any other document.
        fields: the fields, `text` among them.
        starts: the number of each file's first document, followed by the number of documents, `[files + 1]`.
        spans: the offset and size of each document in its file, unpacked, and its first line, `[n, 3]`.
    """

    files: tuple[Path, ...] = field()
    kind: Kind
    names: Mapping[str, str]
    fields: Mapping[str, Field]
    starts: NDArray[np.int64]
    spans: NDArray[np.int64]

    def sizes(self) -> NDArray[np.int64]:
        return self.spans[:, 1].copy()

    def place(self, index: int) -> str:
        """Return the file, and the line that a document begins on, for messages."""
        number, _, _, line = self._span(index)
        return f"{printable(self.files[number])}, line {line}"

    def __getitem__(self, index: int) -> Sample:
        check_index(index, len(self.spans))
        number, offset, size, line = self._span(index)
        if size > (most := MOST_LINE if self.kind == "objects" else MAX_VALUE_BYTES):
            what = "line" if self.kind == "objects" else "document"
            raise BadSample(f"{self.place(index)}: the {what} has {size} bytes, of which there may be {most}")
        data = self._opened.get(number).read_buffered(offset, size)
        if len(data) < size:
            raise BadSample(f"{printable(self.files[number])}: it is shorter than it was, {size} bytes are missing")
        if offset == 0:
            data = data.removeprefix(_MARK)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            line += data[: error.start].count(b"\n")
            raise BadSample(f"{printable(self.files[number])}, line {line}: not UTF-8: {error}") from error
        return self._values(text, index) if self.kind == "objects" else {"text": text}

    @cached_property
    def _opened(self) -> OneOpenFile[File]:
        paths = self.files  # a closure over self would keep the open file alive in a cycle
        return OneOpenFile(lambda number: open_file(paths[number], COMPRESSIONS))

    def _span(self, index: int) -> tuple[int, int, int, int]:
        number = int(np.searchsorted(self.starts, index, "right")) - 1
        offset, size, line = self.spans[index].tolist()
        return number, offset, size, line

    def _values(self, text: str, index: int) -> Sample:
        try:
            row = parse_json(text)
        except ValueError as error:
            raise BadSample(f"{self.place(index)}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise BadSample(f"{self.place(index)}: a line must be an object {{...}}, got {text[:40]!r}")
        sample: dict[str, Any] = {}
        for name, key in self.names.items():
            value, field = row.get(key), self.fields[name]
            if name == "text" and not isinstance(value, str):
                told = "no text" if value is None else f"expected a string, got {repr(value)[:40]}"
                raise BadSample(f"{self.place(index)}, key {key!r}: {told}")
            if value is None and (field.kind != "json" or key not in row):
                sample[name] = Missing(f"{self.place(index)}, key {key!r}: {'null' if key in row else 'not there'}")
                continue
            try:
                if field.kind in ("json", "text"):
                    field.encode(value)  # a lone surrogate, or NaN within JSON
            except BadSample as error:
                raise BadSample(f"{self.place(index)}, key {key!r}: {error}") from error
            sample[name] = value
        return sample


def scan(path: Path, kind: Kind) -> Scan:
    """Find a file's documents; SourceError if it cannot be read or unpacked. A line that is no JSON counts as one."""
    file = open_file(path, COMPRESSIONS)
    if kind == "files":
        return Scan(np.array([[0, file.size, 1]], np.int64), {})
    types: dict[str, Types] = {}
    with source_errors(path), _lines(file) as lines:
        places = _paragraphs(lines) if kind == "paragraphs" else _objects(lines, types)
        return Scan(np.fromiter(chain.from_iterable(places), np.int64).reshape(-1, 3), types)


@contextmanager
def _lines(file: File) -> Iterator[IO[bytes]]:
    """The lines of a file, from its beginning, whatever else reads it."""
    with io.BufferedReader(Stream(file), _BUFFER) as lines:
        yield lines


def _paragraphs(lines: IO[bytes]) -> Iterator[tuple[int, int, int]]:
    at, begin, end, first, broken, within = 0, 0, 0, 1, 0, False
    for number, line in enumerate(_pieces(lines), 1):
        if within or line.strip() not in (b"", _MARK):
            begin, first = (begin, first) if end else (at, number - broken)
            end = at + len(line.rstrip(b"\r\n"))
        elif end:
            yield begin, end - begin, first
            end = 0
        at += len(line)
        if within := len(line) == MOST_LINE and not line.endswith(b"\n"):
            broken += 1
    if end:
        yield begin, end - begin, first


def _objects(lines: IO[bytes], types: dict[str, Types]) -> Iterator[tuple[int, int, int]]:
    """Yield the spans of the lines that are not blank, and note the types of their values."""
    at, number = 0, 1
    begin: int | None = None  # of a line that is too long to be parsed
    for line in _pieces(lines):
        whole = len(line) < MOST_LINE or line.endswith(b"\n")
        if begin is not None or not whole:
            begin = at if begin is None else begin
            if whole:
                yield begin, at + len(line.rstrip(b"\r\n")) - begin, number
                begin = None
        elif not line.isspace() and line.rstrip() != _MARK:
            yield at, len(line.rstrip(b"\r\n")), number
            row = _parsed(line if at else line.removeprefix(_MARK))
            for key, value in row.items() if isinstance(row, dict) else ():
                if (column := types.get(key)) is None:
                    column = types[key] = Types()
                if value is not None:
                    column.add(value)
        at += len(line)
        number += whole
    if begin is not None:
        yield begin, at - begin, number


def _pieces(lines: IO[bytes]) -> Iterator[bytes]:
    """Return the lines, in pieces of at most `MOST_LINE` bytes."""
    return iter(partial(lines.readline, MOST_LINE), b"")


def _parsed(line: bytes) -> Any:
    """The value of a line of JSON; None for one that will be a bad sample, but of a key that occurs twice the last."""
    try:
        return msgspec.json.decode(line)  # many times as fast, and refuses NaN and lone surrogates
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return parse_json(line)
        except ValueError:
            return None
