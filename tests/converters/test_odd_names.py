"""Unusual file names, empty files and huge ones, through the command line into every container."""

import csv
import os
import re
import tarfile
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest
from _builders import class_folders, jpeg
from _cli import run
from _datasets import CONTAINERS
from _foreign import FORMATS, write_tar

import shardio
from shardio.errors import BadSample
from shardio.source import find

HUGE = 5 << 30

# Names as bytes: only `/` and NUL cannot occur in one.
NAMES: list[bytes] = [
    b"a b.jpg",
    b" .jpg",
    b"-a.jpg",
    b"--help.jpg",
    b"-.jpg",
    b"new\nline.jpg",
    b"re\rturn\t\x07.jpg",
    b"100%s{}'\"`$(touch x);*?[a].jpg",
    b"~.jpg",
    b"...jpg",
    b"back\\slash.jpg",
    "größe 日本 👾.jpg".encode(),
    "\u00fc.jpg".encode(),
    "u\u0308.jpg".encode(),  # it looks like the one before
    b"A.jpg",
    b"a.jpg",
    b"n" * 251 + b".jpg",  # the longest
    b"caf\xe9.jpg",  # no UTF-8
    b"\xff.jpg",
]
CLASSES: list[bytes] = [b" ", b"--", b"-x", b"Cat", b"cat", "größe".encode(), b"new\nline", b"\xfe"]


def write(path: bytes, data: bytes) -> None:
    """Write a file of that name, and its folder."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError:
        if path.isascii():
            raise
        pytest.skip("this file system takes only UTF-8 names")


def text(name: bytes) -> str:
    """A name as text that can be stored."""
    return name.decode("utf-8", "backslashreplace")


def numbered(count: int) -> Iterable[bytes]:
    """Different images, in number `count`."""
    return (jpeg(12 + number, 16, seed=number) for number in range(count))


def files(root: Path) -> dict[bytes, bytes]:
    """All files below a folder."""
    found = [os.path.join(folder, name) for folder, _, names in os.walk(os.fsencode(root)) for name in names]
    return {path: Path(os.fsdecode(path)).read_bytes() for path in found}


def check(out: Path, outside: Path, before: dict[bytes, bytes]) -> dict[str, bytes]:
    """Return the images at `out` by key; check that only shards were written, and nothing outside `out`."""
    ds = shardio.open(out)
    samples = [ds[number] for number in range(len(ds))]
    images = {sample["key"]: sample["image"] for sample in samples}
    assert len(images) == len(ds)
    assert all(
        re.fullmatch(r"shardio\.json|shard-0+\.(tar|idx\.npy|h5|lmdb)(\.sums\.idx\.npy)?", name)
        for name in os.listdir(out)
    )
    own = os.fsencode(out) + b"/"
    assert {path: data for path, data in files(outside).items() if not path.startswith(own)} == before
    return images


@pytest.mark.parametrize("container", CONTAINERS)
def test_images_in_folders(tmp_path: Path, container: str) -> None:
    """Every file of any name is a sample with its bytes, its class and its name as the key."""
    paths = [folder + b"/" + name for folder in CLASSES for name in NAMES]
    wanted = dict(zip(paths, numbered(len(paths)), strict=True))
    for path, data in wanted.items():
        write(os.fsencode(tmp_path) + b"/-in/" + path, data)
    before = files(tmp_path)
    run("convert", "imagefolder", "--to", container, "--workers", "2", "--", "-in", "-out", cwd=tmp_path)
    images = check(tmp_path / "-out", tmp_path, before)
    assert images == {text(path): data for path, data in wanted.items()}
    ds = shardio.open(tmp_path / "-out")
    assert ds.manifest.metadata["classes"] == [text(name) for name in CLASSES]
    for number in range(len(ds)):
        sample = ds[number]
        assert sample["key"].startswith(text(CLASSES[int(sample["label"])]) + "/")


def test_files_of_a_list(tmp_path: Path) -> None:
    """Paths in a list may be relative, absolute, or lead out of its folder."""
    here, there = os.fsencode(tmp_path) + b"/in/", os.fsencode(tmp_path) + b"/else where/"
    rows = [*NAMES, b"-d/-x.jpg", b"../else where/y.jpg", there + b"z.jpg"]
    wanted = dict(zip(rows, numbered(len(rows)), strict=True))
    for name, data in wanted.items():
        write(os.path.normpath(os.path.join(here, name)), data)
    with open(here + b"-list.csv", "w", newline="", errors="surrogateescape") as file:
        csv.writer(file).writerows([["path"], *([os.fsdecode(row)] for row in rows)])
    before = files(tmp_path)
    run("convert", "filelist", "--workers", "1", "--", "-list.csv", "../out", cwd=tmp_path / "in")
    images = check(tmp_path / "out", tmp_path, before)
    assert images == {text(name): data for name, data in wanted.items()}


@pytest.mark.parametrize(("kind", "container"), [*zip(FORMATS, CONTAINERS, strict=True)])
def test_members_of_tars(tmp_path: Path, container: str, kind: str) -> None:
    """Names in tars are only keys: no file is written under them, and no sample is lost."""
    # A key ends at the first dot, and is none if that comes first; an old tar's names have 100 bytes.
    keys = [name[:-4] for name in NAMES if b"." not in name[:-4] and len(name) < 100]
    folders = [b"../../etc", b"..", b"a/../..", b".", b"/", os.fsencode(tmp_path / "evil"), b"~", b"c:\\x", *CLASSES]
    keys += [folder + b"/x" for folder in folders]
    wanted = dict(zip(keys, numbered(len(keys)), strict=True))
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    write_tar(deep / "-in.tar", [(f"{os.fsdecode(key)}.jpg", data) for key, data in wanted.items()], kind)
    before = files(tmp_path)
    run("convert", "webdataset", "--to", container, "--workers", "1", "--", "-in.tar", "out", cwd=deep)
    assert check(deep / "out", tmp_path, before) == {text(key): data for key, data in wanted.items()}
    for path in (deep / "out").glob("*.tar"):
        with tarfile.open(path) as tar:
            assert all(re.fullmatch(r"\d{12}\.(jpg|key\.txt)", name) for name in tar.getnames())


@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        (["imagefolder", "--workers", "1", "--to=hdf5", "--", "-dir", "--to"], "--to"),
        (["--", "imagefolder", "./-dir", "out ü"], "out ü"),
    ],
)
def test_arguments_that_begin_with_a_dash(tmp_path: Path, arguments: list[str], out: str) -> None:
    """After `--` nothing is an option, and a path that begins with a dash can be given."""
    written = class_folders(tmp_path / "-dir", {"-x": ["-a.jpg"]})
    run("convert", *arguments, cwd=tmp_path)
    ds = shardio.open(tmp_path / out)
    assert [(ds[0]["key"], ds[0]["image"])] == list(written.items())
    assert sorted(os.listdir(tmp_path)) == sorted(["-dir", out])


def test_links_that_go_round(tmp_path: Path) -> None:
    """A link to any parent folder is neither followed nor a class."""
    written = class_folders(tmp_path / "in", {"cat": ["a.jpg", "deep/b.jpg"]})
    class_folders(tmp_path, {"beside": ["c.jpg"]})
    for name in ("again", "cat/again", "cat/deep/again"):
        for number, target in enumerate([Path("."), Path(".."), tmp_path / "in", tmp_path, tmp_path.parent]):
            (tmp_path / "in" / f"{name}{number}").symlink_to(target)
        (tmp_path / "in" / f"{name} and again").symlink_to(f"{name} and again")
    (tmp_path / "way in").symlink_to("in")
    run("convert", "imagefolder", "way in", "out", "--workers", "1", cwd=tmp_path)
    ds = shardio.open(tmp_path / "out")
    assert {ds[number]["key"]: ds[number]["image"] for number in range(len(ds))} == written
    assert ds.manifest.metadata["classes"] == ["cat"]


@pytest.mark.parametrize(("name", "src"), [("imagefolder", "in"), ("filelist", "list.jsonl")])
def test_a_huge_file(tmp_path: Path, name: str, src: str) -> None:
    """A file too large for an image is a bad sample and is not read."""
    path = tmp_path / "in" / "cat" / "a.jpg"
    path.parent.mkdir(parents=True)
    path.write_bytes(jpeg())
    os.truncate(path, HUGE)
    (tmp_path / "list.jsonl").write_text('{"path": "in/cat/a.jpg"}\n')
    source = find(name)(tmp_path / src)
    tracemalloc.start()
    try:
        with pytest.raises(BadSample, match=f"a.jpg: has {HUGE} bytes, an image file has at most 2147483647"):
            source[0]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
