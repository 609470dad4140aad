"""Each optimizer does what its paper's formula says, and leaves vectors to the plain rule."""

from typing import get_args

import pytest
import torch
from torch import nn

from shardio.errors import MissingDependency
from shardio.train.optimizers import Larc, OptimizerName, make_optimizer

LR, MOMENTUM, DECAY, TRUST = 0.5, 0.9, 0.1, 0.02


def linear() -> nn.Linear:
    """A layer with a weight and a bias, and gradients of both."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    layer.weight.grad, layer.bias.grad = torch.randn(3, 4), torch.randn(3)
    return layer


def stepped(name: OptimizerName, steps: int = 1, trust: float = TRUST) -> tuple[nn.Linear, nn.Linear]:
    """The layer before and after steps with the same gradients."""
    before, after = linear(), linear()
    optimizer = make_optimizer(name, after, lr=LR, momentum=MOMENTUM, weight_decay=DECAY, trust=trust)
    for _ in range(steps):
        for mine, given in zip(after.parameters(), before.parameters(), strict=True):
            assert given.grad is not None
            mine.grad = given.grad.clone()
        optimizer.step()
    return before, after


def gradients(layer: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of weight and bias."""
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    return layer.weight.grad, layer.bias.grad


def test_lars_scales_the_rate_by_the_trust_ratio() -> None:
    """A weight moves by `lr * trust * |w| / (|g| + decay |w|) * (g + decay w)`, a bias by `lr * g`."""
    before, after = stepped("lars")
    (weight, bias), w = gradients(before), before.weight
    ratio = TRUST * w.norm() / (weight.norm() + DECAY * w.norm())
    torch.testing.assert_close(after.weight, w - LR * ratio * (weight + DECAY * w))
    torch.testing.assert_close(after.bias, before.bias - LR * bias)


@pytest.mark.parametrize("trust", [0.02, 5.0], ids=["clipped to the ratio", "at most the rate"])
def test_larc_clips_the_rate(trust: float) -> None:
    """A weight's rate is the smaller of `lr` and LARS's own; its momentum sums the scaled gradients."""
    before, after = stepped("larc", steps=2, trust=trust)
    weight, bias = gradients(before)
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
    (weight, bias), w = gradients(before), before.weight

    def direction(g: torch.Tensor) -> torch.Tensor:
        return (1 - MOMENTUM) * g / ((0.001 * g * g).sqrt() + 1e-6)

    update = direction(weight) + DECAY * w
    torch.testing.assert_close(after.weight, w - LR * w.norm() / update.norm() * update)
    torch.testing.assert_close(after.bias, before.bias - LR * direction(bias))


@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_biases_have_no_decay(name: OptimizerName) -> None:
    """With gradients of zero, weights shrink at most, and biases stay."""
    layer = linear()
    before = layer.bias.detach().clone()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        parameter.grad.zero_()
    make_optimizer(name, layer, lr=0.01, momentum=MOMENTUM, weight_decay=DECAY, trust=TRUST).step()
    assert torch.equal(layer.bias, before)


def test_a_rate_of_zero_changes_nothing() -> None:
    """LARC with a rate of 0, at the end of a schedule, leaves the weights, and no NaN."""
    layer = linear()
    before = layer.weight.detach().clone()
    Larc(layer.parameters(), lr=0.0, momentum=0.9, trust_coefficient=TRUST).step()
    assert torch.equal(layer.weight, before)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pytorch_optimizer, LARS and LAMB say what to install."""
    monkeypatch.setitem(__import__("sys").modules, "pytorch_optimizer", None)
    with pytest.raises(MissingDependency, match=r"the optimizer 'lars' needs pytorch_optimizer: pip install"):
        stepped("lars")
    stepped("larc")
