"""Hugging Face Datasets, saved or in memory, become samples in their own order, with nothing decoded."""

import datetime
import pickle
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets as library
import numpy as np
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
    "uint16": (Value("uint16"), [0, 1, 2, 3, 100], Field("scalar", dtype="uint16"), []),
    "string": (Value("string"), WORDS, TEXT, []),
    "binary": (Value("binary"), [b"", b"abc", b"\0", b"\xff" * 900, b"z"], BYTES, []),
    "encoded": (Value("binary"), PICTURES, IMAGE, []),
    "image": (Image(decode=False), [{"bytes": data, "path": None} for data in PICTURES], IMAGE, PICTURES),
    "image_with_names": (Image(), [{"bytes": data, "path": "a.jpg"} for data in PICTURES], IMAGE, PICTURES),
    "grid": (Array2D((2, 3), "uint8"), list(GRIDS), Field("array", dtype="uint8", shape=(2, 3)), []),
    "cube": (
        Array3D((2, 1, 3), "float32"), list(GRIDS[:, :, None]), Field("array", dtype="float32", shape=(2, 1, 3)), [],
    ),
    "rows": (
        Array2D((None, 3), "int32"),
        [GRIDS[n, : n % 2 + 1] for n in DIGITS],
        Field("array", dtype="int32", shape=(None, 3)),
        [],
    ),
    "large": (LargeList(Value("int32")), [[1, 2], [], [3], [4], [5]], Field("array", dtype="int32", shape=(None,)), []),
    "pair": (Sequence(Value("int8"), length=2), [[n, 1] for n in DIGITS], Field("array", dtype="int8", shape=(2,)), []),
    "boxes": ([{"box": Sequence(Value("float32"), length=2)}], [[{"box": [0.5, n]}] for n in DIGITS], JSON, []),
    "decimal": (Value("decimal128(5, 2)"), [Decimal(n) for n in DIGITS], TEXT, [f"{n}.00" for n in DIGITS]),
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
    @pytest.mark.slow
    @pytest.mark.parametrize("shards", [0, 3])
    def test_every_kind(self, tmp_path: Path, shards: int) -> None:
        """Columns of any feature that a field can hold give their values, from memory and from disk."""
        dataset, samples = made(*KINDS)
        source = huggingface(saved(tmp_path / "-a é", dataset, num_shards=shards) if shards else dataset)
        assert source.metadata == {"source": "huggingface", "classes": ["cat", "dog"]}
        assert dict(source.fields) == {name: field for name, (_, _, field, _) in KINDS.items()}
        check_source(source, samples, tmp_path / "out")

    def test_as_parquet(self, tmp_path: Path) -> None:
        """A Parquet file that the library writes is read with the library's features."""
        names = [name for name in KINDS if name != "image_with_names"]
        dataset, samples = made(*names)
        dataset.to_parquet(tmp_path / "a.parquet")
        source = parquet(tmp_path / "a.parquet")
        assert dict(source.fields) == {name: KINDS[name][2] for name in names}
        assert source.metadata == {"source": "parquet", "classes": ["cat", "dog"]}
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

    def test_formats_and_transforms_are_not_applied(self) -> None:
        """Formats and transforms of a Dataset are ignored: samples hold all columns of the table."""
        dataset = numbered()
        expected = {"x": 3, "t": "text 3"}
        assert huggingface(dataset.with_format("numpy", columns=["x"]))[3] == expected
        assert huggingface(dataset.with_transform(lambda rows: {"z": [0] * len(rows["x"])}))[3] == expected
        assert dataset.format["type"] is None


def test_one_split_of_several(tmp_path: Path) -> None:
    """One split of several must be named, otherwise they are listed; a single one needs no name."""
    both = DatasetDict(train=numbered(3), test=numbered(2))
    path = saved(tmp_path / "a", both)
    for src, place in ((path, ".*/a"), (str(path), ".*/a"), (both, "the DatasetDict")):
        source = huggingface(src, subset="test")
        assert [source[n]["x"] for n in range(len(source.sizes()))] == [0, 1]
        for subset in (None, "valid"):
            with pytest.raises(ConfigError, match=f"^{place} has .*one of train, test, got {subset!r}"):
                huggingface(src, subset=subset)
    assert len(huggingface(path / "train").sizes()) == 3

    assert len(huggingface(saved(tmp_path / "b", DatasetDict(train=numbered(3)))).sizes()) == 3
    with pytest.raises(SourceError, match="the DatasetDict holds no splits"):
        huggingface(DatasetDict())
    with pytest.raises(ConfigError, match=r"the Dataset is one Dataset, without splits; got subset='train'"):
        huggingface(numbered(), subset="train")


class TestRefusals:
    @pytest.mark.parametrize("wrap", [lambda dataset: dataset, lambda dataset: library.IterableDatasetDict(a=dataset)])
    def test_iterable_datasets(self, wrap: Callable[[Any], Any]) -> None:
        """An IterableDataset has no samples by number and is refused with advice."""
        iterable = wrap(IterableDataset.from_generator(lambda: iter([{"x": 1}])))
        reason = r"cannot be converted: its samples have no numbers, .*; load it without streaming=True"
        with pytest.raises(SourceError, match=f"an {type(iterable).__name__} {reason}"):
            huggingface(iterable)

    @pytest.mark.parametrize(
        ("src", "message"),
        [
            (7, "expected a datasets.Dataset or a directory, got int"),
            *((src, "is not what save_to_disk writes: FileNotFoundError: Dir") for src in ("gone", "", "file")),
        ],
    )
    def test_what_is_no_dataset(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, src: Any, message: str) -> None:
        """Other objects, a missing path, a file and a directory of another kind are refused."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "file").write_bytes(b"words")
        with pytest.raises(SourceError, match=message):
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

    @pytest.mark.parametrize(
        ("name", "data"),
        [
            ("state.json", b"{}"),
            ("state.json", b"\xff"),
            ("dataset_info.json", b'{"features": {"x": {"_type": "Unknown"}}}'),
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
