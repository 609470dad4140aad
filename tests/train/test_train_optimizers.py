"""Each optimizer and each curve of the rate does what its paper's formula says; vectors follow the plain rule."""

import sys
from typing import Any, get_args

import pytest
import torch
from torch import nn

from shardio.errors import MissingDependency
from shardio.train import TrainConfig
from shardio.train.config import OptimizerName
from shardio.train.optimizers import learning_rate, make_optimizer

LR, MOMENTUM, DECAY, TRUST = 0.5, 0.9, 0.1, 0.02


def recipe(**options: Any) -> TrainConfig:
    given = {"lr": LR, "momentum": MOMENTUM, "weight_decay": DECAY, "trust_coefficient": TRUST}
    return TrainConfig(train="none", output="none", **given | options)


def linear(scale: float = 1.0) -> nn.Linear:
    """A layer with a weight and a bias, and gradients of both."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    layer.weight.grad, layer.bias.grad = scale * torch.randn(3, 4), scale * torch.randn(3)
    return layer


def stepped(name: OptimizerName, steps: int = 1, **options: Any) -> tuple[nn.Linear, nn.Linear]:
    """The layer before and after steps with the same gradients."""
    before, after = linear(), linear()
    optimizer = make_optimizer(recipe(optimizer=name, **options), after)
    for _ in range(steps):
        for mine, given in zip(after.parameters(), before.parameters(), strict=True):
            mine.grad = given.grad.clone()
        optimizer.step()
    return before, after


def test_lars_scales_the_rate_by_the_trust_ratio() -> None:
    """A weight moves by `lr * trust * |w| / (|g| + decay |w|) * (g + decay w)`, a bias by `lr * g`."""
    before, after = stepped("lars")
    weight, bias, w = before.weight.grad, before.bias.grad, before.weight
    ratio = TRUST * w.norm() / (weight.norm() + DECAY * w.norm())
    torch.testing.assert_close(after.weight, w - LR * ratio * (weight + DECAY * w))
    torch.testing.assert_close(after.bias, before.bias - LR * bias)


@pytest.mark.parametrize("trust", [0.02, 5.0], ids=["clipped to the ratio", "at most the rate"])
def test_larc_clips_the_rate(trust: float) -> None:
    """A weight's rate is the smaller of `lr` and LARS's own; its momentum sums the scaled gradients."""
    before, after = stepped("larc", steps=2, trust_coefficient=trust)
    weight, bias = before.weight.grad, before.bias.grad
    w, momentum = before.weight.detach().clone(), torch.zeros_like(before.weight)
    for _ in range(2):
        rate = min(trust * float(w.norm() / (weight.norm() + DECAY * w.norm())), LR)
        momentum = MOMENTUM * momentum + (weight + DECAY * w) * rate / LR
        w = w - LR * momentum
    torch.testing.assert_close(after.weight.detach(), w)
    torch.testing.assert_close(after.bias, before.bias - LR * bias - LR * (1 + MOMENTUM) * bias)


def test_lamb_scales_adam_by_the_norms() -> None:
    """A weight moves along Adam's direction with decay, by its own norm over the direction's; a bias by Adam's."""
    before, after = stepped("lamb")
    weight, bias, w = before.weight.grad, before.bias.grad, before.weight

    def direction(g: torch.Tensor) -> torch.Tensor:
        return (1 - MOMENTUM) * g / ((0.001 * g * g).sqrt() + 1e-6)

    update = direction(weight) + DECAY * w
    torch.testing.assert_close(after.weight, w - LR * w.norm() / update.norm() * update)
    torch.testing.assert_close(after.bias, before.bias - LR * direction(bias))


@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_biases_have_no_decay(name: OptimizerName) -> None:
    """With gradients of zero, weights shrink at most, and biases stay."""
    layer = linear(0.0)
    before = layer.bias.detach().clone()
    make_optimizer(recipe(optimizer=name), layer).step()
    assert torch.equal(layer.bias, before)


def test_a_rate_of_zero_changes_nothing() -> None:
    """LARC with a rate of 0, at the end of a schedule, leaves the weights, and no NaN."""
    layer = linear()
    before = layer.weight.detach().clone()
    optimizer = make_optimizer(recipe(optimizer="larc", weight_decay=0.0), layer)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    assert torch.equal(layer.weight, before)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pytorch_optimizer, LARS and LAMB say what to install."""
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(MissingDependency, match=r"the optimizer 'lars' needs pytorch_optimizer: pip install"):
        stepped("lars")
    stepped("larc")


def rates(*seen: float, **options: Any) -> list[float]:
    """The rates after so many epochs of 110, whose peak after a warm-up of 10 is 2."""
    made = recipe(**{"lr": 2.0, "lr_scaling": "none", "warmup_epochs": 10, "epochs": 110} | options)
    return [learning_rate(made, epochs * 48, samples=48, global_batch=12) for epochs in seen]


def test_rate_rises_in_a_line_and_falls_as_a_cosine() -> None:
    """Up to the peak, which is 2; with fractions of an epoch, beyond the end, and with no warm-up or nothing else."""
    points = {0: 0.0, 2.5: 0.5, 5: 1.0, 10: 2.0, 35: 2.0 * 0.8535533905932737, 60: 1.0, 110: 0.0, 999: 0.0}
    assert rates(*points) == pytest.approx(list(points.values()))
    assert rates(0, warmup_epochs=0) == [2.0]
    assert rates(9, 10, epochs=10) == pytest.approx([1.8, 0.0])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"lr_schedule": "polynomial", "lr_power": 2}, [2.0, 2 * 0.75**2, 0.5, 0.0]),
        (  # after 30, 60 and 90 of all
            {"lr_schedule": "step", "lr_decay_epochs": 30, "lr_decay_factor": 0.1},
            [2.0, 0.2, 0.02, 0.002],
        ),
        ({"lr_schedule": "exponential", "lr_decay_epochs": 50, "lr_decay_factor": 0.25}, [2.0, 1.0, 0.5, 0.125]),
        ({"lr_schedule": "inverse-time", "lr_decay_epochs": 50, "lr_decay_factor": 0.5}, [2.0, 2 / 1.5, 1.0, 2 / 3]),
        ({"lr_schedule": "constant"}, [2.0, 2.0, 2.0, 2.0]),
    ],
    ids=lambda value: value["lr_schedule"] if isinstance(value, dict) else "",
)
def test_other_curves(options: dict[str, Any], expected: list[float]) -> None:
    """Each curve begins at the peak after the warm-up, and is known a quarter, a half and all of the way down."""
    assert rates(5, 10, 35, 60, 110, **options) == pytest.approx([1.0, *expected])


@pytest.mark.parametrize(("scaling", "expected"), [("linear", 0.4), ("sqrt", 0.2), ("none", 0.1)])
def test_peak_grows_with_the_global_batch(scaling: str, expected: float) -> None:
    """Four times the batch gives four times the peak rate, twice the rate, or the same."""
    made = recipe(lr=0.1, lr_scaling=scaling, lr_schedule="constant")
    assert learning_rate(made, 100, samples=48, global_batch=1024) == pytest.approx(expected)
