"""A step gives the same weights however its samples are divided, and every option of the recipe trains and resumes."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from _exchange import NOISE_SCALE, STEPS
from _ranks import start, torchrun
from _tiny import assert_same_weights, config, dataset, records, run_until, weights
from hypothesis import given
from hypothesis import strategies as st

from shardio.errors import ConfigError
from shardio.order.world import World
from shardio.train import TrainConfig, run
from shardio.train.distributed import Job
from shardio.train.image_classification import ImageClassification
from shardio.train.lagged_gradients import LaggedGradients
from shardio.train.local_sgd import LocalSgd
from shardio.train.model import load_model
from shardio.train.noise_scale import NoiseScale

TASK = ImageClassification(3, 1, (8, 8))


def same(one: TrainConfig, other: TrainConfig, **tolerance: float) -> None:
    for name, value in weights(one).items():
        torch.testing.assert_close(weights(other)[name], value, **{"rtol": 1e-4, "atol": 1e-6} | tolerance)


@pytest.mark.parametrize("accumulate", [2, 12])
def test_accumulation_is_a_larger_batch(accumulate: int, tmp_path: Path) -> None:
    """Gradients of several batches give the step of one, also where the epoch ends in the middle of a step."""
    whole = config(tmp_path, train=dataset(tmp_path / "data", 53), output=tmp_path / "whole", epochs=4)
    parts = replace(whole, output=str(tmp_path / "parts"), batch_size=12 // accumulate, accumulate=accumulate)
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
    """Three ranks, of which one has no sample left in the tail of 53 samples, do what one does over 20 steps.

    So they do with accumulation while they measure the noise scale. Hooks, optimizers and clipping come as near to it
    as their precision allows.
    """
    one = config(tmp_path, train=dataset(tmp_path / "data", 53), output=tmp_path / "one", epochs=4)
    three = replace(one, output=str(tmp_path / "three"), batch_size=4)
    measured = replace(three, output=str(tmp_path / "parts"), batch_size=2, accumulate=2, measure_noise_scale=True)
    alone = {
        name: replace(one, output=f"{tmp_path}/{name}-1", epochs=3, **given) for name, (given, _) in HOOKED.items()
    }
    together = {name: replace(made, output=f"{tmp_path}/{name}-3", batch_size=4) for name, made in alone.items()}
    done = torchrun(three, measured, *together.values(), ranks=3)
    assert done.returncode == 0, done.stderr
    run(one)
    for many in (three, measured):
        assert [record["step"] for record in records(many)] == [5, 10, 15, 20]
        same(one, many)
        for record, other in zip(records(one), records(many), strict=True):
            assert record["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5)
    assert done.stdout.count("critical batch: ") == 2  # after the epochs that have ten whole steps behind them
    assert [line.get("noise_scale", -1) >= 0 for line in records(measured)] == [False, False, True, True]
    for name, (_, tolerance) in HOOKED.items():
        run(alone[name])
        same(alone[name], together[name], rtol=tolerance, atol=tolerance)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_train_in_each_way_and_measure_a_quadratic_problem(ranks: int) -> None:
    """Weights follow the simulation, with accumulation; ranks are equal after an average of all.

    They find the noise scale of a quadratic problem, with a hook, and without steps of part of a batch.
    """
    done = start(Path(__file__).with_name("_exchange.py"), ranks=ranks)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    always = [*range(STEPS)]
    assert found["agreed"] == {
        "synchronous": always,
        **{f"lag{sent}": always for sent in ("", ", fp16", ", bf16")},
        "local": [0, 1, 2, 3, 4, 7, 10, 13, 16, 19],
        "outer": [0, 3, 6, 9, 12, 15, 18],
        "outer, SGD": [0, 1, 2, 3, 4, 7, 10, 13, 16, 19],
        "overlapped": [0, 1, 2],
        "overlapped, outer": [],
        "overlapped, outer, begun at the end": [0],
    }
    assert found["noise"] == {hook: pytest.approx(NOISE_SCALE, rel=0.15) for hook in ("none", "fp16")}


def test_gradients_that_are_late_keep_their_size_when_their_loss_is_scaled_otherwise() -> None:
    """A gradient that arrives at another loss scale is rescaled to it, and a checkpoint holds it without a scale."""
    model = torch.nn.Linear(2, 1, bias=False)
    lagged = LaggedGradients(model, Job(World(), torch.device("cpu")), None)
    for number, scale in enumerate((4.0, 8.0, 2.0)):
        model.weight.grad = torch.full((1, 2), (number + 1) * scale)
        assert lagged.replace(scale) == (number > 0)
        if number:
            assert torch.equal(model.weight.grad, torch.full((1, 2), number * scale))
        assert torch.equal(lagged.state()["lagged"]["weight"], torch.full((1, 2), number + 1.0))


def test_each_late_gradient_is_applied_once() -> None:
    """Also that of a parameter which some steps do not use."""
    model = torch.nn.Linear(1, 1)
    lagged = LaggedGradients(model, Job(World(), torch.device("cpu")), None)
    applied = []
    for used in (False, True, False, False):
        model.weight.grad = torch.ones(1, 1)
        model.bias.grad = torch.ones(1) if used else None
        lagged.replace(1.0)
        applied.append(model.bias.grad is not None)
    assert applied == [False, False, True, False]


@pytest.mark.parametrize("steps", [8, 9, 10, 11])
def test_an_average_takes_one_outer_step(steps: int) -> None:
    """An average that has just begun when all is averaged is that average: weights are as without overlap."""
    found = []
    for overlap in (0, 2):
        weight = torch.nn.Parameter(torch.zeros(1))
        made = TrainConfig(
            train="none",
            output="none",
            batch_size=1,
            local_sgd_period=4,
            local_sgd_overlap=overlap,
            outer_optimizer="nesterov",
        )
        local = LocalSgd(made, Job(World(), torch.device("cpu")), [weight], lambda weight=weight: [weight])
        for _ in range(steps):
            with torch.no_grad():
                weight -= 1
            local.end_step()
        local.average()
        found.append(weight.item())
    assert found[0] == pytest.approx(found[1])


@given(st.floats(0.01, 1e6), st.floats(0.01, 1e6), st.integers(1, 999), st.integers(2, 64))
def test_expected_norms_give_the_noise_scale(noise: float, signal: float, batch: int, ranks: int) -> None:
    """The mean squared norm of a gradient of B samples is signal + noise / B: two of them give both."""
    small, large = (signal + noise / size for size in (batch, batch * ranks))
    found = NoiseScale.of_norms(small=small, small_batch=batch, large=large, large_batch=batch * ranks)
    assert found.noise == pytest.approx(noise, rel=1e-3, abs=1e-6 * batch * signal)
    assert found.signal == pytest.approx(signal, rel=1e-3, abs=1e-6 * noise)


def test_advice() -> None:
    """Speed-ups follow the paper: at the critical batch, twice the batch needs three quarters of the steps."""
    scale = NoiseScale(noise=2048.0, signal=2.0)
    assert scale.speed_up(1e9, 4) == pytest.approx(1, abs=1e-5)  # far above it more samples are of no use
    assert scale.speed_up(1e-3, 4) == pytest.approx(4, abs=1e-4)  # far below it steps are as few as samples are many
    assert scale.advice(1024, 60_000) == (
        "critical batch: about 1,024 samples (noise scale); by rule of thumb at most 244 (square root of the training "
        "set); the batch is 1,024. Expected speed in steps by batch: 0.5 x: 0.67, 1 x: 1.00, 2 x: 1.33, 4 x: 1.60"
    )
    noise = NoiseScale(noise=1.0, signal=-0.1)  # an estimate may be: there is no signal to be seen
    assert math.isinf(noise.batch)
    assert "far above the batch" in noise.advice(8, 100)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adam", "lr": 0.01, "clip_norm": 0.5},
        {"optimizer": "adamw", "lr": 0.01, "ema": 0.5},
        {"optimizer": "lars", "lr": 5.0, "precision": "bf16"},
        {"optimizer": "larc", "lr": 1.0, "trust_coefficient": 0.02, "lr_schedule": "step", "lr_decay_epochs": 1},
        {"optimizer": "lamb", "lr": 0.05, "channels_last": True},
        {"precision": "fp16"},
    ],
    ids=str,
)
def test_every_part_of_the_recipe_learns_and_goes_on(options: dict[str, Any], tmp_path: Path) -> None:
    """A run with it learns the brightness of images; stopped and resumed, it ends with the same weights, to the bit."""
    data = {"train": dataset(tmp_path / "train", 96), "val": dataset(tmp_path / "val", 30, seed=1)}
    values: dict[str, Any] = {"lr": 0.05, "lr_reference_batch": 12, "checkpoint_every_steps": 10} | options
    whole = config(tmp_path, **data, model="_tiny:normalised", epochs=4, **values)
    assert run(whole).score > 0.8
    halves = replace(whole, output=str(tmp_path / "halves"))
    run_until(halves, 14)
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


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own
def test_a_compiled_model_learns(tmp_path: Path) -> None:
    """torch.compile changes the weights by rounding only, and their names not at all."""
    plain = config(tmp_path, output=tmp_path / "plain", epochs=1)
    compiled = replace(plain, output=str(tmp_path / "compiled"), compile=True)
    run(plain)
    run(compiled)
    same(plain, compiled)


@pytest.mark.parametrize(
    ("option", "message"),
    [("sync_batchnorm", "sync_batchnorm needs GPUs"), ("measure_noise_scale", "noise_scale needs at least 2 ranks")],
)
def test_what_one_rank_on_a_cpu_lacks_is_refused(option: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        run(config(tmp_path, **{option: True}))
