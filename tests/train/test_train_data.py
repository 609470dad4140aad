"""The loaders, transforms and class counts of a training run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from _builders import png
from _datasets import packed
from _tiny import config

import shardio
from shardio.errors import ConfigError
from shardio.order.world import World
from shardio.train.data import open_data
from shardio.train.distributed import Job, choose_device
from shardio.train.image_classification import ImageClassification, count_classes
from shardio.transforms.recipe import Recipe

JOB = Job(World(), torch.device("cpu"))


@pytest.mark.parametrize(
    ("size", "asked", "train", "val"),
    [
        ((28, 28), None, (28, 28), (28, 28)),  # small images keep their size
        ((64, 48), None, (64, 48), (64, 48)),  # and their aspect ratio
        ((28, 28), 32, (32, 32), (32, 32)),  # unless a size is requested
        ((65, 65), None, (224, 224), (224, 224)),  # larger images get the default size
        (None, None, (224, 224), (224, 224)),  # as do images of various sizes
        (None, 96, (96, 96), (96, 96)),
    ],
)
def test_image_sizes(
    size: tuple[int, int] | None, asked: int | None, train: tuple[int, int], val: tuple[int, int]
) -> None:
    """The sizes (height, width) of model inputs in training and validation."""
    task = ImageClassification(2, 3, size, asked)
    assert [Recipe.of(list_, channels=3, size=size).size for list_ in task.transforms()] == [train, val]
    assert task.size == max(train)


@pytest.mark.parametrize(
    ("labels", "metadata", "expected"),
    [
        ([0, 4, 2], {}, 5),  # the largest label + 1
        ([0, 0], {}, 2),  # a single class is useless
        ([0, 1], {"classes": ["a", "b", "c"]}, 3),  # names take precedence: a class may lack samples
    ],
)
def test_classes_are_counted(labels: list[int], metadata: dict[str, Any], expected: int) -> None:
    """The number of classes comes from the names in the metadata, else from the labels."""
    samples = [{"image": png(8, 8, 1), "label": label} for label in labels]
    assert count_classes(shardio.from_samples(samples, metadata=metadata), JOB) == expected


def test_negative_labels_are_refused() -> None:
    """A negative label is refused."""
    with pytest.raises(ConfigError, match="labels must be 0 or more, got -3"):
        count_classes(shardio.from_samples([{"image": png(), "label": n} for n in (0, -3)]), JOB)


def test_a_set_without_labels_is_refused(tmp_path: Path) -> None:
    """A dataset without labels is refused with the missing field and the existing ones."""
    packed(tmp_path / "set", [{"image": png()}])
    with pytest.raises(
        ConfigError, match=r"needs an integer scalar field called 'label'; there are image \(image, RGB, 12 x 16\)"
    ):
        open_data(config(tmp_path, train=tmp_path / "set"), JOB)


def test_sets_of_grey_and_colour_are_refused(tmp_path: Path) -> None:
    """Training and validation sets with different channels are refused."""
    packed(tmp_path / "val", [{"image": png(8, 8), "label": 0}])
    with pytest.raises(ConfigError, match=r"train has 1 channels, .*val has 3"):
        open_data(config(tmp_path, val=tmp_path / "val"), JOB)


def named(path: Path, classes: list[str] | None, labels: list[int], dtype: str = "int64") -> str:
    """A dataset at `path` of grey images with these labels and class names."""
    fields = {"image": shardio.Field("image", channels=1), "label": dtype}
    metadata = {} if classes is None else {"classes": classes}
    packed(path, [{"image": png(8, 8, 1), "label": label} for label in labels], fields, metadata=metadata)
    return str(path)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["dog", "cat"], "classes of 'label' differ: class 0 is 'cat' in 'train', but 'dog' in 'val'"),  # as many
        (["cat", "dog", "cow"], "2 is unnamed in 'train', but 'cow' in 'val'"),  # more
        (["cat"], "1 is 'dog' in 'train', but unnamed in 'val'"),  # fewer
        (None, "0 is 'cat' in 'train', but unnamed in 'val'"),
    ],
)
def test_other_classes_in_validation_are_refused(tmp_path: Path, classes: list[str] | None, message: str) -> None:
    """A validation set with other classes would give an accuracy of other questions: it is refused by name."""
    train = named(tmp_path / "train", ["cat", "dog"], [0, 1])
    val = named(tmp_path / "val", classes, [0])
    with pytest.raises(ConfigError, match=message):
        open_data(config(tmp_path, train=train, val=val), JOB)


def test_validation_by_name(tmp_path: Path) -> None:
    """With "union" validation labels mean training's classes, and a class that training lacks gets an output."""
    train = named(tmp_path / "train", ["cat", "dog"], [0, 1])
    val = named(tmp_path / "val", ["cow", "dog", "cat"], [0, 1, 2, 2], "uint8")
    data = open_data(config(tmp_path, train=train, val=val, classes="union", batch_size=4), JOB)
    assert data.val is not None
    (batch,) = data.val
    assert batch["label"].tolist() == [2, 1, 0, 0]
    assert data.task.outputs == 3
    fewer = named(tmp_path / "fewer", ["dog"], [0])
    data = open_data(config(tmp_path, train=train, val=fewer, classes="union", batch_size=1), JOB)
    assert data.val is not None
    assert ([batch["label"].tolist() for batch in data.val], data.task.outputs) == ([[1]], 2)


@pytest.mark.parametrize(
    ("known", "names", "options"),
    [
        (["cat", "dog"], ["cat", "dog", "cow"], {"classes": "ignore"}),
        (["cat", "dog"], None, {"classes": "ignore"}),
        (["cat", "dog"], ["cat"], {"classes": "ignore"}),  # a label beyond its own names
        (None, None, {}),  # the model has as many classes as training has labels
        (["cat", "dog", "cow"], ["cat", "dog", "cow"], {"num_classes": 2}),
    ],
)
def test_labels_that_the_model_cannot_tell_are_refused(
    tmp_path: Path, known: list[str] | None, names: list[str] | None, options: dict[str, Any]
) -> None:
    """A validation label beyond the model's classes is an error that names it, before training."""
    train = named(tmp_path / "train", known, [0, 1])
    val = named(tmp_path / "val", names, [0, 2])
    with pytest.raises(ConfigError, match="val: labels must be below 2, the model's number of classes, got 2"):
        open_data(config(tmp_path, train=train, val=val, **options), JOB)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    """A missing GPU is refused with the number of GPUs."""
    assert choose_device(None, World()) == torch.device("cpu")
    with pytest.raises(ConfigError, match="cuda:1 must be one of this node's 0 GPUs"):
        choose_device("cuda", World(1, 2, 1, 2))
