"""Samples appended to a dataset, in a folder and in a store: resumed, refused, at once, cut off, and read meanwhile."""

import contextlib
import itertools
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import jpeg, write_files
from _datasets import files, packed
from _places import SIZE, FolderPlace, Photos, StorePlace, by_ranks, cut_off, kill_at_work, scratch
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio.care.verify import verify
from shardio.conversion.api import convert
from shardio.errors import BadSample, ConfigError, DatasetError, ManifestError, NotADataset, ObjectChanged
from shardio.format import manifest
from shardio.format.manifest import Manifest
from shardio.testing.stores import MemoryStore
from shardio_converters.imagefolder import imagefolder

Place = FolderPlace | StorePlace
CLASSES = {"classes": ["cat", "dog"]}


class Rows:
    """A source of numbered rows, from `first` to `stop`; `then` is called as it is planned."""

    def __init__(self, first: int, stop: int, then: Callable[[], object] | None = None, **changes: Any) -> None:
        self._rows, self._then = range(first, stop), then
        self.fields: Mapping[str, Any] = {
            "wave": shardio.Field("array", dtype="float32", shape=(3,)),
            "key": shardio.Field("text"),
            "label": shardio.Field("scalar", dtype="int64"),
        } | changes.get("fields", {})
        self.metadata: Mapping[str, Any] = changes.get("metadata", CLASSES)

    def sizes(self) -> np.ndarray:
        if self._then is not None:
            then, self._then = self._then, None
            then()
        return np.full(len(self._rows), 40)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = self._rows[index]
        return {"wave": np.full(3, number, np.float32), "key": f"row {number}", "label": number % 2}


@pytest.fixture
def more(tmp_path: Path) -> Path:
    """A folder of other photos of the same classes, of other sizes."""
    photos = {f"{('cat', 'dog')[n % 2]}/{n:02d}.jpg": jpeg(20, 24 + n, seed=100 + n) for n in range(30)}
    return write_files(tmp_path / "more", photos)


def begun(place: Place, photos: Path) -> dict[str, bytes]:
    """Convert photos; return all files."""
    place.convert(imagefolder(photos))
    return place.objects()


def pieces(total: int, cuts: Sequence[int]) -> list[tuple[int, int]]:
    """The parts of a range that begin and end at some numbers."""
    return list(itertools.pairwise(sorted({0, total, *(cut % (total + 1) for cut in cuts)})))


@settings(max_examples=12, deadline=None)
@given(
    st.integers(2, 60), st.lists(st.integers(0, 60), max_size=4), st.sampled_from(["tar", "hdf5", "lmdb"]), st.data()
)
def test_pieces_make_the_whole(
    tmp_path_factory: pytest.TempPathFactory, total: int, cuts: list[int], container: str, data: st.DataObject
) -> None:
    """A dataset that was appended to piece by piece has the samples and the digest of one that was made at once.

    Its manifest knows the digest of each dataset that it was before.
    """
    folder, size = tmp_path_factory.mktemp("pieces"), data.draw(st.sampled_from([100, 500, 10_000]))
    parts = pieces(total, cuts)
    for number, (first, stop) in enumerate(parts):
        options: Any = {"append": True} if number else {"container": container, "shard_size": size}
        convert(Rows(first, stop), folder / "grown", **options)
    whole = [convert(Rows(0, stop), folder / f"{stop}", container=container).manifest for _, stop in parts]
    grown = shardio.open(folder / "grown")
    assert grown.digest == whole[-1].digest
    assert dict(grown.earlier) == {one.digest: one.samples for one in whole[:-1]}
    made, expected = (dataset.read(np.arange(total)) for dataset in (grown, shardio.open(folder / f"{total}")))
    assert made["key"] == expected["key"]
    np.testing.assert_array_equal(made["wave"], expected["wave"])
    assert verify(grown, deep=True).found == ()


def test_old_shards_and_readers_stay(photo_folder: Path, more: Path, place: Place) -> None:
    """New shards are numbered on beside the old ones, of which no byte changes; the manifest is replaced, and no more.

    Images of other sizes leave the new manifest without a common size, and the old one as it was.
    """
    place.convert(imagefolder(more), numbers=[0])
    before, old = place.objects(), place.manifest()
    place.convert(imagefolder(more), append=True)
    after, new = place.objects(), place.manifest()
    assert all((after.get(name) != before[name]) == name.endswith("shardio.json") for name in before)
    assert [name[:12] for name in new.shards.names] == [f"shard-{n:06d}" for n in range(len(new.shards))]
    assert (new.samples, dict(new.grew_from)) == (31, {old.digest: 1})
    assert (old.fields["image"].shape, new.fields["image"].shape) == ((20, 24), None)
    assert not [name for name in after if ".converting" in name]
    place.convert(imagefolder(more), append=True, resume=True)  # was the last one
    assert place.manifest() == new
    place.convert(imagefolder(more), append=True, where="label == 0", shuffle=1, limit=3)
    assert dict(place.manifest().grew_from) == {old.digest: 1, new.digest: 31}
    assert place.manifest().samples == 34


def test_an_interrupted_append_resumes(photo_folder: Path, more: Path, place: Place, tmp_path: Path) -> None:
    """The dataset stays as it was; resuming gives the bytes of an append in one go, and reads nothing twice."""
    once = FolderPlace(tmp_path / "once")
    begun(once, more)
    once.convert(imagefolder(photo_folder), append=True)
    before = begun(place, more)
    with pytest.raises(BadSample, match="scratch"):
        place.convert(Photos(photo_folder, 41, scratch), append=True)
    assert before.items() <= place.objects().items()
    with pytest.raises(ConfigError, match="resume continues it"):
        place.convert(imagefolder(photo_folder), append=True)
    with pytest.raises(ConfigError, match=r"grown from|has samples"):
        place.convert(imagefolder(more), append=True, resume=True)
    source = Photos(photo_folder)
    place.convert(source, append=True, resume=True)
    assert source.early() < 8
    assert place.shards() == once.shards()
    assert place.manifest().digest == once.manifest().digest


def test_an_unfinished_append_starts_over(photo_folder: Path, more: Path, place: Place) -> None:
    """`overwrite` begins an append anew, and never replaces the dataset."""
    begun(place, more)
    with pytest.raises(BadSample, match="scratch"):
        place.convert(Photos(photo_folder, 41, scratch), append=True)
    place.convert(imagefolder(photo_folder), append=True, overwrite=True, limit=7)
    assert place.manifest().samples == 37


@pytest.mark.usefixtures("quick")
def test_ranks_share_an_append(photo_folder: Path, more: Path, place: Place, tmp_path: Path) -> None:
    """Each writes its part, and the bytes are those of one process."""
    once = FolderPlace(tmp_path / "once")
    begun(once, more)
    once.convert(imagefolder(photo_folder), append=True)
    begun(place, more)
    made = by_ranks(place, lambda rank: imagefolder(photo_folder), append=True)
    assert len({found.to_json() for found in made if isinstance(found, Manifest)}) == 1, made
    assert place.shards() == once.shards()
    again = by_ranks(place, lambda rank: imagefolder(photo_folder), append=True, resume=True)
    assert [getattr(found, "samples", found) for found in again] == [90] * 3


class Killed(BaseException):
    """Ends an append as a kill would: nothing tidies up."""


@contextlib.contextmanager
def killed(place: Place, after: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Kill what the `with` block does before the change of the place that follows so many; yields whether it was."""
    left, hit = [after], list[int]()

    def change() -> None:
        if hit or not left[0]:
            hit.append(1)
            raise Killed
        left[0] -= 1

    with monkeypatch.context() as patched:
        if isinstance(place, StorePlace):
            for name in ("write", "upload", "delete"):
                real = getattr(MemoryStore, name)
                patched.setattr(MemoryStore, name, lambda *a, real=real, **k: (change(), real(*a, **k))[1])
        else:
            from shardio.system.directory import Directory

            for name in ("rename", "remove", "unlink", "make"):
                real = getattr(Directory, name)
                patched.setattr(Directory, name, lambda *a, real=real, **k: (change(), real(*a, **k))[1])
        with contextlib.suppress(Killed):
            yield hit


def test_killed_at_any_change(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that ends before any change of a file or an object leaves the old dataset or the new one.

    Resuming completes it, once; `clean` removes what is left of it, and no shard of the dataset.
    """
    once = FolderPlace(tmp_path / "once")
    once.convert(Rows(0, 4), shard_size=100)
    old = once.manifest()
    shutil.copytree(once.out, tmp_path / "old")
    once.convert(Rows(4, 8), shard_size=None, append=True)
    new = once.manifest()
    for after in range(100):
        if isinstance(place, StorePlace):
            place.store.delete([info.name for info in place.store.list("")])
            place.convert(Rows(0, 4), shard_size=100)
        else:
            shutil.rmtree(place.out, ignore_errors=True)
            shutil.copytree(tmp_path / "old", place.out)
        before = place.objects()
        with killed(place, after, monkeypatch) as hit:
            place.convert(Rows(4, 8), shard_size=None, append=True)
        found = place.manifest()
        assert found.digest in (old.digest, new.digest)
        if after % 2:
            shardio.clean(place.out, everything=True)
            assert place.manifest() == found
            stems = {name.removeprefix("photos/").partition(".")[0] for name in place.objects()}
            assert stems - {"shardio"} == {name.partition(".")[0] for name in found.shards.names}, after
            assert found.digest == new.digest or place.objects() == before
        place.convert(Rows(4, 8), shard_size=None, append=True, resume=True)
        assert place.manifest().digest == new.digest, after
        assert place.shards() == once.shards(), after
        if not hit:
            break
    assert 12 < after < 99


def test_an_append_that_was_killed_at_its_end_is_not_repeated(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the manifest is there, the same command says that the append is complete, and `resume` tidies up."""
    place.convert(Rows(0, 12), shard_size=200)
    with monkeypatch.context() as patched:
        patched.setattr("shardio.output.folder.FolderLead._retire", lambda lead: None)
        patched.setattr("shardio.output.store.StoreRun.remove", lambda run: None)
        place.convert(Rows(12, 30), shard_size=None, append=True)
    assert [name for name in place.all() if name.startswith((".converting", "RUN"))]
    for options in ({}, {"overwrite": True}, {"overwrite": True, "resume": True}):
        with pytest.raises(ConfigError, match="this append is complete, and was killed before it had tidied up"):
            place.convert(Rows(12, 30), shard_size=None, append=True, **options)
    place.convert(Rows(12, 30), shard_size=None, append=True, resume=True)
    assert place.manifest().samples == 30
    assert not [name for name in place.all() if name.startswith((".converting", "RUN"))]
    place.convert(Rows(12, 30), shard_size=None, append=True)  # once more, as nothing says that it should not
    assert place.manifest().samples == 48


def test_of_two_at_once_one_wins(place: Place) -> None:
    """An append that finds another one at work, or its samples, ends with words, and the other's samples are there."""
    place.convert(Rows(0, 12), shard_size=200)

    def other() -> None:
        place.convert(Rows(50, 55), shard_size=None, append=True)

    with pytest.raises(ObjectChanged, match="another writer has changed it since this"):
        place.convert(Rows(12, 30, then=other), shard_size=None, append=True)
    assert place.manifest().samples == 17
    locked: list[str] = []

    class Slow(Rows):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index == 10 and not locked:  # not one of those by which appends are told apart
                for options in ({}, {"resume": True}, {"overwrite": True}):
                    try:
                        place.convert(Rows(12, 30), shard_size=None, append=True, **options)
                    except (ConfigError, ObjectChanged) as error:
                        locked.append(str(error))
            return super().__getitem__(index)

    with contextlib.nullcontext() if isinstance(place, FolderPlace) else pytest.raises(ObjectChanged):
        place.convert(Slow(60, 78), shard_size=None, append=True)
    assert place.manifest().samples == 35  # in a store the one that overtook the other
    assert len(locked) == (3 if isinstance(place, FolderPlace) else 2)
    assert all("conver" in text for text in locked)


def test_what_another_writer_replaces_meanwhile_stays(tmp_path: Path) -> None:
    """A dataset in a folder that is replaced without a lock, as `repair` does, is not replaced once more."""
    out = tmp_path / "out"
    convert(Rows(0, 12), out, shard_size=200)

    class Replacing(Rows):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index == 10:
                shutil.copy(out / "shardio.json", out / "copy")
                (out / "copy").replace(out / "shardio.json")
            return super().__getitem__(index)

    with pytest.raises(ObjectChanged, match="another writer has changed it"):
        convert(Replacing(12, 30), out, append=True)
    assert shardio.open(out).manifest.samples == 12


@pytest.mark.parametrize("inline", [2, 6])
def test_many_shards(place: Place, inline: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of many shards has a name of its own: readers of the old manifest find theirs, until `clean`."""
    monkeypatch.setattr(manifest, "MOST_INLINE", inline)
    place.convert(Rows(0, 12), shard_size=200)
    before = place.objects()
    place.convert(Rows(12, 30), shard_size=None, append=True)
    assert {n for n in before if n not in place.objects()} == set()
    tables = [name for name in place.objects() if ".npy" in name and "shardio.shards" in name]
    assert len(tables) == (2 if inline == 2 else 1)
    if isinstance(place, FolderPlace):
        assert len(shardio.open(place.out)) == 30
        shardio.clean(place.out, everything=True)
        (table,) = [name for name in tables if inline != 2 or name not in before]
        assert [path.name for path in place.out.glob("shardio.shards*")] == [Path(table).name]
        assert verify(shardio.open(place.out), deep=True).found == ()
        shardio.repair(place.out)
        assert len(shardio.open(place.out)) == 30


def test_the_cache_keeps_what_a_dataset_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that a node has fetched of a dataset in a store serve what it has grown to, and no dataset of another."""
    store = MemoryStore()
    for name in ("shardio.output.open_store", "shardio.dataset.dataset.open_store"):
        monkeypatch.setattr(name, lambda url, options: store)
    place = StorePlace(store)

    def fetched(count: int) -> int:
        dataset = shardio.open(place.out, cache=tmp_path, cache_size="100MB")
        before = dataset.fetched.bytes
        assert dataset.read(range(count), ["key"])["key"] == [f"row {number}" for number in range(count)]
        return dataset.fetched.bytes - before

    place.convert(Rows(0, 100), shard_size=1000)
    assert fetched(100) > 0
    for first in (100, 150):
        place.convert(Rows(first, first + 50), shard_size=None, append=True)
        assert fetched(100) == fetched(first) == 0
        assert fetched(first + 50) > 0
    place.convert(Rows(0, 100), shard_size=1000, overwrite=True)
    assert fetched(100) > 0


def refused(out: Path, words: str, source: Any = None, **options: Any) -> None:
    """Assert that an append is refused with words, and changes nothing."""
    before = files(out)
    with pytest.raises((ConfigError, NotADataset, DatasetError), match=words):
        convert(Rows(12, 30) if source is None else source, out, append=True, **options)
    assert files(out) == before


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Other fields, classes, units, containers and options, and datasets that cannot grow, are refused with words."""
    out = tmp_path / "out"
    Field = shardio.Field
    convert(Rows(0, 12), out, shard_size=200, dtype={"wave": "float16"})
    wave = {"wave": Field("array", dtype="float16", shape=(3,))}
    refused(out, r"same fields in the same order.*float32.*was made with dtype")
    other = Rows(12, 30, fields=wave)
    other.fields = dict(reversed(other.fields.items()))
    refused(out, "in the same order", other)
    optional = {**wave, "label": Field("scalar", dtype="int64", optional=True)}
    refused(out, "same fields", Rows(12, 30, fields=optional))
    units = {**wave, "wave": Field("array", dtype="float16", shape=(3,), attributes={"units": "K"})}
    refused(out, "equal numbers must mean equal values: of field 'wave'", Rows(12, 30, fields=units))
    for names, words in (
        (["cat"], "class 1 is 'dog' in 'the dataset', but unnamed in 'the source'"),
        (["cat", "cow"], "class 1 is 'dog' in 'the dataset', but 'cow' in 'the source'"),
    ):
        refused(out, words, Rows(12, 30, fields=wave, metadata={"classes": names}))
    fitting = Rows(12, 30, fields=wave)
    refused(out, "made with container='tar', .*got container='hdf5'", fitting, container="hdf5")
    refused(out, "made with shard_size=200, .*got shard_size=300", fitting, shard_size=300)
    refused(out, "made without resize_shorter, .*got resize_shorter=8", fitting, resize_shorter=8)
    refused(out, "without compression", fitting, compression="gzip")
    refused(out, "split makes several datasets", fitting, split="a=0.5,b=0.5")
    (tmp_path / "none").mkdir()
    refused(tmp_path / "none", "no shardio.json", fitting)
    with pytest.raises(NotADataset):
        convert(fitting, tmp_path / "nowhere", append=True)
    shutil.copy(out / "shard-000000.tar", tmp_path / "one.tar")
    shardio.index(tmp_path / "one.tar", tmp_path / "indexed")
    refused(tmp_path / "indexed", "files of other programs")
    convert(fitting, out, append=True)
    assert len(shardio.open(out)) == 30


def test_options_hold(photo_folder: Path, more: Path, tmp_path: Path) -> None:
    """Images are re-encoded, arrays compressed and shards cut as those of the dataset were."""
    out = tmp_path / "out"
    options = {"resize_shorter": 12, "quality": 70, "shard_size": SIZE}
    convert(imagefolder(more), out, **options)
    made = convert(imagefolder(photo_folder), out, append=True)
    convert(imagefolder(photo_folder), tmp_path / "alone", **options)
    alone = shardio.open(tmp_path / "alone")
    assert made.manifest.conversion["shard_size"] == 4000
    assert shardio.open(out)[30]["image"] == alone[0]["image"]
    convert(imagefolder(photo_folder), out, append=True, **options)  # the same options may be given
    with pytest.raises(ConfigError, match=r"made with quality=70, .*got quality=60"):
        convert(imagefolder(photo_folder), out, append=True, resize_shorter=12, quality=60)
    plain = Rows(0, 12)
    convert(plain, tmp_path / "h5", container="hdf5", compression="gzip", shard_size=200)
    convert(Rows(12, 30), tmp_path / "h5", append=True)
    assert shardio.open(tmp_path / "h5").manifest.conversion["options"] == {"compression": "gzip"}


def test_a_dataset_without_a_record_of_its_options(tmp_path: Path) -> None:
    """What `create` wrote takes the options that are given."""
    source = Rows(0, 5)
    packed(tmp_path / "out", map(source.__getitem__, range(5)), source.fields, metadata=CLASSES)
    convert(Rows(5, 30), tmp_path / "out", append=True, shard_size=200)
    assert len(shardio.open(tmp_path / "out").manifest.shards) > 3


def test_shards_that_the_dataset_does_not_name(tmp_path: Path) -> None:
    """Files where new shards would be, as a repair leaves them, are not replaced unless `overwrite` says so."""
    out = tmp_path / "out"
    convert(Rows(0, 12), out, shard_size=200)
    last = sorted(out.glob("shard-*.tar"))[-1]
    last.write_bytes(b"damage")
    assert shardio.repair(out).manifest.samples == 10
    refused(out, f"holds {last.stem}.*no part of the dataset.*clean")
    convert(Rows(10, 30), out, append=True, overwrite=True, shard_size=200)
    assert [row["label"] for row in map(shardio.open(out).__getitem__, range(30))] == [n % 2 for n in range(30)]


def test_repair_knows_what_is_left(tmp_path: Path) -> None:
    """A repaired dataset still knows those it grew from whose samples it has; an index that was rebuilt loses none."""
    out = tmp_path / "out"
    digests = [convert(Rows(0, 10), out, shard_size=200).manifest.digest]
    digests += [convert(Rows(first, first + 10), out, append=True).manifest.digest for first in (10, 20)]
    (out / "shard-000000.idx.npy").unlink()
    assert dict(shardio.repair(out).manifest.grew_from) == {digests[0]: 10, digests[1]: 20}
    convert(Rows(30, 40), out, append=True, shard_size=200)
    table = shardio.open(out).manifest.shards
    lost = table.names[int(np.searchsorted(table.starts, 20, side="right")) - 1]
    (out / lost).write_bytes(b"damage")
    assert dict(shardio.repair(out).manifest.grew_from) == {digests[0]: 10, digests[1]: 20}
    (out / "shard-000000.tar").write_bytes(b"damage")
    assert dict(shardio.repair(out).manifest.grew_from) == {}


def test_samples_that_have_changed_end_an_append(tmp_path: Path) -> None:
    """A dataset whose stored checksums are not those of its digest does not grow."""
    out = tmp_path / "out"
    convert(Rows(0, 12), out, shard_size=200)
    convert(Rows(1, 13), tmp_path / "other", shard_size=200)
    for suffix in (".tar", ".idx.npy"):
        shutil.copy(tmp_path / "other" / f"shard-000000{suffix}", out / f"shard-000000{suffix}")
    refused(out, "the checksums of its samples give the digest .*verify")


def test_a_manifest_of_what_did_not_grow_is_refused(tmp_path: Path) -> None:
    """Numbers of samples that do not grow are no manifest; of very many datasets the newest are kept."""
    made = convert(Rows(0, 12), tmp_path / "out").manifest
    own = made.container, made.fields, made.shards, made.digest
    for samples in ([12], [5, 5], [7, 3], [-1]):
        grown = Manifest(*own, grew_from={f"{n}": s for n, s in enumerate(samples)})
        with pytest.raises(ManifestError, match="datasets grow, but"):
            Manifest.from_json(grown.to_json())
    many = Manifest(*own, grew_from={f"{n}": n for n in range(1000)})
    assert [*many.lineage.items()][::999] == [("1", 1), (made.digest, 12)]


@pytest.mark.parametrize("renames", range(0, 18, 3))
def test_readers_go_on_as_shards_are_put_in_place(photo_folder: Path, more: Path, tmp_path: Path, renames: int) -> None:
    """Whatever has been moved: who opens the dataset reads the old one, and who has it open goes on."""
    place = FolderPlace(tmp_path)
    begun(place, more)
    reader = shardio.open(place.out)
    with cut_off(place.out, renames, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        place.convert(imagefolder(photo_folder), append=True)
    assert len(shardio.open(place.out).read(np.arange(30))["label"]) == len(reader.read(np.arange(30))["label"]) == 30
    place.convert(imagefolder(photo_folder), append=True, resume=True)
    assert len(reader) == 30
    assert reader.read([29])["key"] == shardio.open(place.out).read([29])["key"]
    assert len(shardio.open(place.out)) == 90


READER = """
import json, sys
from pathlib import Path
import numpy as np, shardio
path, stop, options = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
first, seen = shardio.open(path, **options), set()
expected = {f"{key}" for key in first.read(range(len(first)), ["key"])["key"]}
ended = False
while not ended:
    ended = stop.exists()
    for dataset in (first, shardio.open(path, **options)):
        seen.add(len(dataset))
        loader = shardio.Loader(dataset, batch_size=10, verify=True)
        assert sum(len(batch["label"]) for batch in loader) == len(dataset)
    assert {f"{key}" for key in first.read(range(len(first)), ["key"])["key"]} == expected
    print(sorted(seen), flush=True)
"""


@contextlib.contextmanager
def reading(path: object, folder: Path, **options: Any) -> Iterator[list[list[int]]]:
    """Have a process load a dataset again and again, as it was and as it is; yields, in the end, the lengths."""
    stop, seen = folder / "stop", list[list[int]]()
    command = [sys.executable, "-c", READER, str(path), str(stop), json.dumps(options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
        assert reader.stdout.readline(), reader.stderr.read()
        yield seen
        stop.touch()
        out, errors = reader.communicate(timeout=60)
    assert reader.returncode == 0, errors
    seen.append(json.loads(out.splitlines()[-1]))


@pytest.mark.long
def test_loaders_go_on_meanwhile(tmp_path: Path) -> None:
    """A Loader that has the dataset open in another process goes on; one that opens it anew reads what is appended."""
    out = tmp_path / "out"
    convert(Rows(0, 40), out, shard_size=200)
    with reading(out, tmp_path) as seen:
        for first in range(40, 80, 10):
            convert(Rows(first, first + 10), out, append=True)
    assert {40, 80} <= {*seen[0]} <= {40, 50, 60, 70, 80}


@pytest.mark.long
def test_kill_at_random_moments(tmp_path: Path, more: Path, photo_folder: Path) -> None:
    """Appends that are killed again and again, while Loaders read, end with the bytes of appends in one go."""
    for out in (tmp_path / "out", tmp_path / "once"):
        convert(imagefolder(more), out, shard_size=SIZE)
    chance = random.Random(3)
    command = [sys.executable, "-m", "shardio", "append", "imagefolder", photo_folder, tmp_path / "out"]
    with reading(tmp_path / "out", tmp_path) as seen:
        for times in range(1, 3):
            convert(imagefolder(photo_folder), tmp_path / "once", append=True, shuffle=times)
            resumed = [*map(str, command), "--resume", "--workers", "2", "--shuffle", f"{times}"]
            for _ in range(2):
                kill_at_work(resumed, tmp_path / "out", chance)
            done = subprocess.run(resumed, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    assert {30, 150} <= {*seen[0]} <= {30, 90, 150}
    assert files(tmp_path / "out") == files(tmp_path / "once")
    assert verify(shardio.open(tmp_path / "out"), deep=True).found == ()
