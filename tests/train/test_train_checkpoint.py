"""Checkpoints are written completely or not at all, and resuming from one loses nothing."""

import errno
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _cli import ended
from _small_disk import small_disk
from _tiny import assert_same_weights, config, dataset, run_until
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio.errors import ConfigError, StateMismatch
from shardio.order.plan import Plan
from shardio.system import replacement
from shardio.train import TrainConfig, checkpoint, run
from shardio.train.checkpoint import Checkpoint, Checkpoints, TrainingPosition, save_archive
from shardio.train.learner import Learner

PLACE = {"epoch": 1, "samples": 24, "step": 6, "loss": 0.0, "score": 0.0, "bad": 0, "best_score": 0.5}
"""The place of `made`, as it is stored."""


def made(**overrides: Any) -> Checkpoint:
    values: dict[str, Any] = {
        "place": TrainingPosition(epoch=1, samples=24, step=6, best_score=0.5),
        "model": {"weight": torch.arange(3.0)},
        "optimizer": {"state": {}, "param_groups": []},
        "scaler": {},
        "average": {},
        "hook": {},
        "random": {},
        "loader": {"position": 24},
        "shape": {"model": "resnet"},
        "config": {"epochs": 2},
    }
    return Checkpoint(**values | overrides)


def saved(folder: Path, **overrides: Any) -> Path:
    """The path of a minimal checkpoint, written to `folder`."""
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(made(**overrides))
    return folder / "last.pt"


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """A run of one epoch, which tests only read."""
    made = config(tmp_path_factory.mktemp("begun"), epochs=1)
    run(made)
    return made


def damage(path: Path, at: int = -200) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def test_torch_reads_a_checkpoint(tmp_path: Path) -> None:
    """Every part of a checkpoint is loaded again; it is an archive that torch.load and zip tools read, too."""
    path = saved(tmp_path, optimizer=torch.nn.BatchNorm1d(2).state_dict())
    assert os.listdir(tmp_path) == ["last.pt"]
    loaded = checkpoint.load(path)
    assert loaded.optimizer._metadata[""] == {"version": 2}  # type: ignore[attr-defined]  # which modules need to load it
    assert torch.equal(loaded.model["weight"], torch.arange(3.0))
    assert replace(loaded, model={}, optimizer={}) == replace(made(), model={}, optimizer={})
    for content in (torch.load(path, weights_only=True), torch.load(path, weights_only=True, mmap=True)):
        assert torch.equal(content["model"]["weight"], torch.arange(3.0))
        assert content["place"] == PLACE
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.comment.startswith(b"shardio xxh3-128 ")


def test_every_byte_counts(tmp_path: Path) -> None:
    """A checkpoint with one flipped bit, in any byte, is refused; so is one of another length."""
    path, random = saved(tmp_path), np.random.default_rng(0)
    whole = path.read_bytes()

    def assert_refused() -> None:
        with pytest.raises(StateMismatch, match=r"last\.pt: (its checksum|it does not end with a checksum)"):
            checkpoint.load(path)

    with path.open("r+b", buffering=0) as file:
        for at, bit in enumerate(random.integers(0, 8, len(whole)).tolist()):
            os.pwrite(file.fileno(), bytes([whole[at] ^ 1 << bit]), at)
            assert_refused()
            os.pwrite(file.fileno(), whole[at : at + 1], at)
    for size in range(0, len(whole), 100):
        for content in (whole[:size], whole + whole[:1] * (size + 1), whole[size + 1 :]):
            path.write_bytes(content)
            assert_refused()


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_no_damage_is_loaded(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Blocks that are swapped, zeroed, repeated or left out are found, whatever their size."""
    folder = tmp_path_factory.mktemp("checkpoint")
    path = saved(folder)
    whole = path.read_bytes()
    size = data.draw(st.sampled_from([1, 16, 512, 1024]))
    blocks = [whole[start : start + size] for start in range(0, len(whole), size)]
    one, two = (data.draw(st.integers(0, len(blocks) - 1)) for _ in range(2))
    match data.draw(st.sampled_from(["swap", "zero", "repeat", "omit"])):
        case "swap":
            blocks[one], blocks[two] = blocks[two], blocks[one]
        case "zero":
            blocks[one] = bytes(len(blocks[one]))
        case "repeat":
            blocks[one] = blocks[two]
        case "omit":
            del blocks[one]
    path.write_bytes(b"".join(blocks))
    if path.read_bytes() == whole:
        assert checkpoint.load(path).place == made().place
    else:
        with pytest.raises(StateMismatch, match="checksum"):
            checkpoint.load(path)


@pytest.mark.parametrize("name", ["last.pt", "previous.pt", "best.pt"])
def test_a_directory_in_the_place_of_a_checkpoint(tmp_path: Path, name: str) -> None:
    """It is refused before anything is trained."""
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=rf"{name} is a directory, where a checkpoint is to be written"):
        Checkpoints(tmp_path)


@pytest.mark.parametrize("fails", ["write", "fsync", "replace"])
def test_a_save_that_fails_leaves_the_old_checkpoints(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save that fails leaves both old checkpoints and no partial file, and its error names the file."""
    for step in (1, 2):
        saved(tmp_path, place=TrainingPosition(step=step))

    def full(*arguments: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint._Output if fails == "write" else os, fails, full)
        with pytest.raises(OSError, match=r"No space left on device: '.*last\.pt'"):
            saved(tmp_path, place=TrainingPosition(step=3))
    assert checkpoint.load(tmp_path / "last.pt").place.step == 2
    assert checkpoint.load(tmp_path / "previous.pt").place.step == 1
    assert sorted(os.listdir(tmp_path)) == ["last.pt", "previous.pt"]


def test_a_full_disk_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = dataset(tmp_path / "train")
    with small_disk(tmp_path / "disk", "200k") as disk:
        options = ["--epochs", "1", "--batch-size", "12", "--threads", "1", "--device", "cpu", "--output"]
        code, _, error = ended(capsys, "train", train, *options, disk / "run")
        assert (code, error) == (1, f"shardio: {disk}/run/last.pt: No space left on device\n")
        assert os.listdir(disk / "run") == ["log.jsonl"]


def test_what_a_killed_save_left_is_removed(tmp_path: Path) -> None:
    """The next save removes the file of a save that was killed, and leaves that of a process that lives."""
    program = (
        "import os, sys; from pathlib import Path; from shardio.system import replacement\n"
        "with replacement.replacing(Path(sys.argv[1])) as file:\n"
        "    file.write(b'half'); file.flush(); print('begun', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "last.pt")]
    saving = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        saving.stdout.readline()
        saved(tmp_path)
        assert len(os.listdir(tmp_path)) == 2
    finally:
        saving.kill()
        saving.communicate()
    (tmp_path / ".last.pt.31415.tmp").touch()  # as an earlier version named it
    (tmp_path / ".notes.31415.tmp").touch()
    saved(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".notes.31415.tmp", "last.pt", "previous.pt"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"version": 7}, "version must be 4, got 7"),
        ({"version": Path("code")}, "weights_only"),  # an object, which only an unsafe pickle could restore
        (made().to_dict() | {"place": None}, "a checkpoint needs place"),
        (made().to_dict() | {"model": [1]}, "a checkpoint needs model"),
        (made().to_dict() | {"place": {"epoch": 1}}, "not the progress of a training"),
        (made().to_dict() | {"place": PLACE | {"epoch": -1}}, "not the progress"),
        (made().to_dict() | {"place": PLACE | {"step": True}}, "not the progress"),
        (made().to_dict() | {"place": PLACE | {"best_score": float("nan")}}, "not the progress"),
    ],
)
def test_content_of_another_form_is_refused(content: Any, message: str, tmp_path: Path) -> None:
    """A whole file with what no run of this version writes is refused with what is wrong."""
    save_archive(tmp_path / "last.pt", content)
    with pytest.raises(StateMismatch, match=message):
        checkpoint.load(tmp_path / "last.pt")


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    with pytest.raises(ConfigError, match=r"there is no file .*last\.pt"):
        checkpoint.load(path)
    torch.save(made().to_dict(), path)
    with pytest.raises(StateMismatch, match="does not end with a checksum"):
        checkpoint.load(path)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("model", {"1.weight": torch.zeros(2)}),
        ("model", {1: torch.zeros(2)}),
        ("model", {"1.weight": None, "1.bias": 3}),
        ("optimizer", {"state": None}),
        ("optimizer", {"state": {0: {"momentum_buffer": torch.zeros(7)}}}),
        ("optimizer", {"state": {99: {}}}),
        ("optimizer", {"state": {0: {"momentum_buffer": "text"}}}),
        ("optimizer", {}),
        ("scaler", {"x": 1}),
        ("random", {}),
        ("random", {"cpu": torch.zeros(1, 5056), "cuda": torch.zeros(1, 0, dtype=torch.uint8)}),
        ("random", {"cpu": torch.zeros(1, 1, dtype=torch.uint8).expand(1, 1 << 40), "cuda": torch.zeros(1, 0)}),
        ("shape", {"model": "_tiny:flat", "task": "classification", "num_classes": torch.ones(3), "channels": 1}),
        ("place", PLACE | {"epoch": 0, "samples": 99}),
        ("place", PLACE | {"samples": 12, "step": 5}),
        ("loader", {"version": 1}),
    ],
)
def test_parts_of_another_run_are_refused(part: str, change: Any, begun: TrainConfig, tmp_path: Path) -> None:
    """Weights, momentum and positions that do not fit are refused in words, before the first step."""
    content = torch.load(Path(begun.output, "last.pt"), weights_only=True)
    save_archive(tmp_path / "last.pt", content | {part: change})
    precision: Any = "fp16" if part == "scaler" else "float32"
    with pytest.raises(StateMismatch):
        run(replace(begun, output=str(tmp_path), resume="auto", epochs=2, precision=precision))


def test_a_claim_of_more_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    """An archive whose members unpack to more than its own size is refused before memory is taken."""
    path = saved(tmp_path)
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(1 << 20))
    with replacement.replacing(path) as file:
        file.write(packed.read_bytes())
        checkpoint._seal(file)
    with pytest.raises(StateMismatch, match="its members claim 1048576 bytes"):
        checkpoint.load(path)


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`resume="auto"` says in one line why it passes over the last checkpoint, and ends as an unbroken run does."""
    whole = config(tmp_path, output=tmp_path / "whole")
    run(whole)
    broken = config(tmp_path, output=tmp_path / "broken")
    run(broken)
    last, previous = Path(broken.output, "last.pt"), Path(broken.output, "previous.pt")
    kept = previous.read_bytes()
    damage(last)
    capsys.readouterr()
    run(replace(broken, resume="auto"))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "passing over" in line]
    assert re.fullmatch(rf"passing over {last}: its checksum [0-9a-f]{{32}} is not [0-9a-f]{{32}}", line)
    assert previous.read_bytes() == kept  # the damaged one did not take its place
    assert_same_weights(whole, broken)
    last.unlink()  # as a process leaves it that is killed between the renames
    run(replace(broken, resume="auto"))
    damage(last)
    damage(previous)
    with pytest.raises(StateMismatch, match=r"no checkpoint .* is whole: .*last\.pt: its .*previous\.pt: its"):
        run(replace(broken, resume="auto"))
    last.unlink()
    with pytest.raises(ConfigError, match="output already holds a run"):
        run(broken)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has two users")
def test_links_of_another_user_in_the_output(tmp_path: Path) -> None:
    """A run refuses an output in which another user put a link, and goes through the user's own links."""
    ran = config(tmp_path)
    (tmp_path / "victim").write_text("mine")
    Path(ran.output).mkdir()
    link = Path(ran.output, "log.jsonl")
    link.symlink_to(tmp_path / "victim")
    os.lchown(link, 65534, 65534)
    with pytest.raises(ConfigError, match=f"{link}: a link that user 65534 made: give output another folder"):
        run(ran)
    assert (tmp_path / "victim").read_text() == "mine"
    link.unlink()
    link.symlink_to(tmp_path / "log")
    run(ran)
    assert (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("batch_size", "left"),
    [
        (6, [6, 6, 6, 6]),  # 24 of 48 samples are done
        (7, [7, 7, 7, 3]),
        (48, [24]),  # less than a batch is left
    ],
)
def test_going_on_with_another_batch_trains_on_what_is_left(
    batch_size: int,
    left: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Resuming with another global batch says so, and trains on the rest of the epoch, each sample once."""
    seen: list[list[int]] = []
    step = Learner.step

    def watched(self: Learner, batch: Any, **options: Any) -> torch.Tensor:
        seen.append(batch["index"][batch["valid"]].tolist())
        return step(self, batch, **options)

    one = config(tmp_path, epochs=1, checkpoint_every_steps=2)
    run_until(one, 2)
    monkeypatch.setattr(Learner, "step", watched)
    assert run(replace(one, batch_size=batch_size, checkpoint_every_steps=5, resume="auto")).epochs == 1
    told = re.findall("^other than before: (.*)$", capsys.readouterr().out, re.MULTILINE)
    changed = [] if batch_size == one.batch_size else [f"batch_size {batch_size}, not {one.batch_size}"]
    assert told == [", ".join([*changed, "checkpoint_every_steps 5, not 2"])]
    assert [len(batch) for batch in seen] == left
    second_half = Plan(len(shardio.open(one.train))).indices(24, 48).tolist()
    assert sorted(index for batch in seen for index in batch) == sorted(second_half)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "_tiny:normalised"}, "model is '_tiny:flat' there, '_tiny:normalised' here"),
        ({"num_classes": 9}, "num_classes is 3 there, 9 here"),
        ({"seed": 5}, "seed is 0, this loader's is 5"),  # another order: the rest of the epoch would be another
    ],
)
def test_going_on_with_something_else_is_refused(change: dict[str, Any], message: str, begun: TrainConfig) -> None:
    """Resuming with other settings is refused with both values."""
    with pytest.raises(StateMismatch, match=message):
        run(replace(begun, resume=f"{begun.output}/last.pt", epochs=2, **change))


def test_numbers_of_a_shape_may_be_rounded() -> None:
    """Means that were added up over another number of ranks are the same; others are not."""
    saved = made(shape={"means": [1.0, 2.0], "channels": 1})
    saved.check_shape({"means": [1.0, 2.0 * (1 + 1e-14)], "channels": 1}, Path("last.pt"))
    for other in ([1.0, 2.001], [1.0], None):
        with pytest.raises(StateMismatch, match=r"last\.pt: means is \[1\.0, 2\.0\] there"):
            saved.check_shape({"means": other}, Path("last.pt"))
