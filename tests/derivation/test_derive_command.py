"""`shardio derive`: options, errors and results of the command."""

import json
import re
import shlex
from pathlib import Path

import pytest
from _cli import ended, here
from _datasets import photos

import shardio

CODE = """
model = 3

def mean(batch):
    return {"color": batch["image"].float().mean(dim=(1, 2))}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module and some photos, in which the command runs."""
    (tmp_path / "colors.py").write_text(CODE)
    photos(24, tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


GIVEN = ("derive", "data", "out", "--call", "colors:mean", "--version", "1", "--batch-size", "8", "--resize", "16")


def test_it_derives_and_tells(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints where the values are, and how fast they came; a second run with --if-missing computes nothing."""
    code, out, err = ended(capsys, *GIVEN, "--fields", "image", "--check", 1, "--shard-samples", 8)
    assert code == 0, err
    assert out.startswith("out: 24 samples in 3 hdf5 shards, ")
    assert "samples/s; this rank waited for input" in out
    assert "note: 0 of 1 batches differ, computed twice" in err
    made = shardio.open("out")
    crop = [shardio.Resize(16), shardio.CenterCrop(16)]
    batch = next(iter(shardio.Loader("data", 24, shuffle=None, transforms=crop)))
    assert made.read(range(24))["color"] == pytest.approx(batch["image"].float().mean(dim=(1, 2)).numpy())
    assert f"{shardio.open('data').digest} by colors:mean, version 1\n" in here("info", "out")
    assert ended(capsys, *GIVEN, "--fields", "image", "--if-missing")[1] == f"{out.splitlines()[0]}\n"


def test_json_has_the_figures() -> None:
    """--json writes them instead of text; conditions choose samples; --to chooses the container."""
    found = json.loads(here(*GIVEN, "--json", "-", "--where", "label < 5", "--to", "lmdb"))
    assert (found["samples"], found["shards"], found["without_values"]) == (14, 2, 0)
    assert found["fields"] == {"color": "array, float32, [3]"}
    assert found["digest"] == shardio.open("out").digest
    assert 0 <= found["waiting"] <= 1
    assert found["seconds"] > 0


def test_every_example_works() -> None:
    """Each line of the help can be copied as it is, if the function and the photos are there."""
    photos(24, Path("data/photos"), classes=10)
    examples = re.findall(r"^    (?:srun )?shardio (derive .*)$", here("derive", "--help"), re.MULTILINE)
    assert len(examples) == 4
    for line in examples:
        here(*shlex.split(line))
        assert len(shardio.open(shlex.split(line)[2])) == (14 if "--where" in line else 24)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--call", "colors:median"), "--call must be MODULE:FUNCTION, got 'colors:median': "),
        (("--call", "colours:mean"), "--call must be MODULE:FUNCTION, got 'colours:mean': No module named 'colours'"),
        (("--call", "colors:model"), "--call must name a function, and 'colors:model' is int"),
        (("--call", "colors"), "--call must name a function, and 'colors' is module"),
        (("--call", "!"), "--call must be MODULE:FUNCTION, got '!'"),
        (("--version", ""), "--version must be text, such as '1', got ''"),
        (("--shard-samples", "0"), "--shard-samples must be at least 1, got 0"),
        (("--max-bad", "-1"), "--max-bad must be a count"),
        (("--json", "no/x.json"), "--json must be a file in a writable folder"),
        (("--fields", "pixels"), "pixels"),
    ],
)
def test_errors_name_options(capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str) -> None:
    """Each error is one line, names the option as it is typed, and leaves no output; the exit code is 2."""
    code, _, err = ended(capsys, *GIVEN, *options)
    assert code == 2
    assert message in err
    assert not Path("out").exists()


def test_another_version_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Both versions are named, and the option that replaces the dataset."""
    here(*GIVEN)
    _, _, err = ended(capsys, *GIVEN, "--version", "2", "--resume")
    assert "has version '1', not '2': give the same source and options, or start over with --overwrite" in err
    here(*GIVEN, "--version", "2", "--overwrite")
    assert shardio.open("out").manifest.conversion["derived"]["version"] == "2"
