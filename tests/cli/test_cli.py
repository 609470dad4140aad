"""The commands as users run them: real processes, their output and their exit codes."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import _forked
import cv2
import numpy as np
import pytest
import typer
from _builders import jpeg
from _cli import ended, here, unfinished
from _datasets import packed, photo_folders

import shardio
from shardio.cli import app
from shardio.conversion import source as sources


def shardio_command(*args: object) -> subprocess.CompletedProcess[str]:
    """Runs `shardio` with these arguments."""
    return _forked.run(_forked.COMMAND, *map(str, args))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 24 JPEGs in two classes."""
    return photo_folders(tmp_path_factory.mktemp("photos"), 24)


@pytest.fixture(scope="module")
def dataset(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos, converted by the command line."""
    out = tmp_path_factory.mktemp("data") / "photos"
    done = shardio_command(
        "convert", "imagefolder", photos, out, "--to", "hdf5", "--shard-size", "10KB", "--workers", 2
    )
    assert done.returncode == 0, done.stderr
    assert f"{out}: 24 samples in " in done.stdout
    assert "writing 24/24 samples" in done.stderr  # plain lines, because there is no terminal
    assert "\x1b" not in done.stdout + done.stderr
    return out


def test_info(dataset: Path) -> None:
    """`info` prints a table, or JSON with --json."""
    table = shardio_command("info", dataset).stdout
    assert "field image" in table
    assert "RGB, sizes differ" in table
    told = json.loads(shardio_command("info", dataset, "--json").stdout)
    ds = shardio.open(dataset)
    assert (told["samples"], told["container"], told["digest"]) == (24, "hdf5", ds.digest)
    assert told["metadata"]["classes"] == ["cat", "dog"]
    assert told["shards"] == len(ds.manifest.shards)


def test_commands_know_boxes(tmp_path: Path) -> None:
    """`info` says what lies on which image, `stats` counts it, and `show` draws it, stored and in a rank's batch."""
    fields = {
        "image": "image",
        "boxes": shardio.Field("array", "float32", (None, 4), role="boxes", on="image"),
        "labels": shardio.Field("array", "int64", (None,), per="boxes"),
    }
    rows = (
        {
            "image": jpeg(40, 50, seed=n),
            "boxes": np.array([[1, 2, 30, 35]] * n, np.float32).reshape(-1, 4),
            "labels": np.arange(n),
        }
        for n in range(3)
    )
    data = packed(tmp_path / "d", rows, fields, metadata={"classes": ["cat", "dog"]}).path
    told = " ".join(shardio_command("info", data).stdout.split())
    assert "field boxes array, float32, [any, 4], boxes on image" in told
    assert "field labels array, int64, [any], one per boxes" in told
    view = shardio_command("info", data, "--where", "count(boxes) > 1").stdout
    assert re.search(r"^samples +1$", view, re.MULTILINE)
    done = shardio_command("stats", data, "--json", tmp_path / "stats.json")
    assert "images without" in done.stdout, done.stderr
    found = json.loads((tmp_path / "stats.json").read_text())["fields"]
    assert found["boxes"]["instances"] == {"empty": 1, "areas": {"small": 3, "medium": 0, "large": 0}}
    assert found["labels"]["classes"]["names"] == ["cat", "dog"]
    for options in ([], ["--batches", "--augment", "--batch-size", 3]):
        done = shardio_command("show", data, "-o", tmp_path / "s.png", *options)
        assert "3 samples" in done.stdout, done.stderr


def test_verify_tells_programs_as_json(dataset: Path, tmp_path: Path) -> None:
    """`verify` writes every problem as JSON to a file or to standard output, with the same exit code; or in words."""
    copy, told = tmp_path / "copy", tmp_path / "told.json"
    subprocess.run(["cp", "-r", str(dataset), str(copy)], check=True)
    ds = shardio.open(copy)
    shard = copy / ds.manifest.shards.names[1]
    places = ds.manifest.shards.starts[1:3].tolist()
    data = shard.read_bytes()
    for number in range(places[0], places[1]):
        image = ds[number]["image"]
        data = data.replace(image[-20:], bytes(20))
    shard.write_bytes(data)
    done = shardio_command("verify", copy, "--deep", "--most", 1, "--workers", 2, "--json", told)
    assert done.returncode == 1
    found = json.loads(told.read_text())
    assert (found["dataset"], found["deep"], found["samples"]) == (str(copy), True, 24)
    of_file, of_sample, more = found["problems"]
    assert of_file["shard"] == of_sample["shard"] == shard.name
    assert (of_sample["row"], of_sample["sample"]) == (0, places[0])
    assert of_sample["key"] == ds[places[0]]["key"]
    assert more["count"] == places[1] - places[0] - 1
    assert done.stdout.splitlines()[2] == f"{shard.name}: {more['reason']}"
    count = 1 + places[1] - places[0]
    assert done.stderr.splitlines()[-1] == f"shardio: {copy}: {count} problems in {found['shards']} shards"
    alone = shardio_command("verify", copy, "--deep", "--most", 1, "--json", "-")
    assert (alone.returncode, json.loads(alone.stdout)) == (1, found)
    assert "shards are intact, 24 samples, digest matches" in shardio_command("verify", dataset, "--deep").stdout
    whole = shardio_command("verify", dataset, "--json", "-")
    assert (whole.returncode, json.loads(whole.stdout)["problems"]) == (0, [])


def test_stats(dataset: Path, tmp_path: Path) -> None:
    """`stats` writes a report, and every figure as JSON."""
    figures = tmp_path / "stats.json"
    done = shardio_command("stats", dataset, "--json", figures, "--sample", 10)
    assert done.returncode == 0, done.stderr
    assert "decoding 10/10 samples" in done.stderr
    lines = done.stdout.splitlines()
    assert "image: image RGB" in lines
    assert "  classes      2, of 12 samples each" in lines
    (pasted,) = re.findall(r"shardio\.Normalize\(\((.*)\), \((.*)\)\)", done.stdout)
    told = json.loads(figures.read_text())
    channels = told["fields"]["image"]["images"]["channels"]
    assert pasted[0] == ", ".join(f"{channel['mean']:.4f}" for channel in channels)
    assert (told["samples"], told["sampled"]) == (24, 10)
    assert told["fields"]["image"]["images"]["heights"]["max"] == 24
    alone = shardio_command("stats", dataset, "--json", "-", "--sample", 10, "--workers", 1)
    assert json.loads(alone.stdout) == told
    options = ["--sample", "all", "--fill-value", "label=1", "--fill-value", "label=7"]
    whole = shardio_command("stats", dataset, "--json", "-", *options)
    told = json.loads(whole.stdout)
    assert (told["sampled"], told["fields"]["image"]["images"]["channels"][0]["error"]) == (24, 0)
    label = told["fields"]["label"]
    assert (label["fill_values"], label["values"]["filled"], label["values"]["count"]) == ([1, 7], 12, 12)


def test_show(dataset: Path, tmp_path: Path) -> None:
    """`show` writes a contact sheet with the requested number of tiles."""
    sheet = tmp_path / "sheet.png"
    done = shardio_command("show", dataset, "-o", sheet, "--augment", "--samples", "5", "--columns", "2")
    assert done.returncode == 0, done.stderr
    picture = cv2.imread(str(sheet))
    assert picture.shape == (3 * 184 + 4, 2 * 164 + 4, 3)
    assert picture.std() > 10


def test_show_batches(dataset: Path, tmp_path: Path) -> None:
    """`show --batches` draws the batches of the ranks in a step, with the transforms of training."""
    sheet = tmp_path / "step.png"
    job = ["--world", 2, "--batch-size", 5, "--tail", "pad", "--step", 1, "--steps", 2]
    done = shardio_command("show", dataset, "-o", sheet, "--batches", "--augment", *job)
    assert (done.returncode, done.stdout) == (0, f"{sheet}: 20 samples of {dataset}, as ranks get them\n"), done.stderr
    picture = cv2.imread(str(sheet))
    block = 20 + 4 + 160 + 2 * 20 + 4  # heading, image, two lines
    assert picture.shape[0] == 4 * block
    packed(tmp_path / "arrays", [{"grid": np.zeros((2, 2))}])
    for option, message in (("--augment", "--augment transforms images"), ("--seed=3", "--batches draws arrays, too")):
        done = shardio_command("show", tmp_path / "arrays", option)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    invalid = (picture == (30, 30, 220)).all(axis=2).any(axis=1)  # frames, as BGR
    assert not invalid[: 2 * block].any()
    assert invalid[2 * block :].any()


@pytest.mark.parametrize(
    ("args", "message", "code"),
    [
        (("convert",), "Missing command", 2),  # no arguments
        (("nope",), "No such command 'nope'", 2),
        (("info",), "Missing argument", 2),
        (("info", "nowhere"), "nowhere: no such directory or shardio.json", 1),
        (("convert", "nope", ".", "out"), "is called 'nope'; installed: arrayfolder, audiofolder, cifar, coco", 2),
        (("convert", "a", "out"), "the kind of source comes first, as in 'imagefolder a'", 2),
        (("convert", "imagefolder", ".", "out", "--container", "tar"), "No such option: --container; it is --to", 2),
        (("convert", "hdf5", "a.h5", "b.h5", "out"), "(out); quote a pattern, as in 'data/*', so that the shell", 2),
        (("convert", "imagefolder", ".", "out", "--quality", "80"), "--quality goes with --resize-shorter", 2),
        (("convert", "imagefolder", ".", "out", "--max-bad", "2"), "--max-bad goes with --on-error skip", 2),
        (("merge", "a", "out"), "merge takes at least two datasets and OUT", 2),
        (("index", "a", "-o", "out"), "a: found no tar, TFRecord, LMDB, HDF5 or Zarr file", 1),
        (("convert", "imagefolder", ".", "out", "--shard-size", "-3"), "--shard-size must be a size", 2),
        (("convert", "imagefolder", ".", "out", "--to", "memory"), "'memory' is not one of 'tar', 'hdf5', 'lmdb'", 2),
        (("bench", "nowhere", "--threads", "x"), "--threads must be auto or an integer, got 'x'", 2),
        (("bench", "nowhere", "--image-size", "0"), "--image-size must be an integer of at least 1, got 0", 2),
        (("bench", "nowhere", "--json", "no/x.json"), "--json must be a file in a writable folder, got no/x.json", 2),
        (("bench", "nowhere", "--html", "a/x.png/y"), "--html must be a file in a writable folder, got a/x.png/y", 2),
        (("bench", "a", "--find-limit", "--storage"), "--find-limit takes no --storage: run the command once", 2),
        (("bench", "a", "--find-limit"), "--find-limit needs an accelerator: give --emulate retinanet-b200 or", 2),
        (("convert", "idx", "a", "out", "--to"), "'--to' requires an argument. (see shardio convert idx --help)", 2),
        (("--version=3",), "Option '--version' does not take a value. (see shardio --help)", 2),
        (("stats", "nowhere", "--fill-value", "3"), "--fill-value must be a field and a number such as grid=-32768", 2),
        (("show", "nowhere", "--steps", "2"), "--steps goes with --batches", 2),
        (("show", "nowhere", "--shuffle", "none"), "--shuffle goes with --batches", 2),
        (("stats", "nowhere", "--channel-axis", "x=y"), "--channel-axis must be a field and an axis such as", 2),
    ],
)  # fmt: skip
def test_mistakes_end_in_one_line(
    args: tuple[str, ...],
    message: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A mistake ends in one line on stderr, nothing on stdout, a non-zero exit code, and no traceback."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    found, printed, error = ended(capsys, *args)
    assert (printed, found) == ("", code), error
    (line,) = error.splitlines()
    assert line.startswith("shardio: ")
    assert message in line


def test_a_terminal_gets_a_progress_bar(photos: Path, tmp_path: Path) -> None:
    """On a terminal long work shows a progress bar with its rate."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "shardio", "convert", "imagefolder", str(photos), str(tmp_path / "out")]
    process = subprocess.Popen(command, stderr=follower, stdout=subprocess.DEVNULL, env=os.environ | {"TERM": "xterm"})
    os.close(follower)
    shown = b""
    while True:
        try:
            block = os.read(leader, 4096)
        except OSError:  # Linux reports that the other side has closed
            break
        if not block:
            break
        shown += block
    os.close(leader)
    assert process.wait() == 0
    assert b"samples/s" in shown
    assert b"24/24" in shown


def test_every_command_says_what_it_does_with_examples() -> None:
    """--help of each command has examples that begin with `shardio` or a launcher, and lists the sources."""
    overview = shardio_command("--help").stdout
    root: Any = typer.main.get_command(app)
    for name in root.commands:
        assert name in overview
        told = here(name, "--help")
        assert "Examples:" in told
        assert f"shardio {name} " in told
    listed = shardio_command("convert", "--list")
    assert listed.returncode == 0
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    assert names == list(sources.names())
    assert max(map(len, listed.stdout.splitlines())) <= 120
    for name in names:
        told = here("convert", name, "--help")
        assert f"  shardio convert {name} " in told, name
        assert "cannot be loaded" not in told
        for option in re.findall(r"^  (--[a-z-]+)[^\n]*\n?", told, re.MULTILINE):
            text = told[told.index(f"\n  {option}") :][1:].split("\n  --")[0]
            assert len(text.split()) > 2, f"{name} {option} is not documented"


def test_ctrl_c_ends_in_one_line(tmp_path: Path) -> None:
    """An interrupt during a conversion prints one line, exits with code 130, and leaves no dataset."""
    root = tmp_path / "photos" / "a"
    root.mkdir(parents=True)
    data = jpeg(40, 50)
    for number in range(20_000):
        (root / f"{number}.jpg").write_bytes(data)
    command = [sys.executable, "-m", "shardio", "convert", "imagefolder", str(root.parent), str(tmp_path / "out")]
    process = subprocess.Popen(
        [*command, "--workers", "2", "--shard-size", "100KB"], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not unfinished(tmp_path / "out", "shards/shard-*"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # to all processes of the job, as a terminal does
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.splitlines()[-1] == "shardio: interrupted"
    assert "Traceback" not in told
    assert not (tmp_path / "out" / "shardio.json").exists()
