"""Parquet files become samples: every Arrow type that a field can hold, several files, and damage."""

import datetime
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from _builders import flip, jpeg, png, write_files
from _sources import COUNT, PICTURES, WORDS, column

import shardio
from shardio.errors import BadSample, ConfigError, SourceError
from shardio.format.fields import Field, Missing
from shardio.output.shard_writer import encode
from shardio.testing.sources import check_source
from shardio_converters import parquet as module
from shardio_converters.parquet import parquet


def write(path: Path, *, notes: dict[str, Any] | None = None, **columns: Any) -> Path:
    """A file with these columns in row groups of two, and `notes` in its metadata, as Hugging Face stores features."""
    table = pa.table(columns)
    if notes is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": notes}})})
    pq.write_table(table, path, row_group_size=2)
    return path


def tensors(values: np.ndarray) -> pa.Array:
    """Rows as values of the extension type fixed_shape_tensor."""
    return pa.FixedShapeTensorArray.from_numpy_ndarray(values)


def arrays(dtype: str, rows: Sequence[Any]) -> list[Any]:
    """Rows as arrays."""
    return [np.array(row, dtype) for row in rows]


LABEL = {"names": ["cat", "dog"], "_type": "ClassLabel"}
BLOBS = [b"", b"abc", b"\0\0", b"\xff" * 900, b"z"]
NUMBERS = [0, 1, 2, 3, 127]
RAGGED = [[1, 2, 3], [], [4], [5, 6], [7]]
PAIRS = [[n, n + 1] for n in range(COUNT)]
GRIDS = np.arange(COUNT * 6).reshape(COUNT, 2, 3)
NESTED = [[[1, 2], [3]], [], [[]], [None, [4, None]], None]
PEOPLE = [{"name": "Ann", "ages": [1, None]}, None, {"name": None, "ages": None}, {"name": "é", "ages": []}, None]
TALLIES = [[("a", 1), ("b", None)], [], None, [("é", 3)], [("c", 4)]]
DAYS = [
    datetime.date(1, 1, 1),
    datetime.date(1969, 12, 31),
    datetime.date(2024, 2, 29),
    *[datetime.date(9999, 12, 31)] * 2,
]
DATES = ["0001-01-01", "1969-12-31", "2024-02-29", "9999-12-31", "9999-12-31"]
MOMENTS = [0, 1, -1, 1_700_000_000_123_456, 10**15]
TEXT, BYTES, JSON, IMAGE = (Field(kind) for kind in ("text", "bytes", "json", "image"))


def moments(digits: int, end: str = "") -> list[str]:
    """MOMENTS, which are microseconds, in ISO 8601."""
    start = datetime.datetime(1970, 1, 1)
    texts = [(start + datetime.timedelta(microseconds=n)).isoformat(timespec="microseconds") for n in MOMENTS]
    return [text.ljust(20 + digits, "0")[: 20 + digits] + end for text in texts]


def written(*kinds: pa.DataType) -> list[pa.DataType]:
    """Return those of the kinds that this release of Arrow writes to Parquet files."""
    found = []
    for kind in kinds:
        with suppress(pa.ArrowNotImplementedError):
            pq.write_table(pa.table({"x": pa.array([], kind)}), pa.BufferOutputStream())
            found.append(kind)
    return found


KINDS: dict[str, tuple[pa.Array, Field, Sequence[Any]]] = {
    **{
        name: (pa.array(NUMBERS, getattr(pa, name)()), Field("scalar", dtype=name), NUMBERS)
        for name in (*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float32", "float64")
    },
    "half": (pa.array(np.array(NUMBERS, "f2")), Field("scalar", dtype="float16"), NUMBERS),
    "bool": (pa.array([True, False] * 2 + [True]), Field("scalar", dtype="bool"), [True, False] * 2 + [True]),
    "bool8": (pa.array(NUMBERS, pa.int8()).cast(pa.bool8()), Field("scalar", dtype="int8"), NUMBERS),
    **{
        str(kind): (pa.array(WORDS, kind), TEXT, WORDS)
        for kind in written(pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()))
    },
    "text of JSON": (pa.array(["[1]"] * COUNT, pa.json_()), TEXT, ["[1]"] * COUNT),
    **{
        str(kind): (pa.array(BLOBS, kind), BYTES, BLOBS)
        for kind in written(pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int8(), pa.binary()))
    },
    "fixed bytes": (pa.array([b"a\0\0", *[b"\0bc"] * 4], pa.binary(3)), BYTES, [b"a\0\0", *[b"\0bc"] * 4]),
    "uuid": (pa.array([bytes([n] * 16) for n in range(5)], pa.uuid()), BYTES, [bytes([n] * 16) for n in range(5)]),
    "images": (pa.array(PICTURES), IMAGE, PICTURES),
    "images and paths": (pa.array([{"bytes": data, "path": "a.jpg"} for data in PICTURES]), IMAGE, PICTURES),
    **{
        f"ragged {kind}": (pa.array(RAGGED, kind), Field("array", dtype="float32", shape=(None,)), arrays("f4", RAGGED))
        for kind in written(pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_view(pa.float32()))
    },
    "ragged lists of one length": (
        pa.array([[[n, n]] * n for n in range(5)], pa.list_(pa.list_(pa.uint8(), 2))),
        Field("array", dtype="uint8", shape=(None, 2)),
        [np.full((n, 2), n, "u1") for n in range(5)],
    ),
    "lists of one length": (
        pa.array(PAIRS, pa.list_(pa.int16(), 2)), Field("array", dtype="int16", shape=(2,)), arrays("i2", PAIRS),
    ),
    "lists of truth": (
        pa.array([[n > 1, True] for n in range(5)], pa.list_(pa.bool_(), 2)),
        Field("array", dtype="bool", shape=(2,)),
        arrays("?", [[n > 1, True] for n in range(5)]),
    ),
    "lists of lists of one length": (
        pa.array(GRIDS.tolist(), pa.list_(pa.list_(pa.int64(), 3), 2)),
        Field("array", dtype="int64", shape=(2, 3)), list(GRIDS),
    ),
    "tensors": (tensors(GRIDS.astype("f4")), Field("array", dtype="float32", shape=(2, 3)), list(GRIDS.astype("f4"))),
    "lists of ragged lists": (pa.array(NESTED, pa.list_(pa.list_(pa.int8()))), JSON, NESTED),
    "lists of words": (pa.array([["a", None], [], None, ["é"], ["b"]]), JSON, [["a", None], [], None, ["é"], ["b"]]),
    "structs": (pa.array(PEOPLE), JSON, PEOPLE),
    "lists of structs": (pa.array([[p] for p in PEOPLE]), JSON, [[p] for p in PEOPLE]),
    "struct of a dictionary": (
        pa.StructArray.from_arrays([pa.array(["a", None, "b", "a", "a"]).dictionary_encode()], ["x"]),
        JSON, [{"x": "a"}, {"x": None}, {"x": "b"}, {"x": "a"}, {"x": "a"}],
    ),
    "maps": (
        pa.array(TALLIES, pa.map_(pa.string(), pa.int64())), JSON, [m if m is None else dict(m) for m in TALLIES],
    ),
    "maps of numbers": (
        pa.array([[(1, "a"), (2, None)]] * 5, pa.map_(pa.int8(), pa.string())), JSON, [[[1, "a"], [2, None]]] * 5,
    ),
    "nothing": (pa.nulls(COUNT), JSON, [None] * COUNT),
    **{
        f"decimal{bits}": (
            pa.array([Decimal("1.50"), Decimal("-0.05"), Decimal(0), Decimal("9E+5"), Decimal("1.1")], kind(12, 2)),
            TEXT, ["1.50", "-0.05", "0.00", "900000.00", "1.10"],
        )
        for bits, kind in ((128, pa.decimal128), (256, pa.decimal256))
    },
    "date32": (pa.array(DAYS, pa.date32()), TEXT, DATES),
    "date64": (pa.array(DAYS, pa.date64()), TEXT, DATES),
    "time32": (pa.array([0, 1, 1000, 3_600_000, 86_399_999], pa.time32("ms")), TEXT, [
        "00:00:00.000", "00:00:00.001", "00:00:01.000", "01:00:00.000", "23:59:59.999",
    ]),
    "time64": (pa.array([0, 1, 1000, 10**9, 86_399_999_999_999], pa.time64("ns")), TEXT, [
        "00:00:00.000000000", "00:00:00.000000001", "00:00:00.000001000", "00:00:01.000000000", "23:59:59.999999999",
    ]),
    "timestamp ms": (pa.array([n // 1000 for n in MOMENTS], pa.timestamp("ms")), TEXT, moments(3)),
    "timestamp ns": (pa.array([n * 1000 for n in MOMENTS], pa.timestamp("ns")), TEXT, moments(9)),
    "timestamp in a zone": (pa.array(MOMENTS, pa.timestamp("us", "Europe/Berlin")), TEXT, moments(6, "Z")),
}  # fmt: skip


class TestKinds:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("compression", "options"),
        [
            ("none", {}),
            ("gzip", {"row_group_size": 1, "use_dictionary": False, "store_schema": False}),
            ("zstd", {"row_group_size": 2, "data_page_version": "2.0", "write_page_checksum": True}),
            ("lz4", {"data_page_size": 1, "write_batch_size": 1, "version": "1.0"}),
        ],
    )
    def test_every_kind(self, tmp_path: Path, compression: str, options: dict[str, Any]) -> None:
        """Columns of every type that a field can hold give their values however they are stored."""
        partly = options.get("store_schema") is False or options.get("version") == "1.0"  # what Parquet represents
        kinds = {name: kind for name, kind in KINDS.items() if not (partly and _needs_schema(kind[0].type))}
        table = pa.table({name: values for name, (values, *_) in kinds.items()})
        pq.write_table(table, tmp_path / "a.parquet", compression=compression, **options)
        names = {f"f{number}": name for number, name in enumerate(kinds)}
        expected = [{field: kinds[name][2][row] for field, name in names.items()} for row in range(COUNT)]
        source = parquet(tmp_path / "a.parquet", fields=names)
        check_source(source, expected, tmp_path / "out", **{f: _described(kinds[n][1]) for f, n in names.items()})

    @pytest.mark.parametrize(
        ("values", "kind"),
        [
            (pa.array([1, 2], pa.duration("s")), r"duration\[s\]"),
            (pa.array([{"a": b"1"}, {"a": b"2"}]), "struct<a: binary>"),
            (  # a tensor whose axes are permuted
                pa.ExtensionArray.from_storage(
                    pa.fixed_shape_tensor(pa.int32(), [2, 3], permutation=[1, 0]),
                    pa.array([[1] * 6] * 2, pa.list_(pa.int32(), 6)),
                ),
                "extension<arrow.fixed_shape_tensor",
            ),
        ],
    )
    def test_what_no_field_holds(self, tmp_path: Path, values: pa.Array, kind: str) -> None:
        """A column that no field can hold is refused with its type, and others can be chosen."""
        path = write(tmp_path / "a.parquet", x=values, y=[1, 2])
        with pytest.raises(SourceError, match=f"a.parquet: no field holds the column 'x', {kind}.*; choose others"):
            parquet(path)
        assert parquet(path, fields="y")[1] == {"y": 2}


def _needs_schema(kind: pa.DataType) -> bool:
    """Whether the type is lost unless Arrow's own schema is in the file."""
    text = str(kind)
    return any(part in text for part in ("extension", "fixed_size_list", "halffloat", "uint32", "ns]", "null"))


def _described(field: Field) -> dict[str, Any]:
    return {part: value for part in ("kind", "dtype", "shape") if (value := getattr(field, part)) is not None}


class TestFields:
    def test_names(self, tmp_path: Path) -> None:
        """`fields` chooses columns by any name and renames them."""
        odd = {"a.b": [3, 4], "my label": pa.array([5, 6], pa.int8())}
        path = write(tmp_path / "a.parquet", a=[{"b": 1}, {"b": 2}], **odd)
        assert list(parquet(path).fields) == ["a", "a.b", "my_label"]
        source = parquet(path, fields="label=my label,a.b")
        assert source.fields["label"] == Field("scalar", dtype="int64")
        check_source(source, [{"label": 5, "a.b": 3}, {"label": 6, "a.b": 4}], tmp_path / "out")
        assert source.column("label").dtype == np.int64
        assert parquet(path, fields={"x": "a.b", "y": "a.b"})[1] == {"x": 4, "y": 4}
        with pytest.raises(ConfigError, match=r"a.parquet has no 'z'; there are a, a.b, my label"):
            parquet(path, fields="z")

    def test_two_columns_of_one_name(self, tmp_path: Path) -> None:
        """Two columns of one name are ambiguous and refused; others can be chosen."""
        table = pa.table([[1], [2], [3]], names=["x", "x", "y"])
        pq.write_table(table, tmp_path / "a.parquet")
        with pytest.raises(SourceError, match=r"a.parquet has several columns called 'x'"):
            parquet(tmp_path / "a.parquet")
        assert parquet(tmp_path / "a.parquet", fields="y")[0] == {"y": 3}

    def test_columns_without_reading_samples(self, tmp_path: Path) -> None:
        """Numeric columns without nulls are available without reading samples; others are not."""
        codes = pa.array([5, 6, 5]).dictionary_encode()
        path = write(
            tmp_path / "a.parquet", x=[1, 2, 3], f=[0.5, float("nan"), 1], n=[1, None, 2], d=codes, t=["a", "b", "c"],
            b8=pa.array([1, 0, 1], pa.int8()).cast(pa.bool8()),
        )  # fmt: skip
        source = parquet(path)
        np.testing.assert_array_equal(source.column("x"), [1, 2, 3])
        np.testing.assert_array_equal(source.column("f"), [0.5, np.nan, 1])
        np.testing.assert_array_equal(source.column("d"), [5, 6, 5])
        np.testing.assert_array_equal(source.column("b8"), [1, 0, 1])
        assert [source.column(name) for name in ("n", "t", "z")] == [None] * 3


class TestFiles:
    def test_a_directory(self, tmp_path: Path) -> None:
        """The files of a directory are joined by name; empty, hidden and other files are ignored."""
        folder = tmp_path / "-a é*"
        folder.mkdir()
        write(folder / "b c.parquet", x=[3, 4, 5], t=["c", "d", "e"])
        write(folder / "-a.PARQUET", x=[1, 2], t=pa.array(["a", "b"], pa.large_string()))
        write(folder / "aa.parquet", x=pa.array([], pa.int64()), t=pa.array([], pa.string()))
        (folder / ".hidden.parquet").write_bytes(b"")
        (folder / "README.md").write_text("words")
        source = parquet(folder)
        assert source.metadata == {"source": "parquet"}
        assert source.column("x").tolist() == [1, 2, 3, 4, 5]
        check_source(source, [{"x": n + 1, "t": "abcde"[n]} for n in range(5)], tmp_path / "out")

    @pytest.mark.parametrize("end", ["", "-0123456789abcdef"])
    def test_several_sets_in_a_directory(self, tmp_path: Path, end: str) -> None:
        """A directory with training and test files is refused, so that they are not mixed; one set is accepted."""
        for number in range(2):
            write(tmp_path / f"train-0000{number}-of-00002{end}.parquet", x=[number])
        assert parquet(tmp_path).column("x").tolist() == [0, 1]
        write(tmp_path / f"test-00000-of-00001{end}.parquet", x=[2])
        with pytest.raises(SourceError, match=r"several sets, test, train; choose one, as with '.*/test-\*.parquet'"):
            parquet(tmp_path)
        assert parquet(f"{tmp_path}/t*-*.parquet").column("x").tolist() == [2, 0, 1]

    @pytest.mark.parametrize(
        ("other", "reason"),
        [
            ({"y": [1]}, r"b.parquet has no column called 'x'"),
            ({"x": [1], "y": [1]}, r"files must agree: .*b.parquet has 'y', .*a.parquet has not"),
            ({"x": [0.5]}, r"files must agree: field 'x' is .*float64.* in .*b.parquet, .*int64.* in .*a.parquet"),
            ({"x": pa.array([1], pa.duration("s"))}, r"b.parquet: no field holds the column 'x'"),
            ({"x": [1], "notes": {"x": LABEL}}, "the class names differ between .*b.parquet and .*a.parquet"),
        ],
    )
    def test_files_must_agree(self, tmp_path: Path, other: dict[str, Any], reason: str) -> None:
        """Files that differ are refused with both files and the difference."""
        write(tmp_path / "a.parquet", x=[1])
        write(tmp_path / "b.parquet", **other)
        with pytest.raises(SourceError, match=reason):
            parquet(tmp_path)

    def test_no_rows(self, tmp_path: Path) -> None:
        """A file without rows has fields and no samples."""
        source = parquet(write(tmp_path / "a.parquet", x=pa.array([], pa.int8()), b=pa.array([], pa.binary())))
        assert dict(source.fields) == {"x": Field("scalar", dtype="int8"), "b": BYTES}
        assert len(source.sizes()) == 0
        assert source.column("x").tolist() == []


class TestPaths:
    """Columns of paths, whose files are read where the user names the column."""

    @staticmethod
    def files(folder: Path, names: Sequence[str]) -> None:
        pictures = dict(zip(names, PICTURES, strict=True))
        write_files(folder, pictures | {f"{name}.wav": b"RIFF" + data[:40] for name, data in pictures.items()})

    def test_images_and_sounds(self, tmp_path: Path) -> None:
        """Files are relative to each Parquet file, images and bytes by their content; other columns stay."""
        names = [f"{n} é.img" for n in range(COUNT)]
        sounds = [f"{name}.wav" for name in names]
        for part in ("a", "b"):
            self.files(tmp_path / part, names)
            write(tmp_path / part / "t.parquet", photo=names, sound=pa.array(sounds).dictionary_encode(), n=NUMBERS)
        source = parquet(str(tmp_path / "*/t.parquet"), path="image=photo,sound")
        rows = zip(NUMBERS, PICTURES, strict=True)
        expected = [{"n": n, "image": data, "sound": b"RIFF" + data[:40]} for n, data in rows] * 2
        check_source(source, expected, tmp_path / "out", image="image", sound="bytes")
        assert source.sizes().tolist() == [int(np.mean([len(p) for p in PICTURES])) + 44 + 8] * 10
        assert source.remarks == ()

    def test_a_root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Relative paths start from `root`, also once the working directory is another; absolute ones are taken."""
        self.files(tmp_path / "photos", names := list("abcde"))
        names[1] = str(tmp_path / "photos" / "b")
        path = write(tmp_path / "t.parquet", file=names)
        monkeypatch.chdir(tmp_path)
        source = parquet(path, path="image=file", fields="key=file", root="photos")
        monkeypatch.chdir("/")
        assert (column(source, "key"), column(source, "image")) == (names, PICTURES)

    def test_what_hugging_face_stores_beside_its_files(self, tmp_path: Path) -> None:
        """A struct of bytes and a path is read from the file where there are no bytes."""
        self.files(tmp_path, list("abcde"))
        media = [{"bytes": None if n % 2 else PICTURES[n], "path": "abcde"[n]} for n in range(COUNT)]
        path = write(tmp_path / "t.parquet", notes={"image": {"_type": "Image"}}, image=media)
        source = parquet(path, path="image")
        assert column(source, "image") == PICTURES
        with pytest.raises(BadSample, match=r"only a path, 'b': .*; the option path reads what you name"):
            parquet(path)[1]

    def test_bad_files(self, tmp_path: Path) -> None:
        """A file that is missing, a folder, empty or no image is a bad sample, which names the row and the file."""
        self.files(tmp_path, list("abcde"))
        (tmp_path / "b").unlink()
        (tmp_path / "c").write_bytes(b"words")
        (tmp_path / "d").unlink()
        (tmp_path / "d").mkdir()
        source = parquet(write(tmp_path / "t.parquet", file=[*"abcd", None]), path="image=file")
        assert source[0] == {"image": PICTURES[0]}
        for row, reason in ((1, "b: cannot be read: No such file"), (2, "c: not a JPEG"), (3, "d: cannot be read")):
            with pytest.raises(BadSample, match=rf"t.parquet, row {row}, column 'file': .*{reason}"):
                source[row]
        assert isinstance(source[4]["image"], Missing)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"path": "n"}, "path must name columns of strings, 'n' is scalar, int64"),
            ({"path": "gone"}, "has no 'gone'; there are file, n"),
            ({"path": "file=photo"}, "has no 'photo'; there are file, n; the field's name comes first: photo=file"),
            ({"path": "n=file"}, "two columns would be the field 'n'"),
            ({"root": "."}, "root goes with path, which names the columns of paths"),
            ({"path": "file", "root": "t.parquet"}, "root must be a folder"),
        ],
    )
    def test_wrong_options(
        self, tmp_path: Path, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Columns of other types, names that clash and a root without paths are refused."""
        monkeypatch.chdir(tmp_path)
        path = write(tmp_path / "t.parquet", file=WORDS, n=NUMBERS)
        with pytest.raises((ConfigError, SourceError), match=message):
            parquet(path, **options)


class TestHuggingFace:
    @pytest.mark.parametrize(
        ("names", "expected"),
        [
            (["label", "fine"], {"classes": ["cat", "dog"], "classes.fine": ["cat", "dog"]}),
            (["coarse", "fine"], {"classes.coarse": ["cat", "dog"], "classes.fine": ["cat", "dog"]}),
            (["fine"], {"classes": ["cat", "dog"]}),
            (["y=fine"], {"classes": ["cat", "dog"]}),
        ],
    )
    def test_several_columns_of_classes(self, tmp_path: Path, names: list[str], expected: dict[str, Any]) -> None:
        """`label`, or the only class column, gives the classes; others are prefixed with their field's name."""
        own = [name.partition("=")[2] or name for name in names]
        path = write(tmp_path / "a.parquet", notes=dict.fromkeys(own, LABEL), **{name: [0, 1] for name in own})
        assert parquet(path, fields=",".join(names)).metadata == {"source": "parquet", **expected}

    def test_only_a_path(self, tmp_path: Path) -> None:
        """Images given by path are refused, because a table must not choose which local file is read."""
        (tmp_path / "b.jpg").write_bytes(jpeg())
        images = [{"bytes": jpeg(), "path": None}, {"bytes": None, "path": str(tmp_path / "b.jpg")}, None]
        empty = {"bytes": None, "path": None}
        source = parquet(write(tmp_path / "a.parquet", notes={"image": {"_type": "Image"}}, image=[*images, empty]))
        assert source[0] == {"image": jpeg()}
        for row, reason in ((1, r"only a path, '.*b.jpg'"), (2, "null"), (3, "neither bytes nor a path")):
            with pytest.raises(BadSample, match=f"a.parquet, row {row}, column 'image': {reason}"):
                encode(source[row], source.fields)

    @pytest.mark.parametrize(
        "note",
        [
            {"_type": "Array2D", "shape": ["a", 2]},
            {"_type": "Array3D", "shape": [1, 2, 3]},
            ["x"],
        ],
    )
    def test_notes_that_do_not_fit(self, tmp_path: Path, note: Any) -> None:
        """Noted features that contradict the column types are ignored."""
        source = parquet(write(tmp_path / "a.parquet", notes={"x": note}, x=[[[1, 2]], [[3]]]))
        assert source.fields["x"] == JSON
        assert source[1] == {"x": [[3]]}

    @pytest.mark.parametrize(
        "text", ["{", "\udcff", "[" * 100_000, "[]", '{"info": {"features": null}}', '{"info": 3}']
    )
    def test_notes_that_are_no_features(self, tmp_path: Path, text: str) -> None:
        """Metadata without features is ignored; invalid JSON is refused, because it may hold classes."""
        schema = pa.schema([("x", pa.int8())], {"huggingface": text.encode("utf-8", "surrogateescape")})
        pq.write_table(pa.table({"x": pa.array([1], pa.int8())}, schema), tmp_path / "a.parquet")
        if text[-1] in "]}":
            assert parquet(tmp_path / "a.parquet")[0] == {"x": 1}
            return
        with pytest.raises(SourceError, match=r"a.parquet: what Hugging Face notes in it is not JSON: "):
            parquet(tmp_path / "a.parquet")


class TestReading:
    def test_row_groups_are_read_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each row group is read once in ascending order, and in any order within a group."""
        table = pa.table({"x": np.arange(10_000), "t": [str(n) for n in range(10_000)]})
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=5000)
        source = parquet(tmp_path / "a.parquet")
        begun: list[Any] = []
        original = pq.ParquetFile.iter_batches

        def iter_batches(self: Any, step: int, row_groups: list[int], **options: Any) -> Any:
            begun.extend(row_groups)
            return original(self, step, row_groups=row_groups, **options)

        monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
        within = np.random.default_rng(0).permutation(5000).tolist()
        for index in [*within, *(5000 + row for row in range(5000))]:
            assert source[index] == {"x": index, "t": str(index)}
        assert begun == [0, 1]

    def test_memory_is_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only part of a large row group is kept in memory, and its rows can be read in any order."""
        monkeypatch.setattr(module, "_KEPT", 3 << 20)
        blobs = [bytes([n]) * 100_000 for n in range(200)]
        pq.write_table(pa.table({"b": blobs}), tmp_path / "a.parquet", write_batch_size=1, data_page_size=100_000)
        source = parquet(tmp_path / "a.parquet")
        before, most = pa.total_allocated_bytes(), 0
        for index in range(200):
            assert source[index]["b"] == blobs[index]
            most = max(most, pa.total_allocated_bytes() - before)
        assert 1 << 20 < most < 6 << 20
        for index in (150, 7, 8, 199, 0):
            assert source[index]["b"] == blobs[index]

    def test_one_text_over_and_over(self, tmp_path: Path) -> None:
        """A small file that expands to 400 MB is not expanded at once."""
        texts = pa.DictionaryArray.from_arrays(np.arange(200_000, dtype="i4") % 2, ["a" * 2000, "b" * 2000])
        pq.write_table(pa.table({"t": texts.dictionary_decode()}), tmp_path / "a.parquet", store_schema=False)
        del texts
        source = parquet(tmp_path / "a.parquet")
        assert source.sizes()[0] == 2000
        before = pa.total_allocated_bytes()
        for index in (0, 50_001, 199_999):
            assert source[index] == {"t": "ab"[index % 2] * 2000}
            assert pa.total_allocated_bytes() - before < 80 << 20


def test_a_first_value_that_is_no_image(tmp_path: Path) -> None:
    """Most values decide whether bytes are images; the others are bad samples, which name their rows."""
    odd = b"%PDF-1.7" + bytes(60)
    columns = {"image": [odd, *[PICTURES[0]] * 3, odd], "sound": [PICTURES[0], *[b"x"] * 4]}
    source = parquet(write(tmp_path / "a.parquet", **columns))
    assert {name: field.kind for name, field in source.fields.items()} == {"image": "image", "sound": "bytes"}
    assert source[1]["image"] == PICTURES[0]
    for row in (0, 4):
        with pytest.raises(BadSample, match=f"row {row}, column 'image': not a JPEG"):
            source[row]
    assert parquet(write(tmp_path / "b.parquet", image=[odd] * 3)).fields["image"] == Field("bytes")


class TestBadRows:
    @pytest.mark.parametrize(
        ("values", "reason"),
        [
            (pa.array([1, None]), "null"),
            (pa.array(["a", None]).dictionary_encode(), "null"),
            (pa.array([[1], None]), "null"),
            (pa.array([[1], [1, None]]), "null in a list of numbers"),
            (pa.array([[1, 2], [1, None]], pa.list_(pa.int8(), 2)), "null in a list of numbers"),
            pytest.param(
                pa.array([[[1, 2]], [None]], pa.list_(pa.list_(pa.int8(), 2))),
                "expected lists of 2 values, got one of ",
                marks=pytest.mark.skipif(pa.__version__ < "26", reason="Arrow before 26 refuses the whole row group"),
            ),
            (pa.array([jpeg(), jpeg()[:-100]]), "the jpeg image is cut short"),
            (pa.array([[("a", 1)], [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int8())), "a map has a key twice"),
            (pa.array([b"a", b"caf\xe9"]).view(pa.string()), "not UTF-8: .*0xe9"),
        ],
    )
    def test_a_bad_value(self, tmp_path: Path, values: pa.Array, reason: str) -> None:
        """A bad value is named by file, row and column, and its neighbours are read."""
        write(tmp_path / "a.parquet", x=values[:1])
        write(tmp_path / "b.parquet", x=values)
        source = parquet(tmp_path)
        assert len(source.sizes()) == 3
        assert source[0]
        assert source[1]
        with pytest.raises(BadSample, match=rf"b.parquet, row 1, column 'x': {reason}"):
            encode(source[2], source.fields)

    def test_an_array_of_another_size(self, tmp_path: Path) -> None:
        """With a noted shape, a row of another shape is a bad sample."""
        note = {"x": {"_type": "Array2D", "shape": [2, 2]}}
        rows = [[[1, 2], [3, 4]], [[1, 2]], [[1], [2]]]
        source = parquet(write(tmp_path / "a.parquet", notes=note, x=pa.array(rows, pa.list_(pa.list_(pa.int8())))))
        np.testing.assert_array_equal(source[0]["x"], [[1, 2], [3, 4]])
        for row, reason in ((1, r"expected \[2, 2\] numbers, got 2"), (2, "expected lists of 2 values, got one of 1")):
            with pytest.raises(BadSample, match=reason):
                source[row]


def _spoil(path: Path, group: int, column: int = 0, at: int = 200) -> None:
    """Change a byte in the first data page of a column in a row group."""
    flip(path, pq.read_metadata(path).row_group(group).column(column).data_page_offset + at, 0xFF)


class TestDamage:
    @pytest.mark.parametrize("compression", ["none", "zstd"])
    def test_a_damaged_page(self, tmp_path: Path, compression: str) -> None:
        """Only the rows of a damaged row group are bad, and they are named; its column is not offered."""
        values = np.random.default_rng(0).random(900)
        pq.write_table(
            pa.table({"x": values}), tmp_path / "a.parquet", row_group_size=300, compression=compression,
            use_dictionary=False, write_page_checksum=True,
        )  # fmt: skip
        source = parquet(tmp_path / "a.parquet")
        _spoil(tmp_path / "a.parquet", 1)
        for _ in range(2):
            assert [source[n]["x"] for n in (0, 299, 600, 899)] == values[[0, 299, 600, 899]].tolist()
            for row in (300, 599):
                reason = rf"a.parquet, row {row}: its row group is damaged here or before: .*(CRC|[Cc]orrupt)"
                with pytest.raises(BadSample, match=reason):
                    source[row]
        assert source.column("x") is None

    def test_rows_before_a_damaged_page(self, tmp_path: Path) -> None:
        """Rows before a damaged page are read, and the damage is detected once."""
        table = pa.table({"x": np.arange(4000)})
        options: dict[str, Any] = {"use_dictionary": False, "write_page_checksum": True, "compression": "none"}
        pq.write_table(table, tmp_path / "a.parquet", data_page_size=800, write_batch_size=100, **options)
        source = parquet(path := tmp_path / "a.parquet")
        flip(path, path.read_bytes().index(np.array([3550]).tobytes()) + 1, 0xFF)
        assert source[0] == {"x": 0}
        for _ in range(3):
            with pytest.raises(BadSample, match=r"a.parquet, row 3600: its row group is damaged here or before: "):
                source[3600]
            assert source[2000] == {"x": 2000}

    @pytest.mark.parametrize(
        ("damage", "reason"),
        [
            (lambda data: b"", "file size is 0 bytes"),
            (lambda data: b"PAR1PAR1", "Parquet"),
            (lambda data: data[:-1], "magic bytes not found"),
        ],
    )
    def test_a_file_that_is_none(self, tmp_path: Path, damage: Callable[[bytes], bytes], reason: str) -> None:
        """A file that is not Parquet is refused by name, wherever it is in the list."""
        for name in "abc":
            write(tmp_path / f"{name}.parquet", x=[1])
        (tmp_path / "b.parquet").write_bytes(damage((tmp_path / "b.parquet").read_bytes()))
        with pytest.raises(SourceError, match=f"b.parquet cannot be read: .*{reason}"):
            parquet(tmp_path)

    @pytest.mark.parametrize("times", [1, -1])
    def test_fewer_rows_than_the_footer_says(self, tmp_path: Path, times: int) -> None:
        """A contradictory footer is refused; rows that only the pages lack are bad samples."""
        pq.write_table(pa.table({"x": np.arange(101.0)}), tmp_path / "a.parquet", use_dictionary=False)
        data = (tmp_path / "a.parquet").read_bytes()
        footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        # 101 and 102 as Thrift integers: first the file's count, then the row group's and the column's.
        (tmp_path / "a.parquet").write_bytes(data[:footer] + data[footer:].replace(b"\xca\1", b"\xcc\1", times))
        if times == 1:
            with pytest.raises(SourceError, match=r"a.parquet is damaged: its row groups do not have 102 rows"):
                parquet(tmp_path / "a.parquet")
            return
        source = parquet(tmp_path / "a.parquet")
        assert [source[row]["x"] for row in (0, 100)] == [0, 100]
        with pytest.raises(BadSample, match=r"a.parquet, row 101: .* there are fewer rows than the file says"):
            source[101]


class TestLists:
    def test_lists_of_one_length(self, tmp_path: Path) -> None:
        """With `fixed`, lists of numbers have the length of the first; one of another length is a bad sample."""
        write(tmp_path / "a.parquet", x=[[1.0, 2.0], [3.0, 4.0], [5.0]], y=[[1], [2, 3], []], n=[0, 1, 2])
        source = parquet(tmp_path / "a.parquet", fixed="x")
        assert (source.fields["x"].shape, source.fields["y"].shape) == ((2,), (None,))
        np.testing.assert_array_equal(source[1]["x"], [3.0, 4.0])
        with pytest.raises(BadSample, match=r"row 2, column 'x': expected \[2\] numbers, got 1"):
            source[2]
        for wrong in ("n", "z"):
            told = rf"fixed takes fields of lists of numbers, got '{wrong}'; there are x, y"
            with pytest.raises(ConfigError, match=told):
                parquet(tmp_path / "a.parquet", fixed=wrong)

    def test_windows_say_what_they_leave_out(self, tmp_path: Path) -> None:
        """Windows name the lists that they leave out, as these differ in length; none with `fixed`."""
        write(tmp_path / "a.parquet", x=[[1.0, 2.0], [3.0, 4.0]], n=[0, 1])
        for fixed in (None, "x"):
            source = parquet(tmp_path / "a.parquet", fixed=fixed)
            shardio.convert(source, tmp_path / "out", overwrite=True)
            windows = repr(shardio.open(tmp_path / "out").windows(2, within="dataset"))
            assert ("without x" in windows) is (fixed is None)

    @pytest.mark.parametrize("notes", [None, {"pages": {"feature": {"_type": "Image"}, "_type": "Sequence"}}])
    def test_lists_of_images(self, tmp_path: Path, notes: Any) -> None:
        """Lists of images of Hugging Face, structs or bytes, become fields of lists of images."""
        pages = [[png(1), png(2)], [], [png(3)]]
        structs = [[{"bytes": page, "path": None} for page in row] for row in pages]
        source = parquet(write(tmp_path / "a.parquet", notes=notes, pages=pages if notes else structs))
        check_source(source, [{"pages": row} for row in pages], tmp_path / "out", pages=("image", (None,)))
