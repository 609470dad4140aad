"""Lists of files become samples, columns get the kind that fits all values, and invalid rows are named by line."""

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
from _builders import jpeg, png

from shardio.errors import BadSample, ConfigError, SourceError
from shardio.format.fields import Field
from shardio.source import HasColumns
from shardio.testing import check_source
from shardio_converters.filelist import FileList, filelist

PICTURES = {"a.jpg": jpeg(seed=1), "-b c.png": png(seed=2), "näh/c.jpg": jpeg(seed=3)}


def pictures(root: Path) -> Path:
    """Writes the files of PICTURES below `root`."""
    for name, data in PICTURES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def table(path: Path, rows: Sequence[Sequence[object]], delimiter: str = ",", encoding: str = "utf-8") -> Path:
    """Writes rows, the header first."""
    with path.open("w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


def lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Writes JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def with_column(root: Path, name: str, cells: Sequence[object]) -> Path:
    """A table of as many rows as there are cells, all of one picture, with one other column."""
    pictures(root)
    return table(root / "list.csv", [("path", name), *(("a.jpg", cell) for cell in cells)])


def values(source: FileList, name: str) -> list[Any]:
    """A field of all samples."""
    return [source[number][name] for number in range(len(source.sizes()))]


class TestTables:
    @pytest.mark.parametrize(("suffix", "delimiter"), [("csv", ","), ("TSV", "\t")])
    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
    def test_each_kind_of_column(self, tmp_path: Path, suffix: str, delimiter: str, encoding: str) -> None:
        """Files, whole numbers, numbers and texts, quoted with newlines, survive all the way to a dataset."""
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
        (tmp_path / "out").mkdir()
        check_source(
            source,
            expected,
            tmp_path / "out",
            image={"kind": "image"},
            label={"kind": "scalar", "dtype": "int64"},
            score={"kind": "scalar", "dtype": "float64"},
            a_caption={"kind": "text"},
            key={"kind": "text"},
        )

    @pytest.mark.parametrize(
        ("cells", "dtype"),
        [
            (["0", "-7", "9223372036854775807", "-9223372036854775808"], "int64"),
            (["1", "2.5"], "float64"),
            (["1e3", "-.5", "2.", "inf", "-INF", "nan"], "float64"),
            (["9223372036854775808", "1"], None),  # more than int64 holds, and float64 would round it
            (["0.5", "12345678901234567"], None),
            (["9" * 5000], None),
            (["007", "010"], None),
            (["+49", "30"], None),
            (["1_000"], None),
            (["٣"], None),
            ([" 1"], None),
            (["1", "x"], None),
            (["1.5", "x"], None),
            (["0x10"], None),
            (["", ""], None),
        ],
    )
    def test_numbers_lose_nothing(self, tmp_path: Path, cells: list[str], dtype: str | None) -> None:
        """A column is numbers if each is written as numbers are, and can be held; otherwise it stays text."""
        source = filelist(with_column(tmp_path, "n", cells))
        if dtype is None:
            assert source.fields["n"] == Field("text")
            assert values(source, "n") == cells
            assert source.column("n") is None
        else:
            assert source.fields["n"] == Field("scalar", dtype=dtype)
            wanted = [int(cell) if dtype == "int64" else float(cell) for cell in cells]
            np.testing.assert_array_equal(values(source, "n"), wanted)

    def test_columns_are_known_without_reading(self, tmp_path: Path) -> None:
        """Numbers can be had without the files, which need not be there."""
        source = filelist(table(tmp_path / "list.csv", [("file", "n"), ("gone", 4), ("lost", 5)]))
        assert isinstance(source, HasColumns)
        column = source.column("n")
        assert column is not None
        assert column.tolist() == [4, 5]
        assert source.column("key") is None
        assert source.column("bytes") is None

    def test_an_empty_number_names_its_line(self, tmp_path: Path) -> None:
        """Lines are counted as an editor does, through quoted newlines and empty lines."""
        pictures(tmp_path)
        (tmp_path / "list.csv").write_text('path,note,n\na.jpg,"two\nlines",1\n\na.jpg,x,2\na.jpg,y,\n')
        with pytest.raises(SourceError, match=r"list.csv, line 6: column 'n' holds numbers, here it is empty"):
            filelist(tmp_path / "list.csv")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('path,a\nx,"two\nlines"\nx\n', "list.csv, line 4: has 1 cells, the header 2"),
            ("path,a\nx,1,2\n", "list.csv, line 2: has 3 cells, the header 2"),
            ("path,a,a\nx,1,2\n", "columns must have different names, 'a' appears twice"),
            ('path,a\nx,1\nx,"open\nx,2\n', "list.csv, line 3: unexpected end of data"),
            ('path,a\nx,"a" b\n', "list.csv, line 2: ',' expected after '\"'"),
            (f'path,a\nx,"{"y" * (17 << 20)}', r"list.csv, line 2: field larger than field limit \(16777216\)"),
            ("path,a\n", "list.csv holds no rows"),
            ("", "list.csv holds no rows"),
            ("\n\n", "list.csv holds no rows"),
        ],
    )
    def test_a_table_that_is_none(self, tmp_path: Path, text: str, message: str) -> None:
        """Rows that do not fit are not guessed at; the message names the line."""
        before = csv.field_size_limit()
        (tmp_path / "list.csv").write_text(text)
        with pytest.raises(SourceError, match=message):
            filelist(tmp_path / "list.csv")
        assert csv.field_size_limit() == before

    def test_a_long_cell(self, tmp_path: Path) -> None:
        """A cell may be longer than Python's csv takes by itself."""
        text = "long " * 100_000
        assert values(filelist(with_column(tmp_path, "text", [text])), "text") == [text]

    @pytest.mark.parametrize(("delimiter", "given"), [(";", ";"), ("|", "|"), ("\t", "\\t"), ("\t", "\t")])
    def test_another_delimiter(self, tmp_path: Path, delimiter: str, given: str) -> None:
        """It goes before the suffix, and a tab can be typed."""
        pictures(tmp_path)
        listed = table(tmp_path / "list.txt", [("path", "a,b"), ("a.jpg", "x,y")], delimiter)
        assert values(filelist(listed, delimiter=given), "a_b") == ["x,y"]

    @pytest.mark.parametrize("delimiter", ["", ";;", '"', "\n"])
    def test_no_delimiter(self, tmp_path: Path, delimiter: str) -> None:
        """It is one character that can stand between cells."""
        with pytest.raises(ConfigError, match="a delimiter must be one character"):
            filelist(with_column(tmp_path, "n", [1]), delimiter=delimiter)

    @pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
    def test_other_encodings(self, tmp_path: Path, encoding: str) -> None:
        """Text that is not UTF-8 is refused, not stored as something else."""
        pictures(tmp_path)
        listed = table(tmp_path / "list.csv", [("path", "größe"), ("a.jpg", "größer")], encoding=encoding)
        with pytest.raises(SourceError, match="columns' names must be UTF-8") as caught:
            filelist(listed)
        str(caught.value).encode()
        listed = table(
            tmp_path / "list.csv", [("path", "name"), ("a.jpg", "a"), ("a.jpg", "größer")], encoding="latin-1"
        )
        with pytest.raises(SourceError, match=r"list.csv, line 3, column 'name': not UTF-8"):
            filelist(listed)


class TestJsonLines:
    def test_each_kind_of_column(self, tmp_path: Path) -> None:
        """Truth values, numbers and texts are scalars and text; lists, objects, nulls and mixtures are json."""
        rows: list[dict[str, Any]] = [
            {
                "file_name": "a.jpg",
                "n": 1,
                "x": 1,
                "ok": True,
                "t": "ä\n",
                "box": [1, 2.5],
                "o": {"b": None, "a": "ü"},
                "m": 1,
            },
            {"file_name": "-b c.png", "n": -2, "x": 0.5, "ok": False, "t": "", "box": [], "o": {}, "m": None},
            {
                "file_name": "näh/c.jpg",
                "n": 3,
                "x": -4.0,
                "ok": True,
                "t": "1",
                "box": [[]],
                "o": {"c": 2**70},
                "m": True,
            },
        ]
        rows[1] = dict(reversed(rows[1].items()))  # keys in any order
        source = filelist(lines(pictures(tmp_path) / "list.jsonl", rows))
        expected = []
        for row in rows:
            path = row.pop("file_name")
            ordered = {name: row[name] for name in ("n", "x", "ok", "t", "box", "o", "m")}
            expected.append({"image": PICTURES[path], **ordered, "key": path})
        (tmp_path / "out").mkdir()
        check_source(
            source,
            expected,
            tmp_path / "out",
            n={"kind": "scalar", "dtype": "int64"},
            x={"kind": "scalar", "dtype": "float64"},
            ok={"kind": "scalar", "dtype": "bool"},
            t={"kind": "text"},
            box={"kind": "json"},
            o={"kind": "json"},
            m={"kind": "json"},
        )
        assert source[1]["ok"] is False

    @pytest.mark.parametrize(
        ("cells", "field"),
        [
            ([1, 2**63], Field("json")),
            ([0.5, 2**53 + 1], Field("json")),
            ([0.5, 10**400], Field("json")),
            ([1, True], Field("json")),
            ([0.5, False], Field("json")),
            ([1, "1"], Field("json")),
            (["1", "2"], Field("text")),
            ([0.5, 2**53], Field("scalar", dtype="float64")),
            ([-(2**63), 2**63 - 1], Field("scalar", dtype="int64")),
        ],
    )
    def test_values_keep_their_types(self, tmp_path: Path, cells: list[Any], field: Field) -> None:
        """What no scalar holds exactly is stored as JSON."""
        pictures(tmp_path)
        source = filelist(lines(tmp_path / "list.ndjson", [{"path": "a.jpg", "v": cell} for cell in cells]))
        assert source.fields["v"] == field
        assert values(source, "v") == cells
        assert [type(value) for value in values(source, "v")] == [
            float if "float" in str(field) else type(c) for c in cells
        ]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('{"path": "x"}\n\n{"path": "x"\n', "list.jsonl, line 3: not JSON"),
            ('{"path": "x"}\n' + "[" * 100_000, "list.jsonl, line 2: not JSON"),
            (f'{{"path": "x", "n": {"9" * 5000}}}', "list.jsonl, line 1: not JSON"),
            ('{"path": "x"}\n["x"]\n', r"list.jsonl, line 2: a line must be an object .* got '\[\"x\"\]'"),
            ('{"path": "x", "a": 1}\n{"path": "x"}\n', "list.jsonl, line 2: has no 'a'"),
            ('{"path": "x"}\n{"path": "x", "a": 1}\n', "list.jsonl, line 2: has 'a', which the first row lacks"),
            ('{"path": "x"}\n{"path": 3}\n', "list.jsonl, line 2, column 'path': a path is text, got 3"),
            ('{"path": "\\ud800"}\n', "list.jsonl, line 1, column 'path': not UTF-8"),
            ('{"path": "x", "a": ["\\udc80"]}\n', "list.jsonl, line 1, column 'a': not UTF-8"),
            ('{"path": "x", "\\ud800": 1}\n', "columns' names must be UTF-8"),
            ("\n", "list.jsonl holds no rows"),
            ("", "list.jsonl holds no rows"),
        ],
    )
    def test_lines_that_are_none(self, tmp_path: Path, text: str, message: str) -> None:
        """The message names the line."""
        (tmp_path / "list.jsonl").write_text(text)
        with pytest.raises(SourceError, match=message):
            filelist(tmp_path / "list.jsonl")

    def test_chosen_columns_need_not_be_all(self, tmp_path: Path) -> None:
        """What a row has besides is its own affair."""
        rows = [{"path": "a.jpg", "n": 1, "x": 0}, {"path": "a.jpg", "n": 2, "y": 0}]
        assert values(filelist(lines(pictures(tmp_path) / "list.jsonl", rows), fields="label=n"), "label") == [1, 2]


class TestPaths:
    def test_several_files_a_sample(self, tmp_path: Path) -> None:
        """Each column of paths is a field by the name that it was given; there is no key, and sizes add up."""
        pictures(tmp_path)
        (tmp_path / "m.bin").write_bytes(b"12345")
        listed = table(tmp_path / "l.csv", [("mask", "photo", "n"), ("m.bin", "a.jpg", 1), ("m.bin", "-b c.png", 2)])
        source = filelist(listed, path="image=photo,seg=mask")
        expected = [
            {"image": PICTURES["a.jpg"], "seg": b"12345", "n": 1},
            {"image": PICTURES["-b c.png"], "seg": b"12345", "n": 2},
        ]
        assert source.sizes().tolist() == [len(sample["image"]) + 5 for sample in expected]
        (tmp_path / "out").mkdir()
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
        """The usual names are looked for in order; one column that is named alone gives its field the usual name."""
        pictures(tmp_path)
        source = filelist(table(tmp_path / "list.csv", [header.split(","), ("-b c.png", "a.jpg")]), path=path)
        first, second = fields
        assert source[0] == {first: PICTURES["a.jpg"], second: "-b c.png", "key": "a.jpg"}

    def test_files_of_other_kinds(self, tmp_path: Path) -> None:
        """What does not begin like an image is `bytes`, untouched; missing and empty files before it do not decide."""
        (tmp_path / "x.bin").write_bytes(b"\0\1\2")
        (tmp_path / "empty").write_bytes(b"")
        source = filelist(table(tmp_path / "list.csv", [("path",), ("gone",), ("empty",), ("x.bin",)]))
        assert dict(source.fields) == {"bytes": Field("bytes"), "key": Field("text")}
        assert source[2] == {"bytes": b"\0\1\2", "key": "x.bin"}
        assert source[1]["bytes"] == b""

    def test_a_key_of_its_own(self, tmp_path: Path) -> None:
        """A column called key is not written over."""
        assert filelist(with_column(tmp_path, "key", ["mine"]))[0] == {"image": PICTURES["a.jpg"], "key": "mine"}

    def test_root_and_paths_that_lead_elsewhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Relative paths start from the root, wherever the process goes; absolute ones and `..` are taken as is."""
        pictures(tmp_path / "photos")
        (tmp_path / "lists").mkdir()
        paths = ["a.jpg", str(tmp_path / "photos" / "a.jpg"), "../photos/a.jpg"]
        listed = table(tmp_path / "lists" / "list.csv", [("path",), *((path,) for path in paths)])
        monkeypatch.chdir(tmp_path)
        source = filelist("lists/list.csv", root="photos")
        monkeypatch.chdir("/")
        assert values(source, "image") == [PICTURES["a.jpg"]] * 3
        assert values(source, "key") == paths
        with pytest.raises(SourceError, match=r"root must be a folder, got .*list.csv"):
            filelist(listed, root=listed)

    def test_names_that_are_not_utf8(self, tmp_path: Path) -> None:
        """A path is the bytes that stand in the list; its key is text that can be stored."""
        name = b"caf\xe9.jpg"
        try:
            Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(PICTURES["a.jpg"])
        except OSError:
            pytest.skip("this file system takes only UTF-8 names")
        (tmp_path / "list.csv").write_bytes(b"path\n" + name + b"\n")
        source = pickle.loads(pickle.dumps(filelist(tmp_path / "list.csv")))  # noqa: S301
        assert source[0] == {"image": PICTURES["a.jpg"], "key": "caf\\xe9.jpg"}

    def test_a_row_takes_little_room(self, tmp_path: Path) -> None:
        """Ten million rows must fit: a row is the bytes of its texts and eight for each cell, here and on the way."""
        rows = [(f"{number:020d}.jpg", number, number / 8, f"a caption {number:010d}") for number in range(20_000)]
        listed = table(tmp_path / "list.csv", [("path", "n", "x", "t"), *rows])
        del rows
        tracemalloc.start()
        try:
            source = filelist(listed)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        row = 24 + 20 + 4 * 8  # a path, a caption, and their ends and the numbers
        assert kept < 20_000 * row * 1.3
        assert len(pickle.dumps(source)) < 20_000 * row * 1.02

    def test_many_files(self, tmp_path: Path) -> None:
        """Sizes keep their order, however many are asked for at once, and are asked for only once."""
        for size in range(7):
            (tmp_path / f"{size}.bin").write_bytes(bytes(size))
        wanted = np.random.default_rng(0).integers(0, 8, 10_000)  # 7 is missing
        source = filelist(table(tmp_path / "list.csv", [("path",), *((f"{size}.bin",) for size in wanted)]))
        assert source.sizes().tolist() == (wanted % 7).tolist()
        (tmp_path / "3.bin").write_bytes(bytes(100))
        assert source.sizes().max() == 6


class TestChoice:
    def test_fields_choose_and_rename(self, tmp_path: Path) -> None:
        """Columns are taken in the order given, after the file."""
        pictures(tmp_path)
        listed = table(tmp_path / "list.csv", [("a", "path", "b", "c"), (1, "a.jpg", "x", 0.5)])
        assert filelist(listed, fields="c, label=a")[0] == {
            "image": PICTURES["a.jpg"],
            "c": 0.5,
            "label": 1,
            "key": "a.jpg",
        }

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"path": "file"}, "has no 'file'; there are path, image, n"),
            ({"path": "a=path,a=image"}, "would both be the field 'a'"),
            ({"path": ""}, "fields must name at least one"),
            ({"fields": "path"}, "has no 'path'; there are image, n"),
            ({"fields": ""}, "fields must name at least one"),
            ({}, "two columns would be the field 'image'; rename one"),
            ({"fields": "n", "classes": "a"}, "classes need a field label or class; the fields are n"),
        ],
    )
    def test_wrong_choices(self, tmp_path: Path, options: dict[str, str], message: str) -> None:
        """The message says what there is."""
        listed = table(pictures(tmp_path) / "list.csv", [("path", "image", "n"), ("a.jpg", "a.jpg", 1)])
        with pytest.raises(ConfigError, match=message):
            filelist(listed, **options)  # type: ignore[arg-type]

    def test_no_column_of_paths(self, tmp_path: Path) -> None:
        """The message says what was looked for and what there is."""
        with pytest.raises(ConfigError, match=r"has no column path, file, .*; choose with path among img, n"):
            filelist(table(tmp_path / "list.csv", [("img", "n"), ("a.jpg", 1)]))

    def test_another_suffix(self, tmp_path: Path) -> None:
        """What a list is, its suffix or a delimiter tells."""
        (tmp_path / "list.txt").write_text("path\na.jpg\n")
        with pytest.raises(ConfigError, match=r"list.txt must end in .csv, .tsv, .jsonl, .ndjson, or a delimiter"):
            filelist(tmp_path / "list.txt")

    @pytest.mark.parametrize(
        ("name", "message"), [("gone.csv", "missing"), ("folder.csv", "not a file"), ("p.csv", "not a file")]
    )
    def test_not_a_file(self, tmp_path: Path, name: str, message: str) -> None:
        """Folders, named pipes and nothing at all are no list."""
        (tmp_path / "folder.csv").mkdir()
        os.mkfifo(tmp_path / "p.csv")
        with pytest.raises(SourceError, match=f"{name} is {message}"):
            filelist(tmp_path / name)


class TestClasses:
    LABELS = ("dog", "cat", "dog", "an ox")

    def test_text_stays_text(self, tmp_path: Path) -> None:
        """Without the option labels are what they are."""
        source = filelist(with_column(tmp_path, "label", self.LABELS))
        assert source.fields["label"] == Field("text")
        assert values(source, "label") == list(self.LABELS)

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
        """Each class has its number, and the manifest their names."""
        source = filelist(with_column(tmp_path, name, self.LABELS), classes=classes)
        assert source.metadata == {"source": "filelist", "classes": known}
        expected = [{"image": PICTURES["a.jpg"], "label": label, "key": "a.jpg"} for label in labels]
        (tmp_path / "out").mkdir()
        check_source(source, expected, tmp_path / "out", label={"kind": "scalar", "dtype": "int64"})

    def test_numbers_get_names(self, tmp_path: Path) -> None:
        """Labels that are numbers already stay, and must have a name each."""
        listed = with_column(tmp_path, "class", [1, 0, 1])
        source = filelist(listed, classes="cat,dog")
        assert (values(source, "label"), source.metadata["classes"]) == ([1, 0, 1], ["cat", "dog"])
        with pytest.raises(SourceError, match=r"list.csv, line 2: 1 is none of 1 classes: cat"):
            filelist(listed, classes="cat")

    def test_a_label_that_is_no_class(self, tmp_path: Path) -> None:
        """The message names the line and the label; an empty one is never a class."""
        with pytest.raises(SourceError, match=r"list.csv, line 5: 'an ox' is none of 2 classes: cat, dog"):
            filelist(with_column(tmp_path, "label", self.LABELS), classes="cat,dog")
        with pytest.raises(SourceError, match=r"list.csv, line 3: '' is none of 1 classes: cat"):
            filelist(with_column(tmp_path, "label", ["cat", ""]), classes="auto")

    @pytest.mark.parametrize(
        ("cells", "classes", "message"),
        [
            ([1, 2], "auto", "classes='auto' do not fit 'label', which is int64"),
            ([0.5], "a,b", "do not fit 'label', which is float64"),
            (["a"], "a,b,a", "classes must differ, got a, b, a"),
        ],
    )
    def test_classes_that_do_not_fit(self, tmp_path: Path, cells: list[object], classes: str, message: str) -> None:
        """Classes are of texts or whole numbers."""
        with pytest.raises(ConfigError, match=message):
            filelist(with_column(tmp_path, "label", cells), classes=classes)


class TestBadSamples:
    def test_files_that_cannot_be_read(self, tmp_path: Path) -> None:
        """Each is one bad sample that the message names; none blocks, and the others can be read."""
        pictures(tmp_path)
        os.mkfifo(tmp_path / "pipe.jpg")
        (tmp_path / "folder.jpg").mkdir()
        (tmp_path / "empty.jpg").write_bytes(b"")
        (tmp_path / "text.jpg").write_text("<html>")
        (tmp_path / "cut.jpg").write_bytes(PICTURES["a.jpg"][:-200])
        reasons = {
            "pipe.jpg": "is not a file",
            "folder.jpg": "is not a file",
            "empty.jpg": "the image is empty",
            "text.jpg": "not a JPEG, PNG, WebP or BMP image",
            "cut.jpg": "cut short",
            "gone.jpg": "cannot be read: No such file",
            "n" * 300: "cannot be read: File name too long",
        }
        rows = [*((name,) for name in reasons), ("a.jpg",)]
        start = time.monotonic()
        source = filelist(table(tmp_path / "list.csv", [("path",), *rows]), path="image=path")
        assert source.fields["image"] == Field("bytes")  # <html> was the first file with anything in it
        source = filelist(table(tmp_path / "list.csv", [("path",), *reversed(rows)]))
        assert source[0]["key"] == "a.jpg"
        for number, (name, reason) in enumerate(reversed(reasons.items()), 1):
            with pytest.raises(BadSample, match=f"{name}:? .*{reason}|{name} {reason}"):
                source[number]
        assert source.sizes()[1:3].tolist() == [0, 0]
        assert time.monotonic() - start < 5

    @pytest.mark.parametrize("path", ["", "a\0.jpg"])
    def test_paths_that_are_none(self, tmp_path: Path, path: str) -> None:
        """An empty path, and one with a zero, which no file's name holds."""
        source = filelist(lines(pictures(tmp_path) / "list.jsonl", [{"path": "a.jpg"}, {"path": path}]))
        with pytest.raises(BadSample, match=r"is not a file|not a valid path: embedded null"):
            source[1]
        assert source.sizes()[0] == len(PICTURES["a.jpg"])
