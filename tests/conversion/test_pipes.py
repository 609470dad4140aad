"""A pipe in place of any file is refused or left unread: nobody waits for its other end."""

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from _fuzz_targets import TARGETS, convert_source, converter, index_source
from _time_limit import within

import shardio
from shardio.conversion.adopt import adopt
from shardio.conversion.skipped import write_report
from shardio.errors import ShardioError, StateMismatch
from shardio.output.records import Skipped

SOURCES = [name for name, target in TARGETS.items() if target.converter and target.converter != "imagefolder"]
"""An image folder leaves out what is no file."""
DATASETS = ["tar", "hdf5", "lmdb", "adopted_tfrecord"]
UNREAD = {
    "zarr2": ["train.zarr/.zattrs", "train.zarr/.zgroup"],
    "npz": ["plain.npz"],
    "npz_plain": ["train.npz"],
}


def pipes(folder: Path) -> Iterator[Path]:
    """Replace one file after the other by a pipe; put it back afterwards."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        aside = folder.parent / "aside"
        path.rename(aside)
        os.mkfifo(path)
        yield path
        path.unlink()
        aside.rename(path)


def refusal(work: Callable[[], object]) -> str:
    """The error that `work` raises; "" if it raises none."""
    with within(5):
        try:
            work()
        except ShardioError as error:
            return str(error)
    return ""


def read(folder: Path) -> None:
    """Read all samples of a dataset."""
    dataset = shardio.open(folder)
    for number in range(len(dataset)):
        dataset[number]


@pytest.mark.parametrize("name", SOURCES)
def test_sources(tmp_path: Path, name: str) -> None:
    """Converting and indexing refuse a pipe by its path, or do not read it."""
    target, folder = TARGETS[name], tmp_path / "in"
    folder.mkdir()
    target.write(folder)
    for number, path in enumerate(pipes(folder)):
        if str(path.relative_to(folder)) in UNREAD.get(name, ()):
            continue
        for work in (shardio.convert, adopt) if "adopt" in target.uses else (shardio.convert,):
            with (
                within(5),
                pytest.raises(ShardioError, match=rf"{path}.* not a (regular )?file|not a regular .*{path}"),
            ):
                work(converter(target.converter)(str(folder / target.path)), tmp_path / f"{number} {work.__name__}")


@pytest.mark.parametrize("name", DATASETS)
def test_datasets(tmp_path: Path, name: str) -> None:
    """Reading and verifying a dataset find a pipe, and name it."""
    folder = tmp_path / "in"
    folder.mkdir()
    TARGETS[name].write(folder)
    for path in pipes(folder):
        text = refusal(partial(read, folder))
        assert path.name in text or (".sums." in path.name and not text)  # which local datasets leave unread
        assert path.name in (refusal(partial(shardio.verify, folder)) or str(shardio.verify(folder).problems))


@pytest.mark.parametrize(("name", "work"), [("journal", convert_source), ("journal_index", index_source)])
def test_journals(tmp_path: Path, name: str, work: Callable[..., None]) -> None:
    """Resuming refuses a pipe in a journal in words, or writes the shard anew."""
    (tmp_path / "in").mkdir()
    TARGETS[name].write(tmp_path / "in")
    for number, path in enumerate(path for path in (tmp_path / "in" / "out").rglob("*") if path.is_file()):
        copy = tmp_path / f"{number}"
        shutil.copytree(tmp_path / "in", copy, symlinks=True)
        pipe = copy / path.relative_to(tmp_path / "in")
        pipe.unlink()
        os.mkfifo(pipe)
        text = refusal(partial(work, copy, resume=True))
        assert not text or pipe.name in text


def test_checkpoints(tmp_path: Path) -> None:
    """A pipe is no checkpoint."""
    from shardio.train import checkpoint  # here: it needs torch

    path = tmp_path / "last.pt"
    os.mkfifo(path)
    with within(5), pytest.raises(StateMismatch, match=rf"{path}: it cannot be read: not a regular file"):
        checkpoint.load(path)
    with within(5):
        assert checkpoint.damage(path) == "it cannot be read: not a regular file"


def test_reports(tmp_path: Path) -> None:
    """A report is not written to a pipe that nobody reads; a pipe that somebody reads gets it."""
    path = tmp_path / "bad.jsonl"
    os.mkfifo(path)
    with within(5), pytest.raises(OSError, match=f"{path}"):
        write_report(path, tmp_path / "out", [("", Skipped(1, "bad"))])
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with within(5):
        write_report(path, tmp_path / "out", [("", Skipped(1, "bad"))])
    assert os.read(reader, 100) == b'{"number": 1, "reason": "bad"}\n'
    os.close(reader)
