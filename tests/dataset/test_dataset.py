"""Datasets written and read back: every container holds the same samples, and a partial dataset is never opened."""

import json
import multiprocessing
import os
import shlex
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import jpeg
from _datasets import CONTAINERS, FIELDS, files, packed, sample
from _small_disk import small_disk

import shardio
from shardio.care.verify import verify
from shardio.errors import BadSample, ConfigError, ManifestError, NotADataset, ShardCorrupt
from shardio.format import manifest


def write(path: Path, container: str = "tar", count: int = 40, **options: Any) -> shardio.Dataset:
    """A dataset of `count` samples in several shards."""
    return packed(path, map(sample, range(count)), FIELDS, container=container, **options)


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether two samples have equal fields and values."""
    return found.keys() == expected.keys() and all(np.array_equal(found[n], expected[n]) for n in expected)


@pytest.mark.parametrize("container", CONTAINERS)
def test_what_was_written_is_read(tmp_path: Path, container: str) -> None:
    """Every kind of field survives every container, read one by one and in batches, in the requested order."""
    ds = write(tmp_path / "d", container)
    assert len(ds) == 40
    assert len(ds.manifest.shards) > 3
    assert all(same(ds[number], sample(number)) for number in range(40))
    assert same(ds[-1], sample(39))
    wanted = [38, 3, 3, 0, 21]
    found = ds.read(wanted)
    assert found["label"].dtype == np.int64
    assert found["grid"].shape == (5, 2, 3)
    for row, number in enumerate(wanted):
        assert same({name: column[row] for name, column in found.items()}, sample(number))
    assert list(ds.read([5], ["key"])) == ["key"]
    assert verify(ds, deep=True).problems == ()


def test_the_digest_names_the_content(tmp_path: Path) -> None:
    """The digest depends on samples and their order, not on the container or the shard size."""
    kept = {
        write(tmp_path / f"a{n}", c, shard_size=s).digest
        for n, (c, s) in enumerate([("tar", "3KB"), ("hdf5", "9KB"), ("lmdb", "1GB")])
    }
    assert len(kept) == 1
    assert shardio.from_samples([sample(n) for n in range(40)], FIELDS).digest in kept
    assert shardio.from_samples([sample(n) for n in [1, 0, *range(2, 40)]], FIELDS).digest not in kept
    assert shardio.from_samples([sample(n) | {"label": 0} for n in range(40)], FIELDS).digest not in kept


@pytest.mark.parametrize(("method", "container"), [*(("fork", name) for name in CONTAINERS), ("spawn", "tar")])
def test_it_works_in_another_process(tmp_path: Path, method: str, container: str) -> None:
    """A dataset in use works in a forked child, and in a new process after pickling."""
    ds = write(tmp_path / "d", container, count=12)
    assert same(ds[11], sample(11))
    context = multiprocessing.get_context(method)
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_read_labels, args=(ds, send))
    process.start()
    assert receive.poll(60)
    assert receive.recv() == [n % 7 for n in range(12)]
    process.join()
    assert ds.read([3], ["key"])["key"] == [sample(3)["key"]]


def _read_labels(ds: shardio.Dataset, send: Any) -> None:
    send.send(ds.read(range(len(ds)), ["label", "key"])["label"].tolist())


def test_images_that_share_a_size_say_so(tmp_path: Path) -> None:
    """The manifest holds the common (height, width) of images, so that batches can be stacked, or None."""
    same_size = shardio.from_samples([{"image": jpeg(8, 9, seed=n)} for n in range(3)])
    assert same_size.fields["image"].shape == (8, 9)
    assert shardio.from_samples([sample(0), sample(1)], FIELDS).fields["image"].shape is None


def test_an_empty_dataset_is_a_dataset(tmp_path: Path) -> None:
    """A dataset may be empty if its fields are given."""
    with shardio.create(tmp_path / "d", fields={"label": "int64"}):
        pass
    assert len(shardio.open(tmp_path / "d")) == 0
    with pytest.raises(ConfigError, match="no sample was written"), shardio.create(tmp_path / "e"):
        pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": b""}, r"sample 1 \(key päth/1.jpg\): field 'image': the image is empty"),
        ({"image": jpeg()[:-30]}, "field 'image': the jpeg image is cut short"),
        ({"label": 2.5}, "field 'label': int64 cannot hold 2.5"),
        ({"grid": np.ones((3, 2), np.float32)}, r"field 'grid': expected shape \(2, 3\), got \(3, 2\)"),
        ({"key": b"bytes"}, "field 'key': expected str, got bytes"),
        ({"note": {1, 2}}, "field 'note': not JSON"),
        ({"more": 1}, "not a field: more"),
    ],
)
def test_a_bad_sample_is_named_and_leaves_no_trace(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    """`append` names the bad sample, field and reason; the dataset continues without it."""
    with shardio.create(tmp_path / "d", container="hdf5", fields=FIELDS) as writer:
        writer.append(sample(0))
        with pytest.raises(BadSample, match=message):
            writer.append(sample(1) | change)
        writer.append(sample(2))
    ds = shardio.open(tmp_path / "d")
    assert [same(ds[0], sample(0)), same(ds[1], sample(2)), len(ds)] == [True, True, 2]
    assert verify(ds, deep=True).problems == ()


def cut_off(path: Path, **options: Any) -> None:
    """Write a dataset, and fail before its end."""
    with shardio.create(path, fields=FIELDS, shard_size="1KB", **options) as writer:
        for number in range(30):
            writer.append(sample(number))
        raise RuntimeError("power cut")


def test_what_was_cut_off_is_no_dataset(tmp_path: Path) -> None:
    """An error while writing leaves no dataset; one that is replaced stays until the new one is whole."""
    with pytest.raises(RuntimeError, match="power cut"):
        cut_off(tmp_path / "d")
    assert not list((tmp_path / "d").iterdir())
    with pytest.raises(NotADataset, match="may have been cut off"):
        shardio.open(tmp_path / "d")
    before = files(write(tmp_path / "d").path)
    with pytest.raises(RuntimeError, match="power cut"):
        cut_off(tmp_path / "d", overwrite=True)
    with (
        pytest.raises(ConfigError, match="compression"),
        shardio.create(tmp_path / "d", overwrite=True, compression="x") as writer,
    ):
        writer.append(sample(0))
    assert files(tmp_path / "d") == before
    new = write(tmp_path / "d", "hdf5", count=5, overwrite=True)
    assert len(new) == 5
    assert all(path.name.endswith((".h5", ".h5.sums.idx.npy", ".json")) for path in new.path.iterdir())


def test_kill_minus_nine_leaves_no_dataset(tmp_path: Path) -> None:
    """A writer killed in the middle of a shard leaves no manifest and no partial shard under a shard's name."""
    child = os.fork()
    if child == 0:
        writer = shardio.create(tmp_path / "d", fields=FIELDS, shard_size="8KB")
        for number in range(33):
            writer.append(sample(number))
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    with pytest.raises(NotADataset):
        shardio.open(tmp_path / "d")
    whole = write(tmp_path / "whole")
    (hidden,) = (tmp_path / "d").iterdir()
    names = {path.name: path for path in hidden.iterdir() if path.is_file()}
    assert names
    for name, path in names.items():
        assert path.read_bytes() == (whole.path / name).read_bytes()
    with pytest.raises(ConfigError, match="overwrite replaces the unfinished dataset in it"):
        shardio.create(tmp_path / "d")
    assert len(write(tmp_path / "d", overwrite=True)) == 40
    assert not hidden.exists()


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_full_disk_is_an_error_and_no_dataset(tmp_path: Path, container: str) -> None:
    """A full disk raises the system's own error and leaves no files."""

    def fill(path: Path) -> None:
        with shardio.create(path, container=container, shard_size="100KB") as writer:
            for number in range(3000):
                writer.append({"blob": bytes(999), "label": number})

    with small_disk(tmp_path / "disk", "1m") as disk:
        with pytest.raises(OSError, match="No space left"):
            fill(disk / "d")
        with pytest.raises(NotADataset):
            shardio.open(disk / "d")
        assert not list((disk / "d").iterdir())


def rewritten(folder: Path, change: Callable[[bytes], bytes]) -> None:
    """Open a dataset whose manifest was changed."""
    write(folder / "d", metadata={"classes": ["a"]})
    path = folder / "d" / manifest.FILE_NAME
    path.write_bytes(change(path.read_bytes()))
    shardio.open(folder / "d")


def shape(value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda m: m | {"fields": m["fields"] | {"grid": {"kind": "array", "dtype": "float32", "shape": value}}}


def column(name: str, value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda m: m | {"shards": m["shards"] | {name: [value, *m["shards"][name][1:]]}}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda m: m | {"format": "other"}, "format is 'other'"),
        (lambda m: m | {"version": 99}, "version 99 was written by another release"),
        (lambda m: m | {"samples": 1}, "samples is 1, but the shards hold 40"),
        (lambda m: m | {"fields": {}}, "at least one field"),
        (column("names", "../../etc/passwd"), "not the name of a file"),
        (lambda m: m | {"shards": m["shards"] | {"samples": [-1]}}, "must have the same length"),
        (lambda m: {"format": "shardio", "version": 1, "requires": []}, "missing required field"),
        (
            lambda m: m | {"requires": ["video", "boxes", "video"]},
            "needs 'boxes', 'video', which this version of shardio doesn't",
        ),
        (lambda m: m | {"requires": ["boxes"], "fields": 3, "shards": 4}, "needs 'boxes', which"),  # a later form
        (lambda m: m | {"requires": "boxes"}, "requires must be a list of strings, got 'boxes'"),
        (lambda m: m | {"requires": [{}] * 10**5}, "requires must be a list of strings, got .{100}$"),
        (lambda m: {name: m[name] for name in m if name != "requires"}, "requires must be a list of strings, got None"),
        (lambda m: [], "Expected `object`"),
        (shape([2**62]), r"a value must have at most 2\^40 bytes, got \[4611686018427387904\] of float32"),
        (shape([0, 2**62]), "at most 2.40 bytes"),
        (shape([1] * 65), "at most 31 dimensions, got 65"),
        (shape([-1]), "not a shape"),
        (shape("44"), "integers"),
        (column("samples", 2**63), r"samples must be in \[0, 2\^62\], got a number of 64 bits"),
        (column("samples", 2**62), "shard-000000.tar cannot hold 4611686018427387904 samples in"),
        (column("samples", True), "Expected `int`, got `bool`"),
        (column("names", "a" * 256), "at most 255 characters, got 256"),
        (lambda m: m | {"container": "memory"}, "no container on disk is called 'memory'"),
    ],
)
def test_claims_that_nothing_can_hold_are_refused(tmp_path: Path, damage: Any, message: str) -> None:
    """Names that lead out of the directory, shapes and counts that no array can have are refused at opening."""
    with pytest.raises(ManifestError, match=rf"shardio\.json: .*{message}"):
        rewritten(tmp_path, lambda text: json.dumps(damage(json.loads(text))).encode())


def in_metadata(value: bytes) -> Callable[[bytes], bytes]:
    return lambda text: text.replace(b'"metadata": {', b'"metadata": {"a": ' + value + b", ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace(b'"format"', b'"version": 1, "format"', 1), "the key 'version' occurs twice"),
        (lambda text: b"\xef\xbb\xbf" + text, "it begins with a byte order mark"),
        (lambda text: text.decode().encode("utf-16"), "it looks like UTF-16"),
        (in_metadata(b"NaN"), "NaN is not JSON"),
        (in_metadata(b"1e999"), "1e999 is too large"),
        (in_metadata(rb'"\ud800"'), "surrogates not allowed"),
        (in_metadata(b'"\xff"'), "not UTF-8"),
        (in_metadata(b"[" * 100_000 + b"]" * 100_000), "not JSON: nested too deeply"),
        (lambda text: b'{"anything": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not JSON: nested too deeply"),
        (lambda text: text[:100], "not JSON"),
    ],
)
def test_a_manifest_is_strict_json(tmp_path: Path, change: Any, message: str) -> None:
    """What readers of JSON understand differently is refused in words that name the file, at any depth."""
    with pytest.raises(ManifestError, match=rf"shardio\.json: .*{message}"):
        rewritten(tmp_path, change)


def test_values_that_memory_cannot_hold_are_an_error_in_words(tmp_path: Path) -> None:
    """A shape that an array could have, but not here, is an error when its values are asked for."""
    rewritten(tmp_path, lambda text: json.dumps(shape([2**38])(json.loads(text))).encode())
    big = shardio.open(tmp_path / "d")
    with pytest.raises(MemoryError, match=r"\[20, 274877906944\] of float32 need 22.0 TB of memory at once"):
        big.read(range(20), fields=["grid"])
    with pytest.raises(MemoryError, match=r"bytes of batches: grid \(4, 274877906944\) of float32"):
        next(iter(shardio.Loader(big, 4, fields=["grid"], threads=1)))


@pytest.mark.parametrize("metadata", [{"a": "\ud800"}, {"a": float("nan")}, {1: 2}, {"a": b"x"}, {"a": object()}])
def test_metadata_that_is_no_json_is_refused_before_anything_is_written(tmp_path: Path, metadata: Any) -> None:
    """A manifest could not hold it."""
    with pytest.raises(ConfigError, match="metadata"):
        shardio.create(tmp_path / "d", metadata=metadata)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda ds: ds[40], IndexError, r"index must be in \[0, 40\), got 40"),
        (lambda ds: ds.check(np.array([3, -1]), {}), IndexError, r"\[0, 40\), got -1"),
        (lambda ds: ds.read([3, -1]), IndexError, r"\[0, 40\), got -1"),
        (lambda ds: ds.read([0], ["nope"]), ConfigError, "no field 'nope'; there are image"),
        (lambda ds: ds.selection(np.array([0])).column("image"), ConfigError, r"read it with values\(\)"),
        (lambda ds: ds.selection(np.array([0])).values("label"), ConfigError, r"read it with column\(\)"),
        (lambda ds: ds.read([0.5, 1.0]), ConfigError, "indices must be integers, got float64"),
        (lambda ds: ds.read(np.array([True, False])), ConfigError, "indices must be integers, got bool"),
        (lambda ds: ds.read(slice(1, 3)), ConfigError, r"got a slice: give range\(1, 3\)"),
        (lambda ds: ds["x"], TypeError, r"got 'x'; read\(\[\.\.\.\]\) reads several"),
        (lambda ds: shardio.Dataset("photos"), ConfigError, r"shardio\.open\(path\) opens a dataset; .* got 'photos'"),
    ],
)
def test_wrong_questions_are_refused(tmp_path: Path, use: Any, error: type[Exception], message: str) -> None:
    """Each message names the rule and the value."""
    ds = write(tmp_path / "d")
    with pytest.raises(error, match=message):
        use(ds)


def test_more_shards_than_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only some shards are open at a time, and all are readable."""
    monkeypatch.setattr("shardio.system.processes.allow_open_files", lambda wanted: 64)
    ds = write(tmp_path / "d", count=120, shard_size="1KB")
    shards = len(ds.manifest.shards)
    assert shards > 35
    for number in range(120):
        assert ds[number]["label"] == number % 7
    opened = [os.readlink(handle) for handle in Path("/proc/self/fd").iterdir() if handle.is_symlink()]
    assert 0 < sum(path.startswith(str(tmp_path)) for path in opened) < shards


def test_overwrite_removes_nothing_of_another_kind(tmp_path: Path) -> None:
    """Folders, links and other files, also with names like shards, are refused before anything changes."""
    for name in ("notes.txt", "shard-000000.tar"):  # without a dataset
        (folder := tmp_path / name.partition(".")[0]).mkdir()
        (folder / name).write_text("mine")
        with pytest.raises(ConfigError, match=rf"must be empty; it holds {name}"):
            shardio.create(folder, overwrite=True)
        assert (folder / name).read_text() == "mine"
    write(tmp_path / "d", count=3)
    strays = {"shard-notes": Path.mkdir, "shard-foo.docx": Path.touch, "shard-9.tar": lambda p: p.symlink_to(tmp_path)}
    for name, make in strays.items():
        stray = tmp_path / "d" / name
        make(stray)
        with pytest.raises(ConfigError, match=f"it holds {stray.name}"):
            shardio.create(tmp_path / "d", overwrite=True)
        assert len(shardio.open(tmp_path / "d")) == 3
        stray.rmdir() if make is Path.mkdir else stray.unlink()


def test_a_writer_that_failed_makes_no_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a disk error close() raises too, and writes no manifest."""
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = shardio.create(tmp_path / "d")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    blobs = [{"blob": os.urandom(100_000)} for _ in range(100)]
    try:
        with pytest.raises(OSError, match="File too large"):
            list(map(writer.append, blobs))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with pytest.raises(shardio.ShardioError, match="an earlier write failed"):
        writer.close()
    with pytest.raises(NotADataset):
        shardio.open(tmp_path / "d")


def test_a_memoryview_is_its_bytes(tmp_path: Path) -> None:
    """Memory views of numbers, and views with gaps, are stored as their bytes with the right checksum."""
    ds = packed(tmp_path / "d", [{"b": memoryview(np.arange(10))}, {"b": memoryview(b"abcdef")[::2]}], {"b": "bytes"})
    assert [ds[0]["b"], ds[1]["b"]] == [np.arange(10).tobytes(), b"ace"]
    assert verify(ds, deep=True).problems == ()


def test_a_damaged_value_is_named(tmp_path: Path) -> None:
    """Text that is no longer UTF-8 raises an error that names its sample."""
    packed(tmp_path / "d", [{"v": f"hello{number}", "key": f"k{number}"} for number in range(4)])
    shard = tmp_path / "d" / "shard-000000.tar"
    shard.write_bytes(shard.read_bytes().replace(b"hello2", b"h\xfflo\xff2"))
    with pytest.raises(ShardCorrupt, match=r"shard-000000.tar, row 2 \(sample 2, key k2\), field 'v': not text"):
        shardio.open(tmp_path / "d").read(range(4))


def test_the_working_directory_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets of a relative path, and those in memory, survive a change of the working directory."""
    write(tmp_path / "d", count=3)
    monkeypatch.chdir(tmp_path)
    on_disk, in_memory = shardio.open("d"), shardio.from_samples([{"x": 1}])
    monkeypatch.chdir("/")
    assert on_disk[2]["label"] == 2
    assert in_memory[0]["x"] == 1


def test_a_dataset_in_memory_goes_with_its_last_user() -> None:
    """The samples of an in-memory dataset are freed with its last reference."""
    from shardio.containers import memory

    before = len(memory._SHARDS)
    ds = shardio.from_samples([{"x": n} for n in range(10)], shard_samples=2)
    assert len(memory._SHARDS) == before + 5
    del ds
    assert len(memory._SHARDS) == before


def _tar(path: Path) -> None:
    with tarfile.open(path, "w") as file:
        file.add(__file__, "a.txt")


@pytest.mark.parametrize(
    ("name", "make", "given", "said"),
    [
        ("photos/cat/1.jpg", Path.touch, "photos", "it holds images: `shardio convert imagefolder {} OUT`"),
        ("my shards/a.tar", _tar, "my shards", "it holds tar files: `shardio index {} -o OUT`"),
        ("records/a.tfrecord", Path.touch, "records", "it holds TFRecord files: `shardio index {} -o OUT`"),
        ("a.tar", _tar, "a.tar", "`shardio index {} -o OUT` makes a dataset of it"),
        ("d/.converting/plan.json", Path.touch, "d", "run the same command with --resume"),
        ("d/shard-000000.tar", Path.touch, "d", "`shardio repair {}` saves what its shards hold"),
        ("d/notes.txt", Path.touch, "d", "it holds no shards"),
        ("d/train/cat/1.jpg", Path.touch, "d", "it holds folders of images in train"),
        ("d/b/0.npy", Path.touch, "d", "it holds NumPy files in b: `shardio convert numpy {}/b OUT` makes a dataset"),
        ("more/a.tar.zst", Path.touch, "more", "compressed tar files: `shardio convert webdataset {} OUT`"),
        ("list.csv", Path.touch, "list.csv", "is a directory with shardio.json; this file is of another kind"),
        ("a.tar", Path.touch, "*.tar", "patterns name no dataset; `shardio index {} -o OUT` makes one"),
    ],
)
def test_what_is_no_dataset_says_what_it_is(
    tmp_path: Path, name: str, make: Callable[[Path], object], given: str, said: str
) -> None:
    """A folder of images, a tar and so on, given as a dataset, are named with the command that makes one of them."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    with pytest.raises(NotADataset) as error:
        shardio.open(tmp_path / given)
    assert said.format(shlex.quote(str(tmp_path / given))) in str(error.value)


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_file_of_a_dataset_or_of_images_names_its_folder(tmp_path: Path, container: str) -> None:
    """A shard, its index or a single image, given as a dataset, are no dataset; their folder is one, or becomes one."""
    write(tmp_path / "d", container)
    for shard in (tmp_path / "d").glob("shard-*"):
        with pytest.raises(NotADataset, match=f"it lies in one: give {tmp_path}/d$"):
            shardio.open(shard)
    (tmp_path / "1.jpg").write_bytes(jpeg(8, 8, seed=0))
    command = f"`shardio convert imagefolder {tmp_path} OUT`"
    with pytest.raises(NotADataset, match=f"{command} makes a dataset of its folder"):
        shardio.open(tmp_path / "1.jpg")
    with pytest.raises(NotADataset, match=f"{command} makes one of images"):
        shardio.open(tmp_path / "*" / "*.jpg")


def test_the_datasets_of_a_folder_are_named(tmp_path: Path) -> None:
    """The folder of several splits is no dataset; the error names them."""
    for split in ("train", "val"):
        write(tmp_path / split)
    with pytest.raises(NotADataset, match=f"it holds the datasets train, val: .* such as {tmp_path}/train"):
        shardio.open(tmp_path)
