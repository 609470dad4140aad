"""The built-in models, and loading a user's model."""

import pytest
import torch

from shardio.errors import ConfigError
from shardio.train.image_classification import ImageClassification
from shardio.train.model import load_model, resnet
from shardio.train.volume_regression import VolumeRegression


@pytest.mark.parametrize(
    ("size", "channels"),
    [
        (28, 1),  # Fashion-MNIST
        (33, 3),  # odd sides round up at each stride
        (64, 3),  # the largest image for the small model
        (96, 3),  # the model shaped like ResNet-18, whose stem divides by four
    ],
)
def test_resnet_takes_images_of_any_size(size: int, channels: int) -> None:
    """Images of any size give one score per class."""
    model = resnet(7, channels, size, width=8)
    assert model(torch.zeros(2, channels, size, size)).shape == (2, 7)


def test_only_deep_networks_begin_closed() -> None:
    """Networks of eight blocks begin with zero-initialised residual branches, those of three do not."""
    deep, shallow = resnet(7, 3, 224, width=8), resnet(7, 3, 28, width=8)
    assert deep.stages[0].body[-1].weight.abs().sum() == 0
    assert shallow.stages[0].body[-1].weight.min() == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("alexnet", "model must be 'resnet' or 'module:function', got 'alexnet'"),
        ("_tiny:", "model must be 'module:name', got '_tiny:'"),
        ("no_such_module:f", "model 'no_such_module:f': there is no module 'no_such_module' on the Python path"),
        ("_tiny:forest", "model '_tiny:forest': module '_tiny' has no 'forest'"),
        ("_tiny:CLASSES", "model '_tiny:CLASSES' must be a function, got int"),
        ("_tiny:no_model", "model '_tiny:no_model' must return a torch.nn.Module, got str"),
    ],
)
def test_errors_name_what_is_missing(name: str, message: str) -> None:
    """A wrong model name is refused with the part that is missing."""
    with pytest.raises(ConfigError) as caught:
        load_model(name, ImageClassification(3, 1, (28, 28)))
    assert str(caught.value) == message


def test_volumes_have_a_model_of_their_own() -> None:
    """`cnn3d` takes volumes of any size; it is no model of images."""
    task = VolumeRegression("x", "y", (2, 9, 16, 20), (0.0,) * 3, (1.0,) * 3, (0.0,) * 2, (1.0,) * 2)
    assert load_model("cnn3d", task)(torch.zeros(4, 2, 9, 16, 20)).shape == (4, 3)
    with pytest.raises(ConfigError, match="model must be 'cnn3d' or 'module:function', got 'resnet'"):
        load_model("resnet", task)
    with pytest.raises(ConfigError, match="model must be 'resnet' or 'module:function', got 'cnn3d'"):
        load_model("cnn3d", ImageClassification(5, 3))
