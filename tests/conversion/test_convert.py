"""Conversion in parallel: any number of processes writes the same bytes, and errors name what is bad."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import jpeg, write_files
from _cli import unfinished
from _datasets import files, photo_folders
from _time_limit import wait_until
from hypothesis import given
from hypothesis import strategies as st

import shardio
from shardio.care.verify import verify
from shardio.conversion.api import convert
from shardio.conversion.shard_tasks import shard_boundaries
from shardio.errors import BadSample, NotADataset, SourceError
from shardio_converters.imagefolder import imagefolder


def photos(root: Path, count: int = 30) -> Path:
    return photo_folders(root, count, ("cat", "dog", "eel"))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=80), st.integers(1, 3000))
def test_cuts_cover_all_samples_once(sizes: list[int], shard_size: int) -> None:
    """Shards are contiguous; each but the last reaches the target size, and only with its last sample."""
    cuts = shard_boundaries(np.array(sizes, np.int64), shard_size)
    assert [start for start, _ in cuts] == [0, *(stop for _, stop in cuts[:-1])]
    assert cuts[-1][1] == len(sizes)
    for start, stop in cuts:
        assert start < stop
        assert sum(sizes[start : stop - 1]) < shard_size
    for start, stop in cuts[:-1]:
        assert sum(sizes[start:stop]) >= shard_size


@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path, container: str) -> None:
    """One process and three processes write identical shards and manifests."""
    source = imagefolder(photos(tmp_path / "src"))
    convert(source, tmp_path / "one", container=container, shard_size="4KB", workers=1)
    convert(source, tmp_path / "three", container=container, shard_size="4KB", workers=3)
    assert len(files(tmp_path / "one")) > 4
    assert files(tmp_path / "one") == files(tmp_path / "three")
    assert verify(shardio.open(tmp_path / "three"), deep=True).problems == ()


BAD = {
    "cat/zero.jpg": (b"", "is empty"),
    "dog/text.jpg": (b"I am a text file, whatever my name says.", "not a JPEG"),
    "eel/cut.jpg": (jpeg(30, 30)[:-40], "cut short"),
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_ends_the_conversion_by_name(tmp_path: Path, name: str, workers: int) -> None:
    """By default the first bad file ends the conversion with its name and the reason, and leaves no dataset."""
    root = photos(tmp_path / "src")
    (root / name).write_bytes(BAD[name][0])
    with pytest.raises(BadSample, match=f"{name}.*{BAD[name][1]}"):
        convert(imagefolder(root), tmp_path / "out", workers=workers, shard_size="2KB")
    with pytest.raises(NotADataset):
        shardio.open(tmp_path / "out")
    assert not list((tmp_path / "out").rglob(".writing-*"))


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_files_are_skipped_and_counted_if_asked(tmp_path: Path, workers: int) -> None:
    """With `skip` the dataset is the one without the bad files, and each of them is reported."""
    root = photos(tmp_path / "src")
    convert(imagefolder(root), tmp_path / "clean", shard_size="4KB")
    write_files(root, {name: data for name, (data, _) in BAD.items()})
    options: dict[str, Any] = {"shard_size": "4KB", "on_error": "skip", "max_bad": 40}
    result = convert(imagefolder(root), tmp_path / "out", workers=workers, **options)
    assert [name for skipped in result.skipped for name in BAD if name in skipped.reason] == list(BAD)
    assert all(reason in skipped.reason for skipped, (_, reason) in zip(result.skipped, BAD.values(), strict=True))
    made, clean = shardio.open(tmp_path / "out"), shardio.open(tmp_path / "clean")
    assert (made.digest, len(made)) == (clean.digest, len(clean))
    assert verify(made, deep=True).problems == ()
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"shardio.json"}
    assert not (tmp_path / "out" / ".converting").exists()


def test_nothing_but_bad_files_is_an_error(tmp_path: Path) -> None:
    """A source in which every file is bad is an error."""
    write_files(tmp_path / "src", {"cat/a.jpg": b""})
    with pytest.raises(SourceError, match=r"all 1 samples are bad; the first: .*a\.jpg"):
        convert(imagefolder(tmp_path / "src"), tmp_path / "out", on_error="skip", max_bad=40)
    with pytest.raises(NotADataset):
        shardio.open(tmp_path / "out")


@pytest.mark.slow
def test_workers_die_with_the_conversion(tmp_path: Path) -> None:
    """kill -9 of the conversion ends its worker processes and leaves no dataset."""
    code = f"""
import time
from shardio.conversion.api import convert
from test_convert import Sleepy
if __name__ == "__main__":
    convert(Sleepy(), {str(tmp_path / "out")!r}, workers=2, shard_size="1B")
"""
    script = tmp_path / "run.py"
    script.write_text(code)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    parent = subprocess.Popen([sys.executable, str(script)], env=env)
    wait_until(lambda: unfinished(tmp_path / "out", "shards/.writing-*") or parent.poll() is not None)
    assert parent.poll() is None
    children = [int(p) for p in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
    assert children
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not any(_alive(child) for child in children))
    with pytest.raises(NotADataset):
        shardio.open(tmp_path / "out")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Sleepy:
    """A source whose samples never finish in a worker."""

    fields = {"x": shardio.Field("text")}
    metadata: dict[str, Any] = {}

    def sizes(self) -> np.ndarray:
        return np.ones(4, np.int64)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if multiprocessing.parent_process():
            time.sleep(600)
        return {"x": "late"}


class Strange(Sleepy):
    """A source that raises an exception type of its own."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        raise TwoArguments("why", "oh why")


class TwoArguments(Exception):
    """An exception that does not survive pickling."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first}, {second}")


def test_a_sources_own_exception_is_told(tmp_path: Path) -> None:
    """An exception that a source raises in a worker process is reported with its type and text."""
    with pytest.raises(SourceError, match="the source failed with TwoArguments: why, oh why"):
        convert(Strange(), tmp_path / "out", workers=2)
