"""Checkpoints are written completely or not at all, and resuming from one loses nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from _tiny import config, dataset

import shardio
from shardio.errors import ConfigError, StateMismatch
from shardio.order.plan import Plan
from shardio.train import TrainResult, checkpoint, run
from shardio.train.checkpoint import Checkpoint, TrainingPosition
from shardio.train.learner import Learner

CPU = torch.device("cpu")


class Stopped(Exception):
    """Simulate whatever ends a process in the middle of an epoch."""


def made(**overrides: Any) -> Checkpoint:
    """A minimal checkpoint."""
    values: dict[str, Any] = {
        "place": TrainingPosition(epoch=1, samples=24, step=6, best_accuracy=0.5),
        "model": {"weight": torch.arange(3.0)},
        "optimizer": {"state": {}, "param_groups": []},
        "loader": {"position": 24},
        "shape": {"model": "resnet"},
        "config": {"epochs": 2},
    }
    return Checkpoint(**values | overrides)


def weights(output: Path, name: str = checkpoint.LAST) -> dict[str, torch.Tensor]:
    """The weights in a run's checkpoint."""
    return dict(checkpoint.load(output / name, CPU).model)


def stop_before_step(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """End training before step `number`, counted from 0."""
    steps, step = iter(range(1000)), Learner.step

    def until(self: Learner, *arguments: Any) -> torch.Tensor:
        if next(steps) == number:
            raise Stopped
        return step(self, *arguments)

    monkeypatch.setattr(Learner, "step", until)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    """Every part of a checkpoint is loaded again, and no temporary file is left."""
    checkpoint.save(tmp_path / "last.pt", made())
    loaded = checkpoint.load(tmp_path / "last.pt", CPU)
    assert torch.equal(loaded.model["weight"], torch.arange(3.0))
    assert replace(loaded, model={}) == replace(made(), model={})
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]


def test_a_save_cut_short_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies while saving leaves the old checkpoint and no partial file."""
    checkpoint.save(tmp_path / "last.pt", made())

    def half(content: Any, path: Path) -> None:
        path.write_bytes(b"half a checkpoint")
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="no space left"):
        checkpoint.save(tmp_path / "last.pt", made(place=TrainingPosition(epoch=2)))
    assert checkpoint.load(tmp_path / "last.pt", CPU).place == made().place
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    """Missing files, other files and other versions each have their own error."""
    path = tmp_path / "last.pt"
    with pytest.raises(ConfigError, match=r"there is no file .*last\.pt"):
        checkpoint.load(path, CPU)
    path.write_bytes(b"something else")
    with pytest.raises(StateMismatch, match="not a checkpoint"):
        checkpoint.load(path, CPU)
    torch.save({"version": 7}, path)
    with pytest.raises(StateMismatch, match="version must be 1, got 7"):
        checkpoint.load(path, CPU)
    torch.save({"version": Path("code")}, path)  # an object, which only an unsafe pickle could restore
    with pytest.raises(StateMismatch, match="weights_only"):
        checkpoint.load(path, CPU)


@pytest.mark.parametrize("model", ["_tiny:flat", "_tiny:normalised"])
def test_going_on_mid_epoch_ends_with_the_same_weights(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run stopped in the second epoch and resumed ends with the weights of an uninterrupted run."""
    whole = config(tmp_path, model=model, output=tmp_path / "whole")
    run(whole)

    halves = replace(whole, output=str(tmp_path / "halves"), checkpoint_every_steps=1)
    with monkeypatch.context() as patched:
        stop_before_step(patched, 6)
        with pytest.raises(Stopped):
            run(halves)
    assert checkpoint.load(tmp_path / "halves" / "last.pt", CPU).place == TrainingPosition(epoch=1, samples=24, step=6)
    run(replace(halves, resume="auto"))

    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "halves")
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name


@pytest.mark.parametrize(
    ("batch_size", "left"),
    [
        (6, [6, 6, 6, 6]),  # 24 of 48 samples are done
        (24, [24]),
        (7, [7, 7, 7]),  # 3 form a tail
        (48, []),  # only a tail is left: continue with validation
    ],
)
def test_going_on_with_another_batch_trains_on_what_is_left(
    batch_size: int, left: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resuming with another global batch trains on the rest of the epoch, each sample once."""
    seen: list[list[int]] = []
    step = Learner.step

    def watched(self: Learner, batch: Any, lr: float) -> torch.Tensor:
        seen.append(batch["index"].tolist())
        return step(self, batch, lr)

    one = config(tmp_path, epochs=1, checkpoint_every_steps=2)
    with monkeypatch.context() as patched:
        stop_before_step(patched, 2)
        with pytest.raises(Stopped):
            run(one)
    before = set(range(48)) - _rest(one.train)
    monkeypatch.setattr(Learner, "step", watched)
    result = run(replace(one, batch_size=batch_size, resume="auto"))
    assert [len(batch) for batch in seen] == left
    after = [index for batch in seen for index in batch]
    assert len(set(after)) == len(after)
    assert not before & set(after)
    assert result.epochs == 1


def _rest(path: str) -> set[int]:
    """The samples in the second half of the first epoch."""
    return set(Plan(len(shardio.open(path))).indices(24, 48).tolist())


def test_a_finished_run_has_nothing_left(tmp_path: Path) -> None:
    """Resuming a finished run trains nothing and has the same accuracy."""
    ended = config(tmp_path, val=dataset(tmp_path / "val", 17))
    first = run(ended)
    again = run(replace(ended, resume="auto"))
    assert (again.accuracy, again.best_accuracy, again.epochs) == (first.accuracy, first.best_accuracy, 2)
    assert again.samples_per_second_per_rank == 0
    assert len((tmp_path / "out" / "log.jsonl").read_text().splitlines()) == 2


def test_auto_begins_anew_where_nothing_is(tmp_path: Path) -> None:
    """`resume="auto"` starts anew where there is no checkpoint."""
    assert run(config(tmp_path, resume="auto", epochs=1)).epochs == 1


def test_an_older_run_is_not_overwritten(tmp_path: Path) -> None:
    """Without resume, an output with a checkpoint is refused and left unchanged."""
    run(config(tmp_path, epochs=1))
    before = (tmp_path / "out" / "last.pt").read_bytes()
    with pytest.raises(ConfigError, match="output already holds a run"):
        run(config(tmp_path, epochs=1))
    assert (tmp_path / "out" / "last.pt").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "_tiny:normalised"}, "model is '_tiny:flat' there, '_tiny:normalised' here"),
        ({"num_classes": 9}, "num_classes is 3 there, 9 here"),
        ({"seed": 5}, "seed is 0, this loader's is 5"),  # another order: the rest of the epoch would be another
    ],
)
def test_going_on_with_something_else_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Resuming with other settings is refused with both values."""
    begun = config(tmp_path, epochs=1)
    result: TrainResult = run(begun)
    with pytest.raises(StateMismatch, match=message):
        run(replace(begun, resume=result.checkpoint, epochs=2, **change))
