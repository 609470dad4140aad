"""Hugging Face Datasets, saved or in memory, become samples in their own order, with nothing decoded."""

import datetime
import json
import pickle
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets as library
import numpy as np
import pyarrow as pa
import pytest
from _builders import jpeg
from _sources import PICTURES, WORDS
from datasets import (
    Array2D,
    Array3D,
    ClassLabel,
    Dataset,
    DatasetDict,
    Features,
    Image,
    IterableDataset,
    LargeList,
    Sequence,
    Value,
)

from shardio.errors import BadSample, ConfigError, SourceError
from shardio.format.fields import Field
from shardio.output.shard_writer import encode
from shardio.testing.sources import check_sample, check_source
from shardio_converters.huggingface import huggingface
from shardio_converters.parquet import parquet

GRIDS = np.arange(30).reshape(5, 2, 3)
DIGITS = range(5)
TEXT, BYTES, JSON, IMAGE = (Field(kind) for kind in ("text", "bytes", "json", "image"))


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Turn off the progress bars of the library."""
    library.disable_progress_bars()
    yield
    library.enable_progress_bars()


# A feature, its values, their field, and the values of the samples where they differ.
KINDS: dict[str, tuple[Any, list[Any], Field, list[Any]]] = {
    "label": (ClassLabel(names=["cat", "dog"]), [0, 1, 1, 0, 1], Field("scalar", dtype="int64"), []),
    **{
        name: (Value(name), [0, 1, 2, 3, 100], Field("scalar", dtype=name), [])
        for name in ("int8", "uint16", "int64", "float32", "float64")
    },
    "bool": (Value("bool"), [True, False] * 2 + [True], Field("scalar", dtype="bool"), []),
    "string": (Value("string"), WORDS, TEXT, []),
    "large_string": (Value("large_string"), WORDS, TEXT, []),
    "binary": (Value("binary"), [b"", b"abc", b"\0", b"\xff" * 900, b"z"], BYTES, []),
    "encoded": (Value("binary"), PICTURES, IMAGE, []),
    "image": (Image(decode=False), [{"bytes": data, "path": None} for data in PICTURES], IMAGE, PICTURES),
    "image_with_names": (Image(), [{"bytes": data, "path": "a.jpg"} for data in PICTURES], IMAGE, PICTURES),
    "grid": (Array2D((2, 3), "uint8"), list(GRIDS), Field("array", dtype="uint8", shape=(2, 3)), []),
    "cube": (
        Array3D((2, 1, 3), "float32"), list(GRIDS[:, :, None]), Field("array", dtype="float32", shape=(2, 1, 3)), [],
    ),
    "rows": (
        Array2D((None, 3), "int32"), [GRIDS[n, : n % 2 + 1] for n in DIGITS], Field("array", dtype="int32"), [],
    ),
    "ragged": (Sequence(Value("int32")), [[1, 2], [], [3], [4], [5]], Field("array", dtype="int32"), []),
    "large": (LargeList(Value("int32")), [[1, 2], [], [3], [4], [5]], Field("array", dtype="int32"), []),
    "pair": (Sequence(Value("int8"), length=2), [[n, 1] for n in DIGITS], Field("array", dtype="int8", shape=(2,)), []),
    "words": (Sequence(Value("string")), [["a"], [], None, ["é", None], ["b"]], JSON, []),
    "struct": ({"a": Value("int8"), "b": {"c": Value("bool")}}, [{"a": n, "b": {"c": None}} for n in DIGITS], JSON, []),
    "boxes": ([{"box": Sequence(Value("float32"), length=2)}], [[{"box": [0.5, n]}] for n in DIGITS], JSON, []),
    "nothing": (Value("null"), [None] * 5, JSON, []),
    "decimal": (Value("decimal128(5, 2)"), [Decimal(n) for n in DIGITS], TEXT, [f"{n}.00" for n in DIGITS]),
    "date": (Value("date32"), [datetime.date(2024, 2, 29)] * 5, TEXT, ["2024-02-29"] * 5),
    "time": (Value("time64[us]"), [datetime.time(n) for n in DIGITS], TEXT, [f"0{n}:00:00.000000" for n in DIGITS]),
    "moment": (
        Value("timestamp[ms, tz=UTC]"), [datetime.datetime(2024, 1, 1, n, tzinfo=datetime.UTC) for n in DIGITS],
        TEXT, [f"2024-01-01T0{n}:00:00.000Z" for n in DIGITS],
    ),
}  # fmt: skip


def made(*names: str) -> tuple[Dataset, list[dict[str, Any]]]:
    """A Dataset in memory with columns of these kinds, and its samples."""
    kinds = {name: KINDS[name] for name in names}
    features = Features({name: feature for name, (feature, *_) in kinds.items()})
    dataset = Dataset.from_dict({name: values for name, (_, values, *_) in kinds.items()}, features=features)
    samples = []
    for row in range(5):
        sample = {name: (expected or values)[row] for name, (_, values, _, expected) in kinds.items()}
        for name, (_, _, field, _) in kinds.items():
            if field.kind == "array":
                sample[name] = np.array(sample[name], field.dtype)
        samples.append(sample)
    return dataset, samples


def numbered(count: int = 10) -> Dataset:
    """A Dataset in memory whose rows hold their number."""
    return Dataset.from_dict({"x": list(range(count)), "t": [f"text {n}" for n in range(count)]})


def saved(folder: Path, dataset: Any, **options: Any) -> Path:
    """Save the Dataset or DatasetDict and return the path."""
    dataset.save_to_disk(folder, **options)
    return folder


class TestKinds:
    @pytest.mark.parametrize("name", KINDS)
    def test_a_column(self, name: str) -> None:
        """A column of any feature that a field can hold gives its values."""
        dataset, samples = made(name)
        source = huggingface(dataset)
        assert dict(source.fields) == {name: KINDS[name][2]}
        for row, sample in enumerate(samples):
            check_sample(source[row], sample)

    @pytest.mark.slow
    @pytest.mark.parametrize("shards", [0, 1, 3])
    def test_all_at_once(self, tmp_path: Path, shards: int) -> None:
        """Columns of all kinds together survive from memory and from disk, through every container."""
        dataset, samples = made(*KINDS)
        source = huggingface(saved(tmp_path / "-a é", dataset, num_shards=shards) if shards else dataset)
        assert source.metadata == {"source": "huggingface", "classes": ["cat", "dog"]}
        check_source(source, samples, tmp_path / "out")

    @pytest.mark.parametrize("name", [name for name in KINDS if name != "image_with_names"])
    def test_as_parquet(self, tmp_path: Path, name: str) -> None:
        """A Parquet file that the library writes is read with the library's features."""
        dataset, samples = made(name)
        dataset.to_parquet(tmp_path / "a.parquet")
        source = parquet(tmp_path / "a.parquet")
        assert dict(source.fields) == {name: KINDS[name][2]}
        for row, sample in enumerate(samples):
            check_sample(source[row], sample)

    def test_images_that_are_a_path(self, tmp_path: Path) -> None:
        """Images given by path are read from their files, which count in sizes; a missing file is a bad sample."""
        for name, data in (("a é.jpg", jpeg()), ("c.jpg", b"words")):
            (tmp_path / name).write_bytes(data)
        paths = [str(tmp_path / name) for name in ("a é.jpg", "b.jpg", "c.jpg")]
        dataset = Dataset.from_dict({"image": [*paths, None]}).cast_column("image", Image())
        source = huggingface(dataset)
        assert source[0] == {"image": jpeg()}
        assert source.sizes()[0] == len(jpeg())
        for row, reason in ((1, r".*b.jpg: cannot be read: No such file"), (2, "not a JPEG"), (3, "null")):
            with pytest.raises(BadSample, match=f"the Dataset, row {row}, column 'image': {reason}"):
                encode(source[row], source.fields)

    def test_what_no_field_holds(self) -> None:
        """A column that no field can hold is refused with its type, and others can be chosen."""
        features = Features({"x": Value("duration[s]"), "y": Value("int64")})
        dataset = Dataset.from_dict({"x": [datetime.timedelta(1)], "y": [2]}, features=features)
        with pytest.raises(SourceError, match=r"the Dataset: no field holds the column 'x', duration\[s\]; choose"):
            huggingface(dataset)
        assert huggingface(dataset, fields="y")[0] == {"y": 2}


class TestOrder:
    CASES: dict[str, tuple[Callable[[Dataset], Dataset], list[int]]] = {
        "select": (lambda dataset: dataset.select([7, 2, 2, 9]), [7, 2, 2, 9]),
        "a slice": (lambda dataset: dataset.select(range(3, 6)), [3, 4, 5]),
        "filter": (lambda dataset: dataset.filter(lambda row: row["x"] % 4 == 1), [1, 5, 9]),
        "select of a selection": (lambda dataset: dataset.select([5, 6, 7]).select([2, 0]), [7, 5]),
        "a join": (lambda dataset: library.concatenate_datasets([dataset.select([8, 1]), dataset]), [8, 1, *range(10)]),
        "a shard": (lambda dataset: dataset.shard(5, 1, contiguous=False), [1, 6]),
    }

    @pytest.mark.parametrize("place", ["memory", "disk"])
    @pytest.mark.parametrize("case", CASES)
    def test_rows_are_those_of_the_dataset(self, tmp_path: Path, case: str, place: str) -> None:
        """Selected, sorted and concatenated Datasets give samples and columns in their own order."""
        change, rows = self.CASES[case]
        dataset = numbered() if place == "memory" else library.load_from_disk(saved(tmp_path / "a", numbered()))
        source = huggingface(change(dataset))
        assert [source[n] for n in range(len(rows))] == [{"x": row, "t": f"text {row}"} for row in rows]
        assert source.column("x").tolist() == rows
        copy = pickle.loads(pickle.dumps(source))  # noqa: S301
        assert [copy[n]["x"] for n in reversed(range(len(rows)))] == rows[::-1]

    def test_shuffled(self, tmp_path: Path) -> None:
        """A shuffled Dataset is converted in its shuffled order."""
        dataset = library.load_from_disk(saved(tmp_path / "a", numbered())).shuffle(seed=3)
        samples = [{"x": row["x"], "t": row["t"]} for row in dataset]
        assert [sample["x"] for sample in samples] != list(range(10))
        check_source(huggingface(dataset), samples, tmp_path / "out")

    def test_formats_and_transforms_are_not_applied(self) -> None:
        """Formats and transforms of a Dataset are ignored: samples hold all columns of the table."""
        dataset = numbered()
        expected = {"x": 3, "t": "text 3"}
        assert huggingface(dataset.with_format("numpy", columns=["x"]))[3] == expected
        assert huggingface(dataset.with_transform(lambda rows: {"z": [0] * len(rows["x"])}))[3] == expected
        assert dataset.format["type"] is None


class TestSplits:
    def test_of_several(self, tmp_path: Path) -> None:
        """One split of several must be named; otherwise they are listed."""
        both = DatasetDict(train=numbered(3), test=numbered(2))
        path = saved(tmp_path / "a", both)
        for src, place in ((path, ".*/a"), (str(path), ".*/a"), (both, "the DatasetDict")):
            source = huggingface(src, subset="test")
            assert [source[n]["x"] for n in range(len(source.sizes()))] == [0, 1]
            for subset in (None, "valid"):
                with pytest.raises(ConfigError, match=f"^{place} has .*one of train, test, got {subset!r}"):
                    huggingface(src, subset=subset)
        assert len(huggingface(path / "train").sizes()) == 3

    def test_of_one(self, tmp_path: Path) -> None:
        """A single split needs no name, and a Dataset has none."""
        assert len(huggingface(saved(tmp_path / "a", DatasetDict(train=numbered(3)))).sizes()) == 3
        with pytest.raises(SourceError, match="the DatasetDict holds no splits"):
            huggingface(DatasetDict())
        with pytest.raises(ConfigError, match=r"the Dataset is one Dataset, without splits; got subset='train'"):
            huggingface(numbered(), subset="train")

    def test_messages_name_the_split(self, tmp_path: Path) -> None:
        """Errors name the split and count rows within it."""
        bad = Dataset.from_dict({"x": [1, None]})
        source = huggingface(saved(tmp_path / "a", DatasetDict(train=bad, test=bad)), subset="test")
        with pytest.raises(BadSample, match=r".*/a, test, row 1, column 'x': null"):
            encode(source[1], source.fields)


class TestFields:
    def test_names(self, tmp_path: Path) -> None:
        """`fields` chooses and names columns; labels are int64."""
        features = Features({"my label": Value("int8"), "img": Value("binary")})
        dataset = Dataset.from_dict({"my label": [5, 6], "img": PICTURES[:2]}, features=features)
        source = huggingface(dataset, fields="image=img,label=my label")
        assert source.fields["label"] == Field("scalar", dtype="int64")
        expected = [{"image": PICTURES[n], "label": 5 + n} for n in range(2)]
        check_source(source, expected, tmp_path / "out", image=IMAGE)
        assert huggingface(dataset, fields={"a": "img", "b": "img"})[1] == {"a": PICTURES[1], "b": PICTURES[1]}
        with pytest.raises(ConfigError, match="the Dataset has no 'z'; there are my label, img"):
            huggingface(dataset, fields="z")

    def test_several_columns_of_classes(self) -> None:
        """With several class columns the classes are those of `label`."""
        features = Features({"label": ClassLabel(names=["a", "b"]), "fine": ClassLabel(names=["c", "d"])})
        dataset = Dataset.from_dict({"label": [0, 1], "fine": [1, 0]}, features=features)
        assert huggingface(dataset).metadata["classes"] == ["a", "b"]
        assert huggingface(dataset).metadata["classes.fine"] == ["c", "d"]
        assert huggingface(dataset, fields="fine").metadata["classes"] == ["c", "d"]

    def test_columns_without_reading_samples(self) -> None:
        """Numeric columns without nulls are available without reading samples; others are not."""
        source = huggingface(Dataset.from_dict({"x": [1, 2], "n": [1, None], "t": ["a", "b"], "f": [0.5, None]}))
        assert source.column("x").tolist() == [1, 2]
        assert [source.column(name) for name in ("n", "t", "f", "z")] == [None] * 4

    def test_sizes(self) -> None:
        """Sizes of numeric columns are exact, and others are estimated from some rows."""
        dataset = Dataset.from_dict({"x": [0.5] * 200, "t": ["a" * (n % 10) for n in range(200)]})
        assert set(huggingface(dataset, fields="x").sizes()) == {8}
        assert abs(huggingface(dataset).sizes()[0] - 12.5) < 1
        assert len(huggingface(dataset.select([])).sizes()) == 0


class TestReading:
    def test_rows_are_read_in_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In ascending order each block of about a megabyte is read once."""
        source = huggingface(Dataset.from_dict({"b": [bytes([n]) * 100_000 for n in range(25)], "x": range(25)}))
        asked: list[Any] = []
        original = Dataset.__getitem__
        monkeypatch.setattr(Dataset, "__getitem__", lambda self, key: asked.append(key) or original(self, key))
        for index in range(25):
            assert source[index]["b"] == bytes([index]) * 100_000
        assert asked == [slice(0, 10), slice(10, 20), slice(20, 25)]


class TestRefusals:
    @pytest.mark.parametrize("wrap", [lambda dataset: dataset, lambda dataset: library.IterableDatasetDict(a=dataset)])
    def test_iterable_datasets(self, wrap: Callable[[Any], Any]) -> None:
        """An IterableDataset has no samples by number and is refused with advice."""
        iterable = wrap(IterableDataset.from_generator(lambda: iter([{"x": 1}])))
        reason = r"cannot be converted: its samples have no numbers, .*; load it without streaming=True"
        with pytest.raises(SourceError, match=f"an {type(iterable).__name__} {reason}"):
            huggingface(iterable)

    @pytest.mark.parametrize("src", [7, ["a"], None, {"x": [1]}])
    def test_other_objects(self, src: Any) -> None:
        """Other objects are refused with their type."""
        with pytest.raises(SourceError, match=rf"expected a datasets.Dataset or a directory, got {type(src).__name__}"):
            huggingface(src)

    @pytest.mark.parametrize("src", ["gone", "", "file"])
    def test_no_such_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, src: str) -> None:
        """A missing path, a file and a directory of another kind are refused."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "file").write_bytes(b"words")
        with pytest.raises(SourceError, match=f"{tmp_path}.* is not what save_to_disk writes: FileNotFoundError: Dir"):
            huggingface(src)

    @pytest.mark.parametrize("src", ["s3://bucket/data", "hf://datasets/a/b", "https://a.b/c"])
    def test_urls(self, src: str) -> None:
        """A URL is refused, and never opened."""
        with pytest.raises(ConfigError, match=f"a path must be local, got the URL {src}"):
            huggingface(src)


def _spoil(path: Path, place: bytes, by: bytes) -> None:
    """Overwrite the bytes that begin with `place` in a new file of the same name, because the old one may be mapped."""
    data = path.read_bytes()
    at = data.index(place)
    path.unlink()
    path.write_bytes(data[:at] + by + data[at + len(by) :])


class TestDamage:
    def test_offsets_that_lead_elsewhere(self, tmp_path: Path) -> None:
        """Offsets in a file are validated before use, and other rows are still read."""
        path = saved(tmp_path / "a", Dataset.from_dict({"t": ["aa", "bb", "cc", "dd"], "x": [1, 2, 3, 4]}))
        _spoil(path / "data-00000-of-00001.arrow", np.array([2, 4, 6, 8], "i4").tobytes(), b"\xff" * 3 + b"\x7f")
        source = huggingface(path)
        for _ in range(2):
            assert [source[2], source[3]] == [{"t": "cc", "x": 3}, {"t": "dd", "x": 4}]
            for row in (0, 1):
                with pytest.raises(BadSample, match=f"a, row {row}: cannot be read: .*[Oo]ffset"):
                    source[row]

    def test_text_that_is_not_utf8(self, tmp_path: Path) -> None:
        """Text that is not UTF-8 makes its row bad, not the Dataset."""
        path = saved(tmp_path / "a", Dataset.from_dict({"t": ["first", "second", "third"]}))
        _spoil(path / "data-00000-of-00001.arrow", b"secondthird", b"\xff")
        source = huggingface(path)
        assert [source[0], source[2]] == [{"t": "first"}, {"t": "third"}]
        with pytest.raises(BadSample, match=r"a, row 1: cannot be read: .*UTF8"):
            source[1]

    @pytest.mark.parametrize(
        ("name", "data"),
        [
            ("state.json", b""),
            ("state.json", b"[]"),
            ("state.json", b"{}"),
            ("state.json", b"\xff"),
            ("dataset_info.json", b"{"),
            ("dataset_info.json", b'{"features": {"x": {"_type": "Unknown"}}}'),
            ("dataset_info.json", b'{"features": 7}'),
            ("data-00000-of-00001.arrow", b""),
            ("data-00000-of-00001.arrow", b"words" * 100),
            ("data-00000-of-00001.arrow", None),
        ],
    )
    def test_damaged_files(self, tmp_path: Path, name: str, data: bytes | None) -> None:
        """A damaged directory is refused with the library's message."""
        path = saved(tmp_path / "a", numbered())
        (path / name).unlink()
        if data is not None:
            (path / name).write_bytes(data)
        with pytest.raises(SourceError, match=r"/a is not what save_to_disk writes: [A-Z][A-Za-z]+: ."):
            huggingface(path)


def test_notes_of_the_table_do_not_count(tmp_path: Path) -> None:
    """The Dataset's own features override those in the table's metadata."""
    table = pa.table({"x": [1]}).replace_schema_metadata({"huggingface": json.dumps({"info": {}})})
    dataset = Dataset(pa.table({"x": [1]})).cast_column("x", ClassLabel(names=["a", "b"]))
    assert huggingface(dataset).metadata == {"source": "huggingface", "classes": ["a", "b"]}
    assert huggingface(Dataset(table)).metadata == {"source": "huggingface"}
