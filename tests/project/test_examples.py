"""The examples run, learn, and resume."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import _forked
import numpy as np
import pytest
import torch
from _cli import python
from _time_limit import wait_until
from numpy.typing import NDArray

import shardio
from shardio.conversion import source
from shardio.conversion.api import convert

EXAMPLES = Path(__file__).parents[2] / "examples"
ENDS, SEEN = (str(Path(__file__).parents[1] / name) for name in ("_ends.py", "_seen.py"))
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", ENDS]


@pytest.fixture(scope="module")
def fashion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example images as a dataset."""
    path = tmp_path_factory.mktemp("examples") / "fashion"
    convert(source.find("idx")(EXAMPLES / "fashion-mnist" / "train"), path, container="hdf5")
    return path


@pytest.fixture(scope="module")
def val(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """405 other images, which fill no last batch of the examples."""
    path = tmp_path_factory.mktemp("examples") / "val"
    convert(source.find("idx")(EXAMPLES / "fashion-mnist" / "test"), path, container="hdf5", limit=405)
    return path


def output(folder: Path, *words: str | Path) -> str:
    """Run Python in `folder`; return what it printed."""
    done = python(*words, cwd=folder, env=ENVIRONMENT, timeout=200)
    return done.stdout


def run(folder: Path, *words: str | Path) -> list[float]:
    """Run Python in `folder`; return the losses that it printed, by epoch."""
    found = {
        int(epoch): float(loss)
        for epoch, loss in re.findall(r"^epoch (\d+): loss (\S+?),?(?: .*)?$", output(folder, *words), re.M)
    }
    return [found[epoch] for epoch in sorted(found)]


@pytest.mark.long
def test_plain_pytorch_on_two_ranks_and_again_on_one(fashion: Path, tmp_path: Path) -> None:
    """After two epochs on two ranks, one rank resumes with the third. Any ranks count each sample once."""
    first = run(tmp_path, *TORCHRUN, EXAMPLES / "train_ddp.py", fashion, "--epochs", "2")
    assert len(first) == 2
    assert first[1] < first[0] < 2.0
    (third,) = run(tmp_path, EXAMPLES / "train_ddp.py", fashion, "--epochs", "3")
    assert third < first[1]
    evaluate = EXAMPLES / "evaluate_ddp.py"
    alone = output(tmp_path, evaluate, fashion, "--batch-size", "5000")
    assert re.fullmatch(r"accuracy 0\.[5-9]\d+: \d+ of 5000\n", alone)
    assert output(tmp_path, *TORCHRUN, evaluate, fashion, "--batch-size", "97") == alone


@pytest.mark.long
def test_plain_pytorch_goes_on_where_it_was_killed(fashion: Path, tmp_path: Path) -> None:
    """A run that was killed and goes on ends with the weights, momentum and loader state of one that was not."""
    words: list[str | Path] = [
        EXAMPLES / "train_ddp.py",
        fashion,
        "--epochs",
        "1",
        "--save-every",
        "10",
        "--checkpoint",
    ]
    run(tmp_path, *words, "whole.pt")
    part = tmp_path / "part.pt"
    with subprocess.Popen([sys.executable, *words, part], env=ENVIRONMENT, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: part.exists() or process.poll() is not None, seconds=100)
        process.kill()
    begun = torch.load(part, weights_only=True)["loader"]
    assert begun["epoch"] == 0
    assert begun["position"] % 500 == 0
    run(tmp_path, *words, part)
    whole, ended = (torch.load(path, weights_only=True) for path in (tmp_path / "whole.pt", part))
    assert ended["loader"] == whole["loader"]
    assert all(torch.equal(ended["model"][name], whole["model"][name]) for name in whole["model"])
    momenta = [[one["momentum_buffer"] for one in end["optimizer"]["state"].values()] for end in (whole, ended)]
    assert all(torch.equal(a, b) for a, b in zip(*momenta, strict=True))


@pytest.mark.long
def test_dataloader(fashion: Path, tmp_path: Path) -> None:
    """torch's DataLoader works with worker processes and a sampler."""
    first, second = run(tmp_path, EXAMPLES / "train_dataloader.py", fashion)
    assert second < first < 2.0


@pytest.mark.long
def test_lightning(fashion: Path, tmp_path: Path) -> None:
    """Training resumed in the middle of the second epoch ends with the same weights, to the last bit.

    Two devices resume there, too, and validate each sample once.
    """
    convert(source.find("idx")(EXAMPLES / "fashion-mnist" / "test"), tmp_path / "val", container="hdf5")
    words = [EXAMPLES / "train_lightning.py", fashion, "--val", "val"]
    whole = run(tmp_path, *words, "--output", "whole")
    assert whole[1] < whole[0] < 2.0
    resume = ["--checkpoint", "whole/step=150.ckpt"]
    run(tmp_path, *words, *resume, "--output", "part")
    ends = [torch.load(tmp_path / f"{name}/step=200.ckpt", weights_only=True) for name in ("whole", "part")]
    weights = [end["state_dict"].values() for end in ends]
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    printed = output(tmp_path, *words, *resume, "--devices", "2")
    assert re.search(r"^epoch 1: loss 0\.\d+, accuracy 0\.[78]\d\d0$", printed, re.M)  # of 1,000 samples


@pytest.mark.long
def test_accelerate_on_two_ranks(fashion: Path, val: Path, tmp_path: Path) -> None:
    """The checkpoint holds the loader's state, and the next run resumes with the next epoch.

    Any number of ranks counts each sample once.
    """
    script = EXAMPLES / "train_accelerate.py"
    first, second = run(tmp_path, *TORCHRUN, script, fashion)
    assert second < first < 2.0
    printed = output(tmp_path, *TORCHRUN, script, fashion, "--epochs", "3", "--val", val)
    third = re.search(r"^epoch 2: loss (\S+)$", printed, re.M)
    assert float(third[1]) < second
    alone = output(tmp_path, script, fashion, "--epochs", "3", "--val", val)
    assert re.fullmatch(r"accuracy 0\.[5-9]\d+: \d+ of 405\n", alone)
    assert printed.endswith(alone)


@pytest.mark.long
def test_transformers(fashion: Path, val: Path, tmp_path: Path) -> None:
    """Training resumed in the middle of the second epoch ends with the same weights, to the last bit.

    Any number of ranks counts each sample once.
    """
    pytest.importorskip("transformers")
    script = EXAMPLES / "train_transformers.py"
    first, second = run(tmp_path, script, fashion, "--output", "whole")
    assert second < first < 2.0
    shutil.copytree(tmp_path / "whole/checkpoint-150", tmp_path / "part/checkpoint-150")
    resume = [script, fashion, "--val", val, "--resume", "--output"]
    alone = output(tmp_path, *resume, "part")
    ends = [(tmp_path / name / "checkpoint-200/model.safetensors").read_bytes() for name in ("whole", "part")]
    assert ends[0] == ends[1]
    assert run(tmp_path, *TORCHRUN, script, fashion, "--output", "ranks")[1] < 2.0
    found = r"val loss 0\.\d+, accuracy 0\.[5-9]\d+: \d+ of 405\n"
    two = output(tmp_path, *TORCHRUN, *resume, "part")  # whose last checkpoint is the end of the training
    assert re.findall(found, two) == re.findall(found, alone) != []


@pytest.mark.long
def test_jax_on_two_devices_and_in_two_processes(fashion: Path, tmp_path: Path) -> None:
    """A run on two devices that was stopped and goes on has the weights of one that was not, to the last bit.

    So have two processes that go on, to rounding.
    """
    pytest.importorskip("jaxlib")
    words = [EXAMPLES / "train_jax.py", fashion, "--devices", "2", "--checkpoint"]
    first, second = run(tmp_path, *words, "whole.npz")
    assert second < first < 2.0
    assert run(tmp_path, *words, "part.npz", "--stop-after", "70") == [first]
    shutil.copy(tmp_path / "part.npz", tmp_path / "processes.npz")
    run(tmp_path, *words, "part.npz")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    several = [*words[:2], "--coordinator", f"127.0.0.1:{port}", "--checkpoint", "processes.npz", "--process"]
    commands = [[sys.executable, *several, str(number), "2"] for number in range(2)]
    processes = [subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT) for command in commands]
    assert [process.wait(timeout=200) for process in processes] == [0, 0]
    whole, part, other = (np.load(tmp_path / f"{name}.npz") for name in ("whole", "part", "processes"))
    assert whole["loader"] == part["loader"]
    for name in ("in", "out"):
        assert np.array_equal(whole[name], part[name])
        assert np.allclose(whole[name], other[name], atol=1e-5)


@pytest.mark.long
def test_a_language_model_goes_on_with_other_ranks(tmp_path: Path) -> None:
    """Two ranks stop midway, and one goes on: they see the epoch of a run that wasn't stopped, with its loss."""
    pytest.importorskip("tokenizers")
    text, book = tmp_path / "book.txt", tmp_path / "book"
    text.write_text("\n\n".join(path.read_text() for path in sorted((EXAMPLES.parent / "docs").glob("*.md"))))
    output(tmp_path, EXAMPLES / "make_tokenizer.py", text)
    given = {"tokenizer": tmp_path / "tokenizer.json", "paragraphs": True}
    convert(source.find("text")(text, **given), book, container="hdf5")
    words = [EXAMPLES / "language_model.py", book, "--batch-size", "32"]
    whole = steps(tmp_path / "whole", SEEN, *words)
    before = steps(tmp_path / "part", *TORCHRUN, SEEN, *words, "--stop-after", str(len(whole) // 2))
    rows_before = seen(tmp_path / "part")
    after = steps(tmp_path / "part", SEEN, *words)
    assert list(before | after) == list(whole)
    assert len(before) == len(whole) // 2
    assert (before | after) == pytest.approx(whole, rel=0.01)
    assert whole[len(whole)] < 0.8 * whole[1]

    rows = seen(tmp_path / "part")
    assert len(rows_before) == 32 * len(before)
    assert rows.keys() == seen(tmp_path / "whole").keys()
    assert len(rows) == 32 * len(whole) == sum(len(one) == 65 for one in rows.values())
    documents = shardio.open(book)
    tokens = np.concatenate([documents[number]["tokens"] for number in range(len(documents))])
    assert len(tokens) // 65 // 32 == len(whole)
    for place, row in rows.items():
        assert np.array_equal(row, tokens.take(np.arange(place, place + 65), mode="wrap"))
    gaps = np.diff(sorted(rows), append=min(rows) + len(tokens))
    assert gaps.min() >= 65  # no token is in two rows


def steps(folder: Path, *words: str | Path) -> dict[int, float]:
    """Run Python in `folder`, which it makes; return the losses that it printed, by step."""
    folder.mkdir(exist_ok=True)
    found = re.findall(r"^step (\d+): loss (\S+)$", output(folder, *words), re.M)
    return {int(step): float(loss) for step, loss in found}


def seen(folder: Path) -> dict[int, NDArray[np.int64]]:
    """The rows that processes in `folder` have seen, by the places at which they begin. None comes twice."""
    rows: dict[int, NDArray[np.int64]] = {}
    for path in folder.glob("seen-*.npz"):
        with np.load(path) as saved:
            found = dict(zip(saved["places"].tolist(), saved["rows"], strict=True))
        assert not rows.keys() & found.keys()
        rows |= found
    return rows


@pytest.mark.long
def test_a_detector_goes_on_with_other_ranks(tmp_path: Path) -> None:
    """Two ranks stop in the middle of an epoch, and one goes on to the stated mAP.

    Any number of ranks measures it on each image once.
    """
    pytest.importorskip("pycocotools")
    words = [EXAMPLES / "train_detector.py", "shapes"]
    assert "mAP" not in output(tmp_path, *TORCHRUN, *words, "--stop-after", "200")
    begun = torch.load(tmp_path / "detector.pt", weights_only=True)["loader"]
    assert (begun["epoch"], begun["position"]) == (2, 50 * 16)
    alone = output(tmp_path, *words)
    assert re.findall(r"^epoch (\d)", alone, re.M) == ["2", "3", "4", "5"]
    together = output(tmp_path, *TORCHRUN, *words)  # whose checkpoint is the end of the training
    measured = [re.search(r"mAP (0\.\d+) on (\d+) images\n$", printed) for printed in (alone, together)]
    assert [found[2] for found in measured] == ["203", "203"]
    assert all(float(found[1]) >= 0.7 for found in measured)
    assert float(measured[0][1]) == pytest.approx(float(measured[1][1]), abs=0.002)  # of batches of other sizes


def actions(folder: Path) -> list[str]:
    """Make a dataset of clips in `folder`; return its classes."""
    output(folder, EXAMPLES / "make_clips.py", "actions", "--videos", "40")
    classes = sorted(path.name for path in (folder / "actions").iterdir())
    for part in ("train", "val"):
        with shardio.create(
            folder / "data" / part, fields={"video": "video", "label": "int64"}, metadata={"classes": classes}
        ) as writer:
            for path in sorted((folder / "actions").rglob("*.mp4")):
                if (int(path.stem) % 5 == 0) == (part == "val"):
                    writer.append({"video": path.read_bytes(), "label": classes.index(path.parent.name)})
    return classes


@pytest.mark.long
def test_actions_of_a_run_that_was_killed(tmp_path: Path) -> None:
    """Two ranks are killed, and one goes on to a high accuracy: clips before and after are those of an epoch.

    Any number of ranks measures the accuracy on each video once.
    """
    pytest.importorskip("av")
    assert len(actions(tmp_path)) == 4
    script, words = EXAMPLES / "train_action.py", ["data", "--save-every", "3", "--epochs", "12"]
    whole = tmp_path / "whole"
    whole.mkdir()
    output(whole, SEEN, script, tmp_path / "data", "--stop-after", "8")
    command = [sys.executable, *TORCHRUN[:-1], SEEN, script, *words]
    place = tmp_path / "action.pt"
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL) as launcher:
        try:
            wait_until(lambda: place.exists() or launcher.poll() is not None, seconds=100)
        finally:
            for rank in {int(path.stem.split("-")[1]) for path in tmp_path.glob("seen-*.npz")}:
                os.kill(rank, signal.SIGKILL)
            launcher.kill()
    state = torch.load(place, weights_only=True)["loader"]
    assert state["epoch"] == 0
    done = state["position"] // 16
    assert 0 < done < 8
    before = taken(tmp_path, done)
    alone = output(tmp_path, SEEN, script, *words)
    after = taken(tmp_path, 8 - done)
    expected = taken(whole, 8)
    assert {*before} | {*after} == {*expected} == {*range(128)}
    assert len(before) == 16 * done
    assert all((clip == expected[place]).all() for place, clip in (before | after).items())
    assert float(re.search(r"^accuracy (\d\.\d+) on 32 videos$", alone, re.M)[1]) >= 0.9
    assert output(tmp_path, *TORCHRUN, script, *words) == alone.splitlines(keepends=True)[-1]


def taken(folder: Path, steps: int) -> dict[int, NDArray[np.float32]]:
    """Return the clips of the first steps of each process that were written to a folder, and remove the files."""
    found: dict[int, NDArray[np.float32]] = {}
    for path in sorted(folder.glob("seen-*.npz")):
        if int(path.stem.split("-")[2]) < steps:
            with np.load(path) as saved:
                places = saved["places"].tolist()
                assert found.keys().isdisjoint(places)
                found |= dict(zip(places, saved["rows"], strict=True))
        path.unlink()
    return found


@pytest.mark.long
def test_features_of_a_run_that_was_killed(tmp_path: Path) -> None:
    """Two ranks that derive are killed, and one goes on: the features are those of a run that was not, to the last bit.

    So is the probe on them, which tells the shapes apart, on two ranks as well.
    """
    script = EXAMPLES / "train_probe.py"
    whole, part = tmp_path / "whole", tmp_path / "part"
    expected = output(tmp_path, script, whole / "shapes")
    command = [sys.executable, *TORCHRUN, script, part / "shapes"]
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL) as launcher:
        try:
            wait_until(lambda: recorded(part) or launcher.poll() is not None, seconds=100)
        finally:
            children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text()
            for rank in map(int, children.split()):
                os.kill(rank, signal.SIGKILL)
            launcher.kill()
    assert 0 < recorded(part) < 20
    assert not (part / "shapes-features" / "shardio.json").exists()
    assert output(tmp_path, script, part / "shapes") == expected
    shards = [sorted((folder / "shapes-features").glob("*.h5")) for folder in (whole, part)]
    assert [path.name for path in shards[0]] == [path.name for path in shards[1]]
    assert len(shards[0]) == 20
    assert all(one.read_bytes() == other.read_bytes() for one, other in zip(*shards, strict=True))
    accuracy = r"accuracy (0\.\d+): \d+ of 400\nmistaken: a (small|large) (disc|square|triangle)"
    for told in (expected, output(tmp_path, *TORCHRUN, script, part / "shapes")):
        assert float(re.search(accuracy, told)[1]) >= 0.85


def recorded(folder: Path) -> int:
    """The number of shards of features in a folder that are finished."""
    return len([*folder.glob("shapes-features/.converting/*/*.done")])


@pytest.mark.long
def test_point_clouds_padded_and_end_to_end(tmp_path: Path) -> None:
    """A model learns the same from padded clouds as from clouds end to end."""
    padded = run(tmp_path, EXAMPLES / "point_clouds.py", "clouds", "--epochs", "3")
    assert run(
        tmp_path, EXAMPLES / "point_clouds.py", "clouds", "--epochs", "3", "--collate", "ragged"
    ) == pytest.approx(padded, rel=0.02)
    assert padded[2] < 0.6 * padded[0]


@pytest.mark.long
def test_windows_of_time_series(tmp_path: Path) -> None:
    """A model learns from random windows of series of any length."""
    losses = run(tmp_path, EXAMPLES / "time_series.py", "series", "--epochs", "5")
    assert losses[4] < 0.2 * losses[0]


@pytest.mark.long
def test_lists_of_images(fashion: Path, tmp_path: Path) -> None:
    """A model learns from lists of images, which are flipped and normalised."""
    losses = run(tmp_path, EXAMPLES / "image_lists.py", fashion, "lists")
    assert losses[3] < 0.5 * losses[0]


@pytest.mark.long
def test_the_demo(tmp_path: Path) -> None:
    """`scripts/demo` goes from raw images to a trained model; all containers have the same digest."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(EXAMPLES.parent / "scripts" / "demo", tmp_path / "scripts")
    (tmp_path / "scripts" / "setup").symlink_to(str(shutil.which("true")))
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(_forked.commands())
    (tmp_path / "examples").symlink_to(EXAMPLES)
    environ = ENVIRONMENT | {"EPOCHS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([tmp_path / "scripts" / "demo"], env=environ, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    digests = re.findall(r"5000 samples in .* digest (\S+)", done.stdout)
    assert (len(digests), len(set(digests))) == (3, 1)
    assert (tmp_path / "demo-output" / "run" / "result.json").exists()
