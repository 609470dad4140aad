"""Whatever is wrong with a dataset or a disk, every command ends in one line of words and the documented exit code."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _cli
import numpy as np
import pytest
from _datasets import packed
from _small_disk import small_disk

import shardio

Command: Any = Callable[..., str]

COMMANDS = [
    ("info", "DATASET"),
    ("info", "DATASET", "--json"),
    ("verify", "DATASET"),
    ("verify", "DATASET", "--deep"),
    ("stats", "DATASET"),
    ("show", "DATASET", "-o", "OUT"),
    ("reshard", "DATASET", "OUT"),
    ("merge", "DATASET", "DATASET", "OUT"),
    ("bench", "DATASET", "--batch-size", "4"),
    ("train", "DATASET", "--output", "OUT", "--device", "cpu"),
]


@pytest.fixture
def failed(capsys: pytest.CaptureFixture[str]) -> Command:
    """A function that runs a command, which must fail with exit code 1, and returns its last line on stderr."""

    def run(*arguments: object) -> str:
        code, _, error = _cli.ended(capsys, *arguments)
        assert (code, "Traceback" in error) == (1, False)
        return error.splitlines()[-1]

    return run


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A small dataset."""
    rows = [{"x": np.full(4, number, np.float32), "label": number} for number in range(20)]
    return Path(packed(tmp_path / "d", rows, {"x": ("float32", (4,)), "label": "int64"}).path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace(b'"shape": [', b'"shape": [' + b"1," * 65, 1), "at most 31 dimensions, got 66"),
        (lambda text: text.replace(b'"format"', b'"format": "", "format"', 1), "the key 'format' occurs twice"),
        (lambda text: text.decode().encode("utf-16"), "it looks like UTF-16"),
    ],
)
def test_a_manifest_that_is_refused(
    tmp_path: Path, dataset: Path, failed: Command, change: Callable[[bytes], bytes], message: str
) -> None:
    """Every command names the manifest and the rule that it breaks."""
    path = dataset / "shardio.json"
    path.write_bytes(change(path.read_bytes()))
    for command in COMMANDS:
        error = failed(
            *(str(dataset) if part == "DATASET" else tmp_path / "o" if part == "OUT" else part for part in command)
        )
        assert error.startswith(f"shardio: {path}: ")
        assert message in error


def test_a_closed_standard_output(tmp_path: Path, dataset: Path) -> None:
    """A job may start a command without one: it works, and what it would print reaches no file that it opens."""
    closed = "import os, sys; os.close(1); os.execv(sys.argv[1], sys.argv[1:])"
    words = ["-m", "shardio", "reshard", dataset, tmp_path / "out", "--workers", "1"]
    subprocess.run([sys.executable, "-c", closed, sys.executable, *words], check=True, stderr=subprocess.DEVNULL)
    assert not shardio.verify(tmp_path / "out", deep=True).problems


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("info", "data/phots"), "data/phots: no such directory or shardio.json; did you mean data/photos?"),
        (("train", "dat/photos", "--output", "o"), "shardio.json; did you mean data/photos?"),
        (("convert", "imagefolder", "data/phots", "o"), "No such file or directory; did you mean {}/data/photos?"),
        (("convert", "webdataset", "dat", "o"), "dat does not exist; did you mean {}/data?"),
        (("convert", "filelist", "list.cs", "o", "--delimiter", ","), "list.cs is missing; did you mean {}/list.csv?"),
        (("info", "elsewhere"), "elsewhere: no such directory or shardio.json"),
    ],
)
def test_a_path_that_nearly_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: Command, words: tuple[str, ...], told: str
) -> None:
    """A path that does not exist is answered with the nearest one that does, as a word of the command line is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "photos").mkdir(parents=True)
    (tmp_path / "list.csv").write_text("path\n")
    assert failed(*words).endswith(told.format(tmp_path))


def test_a_full_disk_is_named(tmp_path: Path, dataset: Path, failed: Command) -> None:
    """A file that cannot be written because the disk is full is named, whichever command writes it."""
    with small_disk(tmp_path / "disk", "16k") as disk:
        (disk / "fill").write_bytes(bytes(16 << 10))
        report = disk / "report.json"
        for command in ("stats", "verify"):
            assert failed(command, dataset, "--json", report) == f"shardio: {report}: No space left on device"


def test_a_disk_that_a_conversion_fills(tmp_path: Path, failed: Command) -> None:
    """The message says how much the dataset takes and how much is free, and the same command goes on with more room."""
    rows = [{"x": np.full(50_000, number, np.float32)} for number in range(20)]
    packed(tmp_path / "d", rows, {"x": ("float32", (50_000,))}, shard_size="64MB")
    with small_disk(tmp_path / "disk", "2m") as disk:
        words = ("reshard", tmp_path / "d", disk / "out", "--shard-size", "500KB", "--workers", "1")
        told = failed(*words)
        assert "No space left on device: all shards take about 4.0 MB, and " in told
        assert told.endswith("are free (make room; add --resume to keep finished shards)")
        finished = {path.name: path.stat().st_mtime_ns for path in disk.rglob("shard-*.tar")}
        subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
        _cli.run(*words, "--resume")
        assert finished
        assert finished.items() <= {path.name: path.stat().st_mtime_ns for path in (disk / "out").glob("*.tar")}.items()
