"""A step gives the same weights however its samples are divided, and every option of the recipe trains and resumes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from _ranks import torchrun
from _tiny import Stopped, assert_same_weights, config, dataset, records, stop_before_step, weights

from shardio.errors import ConfigError
from shardio.order.world import World
from shardio.train import TrainConfig, run
from shardio.train.distributed import Job
from shardio.train.image_classification import ImageClassification
from shardio.train.learner import Learner
from shardio.train.model import load_model

CPU = torch.device("cpu")
TASK = ImageClassification(3, 1, (8, 8))


def same(one: TrainConfig, other: TrainConfig, **tolerance: float) -> None:
    """Both runs end with the same weights, to rounding."""
    for name, value in weights(one).items():
        torch.testing.assert_close(weights(other)[name], value, **{"rtol": 1e-4, "atol": 1e-6} | tolerance)


@pytest.mark.parametrize(("batch_size", "accumulate"), [(6, 2), (4, 3), (1, 12)])
def test_accumulation_is_a_larger_batch(batch_size: int, accumulate: int, tmp_path: Path) -> None:
    """Gradients of several batches give the step of one, also where the epoch ends in the middle of a step."""
    whole = config(tmp_path, train=dataset(tmp_path / "data", 53), output=tmp_path / "whole", epochs=4)
    parts = replace(whole, output=str(tmp_path / "parts"), batch_size=batch_size, accumulate=accumulate)
    run(whole)
    run(parts)
    same(whole, parts)
    for one, other in zip(records(whole), records(parts), strict=True):
        assert (one["step"], one["lr"]) == (other["step"], pytest.approx(other["lr"]))
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5)


HOOKED: dict[str, tuple[dict[str, Any], float]] = {  # options, and how near to one rank their precision allows
    "fp16": ({"hook": "fp16", "bucket_mb": 0.0001, "clip_norm": 0.1, "optimizer": "lamb", "lr": 0.05}, 2e-3),
    "bf16": ({"hook": "bf16", "optimizer": "lars", "lr": 20.0, "lr_schedule": "polynomial"}, 2e-2),
    "powersgd": ({"hook": "powersgd", "powersgd_start": 4, "powersgd_rank": 3}, 5e-2),  # 3 classes: the rank is full
}


@pytest.mark.long
def test_ranks_are_a_larger_batch(tmp_path: Path) -> None:
    """Two ranks, with accumulation in an uneven tail of 53 samples, do what one does over 20 steps.

    Hooks, optimizers and clipping come as near to it as their precision allows.
    """
    one = config(tmp_path, train=dataset(tmp_path / "data", 53), output=tmp_path / "one", epochs=4)
    two = replace(one, output=str(tmp_path / "two"), batch_size=3, accumulate=2)
    alone = {
        name: replace(one, output=f"{tmp_path}/{name}-1", epochs=3, **given) for name, (given, _) in HOOKED.items()
    }
    together = {name: replace(made, output=f"{tmp_path}/{name}-2", batch_size=6) for name, made in alone.items()}
    done = torchrun(two, *together.values())
    assert done.returncode == 0, done.stderr
    compare(one, two)
    for name, (_, tolerance) in HOOKED.items():
        run(alone[name])
        same(alone[name], together[name], rtol=tolerance, atol=tolerance)


@pytest.mark.long
def test_uneven_ranks_are_a_larger_batch(tmp_path: Path) -> None:
    """Three ranks, of which one has no sample left in the tail, do what one does over 20 steps."""
    one = config(tmp_path, train=dataset(tmp_path / "data", 53), output=tmp_path / "one", epochs=4)
    three = replace(one, output=str(tmp_path / "three"), batch_size=4)
    done = torchrun(three, ranks=3)
    assert done.returncode == 0, done.stderr
    compare(one, three)


def compare(one: TrainConfig, many: TrainConfig) -> None:
    """Train on one rank; it has the losses and the weights that many had, after as many steps."""
    run(one)
    assert [record["step"] for record in records(many)] == [5, 10, 15, 20]
    same(one, many)
    for alone, together in zip(records(one), records(many), strict=True):
        assert alone["train_loss"] == pytest.approx(together["train_loss"], rel=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adam", "lr": 0.01, "clip_norm": 0.5},
        {"optimizer": "adamw", "lr": 0.01, "ema": 0.5},
        {"optimizer": "lars", "lr": 5.0},
        {"optimizer": "larc", "lr": 1.0, "trust_coefficient": 0.02, "lr_schedule": "step", "lr_decay_epochs": 1},
        {"optimizer": "lamb", "lr": 0.05, "channels_last": True},
        {"precision": "bf16"},
        {"precision": "fp16"},
    ],
    ids=str,
)
def test_every_part_of_the_recipe_learns_and_goes_on(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with it learns the brightness of images; stopped and resumed, it ends with the same weights, to the bit."""
    data = {"train": dataset(tmp_path / "train", 96), "val": dataset(tmp_path / "val", 30, seed=1)}
    values: dict[str, Any] = {"lr": 0.05, "lr_reference_batch": 12, "checkpoint_every_steps": 3} | options
    whole = config(tmp_path, **data, model="_tiny:normalised", epochs=4, **values)
    result = run(whole)
    assert result.score is not None
    assert result.score > 0.8
    halves = replace(whole, output=str(tmp_path / "halves"))
    with monkeypatch.context() as patched:
        stop_before_step(patched, 14)
        with pytest.raises(Stopped):
            run(halves)
    run(replace(halves, resume="auto"))
    for part in ("model", "average"):
        assert_same_weights(whole, halves, part)


def test_the_average_follows_the_weights(tmp_path: Path) -> None:
    """A moving average is between the weights of all steps, is validated, and goes on after a resume."""
    values = {"val": dataset(tmp_path / "val", 17), "ema": 0.5, "checkpoint_every_steps": 1}
    made = config(tmp_path, epochs=1, batch_size=48, lr_schedule="constant", warmup_epochs=0.0, **values)
    torch.manual_seed(made.seed)
    begun = load_model("_tiny:flat", TASK).state_dict()
    run(made)
    after, average = weights(made), weights(made, "average")
    for name, value in begun.items():  # the average begins with the first step's weights
        assert not torch.equal(after[name], value)
        torch.testing.assert_close(average[f"module.{name}"], after[name])
    run(replace(made, epochs=2, resume="auto"))
    second, later = weights(made), weights(made, "average")
    for name in begun:
        torch.testing.assert_close(later[f"module.{name}"], (average[f"module.{name}"] + second[name]) / 2)
    run(replace(made, epochs=3, resume="auto", ema=None))
    assert weights(made, "average") == {}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own
def test_a_compiled_model_learns(tmp_path: Path) -> None:
    """torch.compile changes the weights by rounding only, and their names not at all."""
    plain = config(tmp_path, output=tmp_path / "plain", epochs=1)
    compiled = replace(plain, output=str(tmp_path / "compiled"), compile=True)
    run(plain)
    run(compiled)
    same(plain, compiled)


def test_what_a_cpu_lacks_is_refused(tmp_path: Path) -> None:
    """Synchronized batch normalization on a CPU is refused in words."""
    with pytest.raises(ConfigError, match="sync_batchnorm needs GPUs"):
        Learner(
            config(tmp_path, sync_batchnorm=True), Job(World(), CPU), load_model("_tiny:normalised", TASK), 48, TASK
        )
