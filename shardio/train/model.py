"""The model of images, a residual network, and loading a model of your own."""

from collections.abc import Sequence
from itertools import pairwise
from typing import cast, final

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..system.named import load_named
from .cnn3d import cnn3d
from .task import Task
from .volume_regression import VolumeRegression


@final
class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al. 2015, arXiv:1512.03385, figure 2).

    Args:
        inputs: number of input channels.
        outputs: number of output channels.
        stride: stride of the first convolution; 2 halves height and width.
        zero_init: initialize the last scale to 0, so that the block begins as its shortcut alone.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, *, zero_init: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Identity() if (inputs, stride) == (outputs, 1) else _projection(inputs, outputs, stride)
        if zero_init:
            nn.init.zeros_(cast(nn.BatchNorm2d, self.body[-1]).weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map features [B, inputs, H, W] to [B, outputs, H / stride, W / stride]."""
        return torch.relu(self.shortcut(x) + self.body(x))


@final
class ResNet(nn.Module):
    """A residual network that ends in a global average pool, so that it takes images of any size.

    Args:
        num_classes: number of classes.
        channels: 1 for grey images, 3 for RGB.
        widths: number of channels of each stage; every stage after the first halves height and width.
        blocks: number of blocks of each stage.
        stem_stride: factor by which the stem reduces height and width: 1, 2 or 4.
    """

    def __init__(
        self, num_classes: int, channels: int, *, widths: Sequence[int], blocks: Sequence[int], stem_stride: int
    ) -> None:
        super().__init__()
        self.stem = _stem(channels, widths[0], stem_stride)
        # Zero-initialized blocks and He initialization keep a deep network stable with large batches (Goyal et al.
        # 2017, section 5.1). They cost a network of few blocks its first epochs: it learns faster from torch's smaller
        # weights, which the same learning rate moves further (van Laarhoven 2017, arXiv:1706.05350).
        deep = sum(blocks) > 6
        stages: list[nn.Module] = []
        for stage, (inputs, outputs) in enumerate(pairwise((widths[0], *widths))):
            for number in range(blocks[stage]):
                first = number == 0
                stages.append(
                    ResidualBlock(inputs if first else outputs, outputs, 2 if first and stage else 1, zero_init=deep)
                )
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(widths[-1], num_classes)
        for module in self.modules():
            if deep and isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's types

    def forward(self, images: Tensor) -> Tensor:
        """Map images, float [B, channels, H, W], to scores, float [B, num_classes]."""
        # Channels last is a fifth faster on a CPU, and the layout that tensor cores need.
        images = images.contiguous(memory_format=torch.channels_last)
        return cast(Tensor, self.head(self.stages(self.stem(images)).mean(dim=(2, 3))))


def resnet(
    num_classes: int, channels: int, image_size: int, *, width: int | None = None, blocks: Sequence[int] | None = None
) -> ResNet:
    """Create a network for images whose longer side has about `image_size` pixels.

    Up to 64 pixels it has three stages of one block, beginning with 32 channels, so that a CPU can train it. Above, it
    is ResNet-18: four stages of two blocks, beginning with 64 channels.

    Args:
        num_classes: number of classes.
        channels: 1 for grey images, 3 for RGB.
        image_size: the longer side in pixels.
        width: number of channels of the first stage; each further stage doubles it.
        blocks: number of blocks of each stage.

    Raises ConfigError for a width or a number of blocks below 1.
    """
    small = image_size <= 64
    width = (32 if small else 64) if width is None else width
    counts = tuple(blocks) if blocks is not None else ((1, 1, 1) if small else (2, 2, 2, 2))
    if width < 1 or not counts or min(counts) < 1:
        raise ConfigError(f"width and each number of blocks must be at least 1, got {width} and {counts}")
    widths = [width << stage for stage in range(len(counts))]
    return ResNet(num_classes, channels, widths=widths, blocks=counts, stem_stride=2 if small else 4)


def load_model(name: str, task: Task) -> nn.Module:
    """Create the model called `name`: `"resnet"` or `"cnn3d"`, or `"module:function"` for a model of your own.

    Your function is imported and called with `num_classes=`, or in regression `num_targets=`, and `channels=`. It
    returns a module that maps float images [B, channels, H, W] or volumes [B, channels, D, H, W] to outputs
    [B, num_classes] or [B, num_targets].

    Raises ConfigError if there is no such model for the task; the message names what is missing.
    """
    volumes = isinstance(task, VolumeRegression)
    own, count = ("cnn3d", "num_targets") if volumes else ("resnet", "num_classes")
    if name == own:
        return cnn3d(task.outputs, task.channels) if volumes else resnet(task.outputs, task.channels, task.size)
    if ":" not in name:
        raise ConfigError("{model} must be {!r} or 'module:function', got {!r}", own, name)
    function = load_named(name, "model")
    if not callable(function):
        raise ConfigError(f"model {name!r} must be a function, got {type(function).__name__}")
    model = function(**{count: task.outputs, "channels": task.channels})
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model {name!r} must return a torch.nn.Module, got {type(model).__name__}")
    return model


def _projection(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def _stem(channels: int, width: int, stride: int) -> nn.Sequential:
    # A stride in the stem saves the most: all later layers cost a quarter.
    size = 7 if stride == 4 else 3
    layers: list[nn.Module] = [
        nn.Conv2d(channels, width, size, min(stride, 2), size // 2, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    ]
    return nn.Sequential(*layers, *([nn.MaxPool2d(3, 2, 1)] if stride == 4 else []))
