"""Text files: the documents are the samples, as text or as the tokens that a tokenizer makes of them."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, ConfigError, SourceError
from shardio.foreign.files import Sort, find_files, order_hints, other_files, within_folders
from shardio.foreign.names import Paths, printable
from shardio.foreign.text_tables import Types
from shardio.foreign.tokenizer import TextEncoder
from shardio.source import Field, Missing, Sample, describe_field, local_path

from ._documents import Documents, Kind, scan
from ._fields import choose_fields, evenly_spaced, rename_remarks
from ._source_base import DataclassSource
from .parquet import Parquet, column_names, parquet

_KINDS = {".txt": "text", ".jsonl": "JSON lines", ".ndjson": "JSON lines", ".parquet": "Parquet"}
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_THREADS = 8  # threads that look for documents
_MEASURED = 64  # documents whose tokens are counted before a conversion
_MOST_MEASURED = 1 << 20  # bytes of text in a document that is


def text(
    src: Paths,
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    eod: str | None = None,
    paragraphs: bool = False,
    text_field: str | None = None,
    fields: str | Mapping[str, str] | None = None,
    sort: Sort = "name",
    files: str | None = None,
) -> "Text":
    """Text files: a document per file, paragraph, line of JSON or row, as text or as tokens.

    Takes one file, a directory or a pattern such as "data/*.jsonl" (quote it): .txt, with a document per file or per
    paragraph; .jsonl or .ndjson, with a document per line; .parquet, with a document per row. All but Parquet files may
    be compressed: .gz, .bz2, .xz or .zst. Without a tokenizer the text becomes the field `text`; with one its tokens
    become the field `tokens`, ragged arrays of uint16 if that holds all of the vocabulary, else of uint32.
    Other columns become fields: numbers, booleans and text stay what they are, anything else becomes JSON; those of
    Parquet files as `convert parquet` takes them. A document without text, text that is not UTF-8 and a line that is no
    JSON object make bad samples.

    Args:
        src: the file, the directory, or a pattern with `*`, `?`, `[...]` or ranges `{a..b}`; in Python also a list of
            these. All files are of one kind.
        tokenizer: the tokenizer.json of Hugging Face's tokenizers. Documents are never truncated or padded, whatever it
            says.
        eod: the token that ends each document, such as "<|endoftext|>"; it must be in the vocabulary, and is appended
            unless the tokenizer ends documents with it itself. The same text in a document stays text.
        paragraphs: makes a document of each paragraph of a .txt file: lines without a blank one between them.
        text_field: the column that holds the text of .jsonl and .parquet files. Without it: `text`.
        fields: the other columns to take, with names for their fields, as in "url=source,lang". Without it: all.
        sort: `natural` sorts files by the numbers in their names, so that s_2 comes before s_10.
        files: a pattern for the names of the files to take from a directory, such as "train-*". Without it: all.

    Example:
        shardio convert text corpus data/corpus --tokenizer tokenizer.json --eod "<|endoftext|>"
        shardio convert text book.txt data/book --paragraphs
        shardio convert text 'pages/*.jsonl.gz' data/pages --tokenizer tokenizer.json --text-field content --fields lang

    Raises:
        SourceError: files are missing, damaged or of several kinds, or hold no documents.
        ConfigError: an option does not fit the files, a column does not exist, or the tokenizer cannot be used.
    """
    accepted = "text files (*.txt, *.jsonl, *.ndjson, *.parquet)"
    src = within_folders(src, files)
    paths = find_files(src, lambda name: _suffix(name) in _KINDS, accepted, sort)
    kinds = {_KINDS.get(_suffix(path.name), ""): path for path in reversed(paths)}
    if "" in kinds:
        raise ConfigError(f"{printable(kinds[''])} must end in {', '.join(_KINDS)}, or these and {', '.join(_PACKED)}")
    if len(kinds) > 1:
        told = " and ".join(printable(path) for path in list(kinds.values())[:2])
        raise SourceError(f"files must be of one kind, there are {told}; choose some with a pattern such as '*.jsonl'")
    kind = next(iter(kinds))
    if paragraphs and kind != "text":
        raise ConfigError("{paragraphs} is for .txt files, got {}", printable(paths[0]))
    if eod is not None and tokenizer is None:
        raise ConfigError("{eod} goes with {tokenizer}, got {!r}", eod)
    if kind == "text" and text_field is not None:
        raise ConfigError("{text_field} is for .jsonl and .parquet files, got {!r}", text_field)
    main = text_field or "text"
    documents: Documents | Parquet
    if kind == "Parquet":
        documents, remarks = _rows(src, paths[0], main, fields, sort)
    else:
        what: Kind = "objects" if kind == "JSON lines" else "paragraphs" if paragraphs else "files"
        documents, remarks = _documents(paths, what, main, fields)
    if tokenizer is not None and "tokens" in documents.fields:
        raise ConfigError("{}: a column would be the field 'tokens'; rename it with {fields}", printable(paths[0]))
    remarks = (*other_files(src, paths, "text files"), *remarks)
    path = None if tokenizer is None else local_path(tokenizer).absolute()
    return Text(documents, path, eod, remarks, order_hints(paths)).measured()


@final
@dataclass(frozen=True, eq=False)
class Text(DataclassSource):
    """Documents with their text, or its tokens. It pickles as the path of the tokenizer, which each worker loads.

    Attributes:
        documents: the documents, whose field `text` is text.
        tokenizer: the file of the tokenizer; None for text.
        eod: the token that ends each document.
        rate: the bytes of tokens for a byte of text.
    """

    documents: Documents | Parquet
    tokenizer: Path | None
    eod: str | None
    remarks: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    rate: float = 1.0
    source = "text"
    threads = True

    @property
    def files(self) -> Sequence[Path]:  # type: ignore[override]  # a property for a declared attribute
        """The files, which must not change while they are converted, the tokenizer's among them."""
        return (*self.documents.files, *([self.tokenizer] if self.tokenizer else []))

    @property
    def plain_values(self) -> bool:  # type: ignore[override]  # see above
        """Whether conversion takes the container that fits the values: tokens are too small for tars."""
        return self.tokenizer is not None

    @property
    def classes(self) -> Mapping[str, list[str]]:
        """The class names that Parquet files note."""
        return self.documents.classes if isinstance(self.documents, Parquet) else {}

    @property
    def fields(self) -> Mapping[str, Field]:
        """The documents' fields, with `tokens` instead of `text` if there is a tokenizer."""
        if self.tokenizer is None:
            return self.documents.fields
        attributes = {"vocabulary": self._encoder.vocabulary}
        tokens = Field("array", dtype=self._encoder.dtype, shape=(None,), attributes=attributes)
        return {
            "tokens" if name == "text" else name: tokens if name == "text" else field
            for name, field in self.documents.fields.items()
        }

    def sizes(self) -> NDArray[np.int64]:
        return (self.documents.sizes() * self.rate).astype(np.int64)

    def column(self, name: str) -> NDArray[Any] | Sequence[str] | None:
        return self.documents.column(name)

    def __getitem__(self, index: int) -> Sample:
        sample = self.documents[index]
        content = sample["text"]
        if isinstance(content, Missing):
            raise BadSample(content.reason)
        if not content.strip():
            raise BadSample(f"{self.documents.place(index)}: no text")
        if self.tokenizer is None:
            return sample
        try:
            tokens = self._encoder.encode(content)
        except BadSample as error:
            raise BadSample(f"{self.documents.place(index)}: {error}") from error
        return {("tokens" if name == "text" else name): tokens if name == "text" else sample[name] for name in sample}

    @cached_property
    def _encoder(self) -> TextEncoder:
        return TextEncoder(self.tokenizer or Path(), self.eod)

    def measured(self) -> "Text":
        """This source with the rate of some documents, and a hint on the vocabulary and the tokens."""
        if self.tokenizer is None:
            return self
        sizes, used, made = self.documents.sizes(), 0, 0
        for number in evenly_spaced(len(sizes), _MEASURED):
            if sizes[number] <= _MOST_MEASURED:
                with suppress(BadSample):
                    made += self[number]["tokens"].nbytes
                    used += int(sizes[number])
        rate = made / used if used else 1.0
        encoder = self._encoder
        count = int(sizes.sum() * rate) // np.dtype(encoder.dtype).itemsize
        held = f"the tokens are {encoder.dtype}, which holds the vocabulary of {encoder.vocabulary}"
        told = f"{held}; about {count} are expected"
        return replace(self, hints=(*self.hints, told), rate=rate)


def _suffix(name: str) -> str:
    """The suffix of a file's name, in lower case, without that of a compression; "" for a compressed Parquet file."""
    path = Path(name.lower())
    packed = path.suffix in _PACKED
    suffix = Path(path.stem).suffix if packed else path.suffix
    return "" if packed and suffix == ".parquet" else suffix


def _documents(
    paths: list[Path], kind: Kind, main: str, fields: str | Mapping[str, str] | None
) -> tuple[Documents, tuple[str, ...]]:
    """Return the documents of text files, and remarks on their fields."""
    with ThreadPoolExecutor(_THREADS) as pool:
        scans = list(pool.map(lambda path: scan(path, kind), paths))
    spans = np.concatenate([found.places for found in scans])
    starts = np.cumsum([0, *(len(found.places) for found in scans)], dtype=np.int64)
    place = printable(paths[0])
    if not len(spans):
        raise SourceError(f"{place} holds no documents{' nor do the others' if len(paths) > 1 else ''}")
    types: dict[str, Types] = {}
    for found in scans:
        for key, one in found.types.items():
            types.setdefault(key, Types()).merge(one)
    if kind == "objects":
        if not types:
            raise SourceError(f"{place}: no line is a JSON object that has a column")
        _check_has(types, main, place)
    others = _others(list(types), main, fields, place)
    columns = {name: types[key].field() for name, key in others.items()}
    names = {"text": main, **others}
    found_fields = {"text": Field("text"), **columns}
    return Documents(tuple(paths), kind, names, found_fields, starts, spans), rename_remarks(fields, others)


def _rows(
    src: Paths, path: Path, main: str, fields: str | Mapping[str, str] | None, sort: Sort
) -> tuple[Parquet, tuple[str, ...]]:
    """Return the rows of Parquet files, and remarks on their fields."""
    place, known = printable(path), column_names(path)
    _check_has(known, main, place)
    others = _others(known, main, fields, place)
    found: Any = parquet(src, fields={"text": main, **others}, sort=sort)
    if found.fields["text"].kind != "text":
        kind = describe_field(found.fields["text"])
        raise ConfigError("{}: {text_field} must name a column of strings, {!r} is {}", place, main, kind)
    return found, rename_remarks(fields, others)


def _check_has(known: Mapping[str, Any] | list[str], main: str, place: str) -> None:
    if main not in known:
        told = "{} has no column {!r}; choose with {text_field} among {}"
        raise ConfigError(told, place, main, ", ".join(known) or "none")


def _others(known: list[str], main: str, fields: str | Mapping[str, str] | None, place: str) -> dict[str, str]:
    """Return the other columns than the text, by field."""
    rest = [name for name in known if name != main]
    others = choose_fields(fields, rest, place) if rest or fields is not None else {}
    if "text" in others:
        told = "{}: {!r} and {!r} would both be the field 'text'; rename one with {fields}"
        raise ConfigError(told, place, main, others["text"])
    return others
