"""Lists of files become samples, each column gets a kind that fits all its values, and errors name the line."""

import csv
import json
import os
import pickle
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import jpeg, png, write_files
from _sources import column

from shardio.errors import BadSample, ConfigError, SourceError
from shardio.format.fields import Field
from shardio.testing import check_source
from shardio_converters.filelist import filelist

PICTURES = {"a.jpg": jpeg(seed=1), "-b c.png": png(seed=2), "näh/c.jpg": jpeg(seed=3)}


def pictures(root: Path) -> Path:
    """Write the files of PICTURES below `root`."""
    return write_files(root, PICTURES)


def table(path: Path, rows: Sequence[Sequence[object]], delimiter: str = ",", encoding: str = "utf-8") -> Path:
    """Write rows, the header first."""
    with path.open("w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


def lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def with_column(root: Path, name: str, cells: Sequence[object]) -> Path:
    """A table of one image per row and one other column with these cells."""
    return table(pictures(root) / "list.csv", [("path", name), *(("a.jpg", cell) for cell in cells)])


class TestTables:
    @pytest.mark.parametrize(("suffix", "delimiter", "encoding"), [("csv", ",", "utf-8-sig"), ("TSV", "\t", "utf-8")])
    def test_each_kind_of_column(self, tmp_path: Path, suffix: str, delimiter: str, encoding: str) -> None:
        """Files, integers, floats and texts, also quoted with newlines, reach the dataset unchanged."""
        rows = [
            ("a.jpg", 3, 0.5, "one,\ttwo"),
            ("-b c.png", -1, 2, 'a "line"\nand\r\nmore'),
            ("näh/c.jpg", 0, 1e-9, ""),
        ]
        header = ("path", "label", "score", "a caption")
        listed = table(pictures(tmp_path) / f"the list.{suffix}", [header, *rows], delimiter, encoding)
        source = filelist(listed)
        assert source.metadata == {"source": "filelist"}
        expected = [
            {"image": PICTURES[path], "label": label, "score": float(score), "a_caption": caption, "key": path}
            for path, label, score, caption in rows
        ]
        assert source.sizes().tolist() == [len(data) for data in PICTURES.values()]
        kinds = {"image": "image", "label": "int64", "score": "float64", "a_caption": "text", "key": "text"}
        check_source(source, expected, tmp_path / "out", **kinds)

    @pytest.mark.parametrize(
        ("cells", "dtype"),
        [
            (["0", "-7", "9223372036854775807", "-9223372036854775808"], "int64"),
            (["1", "2.5"], "float64"),
            (["1e3", "-.5", "2.", "inf", "-INF", "nan"], "float64"),
            (["9223372036854775808", "1"], None),  # beyond int64, and float64 would round it
            (["0.5", "12345678901234567"], None),
            (["9" * 5000], None),
            (["007", "1_000"], None),
            (["٣"], None),
            (["1", "x"], None),
            (["long " * 100_000], None),  # beyond the limit of Python's csv module
            (["", ""], None),
        ],
    )
    def test_numbers_lose_nothing(self, tmp_path: Path, cells: list[str], dtype: str | None) -> None:
        """A column is numeric if all its cells are numbers that a dtype holds exactly; otherwise it is text."""
        source = filelist(with_column(tmp_path, "n", cells))
        if dtype is None:
            assert source.fields["n"] == Field("text")
            assert column(source, "n") == cells
            assert source.column("n") == cells
        else:
            assert source.fields["n"] == Field("scalar", dtype=dtype)
            wanted = [int(cell) if dtype == "int64" else float(cell) for cell in cells]
            np.testing.assert_array_equal(column(source, "n"), wanted)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('path,a\nx,"two\nlines"\nx\n', "list.csv, line 4: has 1 cells, the header 2"),
            ("path,a\nx,1,2\n", "list.csv, line 2: has 3 cells, the header 2"),
            ("path,a,a\nx,1,2\n", "columns must have different names, 'a' appears twice"),
            ('path,a\nx,1\nx,"open\nx,2\n', "list.csv, line 3: unexpected end of data"),
            ('path,a\nx,"a" b\n', "list.csv, line 2: ',' expected after '\"'"),
            (f'path,a\nx,"{"y" * (17 << 20)}', r"list.csv, line 2: field larger than field limit \(16777216\)"),
            ('path,b,a\nx,"two\nlines",1\n\nx,y,2\nx,y,\n', "line 6: column 'a' holds numbers, here it is empty"),
            ("path,a\n", "list.csv holds no rows"),
            ("", "list.csv holds no rows"),
            ('{"path": "x"}\n\n{"path": "x"\n', "list.jsonl, line 3: not JSON"),
            ('{"path": "x"}\n' + "[" * 100_000, "list.jsonl, line 2: not JSON"),
            (f'{{"path": "x", "n": {"9" * 5000}}}', "list.jsonl, line 1: not JSON"),
            ('{"path": "x"}\n["x"]\n', r"list.jsonl, line 2: a line must be an object .* got '\[\"x\"\]'"),
            ('{"path": "x", "a": 1}\n{"path": "x"}\n', "list.jsonl, line 2: has no 'a'"),
            ('{"path": "x"}\n{"path": "x", "a": 1}\n', "list.jsonl, line 2: has 'a', which the first row lacks"),
            ('{"path": "x"}\n{"path": 3}\n', "list.jsonl, line 2, column 'path': a path must be a string, got 3"),
            ('{"path": "\\ud800"}\n', "list.jsonl, line 1, column 'path': not UTF-8"),
            ('{"path": "x", "a": ["\\udc80"]}\n', "list.jsonl, line 1, column 'a': not UTF-8"),
            ('{"path": "x", "\\ud800": 1}\n', "columns' names must be UTF-8"),
            ("\n", "list.jsonl holds no rows"),
        ],
    )
    def test_a_list_that_is_none(self, tmp_path: Path, text: str, message: str) -> None:
        """A row that does not fit the header, and a line that is no JSON object, are refused with their line."""
        before = csv.field_size_limit()
        path = tmp_path / ("list.jsonl" if text[:1] in ("{", "\n") else "list.csv")
        path.write_text(text)
        with pytest.raises(SourceError, match=message):
            filelist(path)
        assert csv.field_size_limit() == before

    @pytest.mark.parametrize(("delimiter", "given"), [(";", ";"), ("|", "|"), ("\t", "\\t"), ("\t", "\t")])
    def test_another_delimiter(self, tmp_path: Path, delimiter: str, given: str) -> None:
        r"""A delimiter overrides the suffix, and a tab may be written as \t."""
        listed = table(pictures(tmp_path) / "list.txt", [("path", "a,b"), ("a.jpg", "x,y")], delimiter)
        assert column(filelist(listed, delimiter=given), "a_b") == ["x,y"]
        with pytest.raises(ConfigError, match=r"list.txt must end in .csv, .tsv, .jsonl, .ndjson, or a delimiter"):
            filelist(listed)

    @pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
    def test_other_encodings(self, tmp_path: Path, encoding: str) -> None:
        """Text that is not UTF-8 is refused."""
        pictures(tmp_path)
        listed = table(tmp_path / "list.csv", [("path", "größe"), ("a.jpg", "größer")], encoding=encoding)
        with pytest.raises(SourceError, match="columns' names must be UTF-8") as caught:
            filelist(listed)
        str(caught.value).encode()
        rows = [("path", "name"), ("a.jpg", "a"), ("a.jpg", "größer")]
        listed = table(tmp_path / "list.csv", rows, encoding="latin-1")
        with pytest.raises(SourceError, match=r"list.csv, line 3, column 'name': not UTF-8"):
            filelist(listed)


class TestJsonLines:
    def test_each_kind_of_column(self, tmp_path: Path) -> None:
        """Booleans, numbers and texts are scalars and text; lists, objects, nulls and mixtures are json."""
        rows: list[dict[str, Any]] = [
            {"file_name": "a.jpg", "n": 1, "x": 1, "ok": True, "t": "ä\n", "o": {"b": None, "a": "ü"}, "m": 1},
            {"file_name": "-b c.png", "n": -2, "x": 0.5, "ok": False, "t": "", "o": [], "m": None},
            {"file_name": "näh/c.jpg", "n": 3, "x": -4.0, "ok": True, "t": "1", "o": [2**70], "m": True},
        ]
        rows[1] = dict(reversed(rows[1].items()))  # keys in any order
        source = filelist(lines(pictures(tmp_path) / "list.jsonl", rows))
        expected = []
        for row in rows:
            path = row.pop("file_name")
            ordered = {name: row[name] for name in ("n", "x", "ok", "t", "o", "m")}
            expected.append({"image": PICTURES[path], **ordered, "key": path})
        kinds = {"n": "int64", "x": "float64", "ok": "bool", "t": "text", "o": "json", "m": "json"}
        check_source(source, expected, tmp_path / "out", **kinds)
        assert source[1]["ok"] is False

    @pytest.mark.parametrize(
        ("cells", "field"),
        [
            ([1, 2**63], Field("json")),
            ([0.5, 2**53 + 1], Field("json")),
            ([0.5, 10**400], Field("json")),
            ([0.5, False], Field("json")),
            ([1, "1"], Field("json")),
            ([0.5, 2**53], Field("scalar", dtype="float64")),
            ([-(2**63), 2**63 - 1], Field("scalar", dtype="int64")),
        ],
    )
    def test_values_keep_their_types(self, tmp_path: Path, cells: list[Any], field: Field) -> None:
        """Values that no scalar holds exactly are stored as JSON."""
        rows = [{"path": "a.jpg", "v": cell} for cell in cells]
        source = filelist(lines(pictures(tmp_path) / "list.ndjson", rows))
        assert source.fields["v"] == field
        assert column(source, "v") == cells
        kinds = [float if "float" in str(field) else type(cell) for cell in cells]
        assert [type(value) for value in column(source, "v")] == kinds

    def test_chosen_columns_need_not_be_all(self, tmp_path: Path) -> None:
        """With chosen columns, rows may hold other keys."""
        rows = [{"path": "a.jpg", "n": 1, "x": 0}, {"path": "a.jpg", "n": 2, "y": 0}]
        assert column(filelist(lines(pictures(tmp_path) / "list.jsonl", rows), fields="label=n"), "label") == [1, 2]


class TestPaths:
    def test_several_files_a_sample(self, tmp_path: Path) -> None:
        """Each column of paths is a field with the given name; there is no key, and sizes add up."""
        pictures(tmp_path)
        (tmp_path / "m.bin").write_bytes(b"12345")
        listed = table(tmp_path / "l.csv", [("mask", "photo", "n"), ("m.bin", "a.jpg", 1), ("m.bin", "-b c.png", 2)])
        source = filelist(listed, path="image=photo,seg=mask")
        expected = [
            {"image": PICTURES["a.jpg"], "seg": b"12345", "n": 1},
            {"image": PICTURES["-b c.png"], "seg": b"12345", "n": 2},
        ]
        assert source.sizes().tolist() == [len(sample["image"]) + 5 for sample in expected]
        check_source(source, expected, tmp_path / "out", image={"kind": "image"}, seg={"kind": "bytes"})
        assert list(filelist(listed, path="mask,photo").fields) == ["mask", "photo", "n"]

    @pytest.mark.parametrize(
        ("header", "path", "fields"),
        [
            ("file,path", None, ["image", "file"]),
            ("filename,file_name", None, ["image", "filename"]),
            ("n,image", None, ["image", "n"]),
            ("path,x", "x", ["image", "path"]),
            ("path,x", "photo=x", ["photo", "path"]),
            ("path,x", {"photo": "x"}, ["photo", "path"]),
            ("path,y=z", "y=z", ["image", "path"]),
        ],
    )
    def test_which_column(self, tmp_path: Path, header: str, path: Any, fields: list[str]) -> None:
        """The usual column names are tried in order; a single column given by name has the usual field name."""
        listed = table(pictures(tmp_path) / "list.csv", [header.split(","), ("-b c.png", "a.jpg")])
        source = filelist(listed, path=path)
        first, second = fields
        assert source[0] == {first: PICTURES["a.jpg"], second: "-b c.png", "key": "a.jpg"}

    def test_files_of_other_kinds(self, tmp_path: Path) -> None:
        """Files that are not images are stored as `bytes`; missing and empty files do not decide the kind."""
        write_files(tmp_path, {"x.bin": b"\0\1\2", "empty": b""})
        source = filelist(table(tmp_path / "list.csv", [("path",), ("gone",), ("empty",), ("x.bin",)]))
        assert dict(source.fields) == {"bytes": Field("bytes"), "key": Field("text")}
        assert source[2] == {"bytes": b"\0\1\2", "key": "x.bin"}
        assert source[1]["bytes"] == b""

    def test_a_column_of_other_files_names_its_field(self, tmp_path: Path) -> None:
        """Files that are no images, of a column given by name, are in a field of that name; images stay `image`."""
        pictures(tmp_path)
        (tmp_path / "x.wav").write_bytes(b"RIFF")
        listed = table(tmp_path / "list.csv", [("a sound", "path", "photo"), ("x.wav", "x.wav", "a.jpg")])
        sample = {"a_sound": b"RIFF", "photo": "a.jpg", "key": "x.wav"}
        assert filelist(listed, path="a sound", fields="photo")[0] == sample
        assert filelist(listed, path="a sound", fields="photo", optional="a_sound").fields["a_sound"].optional
        assert list(filelist(listed, path="path", fields="photo").fields) == ["bytes", "photo", "key"]
        assert list(filelist(listed, path="photo", fields="path").fields) == ["image", "path", "key"]
        with pytest.raises(ConfigError, match=r"has no 'speech'; .*; the field's name comes first: speech=photo"):
            filelist(listed, path="photo=speech")

    def test_root_and_paths_that_lead_elsewhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Relative paths are relative to the root, whatever the working directory; absolute paths and `..` are kept."""
        pictures(tmp_path / "photos")
        (tmp_path / "lists").mkdir()
        paths = ["a.jpg", str(tmp_path / "photos" / "a.jpg"), "../photos/a.jpg"]
        listed = table(tmp_path / "lists" / "list.csv", [("path",), *((path,) for path in paths)])
        monkeypatch.chdir(tmp_path)
        source = filelist("lists/list.csv", root="photos")
        monkeypatch.chdir("/")
        assert column(source, "image") == [PICTURES["a.jpg"]] * 3
        assert column(source, "key") == paths
        with pytest.raises(SourceError, match=r"root must be a folder, got .*list.csv"):
            filelist(listed, root=listed)

    def test_a_row_takes_little_room(self, tmp_path: Path) -> None:
        """A row takes the bytes of its texts and eight per cell, also while parsing, so that ten million rows fit."""
        rows = [(f"{number:020d}.jpg", number, number / 8, f"a caption {number:010d}") for number in range(20_000)]
        listed = table(tmp_path / "list.csv", [("path", "n", "x", "t"), *rows])
        del rows
        tracemalloc.start()
        try:
            source = filelist(listed)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        row = 24 + 20 + 4 * 8  # a path, a caption, their offsets and the numbers
        assert kept < 20_000 * row * 1.3
        assert len(pickle.dumps(source)) < 20_000 * row * 1.02

    def test_many_files(self, tmp_path: Path) -> None:
        """Sizes keep the order of the files and are determined once."""
        for size in range(7):
            (tmp_path / f"{size}.bin").write_bytes(bytes(size))
        wanted = np.random.default_rng(0).integers(0, 8, 10_000)  # file 7 is missing
        source = filelist(table(tmp_path / "list.csv", [("path",), *((f"{size}.bin",) for size in wanted)]))
        assert source.sizes().tolist() == (wanted % 7).tolist()
        (tmp_path / "3.bin").write_bytes(bytes(100))
        assert source.sizes().max() == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "file"}, "has no 'file'; there are path, image, n, x, t"),
        ({"path": "a=path,a=image"}, "would both be the field 'a'"),
        ({"path": ""}, "fields must name at least one"),
        ({"fields": "path"}, "has no 'path'; there are image, n, x, t"),
        ({"fields": ""}, "fields must name at least one"),
        ({}, "two columns would be the field 'image'; rename one"),
        ({"fields": "n", "classes": "a"}, "classes need a field label or class; the fields are n"),
        ({"fields": "label=n", "classes": "auto"}, "classes='auto' do not fit 'label', which is int64"),
        ({"fields": "label=x", "classes": "a,b"}, "do not fit 'label', which is float64"),
        ({"fields": "label=t", "classes": "a,b,a"}, "classes must differ, got a, b, a"),
        *(({"delimiter": one}, "a delimiter must be one character") for one in ("", ";;", '"', "\n")),
        ({"delimiter": ";"}, r"has no column path, file, .*; choose with path among path,image,n,x,t"),
    ],
)
def test_wrong_choices(tmp_path: Path, options: dict[str, str], message: str) -> None:
    """Columns and classes that do not fit are refused with those that there are."""
    rows = [("path", "image", "n", "x", "t"), ("a.jpg", "a.jpg", 1, 0.5, "a")]
    listed = table(pictures(tmp_path) / "list.csv", rows)
    with pytest.raises(ConfigError, match=message):
        filelist(listed, **options)  # type: ignore[arg-type]  # options of any type


class TestClasses:
    LABELS = ("dog", "cat", "dog", "an ox")

    @pytest.mark.parametrize(
        ("classes", "known", "labels"),
        [
            ("auto", ["an ox", "cat", "dog"], [2, 1, 2, 0]),
            ("dog, cat,an ox,fish", ["dog", "cat", "an ox", "fish"], [0, 1, 0, 2]),
            (["dog", "cat", "an ox"], ["dog", "cat", "an ox"], [0, 1, 0, 2]),
        ],
    )
    @pytest.mark.parametrize("name", ["label", "class"])
    def test_text_becomes_numbers(
        self, tmp_path: Path, name: str, classes: str | list[str], known: list[str], labels: list[int]
    ) -> None:
        """With `classes`, each class gets a number, and the manifest holds the names."""
        source = filelist(with_column(tmp_path, name, self.LABELS), classes=classes)
        assert source.metadata == {"source": "filelist", "classes": known}
        assert (column(source, "label"), source.fields["label"].dtype) == (labels, "int64")

    def test_numbers_get_names(self, tmp_path: Path) -> None:
        """Numeric labels are kept, and each must have a class name."""
        listed = with_column(tmp_path, "class", [1, 0, 1])
        source = filelist(listed, classes="cat,dog")
        assert (column(source, "label"), source.metadata["classes"]) == ([1, 0, 1], ["cat", "dog"])
        with pytest.raises(SourceError, match=r"list.csv, line 2: 1 is none of 1 classes: cat"):
            filelist(listed, classes="cat")


class TestKinds:
    """The first file or cell does not decide alone what a column holds."""

    def test_a_first_file_that_is_no_image(self, tmp_path: Path) -> None:
        """Among images, a PDF or a text is a bad sample, wherever it is; alone, PDFs are bytes."""
        files = {"a.gif": b"GIF89a" + bytes(60), "a.pdf": b"%PDF-1.7" + bytes(60), "a.txt": "words"}
        write_files(pictures(tmp_path), files)
        for first in ("a.pdf", "a.txt"):
            source = filelist(table(tmp_path / "list.csv", [("path",), (first,), *((name,) for name in PICTURES)]))
            assert source[1]["image"] == PICTURES["a.jpg"]
            with pytest.raises(BadSample, match=f"{first}: not a JPEG, PNG, WebP or BMP image"):
                source[0]
            assert filelist(table(tmp_path / "list.csv", [("path",), (first,)])).fields["bytes"] == Field("bytes")
        one = [("path",), *[("a.gif",)] * 3, ("a.jpg",)]
        assert filelist(table(tmp_path / "list.csv", one)).fields["image"] == Field("image")

    def test_spaces_after_commas(self, tmp_path: Path) -> None:
        """Numbers are numbers after spaces, and so are the names of columns; texts keep theirs."""
        (pictures(tmp_path) / "list.csv").write_text("path, label, score, name\na.jpg, 1, .5, x\n-b c.png, 2, 1 , y\n")
        source = filelist(tmp_path / "list.csv")
        assert not source.remarks
        samples = [{**source[row], "image": b""} for row in range(2)]
        assert samples == [
            {"image": b"", "key": "a.jpg", "label": 1, "score": 0.5, "name": " x"},
            {"image": b"", "key": "-b c.png", "label": 2, "score": 1.0, "name": " y"},
        ]


class TestBadSamples:
    @pytest.mark.parametrize(
        ("path", "advice"),
        [
            ("https://host/a.jpg", "it is a URL: download the files first, and list their paths"),
            ("cat\\a.jpg", "paths have slashes here, no backslashes"),
        ],
    )
    def test_paths_of_elsewhere(self, tmp_path: Path, path: str, advice: str) -> None:
        """A URL, or a path as Windows writes it, is a bad sample that says so."""
        write_files(tmp_path, {"cat/a.jpg": jpeg()})
        source = filelist(table(tmp_path / "list.csv", [("path",), (path,)]))
        with pytest.raises(BadSample, match=f"No such file or directory; {advice}") as bad:
            source[0]
        assert path in str(bad.value)

    def test_files_that_cannot_be_read(self, tmp_path: Path) -> None:
        """A file that cannot be read is one bad sample with its name; it does not block, and the others are read."""
        files = {"empty.jpg": "", "text.jpg": "<html>", "cut.jpg": PICTURES["a.jpg"][:-200], "folder.jpg/a": ""}
        write_files(pictures(tmp_path), files)
        os.mkfifo(tmp_path / "pipe.jpg")
        reasons = {
            "pipe.jpg": "cannot be read: not a regular file",
            "folder.jpg": "cannot be read: Is a directory",
            "empty.jpg": "the image is empty",
            "text.jpg": "not a JPEG, PNG, WebP or BMP image",
            "cut.jpg": "cut short",
            "gone.jpg": "cannot be read: No such file",
            "n" * 300: "cannot be read: File name too long",
        }
        rows = [*((name,) for name in reasons), ("a.jpg",)]
        start = time.monotonic()
        source = filelist(table(tmp_path / "list.csv", [("path",), *rows]), path="image=path")
        assert source.fields["image"] == Field("image")  # though <html> is in the first file that is not empty
        source = filelist(table(tmp_path / "list.csv", [("path",), *reversed(rows)]))
        assert source[0]["key"] == "a.jpg"
        for number, (name, reason) in enumerate(reversed(reasons.items()), 1):
            with pytest.raises(BadSample, match=f"{name}:? .*{reason}|{name} {reason}"):
                source[number]
        assert source.sizes()[1:3].tolist() == [0, 0]
        assert time.monotonic() - start < 5

    @pytest.mark.parametrize("path", ["", "a\0.jpg"])
    def test_paths_that_are_none(self, tmp_path: Path, path: str) -> None:
        """Empty paths and paths with a NUL character are bad samples."""
        source = filelist(lines(pictures(tmp_path) / "list.jsonl", [{"path": "a.jpg"}, {"path": path}]))
        with pytest.raises(BadSample, match=r"Is a directory|not a valid path: .*embedded null"):
            source[1]
        assert source.sizes()[0] == len(PICTURES["a.jpg"])
