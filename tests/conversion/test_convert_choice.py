"""Conditions, shuffles and splits choose which samples are packed and in which order; reshard and merge."""

import os
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import flip, idx_pair, jpeg
from _datasets import packed
from hypothesis import given
from hypothesis import strategies as st

import shardio
from shardio.care.verify import verify
from shardio.conversion.api import convert
from shardio.conversion.dataset_source import DatasetSource
from shardio.conversion.runners import in_processes
from shardio.conversion.subset import matching, shuffled
from shardio.errors import BadSample, ConfigError, ShardCorrupt, SourceError, SourceWarning
from shardio.source import Source
from shardio.testing import samples as kinds
from shardio.views.split import parse_split, split
from shardio_converters.filelist import filelist
from shardio_converters.idx import idx
from shardio_converters.imagefolder import imagefolder


def test_a_condition_sees_what_is_stored(tmp_path: Path) -> None:
    """A condition on a field that is cast is on the stored values, not on those of the source."""
    packed(tmp_path / "d", [{"x": 0.7}, {"x": 0.1}], {"x": "float64"})
    convert(tmp_path / "d", tmp_path / "out", dtype={"x": "float32"}, where="x == 0.7")
    assert shardio.open(tmp_path / "out")[0]["x"] == np.float32(0.7)


class Plain(Source):
    """A source of numbers without columns, some samples of which cannot be read."""

    fields = {"label": shardio.Field("scalar", dtype="int64"), "note": shardio.Field("text")}
    metadata: Mapping[str, Any] = {"source": "plain"}

    def sizes(self) -> np.ndarray:
        return np.full(1000, 10, np.int64)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index % 100 == 7:
            raise BadSample(f"sample {index} is bad")
        return {"label": index % 10, "note": str(index)}


@pytest.mark.parametrize("workers", [1, 2])
def test_samples_that_match(workers: int) -> None:
    """Without columns any number of workers reads all samples; bad ones are kept, to be reported later."""
    bad = [n for n in range(1000) if n % 100 == 7]
    for condition, wanted in (
        ("label < 2", [n for n in range(1000) if n % 10 < 2]),
        ("'99' in note or label == 0", [n for n in range(1000) if "99" in str(n) or n % 10 == 0]),
    ):
        expected = sorted({*wanted, *bad})
        assert matching(Plain(), condition, in_processes(workers)).tolist() == expected


def test_columns_need_no_reading(tmp_path: Path) -> None:
    """A condition on a column reads no samples."""
    _, labels = idx_pair(tmp_path, 20)

    class Unread:
        def __init__(self) -> None:
            self._source = idx(tmp_path)
            self.fields, self.metadata = self._source.fields, self._source.metadata
            self.sizes, self.column = self._source.sizes, self._source.column

        def __getitem__(self, index: int) -> dict[str, Any]:
            raise AssertionError("it was read")

    assert matching(Unread(), "label == 1", in_processes(1)).tolist() == np.flatnonzero(labels == 1).tolist()
    photos = [tmp_path / "photos" / ("cat", "dog")[n % 2] / f"{n:02}.jpg" for n in range(20)]
    for path in photos:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if path.parent.name == "dog" else jpeg(8, 8))  # a file that is read is a bad sample
    (tmp_path / "list.csv").write_text("path,place\n" + "".join(f"{path},at {path.name}\n" for path in photos))
    folder, listed = imagefolder(tmp_path / "photos"), filelist(tmp_path / "list.csv", root=str(tmp_path))
    assert matching(folder, "label == 'cat' and '/1' in key", in_processes(1)).tolist() == [5, 6, 7, 8, 9]
    assert matching(listed, "'cat/1' in key", in_processes(1)).tolist() == [10, 12, 14, 16, 18]
    assert matching(listed, "place in ('at 03.jpg', 'at 04.jpg')", in_processes(1)).tolist() == [3, 4]
    with pytest.raises(ConfigError, match=r"scalar and text fields \(label\), got 'image'"):
        matching(Unread(), "image < 1", in_processes(1))
    with pytest.raises(ConfigError, match=r"scalar and text fields \(label\), got 'lable'"):
        matching(Unread(), "lable < 1", in_processes(1))


@given(st.integers(0, 300), st.integers(0, 2**40))
def test_a_shuffle_is_a_permutation(count: int, seed: int) -> None:
    """A shuffle is a permutation that depends on the seed alone."""
    numbers = np.arange(count) * 3
    found = shuffled(numbers, seed)
    assert sorted(found.tolist()) == numbers.tolist()
    assert shuffled(numbers, seed).tolist() == found.tolist()
    if count > 50:
        assert found.tolist() != numbers.tolist()
        assert shuffled(numbers, seed + 1).tolist() != found.tolist()


@given(st.integers(0, 300), st.lists(st.floats(0.001, 1), min_size=1, max_size=4), st.integers(0, 99))
def test_splits_are_disjoint_and_of_the_right_size(count: int, weights: list[float], seed: int) -> None:
    """The parts of a split are disjoint, ordered, complete and of the requested sizes."""
    shares = {f"p{i}": weight / sum(weights) for i, weight in enumerate(weights)}
    parts = split(count, shares, seed)
    assert sorted(n for part in parts.values() for n in part.tolist()) == list(range(count))
    for name, part in parts.items():
        assert abs(len(part) - shares[name] * count) <= 1
        assert (np.diff(part) > 0).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train", "names and shares"),
        ("train=nan", "names and shares"),
        ("a=0.5,a=0.5", "names and shares"),
        ("../a=1", "letters, digits, '-' and '_', got '../a'"),
    ],
)
def test_wrong_splits(text: str, message: str) -> None:
    """An invalid split is refused by name."""
    with pytest.raises(ConfigError, match=message):
        split(10, parse_split(text), 0)


def test_samples_that_no_part_holds_are_told(dataset: Path, tmp_path: Path) -> None:
    """Shares that add up to less than 1 leave samples out: a note counts them, and `strict` refuses."""
    told = "the splits leave out 10 of 50 samples"
    with pytest.warns(SourceWarning, match=told) as caught:
        made = shardio.convert(dataset, tmp_path / "out", split="train=0.6,val=0.2")
    assert (caught[0].filename, made.notes) == (__file__, (told,))
    with pytest.raises(SourceError, match=f"strict allows nothing to be left out or renamed: {told}"):
        shardio.convert(dataset, tmp_path / "strict", split="train=0.8", strict=True)
    assert not (tmp_path / "strict").exists()
    assert shardio.convert(dataset, tmp_path / "all", split="train=0.9,val=0.1", strict=True).notes == ()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of field, in several tars."""
    out = tmp_path_factory.mktemp("kinds") / "in"
    rows = (kinds.sample(n % 20) | {"image": jpeg(10 + n, 20, seed=n), "label": n} for n in range(50))
    packed(out, rows, kinds.FIELDS, shard_size="20KB", metadata={"classes": ["a", "b"]})
    return out


@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
def test_reshard_keeps_samples_and_checksums(dataset: Path, tmp_path: Path, container: str) -> None:
    """Resharding through every container and back keeps digest and checksums."""
    source = DatasetSource([dataset])
    made = convert(source, tmp_path / "one", container=container, shard_size="7KB", workers=2).manifest
    back = convert(DatasetSource([tmp_path / "one"]), tmp_path / "two", container="tar", shard_size="20KB").manifest
    before = shardio.open(dataset)
    assert made.digest == back.digest == before.digest
    assert made.metadata == before.manifest.metadata
    assert len(made.shards) != len(before.manifest.shards)
    for path in ("one", "two"):
        again = shardio.open(tmp_path / path)
        assert verify(again, deep=True).problems == ()
        assert again.fields == before.fields
        for number in (0, 17, 49):
            np.testing.assert_equal(again[number], before[number])


def test_damage_is_found_on_the_way(dataset: Path, tmp_path: Path) -> None:
    """A damaged sample ends the conversion or is skipped, by name; the others are copied."""
    copy = shutil.copytree(dataset, tmp_path / "in")
    ds = shardio.open(copy)
    shard = copy / ds.locate(23).shard
    flip(shard, shard.read_bytes().index(ds[23]["image"]) + 30)
    with pytest.raises(ShardCorrupt, match=r"sample 23\): checksum [0-9a-f]{16} is not "):
        convert(DatasetSource([copy]), tmp_path / "out")
    result = convert(DatasetSource([copy]), tmp_path / "out", on_error="skip", max_bad=1, overwrite=True)
    assert [bad.number for bad in result.skipped] == [23]
    labels = shardio.open(tmp_path / "out").read(range(49), ["label"])["label"].tolist()
    assert labels == [number for number in range(50) if number != 23]


@pytest.mark.parametrize("workers", [1, 2])
def test_whole_samples_of_a_tar_that_was_cut_short(dataset: Path, tmp_path: Path, workers: int) -> None:
    """Of a tar that was cut short all samples before the cut are copied, of a lost one none; the others are named."""
    shutil.copytree(dataset, tmp_path / "in")
    ds = shardio.open(tmp_path / "in")
    starts = ds.manifest.shards.starts.tolist()
    lost, cut = (tmp_path / "in" / name for name in ds.manifest.shards.names[:2])
    lost.unlink()
    os.truncate(cut, 26_000)
    with tarfile.open(cut) as tar:
        with pytest.raises(tarfile.ReadError):
            tar.getmembers()
        incomplete = int(tar.members[-1].name.partition(".")[0])
    assert starts[1] < incomplete < starts[2]
    result = convert(DatasetSource([tmp_path / "in"]), tmp_path / "out", on_error="skip", max_bad=50, workers=workers)
    bad = [sample.number for sample in result.skipped]
    assert bad == [*range(starts[1]), *range(incomplete, starts[2])]
    made = shardio.open(tmp_path / "out")
    assert verify(made, deep=True).problems == ()
    labels = made.read(range(len(made)), ["label"])["label"].tolist()
    assert labels == [number for number in range(50) if number not in bad]


@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
def test_fields_of_a_dataset_are_read_alone(container: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition reads the fields that it names and no others; what they lack is unknown; a lost shard is kept."""
    fields = {"image": "image", "label": "int32", "key": "text", "note": shardio.Field("text", optional=True)}
    metadata = {"classes": ["cat", "dog", "cow"]}

    def row(n: int) -> dict[str, Any]:
        key, note = f"{('train', 'val')[n % 4 == 1]}/{n:02}", None if n % 5 == 0 else f"note {n}"
        return {"image": jpeg(20, 20, seed=n), "label": n % 3, "key": key, "note": note}

    packed(tmp_path / "in", map(row, range(60)), fields, container=container, shard_size="12KB", metadata=metadata)
    source = DatasetSource([tmp_path / "in"])
    samples = [source[n] for n in range(60)]
    starts = shardio.open(tmp_path / "in").manifest.shards.starts.tolist()
    cases: list[tuple[str, Any]] = [
        ("key.startswith('val/')", lambda s: s["key"].startswith("val/")),
        ("label in ('cat', 'cow') and '2' in key", lambda s: s["label"] != 1 and "2" in s["key"]),
        ("not '1' in note", lambda s: s["note"] is not None and "1" not in s["note"]),
        ("note is None and key != 'train/00'", lambda s: s["note"] is None and s["key"] != "train/00"),
    ]
    for condition, holds in cases:
        expected = [n for n, sample in enumerate(samples) if holds(sample)]
        with monkeypatch.context() as patch:
            patch.setattr(DatasetSource, "__getitem__", None)  # which reads whole samples
            assert matching(source, condition, in_processes(1)).tolist() == expected
        for orient in (False, True):  # which is a source around the source
            shardio.convert(tmp_path / "in", tmp_path / "out", where=condition, orient=orient, overwrite=True)
            found = shardio.open(tmp_path / "out")
            assert found.read(range(len(found)), ["key"])["key"] == [samples[n]["key"] for n in expected]
    (tmp_path / "in" / shardio.open(tmp_path / "in").manifest.shards.names[1]).unlink()
    left = matching(DatasetSource([tmp_path / "in"]), "key == 'val/01'", in_processes(1)).tolist()
    assert left == sorted({1, *range(starts[1], starts[2])})


def test_merge(dataset: Path, tmp_path: Path) -> None:
    """Merging concatenates datasets, in any container."""
    convert(DatasetSource([dataset]), tmp_path / "b", container="lmdb", numbers=np.arange(10, 20))
    merged = DatasetSource([dataset, tmp_path / "b", dataset])
    convert(merged, tmp_path / "out", container="hdf5", shard_size="30KB", workers=2)
    made = shardio.open(tmp_path / "out")
    assert made.read(range(110), ["label"])["label"].tolist() == [*range(50), *range(10, 20), *range(50)]
    expected = [n for n in range(110) if merged[n]["label"] in (11, 48) or "1" in merged[n]["caption"]]
    assert matching(merged, "label in (11, 48) or '1' in caption", in_processes(1)).tolist() == expected
    assert merged[55]["caption"] == shardio.open(dataset)[15]["caption"]
    assert verify(made, deep=True).problems == ()


@pytest.mark.parametrize("kind", ["where", "select", "slice", "split", "concat", "fewer fields"])
def test_views_are_written(dataset: Path, tmp_path: Path, kind: str) -> None:
    """The new dataset holds the view's samples in its order, as they are stored, in any number of processes."""
    whole = shardio.open(dataset)
    if kind == "fewer fields":
        packed(tmp_path / "labels", [{"label": 7}], {"label": "int64"}, metadata={"classes": ["a", "b"]})
    made: dict[str, Any] = {
        "where": lambda: whole.where("label > 30"),
        "select": lambda: whole.select([40, 3, 3, 17, 41]),
        "slice": lambda: whole[::-1][5:],
        "split": lambda: whole.split({"a": 0.5, "b": 0.5})["b"],
        "concat": lambda: shardio.concat({"a": whole[40:], "b": whole.where("label < 5"), "c": whole[40:]}),
        "fewer fields": lambda: shardio.concat({"a": shardio.open(tmp_path / "labels"), "b": whole[20:]}),
    }
    view = made[kind]()
    options: dict[str, Any] = {"container": "hdf5", "shard_size": "8KB"}
    digests = {shardio.convert(view, tmp_path / f"{n}", workers=n, **options).manifest.digest for n in (1, 2)}
    assert len(digests) == 1
    opened = shardio.open(tmp_path / "1")
    read, expected = (source.read(range(len(source))) for source in (opened, view))
    np.testing.assert_equal(read, expected)
    assert opened.manifest.shards.samples.sum() == len(view)
    assert len(opened.manifest.shards) > 1 or kind != "concat"
    assert verify(opened, deep=True).problems == ()
    if kind == "where":
        chosen = shardio.convert(dataset, tmp_path / "chosen", where="label > 30").manifest.digest
        assert digests == {chosen}


def test_views_are_merged_and_resumed(dataset: Path, tmp_path: Path) -> None:
    """Views of one dataset are merged like datasets, and a conversion of one view is not continued as another's."""
    whole = shardio.open(dataset)
    shardio.convert([whole[:3], dataset, whole.where("label == 9")], tmp_path / "both")
    opened = shardio.open(tmp_path / "both")
    assert opened.read(range(54), ["label"])["label"].tolist() == [0, 1, 2, *range(50), 9]
    assert DatasetSource([whole[:3]]).changes != DatasetSource([whole[:4]]).changes
    with pytest.raises(ConfigError, match=r"<Weighted .* draws its samples anew in each epoch: convert what it draws"):
        shardio.convert(whole.balanced("label"), tmp_path / "even")


def test_a_damaged_sample_of_a_view(tmp_path: Path) -> None:
    """It is told by its place in storage, and can be left out."""
    farm = _animals(tmp_path / "farm", ["dog", "cat"], [0, 1, 1, 0, 1])
    (shard,) = farm.glob("*.tar")
    shard.write_bytes(shard.read_bytes().replace(b"farm2", b"harm2"))
    view = shardio.open(farm).select([4, 2, 1])
    with pytest.raises(ShardCorrupt, match=r"row 2 \(sample 2, key harm2\): checksum \w+ is not"):
        shardio.convert(view, tmp_path / "out")
    left = shardio.convert(view, tmp_path / "out", on_error="skip", max_bad=1)
    assert [skipped.number for skipped in left.skipped] == [1]
    assert shardio.open(tmp_path / "out").read([0, 1], ["key"])["key"] == ["farm4", "farm1"]


def test_the_container_stays(dataset: Path, tmp_path: Path) -> None:
    """Without `container`, datasets of one container are written in that, and others as tars."""
    first, again = tmp_path / "first", tmp_path / "again"
    assert shardio.convert(dataset, first, container="hdf5").manifest.container == "hdf5"
    assert shardio.convert(first, again, compression="gzip").manifest.container == "hdf5"
    assert shardio.convert([first, again], tmp_path / "both").manifest.container == "hdf5"
    assert shardio.convert([first, dataset], tmp_path / "mixed").manifest.container == "tar"


def test_what_cannot_be_merged(dataset: Path, tmp_path: Path) -> None:
    """Datasets with different fields or classes cannot be merged, and the error shows what differs."""
    packed(tmp_path / "f", [{"label": 1}], {"label": "int32"})
    told = r"same fields: .*/in has image .* label \(scalar, int64\).*label \(scalar, int32\)"
    with pytest.raises(ConfigError, match=told):
        DatasetSource([dataset, tmp_path / "f"])
    convert(DatasetSource([dataset]), tmp_path / "c")
    manifest = (tmp_path / "c" / "shardio.json").read_text()
    (tmp_path / "c" / "shardio.json").write_text(manifest.replace('"b"', '"dog"'))
    with pytest.raises(ConfigError, match=r"classes of 'label' differ: class 1 is 'b' in '.*/in', but 'dog' in '.*/c'"):
        DatasetSource([dataset, tmp_path / "c"])
    with pytest.raises(ConfigError, match="classes goes with a list of datasets"):
        shardio.convert(dataset, tmp_path / "d", classes="union")


def _animals(path: Path, classes: list[str], labels: list[int]) -> Path:
    rows = ({"label": label, "key": f"{path.name}{number}"} for number, label in enumerate(labels))
    packed(path, rows, shard_size=200, metadata={"classes": classes, "source": path.name})
    return path


def test_classes_of_merged_datasets(tmp_path: Path) -> None:
    """With "union" a merged label means its name, in conditions too, and checksums hold; "ignore" copies labels."""
    pets = _animals(tmp_path / "pets", ["cat", "dog"], [0, 1, 1, -1])
    farm = _animals(tmp_path / "farm", ["cow", "dog", "cat"], [0, 1, 2, -1, 2] * 9)
    joined = shardio.convert([pets, farm], tmp_path / "joined", classes="union", workers=2)
    made = shardio.open(tmp_path / "joined")
    assert made.classes == ["cat", "dog", "cow"]
    assert made.manifest.metadata["source"] == "pets"
    assert made.read(range(49), ["label"])["label"].tolist() == [0, 1, 1, -1, *[2, 1, 0, -1, 0] * 9]
    assert made[4]["key"] == "farm0"
    assert verify(made, deep=True).problems == ()
    cows = shardio.convert([pets, farm], tmp_path / "cows", classes="union", where="label == 2")
    assert len(shardio.open(tmp_path / "cows")) == 9
    again = shardio.convert([pets, farm], tmp_path / "again", classes="union", orient=True)  # sample by sample
    assert again.manifest.digest == joined.manifest.digest != cows.manifest.digest
    shardio.convert([pets, farm, pets], tmp_path / "ignored", classes="ignore")
    ignored = shardio.open(tmp_path / "ignored")
    assert ignored.classes == ["cat", "dog"]
    assert ignored.read(range(4, 53), ["label"])["label"].tolist() == [*[0, 1, 2, -1, 2] * 9, 0, 1, 1, -1]


def test_a_damaged_sample_stays_damaged_when_it_is_renumbered(tmp_path: Path) -> None:
    """Merging by name compares stored checksums before it computes new ones."""
    pets = _animals(tmp_path / "pets", ["cat"], [0])
    farm = _animals(tmp_path / "farm", ["dog", "cat"], [0, 1, 1])
    (shard,) = farm.glob("*.tar")
    shard.write_bytes(shard.read_bytes().replace(b"farm1", b"harm1"))
    with pytest.raises(ShardCorrupt, match=r"sample 1, key harm1\): checksum \w+ is not"):
        shardio.convert([pets, farm], tmp_path / "out", classes="union")
    left = shardio.convert([pets, farm], tmp_path / "out", classes="union", on_error="skip", max_bad=1)
    made = shardio.open(tmp_path / "out")
    assert (len(left.skipped), made.read(range(3), ["label"])["label"].tolist()) == (1, [0, 1, 0])


def test_a_merge_by_name_resumes_no_other(tmp_path: Path) -> None:
    """A conversion that copied labels is not continued as one that renumbers them, although the classes are equal."""
    pets = _animals(tmp_path / "pets", ["cat", "dog"], [0])
    farm = _animals(tmp_path / "farm", ["dog", "cat"], [0] * 40)
    renumbering, copying = (DatasetSource([pets, farm], classes=classes) for classes in ("union", "ignore"))
    assert renumbering.metadata == copying.metadata
    assert (bool(renumbering.changes), bool(copying.changes)) == (True, False)


def test_a_source_is_read_in_its_own_order(tmp_path: Path) -> None:
    """In a shuffled conversion each shard reads its samples in ascending order."""
    read: list[int] = []

    class Noted(Plain):
        def __getitem__(self, index: int) -> dict[str, Any]:
            read.append(index)
            return {"label": index % 10, "note": str(index)}

    numbers = shuffled(np.arange(1000), 5)
    convert(Noted(), tmp_path / "out", numbers=numbers, shard_size=2500)
    made = shardio.open(tmp_path / "out")
    assert made.read(range(1000), ["label", "note"])["note"] == [str(number) for number in numbers]
    # The fingerprint of the source is read first, in ascending order too.
    assert sum(np.diff(read) < 0) == len(made.manifest.shards)
