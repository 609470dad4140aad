"""The models of images and of volumes, and loading a model of your own."""

from typing import cast, final

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..system.named import load_named
from .data import Task
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
        first, second = _convolution(inputs, outputs, 3, stride), _convolution(outputs, outputs, 3, 1)
        self.body = nn.Sequential(*first, nn.ReLU(inplace=True), *second)
        same = (inputs, stride) == (outputs, 1)
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(inputs, outputs, 1, stride))
        if zero_init:
            nn.init.zeros_(cast(nn.BatchNorm2d, self.body[-1]).weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map features [B, inputs, H, W] to [B, outputs, H / stride, W / stride]."""
        return torch.relu(self.shortcut(x) + self.body(x))


@final
class ResNet(nn.Module):
    """A residual network that ends in a global average pool, so that it takes images of any size.

    Up to 64 pixels it has three stages of one block, beginning with 32 channels, so that a CPU can train it. Above, it
    is ResNet-18: four stages of two blocks, beginning with 64 channels. Each stage after the first halves height and
    width, and doubles the channels.

    Args:
        num_classes: number of classes.
        channels: 1 for grey images, 3 for RGB.
        image_size: about the longer side in pixels.
        width: number of channels of the first stage.

    Attributes:
        small: whether it has three stages of one block.
    """

    def __init__(self, num_classes: int, channels: int, image_size: int, *, width: int | None = None) -> None:
        super().__init__()
        self.small = small = image_size <= 64
        count, blocks = (3, 1) if small else (4, 2)
        inputs = width = width or (32 if small else 64)
        # A stride in the stem saves the most: all later layers cost a quarter.
        stem = [*_convolution(channels, inputs, 3 if small else 7, 2), nn.ReLU(inplace=True)]
        self.stem = nn.Sequential(*stem, *([] if small else [nn.MaxPool2d(3, 2, 1)]))
        # Zero-initialized blocks and He initialization keep a deep network stable with large batches (Goyal et al.
        # 2017, section 5.1). They cost a network of few blocks its first epochs: it learns faster from torch's smaller
        # weights, which the same learning rate moves further (van Laarhoven 2017, arXiv:1706.05350).
        stages: list[nn.Module] = []
        for stage in range(count):
            for number in range(blocks):
                stride = 2 if stage and not number else 1
                stages.append(ResidualBlock(inputs, width << stage, stride, zero_init=not small))
                inputs = width << stage
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, num_classes)
        for module in self.modules():
            if not small and isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's types

    def forward(self, images: Tensor) -> Tensor:
        """Map images, float [B, channels, H, W], to scores, float [B, num_classes]."""
        # Channels last is a fifth faster on a CPU, and the layout that tensor cores need.
        images = images.contiguous(memory_format=torch.channels_last)
        return cast(Tensor, self.head(self.stages(self.stem(images)).mean(dim=(2, 3))))


def _convolution(inputs: int, outputs: int, size: int, stride: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)


@final
class Cnn3d(nn.Module):
    """Convolutions that each halve depth, height and width, then the mean over space and two linear layers.

    It is in the manner of CosmoFlow (Mathuriya et al. 2018), and takes volumes with 8 voxels or more along each side.
    It has no normalization: that of batches would differ from rank to rank, and that of single volumes would lose how
    strong a signal is, which may be what is asked for.
    """

    def __init__(self, num_targets: int, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = channels
        for outputs in (16, 32, 64, 64):
            layers += [nn.Conv3d(inputs, outputs, 3, stride=2, padding=1), nn.LeakyReLU(0.1, inplace=True)]
            inputs = outputs
        self.body = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(inputs, 64), nn.LeakyReLU(0.1, inplace=True), nn.Linear(64, num_targets))

    def forward(self, volumes: Tensor) -> Tensor:
        """Map volumes, float [B, channels, D, H, W], to outputs, float [B, num_targets]."""
        return cast(Tensor, self.head(self.body(volumes).mean(dim=(2, 3, 4))))


def load_model(name: str, task: Task) -> nn.Module:
    """Create the model called `name`: `"resnet"` or `"cnn3d"`, or `"module:function"` for a model of your own.

    Your function is imported and called with `num_classes=`, or in regression `num_targets=`, and `channels=`. It
    returns a module that maps float images [B, channels, H, W] or volumes [B, channels, D, H, W] to outputs
    [B, num_classes] or [B, num_targets].

    Raises ConfigError if there is no such model for the task; the message names what is missing.
    """
    own, count = ("cnn3d", "num_targets") if isinstance(task, VolumeRegression) else ("resnet", "num_classes")
    if name == own:
        if isinstance(task, VolumeRegression):
            return Cnn3d(task.outputs, task.channels)
        return ResNet(task.outputs, task.channels, task.size)
    if ":" not in name:
        raise ConfigError("{model} must be {!r} or 'module:function', got {!r}", own, name)
    function = load_named(name, "model")
    if not callable(function):
        raise ConfigError(f"model {name!r} must be a function, got {type(function).__name__}")
    model = function(**{count: task.outputs, "channels": task.channels})
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model {name!r} must return a torch.nn.Module, got {type(model).__name__}")
    return model
