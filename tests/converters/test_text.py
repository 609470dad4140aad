"""Documents become text or tokens: those of each kind of file, compressed or not, and bad ones by file and line."""

import bz2
import gzip
import json
import lzma
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
from _cli import run
from _foreign import write_tokenizer
from _sources import all_of, column

import shardio
from benchmarks.corpus import documents, in_paragraphs
from benchmarks.corpus import write as write_corpus
from shardio.errors import BadSample, ConfigError, MissingDependency, SourceError
from shardio.foreign import text_tables
from shardio.source import Field, Missing
from shardio.testing import check_source
from shardio_converters import _documents
from shardio_converters._fields import evenly_spaced
from shardio_converters.text import text

README = Path(shardio.__file__).parents[1] / "docs" / "converting.md"
PARAGRAPHS = [part for part in README.read_text().split("\n\n") if part.strip()][:120]
EOD = "<|endoftext|>"


def lines(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(path: Path, rows: Sequence[Any]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
    return path


def as_lines(folder: Path) -> Any:
    """Two files of JSON lines, with a blank one."""
    rows = [{"text": part, "n": number} for number, part in enumerate(PARAGRAPHS)]
    lines(folder / "b.jsonl", rows[50:])
    path = lines(folder / "a.jsonl", rows[:50])
    path.write_text("\n" + path.read_text())
    return folder


def as_tables(folder: Path) -> Any:
    rows = [{"n": number, "text": part} for number, part in enumerate(PARAGRAPHS)]
    table(folder / "a.parquet", rows[:50])
    table(folder / "b.parquet", rows[50:])
    return folder


def as_files(folder: Path) -> Any:
    for number, part in enumerate(PARAGRAPHS):
        (folder / f"{number:03}.txt").write_text(part)
    return folder


class TestTokens:
    def test_the_container_fits(self, tmp_path: Path) -> None:
        """Tokens go to HDF5, text to a tar, unless the user names a container."""
        (tmp_path / "a.txt").write_text("one two three")
        write_tokenizer(tmp_path / "tokenizer.json", PARAGRAPHS)
        for container, given in {"hdf5": {"tokenizer": tmp_path / "tokenizer.json"}, "tar": {}}.items():
            shardio.convert(tmp_path / "a.txt", tmp_path / container, converter="text", converter_options=given)
            assert shardio.open(tmp_path / container).manifest.container == container

    @pytest.mark.parametrize("write", [as_lines, as_tables, as_files])
    @pytest.mark.parametrize("eod", [None, EOD])
    def test_the_tokens_are_those_of_a_plain_loop(self, write: Any, eod: str | None, tmp_path: Path) -> None:
        """Each document gives the tokens of `encode`, and the one that ends it; other columns are kept."""
        made = write_tokenizer(tmp_path / "tokenizer.json", PARAGRAPHS)
        (tmp_path / "in").mkdir()
        source = text(write(tmp_path / "in"), tokenizer=tmp_path / "tokenizer.json", eod=eod)
        end = [] if eod is None else [made.token_to_id(eod)]
        expected: list[dict[str, Any]] = [
            {"tokens": np.array([*made.encode(part).ids, *end], np.uint16)} | ({} if write is as_files else {"n": n})
            for n, part in enumerate(PARAGRAPHS)
        ]
        vocabulary = {"vocabulary": made.get_vocab_size()}
        tokens = Field("array", "uint16", (None,), attributes=vocabulary)
        check_source(source, expected, tmp_path / "out", tokens=tokens)
        assert any(f"uint16, which holds the vocabulary of {made.get_vocab_size()}" in hint for hint in source.hints)

    @pytest.mark.parametrize("eod", [None, EOD])
    @pytest.mark.parametrize("template", ["$A", "<s> $A <|endoftext|>", "<|endoftext|> $A"])
    def test_a_document_ends_once_and_its_text_ends_nothing(
        self, template: str, eod: str | None, tmp_path: Path
    ) -> None:
        """The token that ends documents is that of the template or of `eod`, once; the same text is text."""
        documents = ["one two", f"one {EOD} two", f"{EOD}", f"two{EOD}"]
        made = write_tokenizer(tmp_path / "plain.json", documents)
        made.add_special_tokens(["<s>"])
        known = {name: made.token_to_id(name) for name in ("<s>", EOD)}
        parts: dict[str, Any] = {"single": template, "special_tokens": list(known.items())}
        made.post_processor = tokenizers.processors.TemplateProcessing(**parts)
        made.save(str(tmp_path / "tokenizer.json"))
        path = lines(tmp_path / "a.jsonl", [{"text": document} for document in documents])
        before, after = ([known[name] for name in part.split()] for part in template.split("$A"))
        after = after or ([] if eod is None else [known[EOD]])
        found = column(text(path, tokenizer=tmp_path / "tokenizer.json", eod=eod), "tokens")
        for document, tokens in zip(documents, found, strict=True):
            inner = tokens[len(before) : len(tokens) - len(after)].tolist()
            assert tokens.tolist() == [*before, *inner, *after]
            assert made.decode(inner, skip_special_tokens=False) == document
            assert known[EOD] not in inner

    def test_an_end_that_is_not_called_special_is_one(self, tmp_path: Path) -> None:
        """A token that the tokenizer adds without calling it special ends documents, and is not made of their text."""
        made = write_tokenizer(tmp_path / "plain.json", PARAGRAPHS)
        made.add_tokens(["<end>", "<kept>"])
        made.save(str(tmp_path / "tokenizer.json"))
        path = lines(tmp_path / "a.jsonl", [{"text": "a<end>b<kept>"}])
        (tokens,) = column(text(path, tokenizer=tmp_path / "tokenizer.json", eod="<end>"), "tokens")
        assert tokens.tolist().count(made.token_to_id("<end>")) == 1
        assert tokens.tolist()[-2:] == [made.token_to_id("<kept>"), made.token_to_id("<end>")]

    def test_a_special_token_that_the_model_makes_of_text_is_a_bad_sample(self, tmp_path: Path) -> None:
        """A model whose own words are special tokens names the document that has one; unknown words are none."""
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "</s>": 1, "?": 2}, unk_token="?"))
        words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        words.add_special_tokens(["</s>", "?"])
        words.save(str(tmp_path / "tokenizer.json"))
        path = lines(tmp_path / "a.jsonl", [{"text": "a ? b"}, {"text": "a </s> a"}])
        source = text(path, tokenizer=tmp_path / "tokenizer.json", eod="</s>")
        assert source[0]["tokens"].tolist() == [0, 2, 2, 1]
        with pytest.raises(BadSample, match=r"a\.jsonl, line 2: the tokenizer's model makes a special token .*'</s>'"):
            source[1]

    def test_a_large_vocabulary_takes_uint32(self, tmp_path: Path) -> None:
        """A number of a token that uint16 does not hold is stored as it is."""
        words = {f"word{number}": number for number in range((1 << 16) + 1)}
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="word0"))
        made.save(str(tmp_path / "tokenizer.json"))
        path = lines(tmp_path / "a.jsonl", [{"text": "word65536"}])
        (tokens,) = column(text(path, tokenizer=tmp_path / "tokenizer.json"), "tokens")
        assert tokens.dtype == np.uint32
        assert tokens.tolist() == [1 << 16]

    @pytest.mark.slow
    def test_the_tokens_are_counted(self, tmp_path: Path) -> None:
        """The summary of a conversion has the exact number of tokens, and their rate."""
        made = write_tokenizer(tmp_path / "tokenizer.json", PARAGRAPHS)
        count = sum(len(made.encode(part).ids) for part in PARAGRAPHS)
        path = lines(tmp_path / "a.jsonl", [{"text": part} for part in PARAGRAPHS])
        command = ["convert", "text", path, tmp_path / "out", "--tokenizer", tmp_path / "tokenizer.json"]
        told = run(*command, "--shard-size", "2KB", "--workers", 2)
        assert re.search(rf"\n  tokens: {count:,} in {len(PARAGRAPHS)} samples \([0-9,.]+( M)?/s\)\n", told)

    def test_tokens_of_two_vocabularies_do_not_mix(self, tmp_path: Path) -> None:
        """Equal numbers would mean other texts: merging, mixing and appending are refused with both numbers."""
        path, places = lines(tmp_path / "a.jsonl", [{"text": part} for part in PARAGRAPHS]), []
        options: dict[str, Any] = {"converter": "text", "tell": lambda note: None}
        for number, size in enumerate((300, 400)):
            write_tokenizer(tmp_path / f"{size}.json", PARAGRAPHS, size)
            given = {"tokenizer": tmp_path / f"{size}.json"}
            places.append(tmp_path / str(size))
            shardio.convert(path, places[number], converter_options=given, **options)
        told = "vocabulary is 300 .*, and 400"
        with pytest.raises(ConfigError, match=told):
            shardio.convert(places, tmp_path / "both")
        with pytest.raises(ConfigError, match=told):
            shardio.mix(dict(zip("ab", places, strict=True)), weights={"a": 1, "b": 1})
        with pytest.raises(ConfigError, match=told):
            shardio.convert(path, places[0], append=True, converter_options=given, **options)

    def test_nothing_is_truncated_or_padded(self, tmp_path: Path) -> None:
        """Documents are whole, whatever the tokenizer says."""
        made = write_tokenizer(tmp_path / "tokenizer.json", PARAGRAPHS)
        whole = made.encode(PARAGRAPHS[0]).ids
        made.enable_truncation(3)
        made.enable_padding(length=500)
        made.save(str(tmp_path / "tokenizer.json"))
        path = lines(tmp_path / "a.jsonl", [{"text": PARAGRAPHS[0]}])
        assert text(path, tokenizer=tmp_path / "tokenizer.json")[0]["tokens"].tolist() == whole

    def test_workers_and_resuming_write_the_same(self, tmp_path: Path) -> None:
        """Processes, and a conversion that ends at a bad document and is resumed, write the same bytes."""
        write_tokenizer(tmp_path / "tokenizer.json", PARAGRAPHS)
        (tmp_path / "in").mkdir()
        as_lines(tmp_path / "in")
        options: dict[str, Any] = {"converter": "text", "shard_size": 2000, "tell": lambda note: None}
        options["converter_options"] = {"tokenizer": tmp_path / "tokenizer.json", "eod": EOD}
        first = shardio.convert(tmp_path / "in", tmp_path / "one", **options)
        digest = first.manifest.digest
        assert shardio.convert(tmp_path / "in", tmp_path / "two", workers=2, **options).manifest.digest == digest
        unmeasured = max(set(range(len(PARAGRAPHS))) - set(evenly_spaced(len(PARAGRAPHS), 64)))  # shards are the same
        path = tmp_path / "in" / "b.jsonl"
        data = path.read_bytes()
        rows = data.splitlines(keepends=True)
        rows[unmeasured - 50] = rows[unmeasured - 50].replace(b"}\n", b"?\n")
        path.write_bytes(b"".join(rows))
        with pytest.raises(BadSample, match=rf"b\.jsonl, line {unmeasured - 49}: not JSON"):
            shardio.convert(tmp_path / "in", tmp_path / "three", **options)
        path.write_bytes(data)
        whole = shardio.convert(tmp_path / "in", tmp_path / "three", resume=True, **options)
        assert whole.manifest.digest == digest
        assert whole.datasets[""].entries == first.datasets[""].entries
        assert whole.datasets[""].entries["tokens"] == sum(len(s["tokens"]) for s in shardio.open(tmp_path / "one"))
        assert whole.datasets[""].seconds == 0 < first.datasets[""].seconds

    def test_a_tokenizer_or_a_token_that_is_none_is_named(self, tmp_path: Path) -> None:
        """A missing file, one of something else, and a token that the vocabulary lacks are errors."""
        path = lines(tmp_path / "a.jsonl", [{"text": "a"}])
        (tmp_path / "bad.json").write_text("{}")
        write_tokenizer(tmp_path / "good.json", PARAGRAPHS)
        with pytest.raises(ConfigError, match=r"gone\.json"):
            text(path, tokenizer=tmp_path / "gone.json")
        with pytest.raises(ConfigError, match=r"bad\.json is none"):
            text(path, tokenizer=tmp_path / "bad.json")
        with pytest.raises(ConfigError, match=r"vocabulary of .*good\.json, got '</s>'"):
            text(path, tokenizer=tmp_path / "good.json", eod="</s>")
        with pytest.raises(ConfigError, match="eod goes with tokenizer"):
            text(path, eod="</s>")

    def test_without_tokenizers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error says what to install; text itself needs nothing."""
        write_tokenizer(tmp_path / "tokenizer.json", PARAGRAPHS)
        path = lines(tmp_path / "a.jsonl", [{"text": "a"}])
        monkeypatch.setitem(sys.modules, "tokenizers", None)
        with pytest.raises(MissingDependency, match=r"option tokenizer needs tokenizers: pip install 'tokenizers>=0"):
            text(path, tokenizer=tmp_path / "tokenizer.json")
        assert column(text(path), "text") == ["a"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some documents of Debian's packages in every form, and a tokenizer that was trained on them."""
    found = list(documents(("bible-kjv-text", "debian-policy", "python3-doc")))[::20]
    if not found:
        pytest.skip("no text: apt-get install bible-kjv bible-kjv-text")
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder, found)
    write_tokenizer(folder / "tokenizer.json", [document.text for document in found], 2000)
    return folder


@pytest.mark.parametrize("form", ["files", "lines", "table", "paragraphs.txt"])
def test_real_text_gives_the_tokens_of_a_plain_loop(form: str, corpus: Path, tmp_path: Path) -> None:
    """Token for token, from every form of file; paragraphs are those of a plain loop, too."""
    options: dict[str, Any] = {"tokenizer": corpus / "tokenizer.json", "paragraphs": form == "paragraphs.txt"}
    given: dict[str, Any] = {"converter": "text", "converter_options": options, "tell": lambda note: None}
    shardio.convert(corpus / form, tmp_path / "out", shard_size="100KB", **given)
    texts = [path.read_bytes().decode() for path in sorted((corpus / "files").iterdir())]
    if options["paragraphs"]:
        texts = in_paragraphs((corpus / form).read_bytes().decode())
    made = tokenizers.Tokenizer.from_file(str(corpus / "tokenizer.json"))
    dataset = shardio.open(tmp_path / "out")
    assert len(dataset) == len(texts) > 50
    for sample, part in zip(dataset, texts, strict=True):
        assert sample["tokens"].tolist() == made.encode(part).ids


PACKERS: list[tuple[str, Callable[[bytes], bytes]]] = [
    (".gz", gzip.compress),
    (".bz2", bz2.compress),
    (".xz", lzma.compress),
    (".zst", lambda data: pa.Codec("zstd").compress(data, asbytes=True)),
]


class TestDocuments:
    @pytest.mark.parametrize(("suffix", "pack"), PACKERS)
    def test_compressed_files_hold_the_same(self, suffix: str, pack: Any, tmp_path: Path) -> None:
        """Compressed JSON lines and paragraphs give what plain ones give."""
        plain = lines(tmp_path / "a.jsonl", [{"text": part, "n": n} for n, part in enumerate(PARAGRAPHS)])
        packed = tmp_path / f"a.jsonl{suffix}"
        packed.write_bytes(pack(plain.read_bytes()))
        assert all_of(text(packed)) == all_of(text(plain))
        book = tmp_path / f"a.txt{suffix}"
        book.write_bytes(pack("\n\n".join(PARAGRAPHS).encode()))
        assert column(text(book, paragraphs=True), "text") == [part.strip("\n") for part in PARAGRAPHS]

    def test_files_and_paragraphs(self, tmp_path: Path) -> None:
        """A file is kept as it is but for a byte order mark; a paragraph ends at a blank line, of spaces too."""
        path = tmp_path / "a.txt"
        path.write_bytes("\ufeffone\r\n two\r\n \t\r\n\r\nthree\n\n\nfour".encode())
        assert all_of(text(path)) == [{"text": "one\r\n two\r\n \t\r\n\r\nthree\n\n\nfour"}]
        assert column(text(path, paragraphs=True), "text") == ["one\r\n two", "three", "four"]

    def test_columns_of_json_lines(self, tmp_path: Path) -> None:
        """Each gets the kind that holds all its values; what a line lacks is missing."""
        rows = [
            {"body": "a", "n": 1, "x": 1, "b": True, "s": "s", "j": [1], "wide": 1 << 70},
            {"body": "b", "n": 2, "x": 0.5, "b": False, "s": None, "j": "t", "wide": 2},
        ]
        source = text(lines(tmp_path / "a.jsonl", rows), text_field="body")
        kinds = {name: field.dtype or field.kind for name, field in source.fields.items()}
        others = {"n": "int64", "x": "float64", "b": "bool", "s": "text", "j": "json", "wide": "json"}
        assert kinds == {"text": "text", **others}
        assert source[0] == {"text": "a"} | {key: value for key, value in rows[0].items() if key != "body"}
        assert source[1]["s"] == Missing(f"{tmp_path}/a.jsonl, line 2, key 's': null")
        path = tmp_path / "odd.jsonl"  # forms that other readers of JSON refuse, or take as a float
        odd = '\ufeff{"text": "a", "x": NaN, "w": 1}\n{"text": "\\ud800", "x": 1e999, "w": ' + f"{1 << 64}}}\n"
        path.write_text(odd)
        kinds = {name: field.dtype or field.kind for name, field in text(path).fields.items()}
        assert kinds == {"text": "text", "x": "float64", "w": "json"}
        chosen = text(tmp_path / "a.jsonl", text_field="body", fields="number=n")
        assert chosen.fields == {"text": Field("text"), "number": Field("scalar", dtype="int64")}

    def test_bad_documents_are_named_by_file_and_line(self, tmp_path: Path) -> None:
        """Each is skipped and reported alone; the others are kept."""
        bad = {
            b'{"text": }': "not JSON",
            b"[1]": "a line must be an object",
            b'{"n": 1}': "no text",
            b'{"text": null}': "no text",
            b'{"text": 7}': "expected a string, got 7",
            b'{"text": " "}': "no text",
            b'{"text": "\xff"}': "not UTF-8",
            b'{"text": "\\ud800"}': "key 'text': ",
            b'{"text": "a", "text": "b"}': "not JSON",
        }
        path = tmp_path / "a.jsonl"
        path.write_bytes(b'{"text": "good"}\n\n' + b"".join(line + b"\n" for line in bad) + b'{"text": "last"}')
        source = text(path)
        for number, told in enumerate(bad.values(), 1):
            with pytest.raises(BadSample, match=rf"a\.jsonl, line {number + 2}(,|:).*{told}"):
                source[number]
        options: Any = {"on_error": "skip", "max_bad": 0.9, "optional": "n", "tell": lambda note: None}
        made = shardio.convert(path, tmp_path / "out", converter="text", **options)
        assert [sample["text"] for sample in shardio.open(made.path)] == ["good", "last"]

    def test_bad_text_files_are_named(self, tmp_path: Path) -> None:
        """An empty file, and the line on which one is not UTF-8."""
        (tmp_path / "a.txt").write_bytes(b"")
        (tmp_path / "b.txt").write_bytes(b"one\n\ntwo\nth\xffree\n")
        source = text(tmp_path)
        with pytest.raises(BadSample, match=r"a\.txt, line 1: no text"):
            source[0]
        with pytest.raises(BadSample, match=r"b\.txt, line 4: not UTF-8"):
            source[1]
        with pytest.raises(BadSample, match=r"b\.txt, line 4: not UTF-8"):
            text(tmp_path / "b.txt", paragraphs=True)[1]

    def test_rows_without_text_are_named(self, tmp_path: Path) -> None:
        """A null and an empty text in a Parquet file."""
        source = text(table(tmp_path / "a.parquet", [{"text": "a"}, {"text": None}, {"text": ""}]))
        with pytest.raises(BadSample, match=r"a\.parquet, row 1, column 'text': null"):
            source[1]
        with pytest.raises(BadSample, match=r"a\.parquet, row 2: no text"):
            source[2]

    def test_what_does_not_fit_is_refused(self, tmp_path: Path) -> None:
        """Files of several kinds or another one, options for other files, and names of columns."""
        path = lines(tmp_path / "a.jsonl", [{"text": "a", "tokens": 1, "body": "b"}])
        write_tokenizer(tmp_path / "tokenizer.json", PARAGRAPHS)
        with pytest.raises(ConfigError, match=r"tokenizer\.json must end in \.txt"):
            text(tmp_path / "tokenizer.json")
        with pytest.raises(ConfigError, match="paragraphs is for"):
            text(path, paragraphs=True)
        with pytest.raises(ConfigError, match="has no column 'content'; choose with text_field among text, tokens, b"):
            text(path, text_field="content")
        with pytest.raises(ConfigError, match="'body' and 'text' would both be the field 'text'"):
            text(path, text_field="body")
        with pytest.raises(ConfigError, match="would be the field 'tokens'"):
            text(path, tokenizer=tmp_path / "tokenizer.json")
        (tmp_path / "broken.jsonl").write_text("[[[[\n")
        with pytest.raises(SourceError, match=r"broken\.jsonl: no line is a JSON object"):
            text(tmp_path / "broken.jsonl")
        (tmp_path / "b.txt").write_text("b")
        with pytest.raises(SourceError, match="files must be of one kind"):
            text(tmp_path)
        with pytest.raises(ConfigError, match="text_field is for"):
            text(tmp_path / "b.txt", text_field="body")
        with pytest.raises(ConfigError, match="must name a column of strings, 'n' is scalar"):
            text(table(tmp_path / "n.parquet", [{"n": 1}]), text_field="n")


class TestLongLines:
    """A line longer than the limit, of which a few compressed bytes are enough, is passed over by its pieces."""

    @pytest.mark.parametrize("end", ["\n", ""])
    @pytest.mark.parametrize("size", [64, 65, 1000])
    def test_of_json(self, size: int, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is a bad sample, named with its bytes; those before and after it are what they are."""
        for module in (_documents, text_tables):
            monkeypatch.setattr(module, "MOST_LINE", 64)
        rows = ['{"text": "a"}', f'{{"text": "{"b" * (size - 12)}"}}', '{"text": "c"}']
        (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(("\n".join([*rows, rows[1]]) + end).encode()))
        source = text(tmp_path / "a.jsonl.gz")
        assert [source[row]["text"] for row in (0, 2)] == ["a", "c"]
        for row in (1, 3):
            if size == 64:
                assert source[row] == {"text": "b" * 52}
                continue
            told = rf"line {row + 1}: the line has {size} bytes, of which there may be 64"
            with pytest.raises(BadSample, match=told):
                source[row]
        (tmp_path / "table.jsonl").write_text("\n".join(rows))
        table = text_tables.TextTable(tmp_path / "table.jsonl", None)
        if size > 64:
            with pytest.raises(SourceError, match="line 2: has more than 64 characters"):
                table.read((), ["text"], (), all_columns=True)

    def test_of_a_paragraph(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It may be a document, which is read whole up to the bytes of any value."""
        monkeypatch.setattr(_documents, "MOST_LINE", 64)
        parts = ["one\ntwo", "a" * 64, "b" * 63 + " " * 70 + "c\nd", "e"]
        (tmp_path / "a.txt").write_text("\n\n".join(parts))
        source = text(tmp_path / "a.txt", paragraphs=True)
        assert [source[row]["text"] for row in range(4)] == parts
        monkeypatch.setattr(_documents, "MAX_VALUE_BYTES", 100)
        with pytest.raises(BadSample, match=r"line 6: the document has 136 bytes, of which there may be 100"):
            source[2]
