"""Tables in text files, read as compact columns: CSV and TSV (RFC 4180), and JSON lines (https://jsonlines.org)."""

import csv
import dataclasses
import json
import os
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample, SourceError
from ..format.fields import Field
from ..system import strict_json
from ..system.regular_files import open_regular
from .names import printable, source_errors
from .string_array import StringArray

DELIMITERS = {".csv": ",", ".tsv": "\t", ".jsonl": None, ".ndjson": None}
"""The character between the cells of a row, by the suffix of the file; None for JSON lines."""
MOST_LINE = 1 << 26
"""Bytes, or characters, of a line that is parsed: a few bytes of a compressed file unpack to lines of any length."""

_MOST = 16 << 20  # characters of one cell: an unclosed quote must not exhaust memory

# Numbers in their usual form, and as floats no whole ones of more digits than float64 always holds exactly. `007`,
# `+49` and `1_000` stay text, because numbers would lose part of them.
_FLOAT = r"(?!-?[0-9]{16,}\Z)-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?|-?inf|nan"
_FORMS: tuple[tuple[Any, Callable[[str], Any], Callable[[str], Any]], ...] = (
    (np.int64, int, re.compile(r"-?(?:0|[1-9][0-9]*)").fullmatch),
    (np.float64, float, re.compile(_FLOAT, re.IGNORECASE).fullmatch),
)

Rows: TypeAlias = Generator[tuple[int, Mapping[str, Any]], None, None]
"""The number of the line that each row begins on, and the row's cells by column."""


@dataclass(frozen=True, slots=True)
class Column:
    """The values of a column, one per row: an array of numbers, or strings, which are JSON in a json field.

    Attributes:
        field: the field.
        values: the values.
        bad: of a json field, the rows that hold what is not JSON, and the reason.
        missing: of an optional field, bool [rows]: where there is no value; None where all rows have one.
    """

    field: Field
    values: NDArray[Any] | StringArray
    bad: Mapping[int, str] = dataclasses.field(default_factory=dict)
    missing: NDArray[np.bool_] | None = None

    def __getitem__(self, row: int) -> Any:
        if self.missing is not None and self.missing[row]:
            return None
        if isinstance(self.values, np.ndarray):
            return self.values.item(row)
        if row in self.bad:
            raise BadSample(self.bad[row])
        return json.loads(self.values[row]) if self.field.kind == "json" else self.values[row]

    def all(self) -> NDArray[Any] | list[str] | None:
        """Return all values of a scalar or text column; None if a row has none, and for json."""
        if self.missing is not None or self.field.kind not in ("scalar", "text"):
            return None
        return self.values if isinstance(self.values, np.ndarray) else list(self.values)


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table in a text file.

    Attributes:
        path: the file.
        delimiter: the character between the cells of a row; None for JSON lines.
    """

    path: Path
    delimiter: str | None

    def __str__(self) -> str:
        return printable(self.path)

    def names(self) -> list[str]:
        """The names of the columns: the header, or the keys of the first object. SourceError if there is no row."""
        with closing(self._rows()) as rows:
            for _, row in rows:
                return _checked(list(row), self)
        raise SourceError(f"{self} holds no rows")

    def line(self, row: int) -> int:
        """Return the number of the line that a row begins on, counted from 1, for messages."""
        with closing(self._rows()) as rows:
            return next(islice(rows, row, None))[0]

    def read(
        self, paths: Iterable[str], others: Iterable[str], optional: Collection[str], *, all_columns: bool
    ) -> tuple[dict[str, StringArray], dict[str, Column]]:
        """Read columns: `paths` as they stand, `others` as the kind that fits all their values.

        Args:
            paths: the names of columns of paths.
            others: the names of other columns.
            optional: the names of columns that rows may lack: by an empty cell, or in JSON by null or no key.
            all_columns: whether these are all columns; a row with any other then raises SourceError.

        Raises SourceError, naming the line, for a row that lacks one of the columns or has an invalid value for it.
        """
        taken = {name: _Cells() for name in (*paths, *others)}
        takers: dict[str, Callable[[Any], str | None]] = {name: taken[name].add_path for name in paths}
        takers |= {name: taken[name].add_text if self.delimiter else taken[name].add_json for name in others}
        with closing(self._rows()) as rows:
            for line, row in rows:
                if all_columns and len(row) > len(takers):
                    raise SourceError(
                        f"{self}, line {line}: has {min(row.keys() - takers.keys())!r}, which the first row lacks"
                    )
                for name, take in takers.items():
                    if name in optional and row.get(name) in (None, ""):
                        taken[name].add_nothing()
                        continue
                    try:
                        if bad := take(row[name]):
                            taken[name].bad[len(taken[name].texts) - 1] = f"{self._cell(line, name)}: {bad}"
                    except KeyError as error:
                        raise SourceError(f"{self}, line {line}: has no {name!r}") from error
                    except (TypeError, ValueError) as error:
                        reason = "not UTF-8" if isinstance(error, UnicodeEncodeError) else error
                        raise SourceError(f"{self._cell(line, name)}: {reason}") from error
        return {name: taken[name].texts for name in paths}, {name: self._column(name, taken[name]) for name in others}

    def _cell(self, line: int, name: str) -> str:
        return f"{self}, line {line}, column {name!r}"

    def _column(self, name: str, cells: "_Cells") -> Column:
        missing = None
        if cells.missing:
            missing = np.zeros(len(cells.texts), np.bool_)
            missing[cells.missing] = True
        if not self.delimiter:
            return replace(_of_json(cells), missing=missing)
        values = _numbers(cells.texts)
        if values is None:
            return Column(Field("text"), cells.texts, missing=missing)
        if missing is not None and len(values) == len(missing) - len(cells.missing):
            filled = np.zeros(len(missing), values.dtype)
            filled[~missing] = values
            return Column(Field("scalar", dtype=values.dtype.name), filled, missing=missing)
        if len(values) < len(cells.texts):
            line = self.line(next(row for row, text in enumerate(cells.texts) if not text))
            raise SourceError(f"{self}, line {line}: column {name!r} holds numbers, here it is empty")
        return Column(Field("scalar", dtype=values.dtype.name), values)

    def _rows(self) -> Rows:
        return _records(self) if self.delimiter else _objects(self)


class _Cells:
    """A column that is being read. Methods that add a value return why it makes a bad sample, or None.

    Attributes:
        texts: its cells as text, or as JSON.
        types: the types of JSON values.
        bad: the rows in which a JSON value holds NaN or an infinity, and the reason.
        missing: the rows that have no value; their text is empty.
    """

    def __init__(self) -> None:
        self.texts = StringArray()
        self.types = Types()
        self.bad: dict[int, str] = {}
        self.missing: list[int] = []

    def add_nothing(self) -> None:
        self.missing.append(len(self.texts))
        self.texts.append("")

    def add_path(self, path: Any) -> None:
        if not isinstance(path, str):
            raise TypeError(f"a path must be a string, got {_to_json(path)[:40]}")
        os.fsencode(path)
        self.texts.append(path)

    def add_text(self, cell: str) -> None:
        cell.encode()
        self.texts.append(cell)

    def add_json(self, value: Any) -> str | None:
        text = _to_json(value)
        text.encode()
        self.texts.append(text)
        self.types.add(value)
        if "NaN" in text or "Infinity" in text:  # perhaps within a string
            try:
                strict_json.parse(text, foreign=True)
            except ValueError as error:
                return str(error)
        return None


_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _records(table: TextTable) -> Rows:
    """Yield the rows of a table with a header, skipping empty lines."""
    header: list[str] = []
    before = csv.field_size_limit()
    with _opened(table) as file:
        csv.field_size_limit(max(before, _MOST))  # instead of 128 KiB per cell
        # Strict: otherwise a stray quote would silently swallow the rest of the file into one cell.
        reader = csv.reader(file, delimiter=table.delimiter or ",", strict=True)
        line = 1
        try:
            for cells in reader:
                if cells and not header:
                    header = _checked([name.strip(" ") for name in cells], table)
                elif cells:
                    if len(cells) != len(header):
                        raise SourceError(f"{table}, line {line}: has {len(cells)} cells, the header {len(header)}")
                    yield line, dict(zip(header, cells, strict=True))
                line = reader.line_num + 1
        except csv.Error as error:
            raise SourceError(f"{table}, line {line}: {error}") from error
        finally:
            csv.field_size_limit(before)


def _checked(header: list[str], table: TextTable) -> list[str]:
    # Text in another encoding, such as UTF-16, has null characters or bytes that are not UTF-8.
    if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for name in header for letter in name):
        raise SourceError(f"{table}: columns' names must be UTF-8, got {str(header)[:80]}")
    if twice := [name for number, name in enumerate(header) if name in header[:number]]:
        raise SourceError(f"{table}: columns must have different names, {twice[0]!r} appears twice")
    return header


def _objects(table: TextTable) -> Rows:
    """Yield the objects of JSON lines, skipping empty lines."""
    with _opened(table) as file:
        for line, text in enumerate(file, 1):
            if text.isspace():
                continue
            try:
                row = strict_json.parse(text, foreign=True, nan=True)
            except ValueError as error:
                raise SourceError(f"{table}, line {line}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise SourceError(f"{table}, line {line}: a line must be an object {{...}}, got {text[:40].strip()!r}")
            yield line, row


@contextmanager
def _opened(table: TextTable) -> Iterator[Iterable[str]]:
    # Bytes that are not UTF-8 become surrogates, because they are valid in paths.
    newline, path = "" if table.delimiter else "\n", table.path
    with (
        source_errors(path),
        open(path, encoding="utf-8-sig", errors="surrogateescape", newline=newline, opener=open_regular) as file,
    ):
        yield _lines(file, table)


def _lines(file: IO[str], table: TextTable) -> Iterator[str]:
    for number, line in enumerate(iter(partial(file.readline, MOST_LINE + 1), ""), 1):
        if len(line) > MOST_LINE:
            raise SourceError(f"{table}, line {number}: has more than {MOST_LINE} characters")
        yield line


def _numbers(texts: StringArray) -> NDArray[Any] | None:
    """The cells that are not empty as int64 or float64; None if one of them is not a number, or all are empty."""
    for dtype, parse, fits in _FORMS:
        with suppress(ValueError, OverflowError):  # of parsing "", which is no number
            bare = (text.strip(" ") for text in texts if text)  # many writers put a space after each comma
            values = np.fromiter((parse(text if fits(text) else "") for text in bare), dtype)
            return values if len(values) else None
    return None


class Types:
    """The types of the JSON values of a column, and what field holds them all."""

    def __init__(self) -> None:
        self._types: set[type] = set()
        self._exact, self._int64 = True, True

    def add(self, value: Any) -> None:
        """Note a value."""
        self._types.add(type(value))
        if type(value) is int and abs(value) > 1 << 53:
            self._int64 = self._int64 and -(1 << 63) <= value < 1 << 63
            try:
                self._exact = self._exact and float(value) == value
            except OverflowError:  # JSON's numbers have no limit
                self._exact = False

    def merge(self, other: "Types") -> None:
        """Note all values that another has noted."""
        self._types |= other._types
        self._exact, self._int64 = self._exact and other._exact, self._int64 and other._int64

    def field(self) -> Field:
        """Text, or a scalar: booleans, integers, or numbers that float64 holds exactly; else JSON."""
        if self._types == {str}:
            return Field("text")
        if self._types == {bool}:
            return Field("scalar", dtype="bool")
        if self._types == {int} and self._int64:
            return Field("scalar", dtype="int64")
        if self._types != {int} and self._types <= {int, float} and self._exact:
            return Field("scalar", dtype="float64")
        return Field("json")


def _of_json(cells: _Cells) -> Column:
    """Return a column of booleans, integers, numbers or texts if all cells are of that type, else of JSON."""
    field = cells.types.field()
    if field.kind == "text":
        return Column(field, StringArray(json.loads(text) if text else "" for text in cells.texts))
    if field.kind == "scalar":
        values = (json.loads(text) if text else 0 for text in cells.texts)
        return Column(field, np.fromiter(values, field.row_dtype, len(cells.texts)))
    return Column(field, cells.texts, cells.bad)
