"""The configuration, loaders, transforms, class counts and models of a training run."""

import re
from dataclasses import replace
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
from shardio.train import TrainConfig
from shardio.train.data import open_data
from shardio.train.distributed import Job, choose_device
from shardio.train.image_classification import ImageClassification, count_classes
from shardio.train.model import ResNet, load_model
from shardio.transforms.recipe import Recipe

JOB = Job(World(), torch.device("cpu"))


@pytest.mark.parametrize(
    ("size", "asked", "found"),
    [
        ((64, 48), None, (64, 48)),  # small images keep their size
        ((28, 28), 32, (32, 32)),  # unless a size is requested
        ((65, 65), None, (224, 224)),  # larger images get the default size
        (None, None, (224, 224)),  # as do images of various sizes
        (None, 96, (96, 96)),
    ],
)
def test_image_sizes(size: tuple[int, int] | None, asked: int | None, found: tuple[int, int]) -> None:
    """The size (height, width) of model inputs, in training and validation."""
    task = ImageClassification(2, 3, size, asked)
    assert [Recipe.of(list_, channels=3, size=size).size for list_ in task.transforms()] == [found, found]
    assert task.size == max(found)


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


@pytest.mark.parametrize(
    ("labels", "metadata", "message"),
    [
        ([0, -3], {}, "labels must be 0 or more, got -3: leave out samples without a label by where"),
        ([0, -1], {"classes": ["a", "b"]}, "labels must be 0 or more, got -1"),  # as hidden labels of a test set
        ([0, 2], {"classes": ["a", "b"]}, "labels must be below 2, the number of its classes, got 2"),
        (
            [0, 2_000_000_000],
            {},
            "up to 2000000000, number no classes; num_classes takes more than 1,000,000",
        ),
    ],
)
def test_labels_of_no_class_are_refused(labels: list[int], metadata: dict[str, Any], message: str) -> None:
    """A label that no output stands for is an error that names it, before training."""
    samples = [{"image": png(8, 8, 1), "label": label} for label in labels]
    with pytest.raises(ConfigError, match=re.escape(message)):
        count_classes(shardio.from_samples(samples, metadata=metadata), JOB)


def test_a_set_without_labels_is_refused(tmp_path: Path) -> None:
    """A dataset without labels is refused with the missing field and the existing ones."""
    packed(tmp_path / "set", [{"image": png()}])
    with pytest.raises(
        ConfigError, match=r"needs an integer scalar field called 'label'; there are image \(image, RGB, 12 x 16\)"
    ):
        open_data(config(tmp_path, train=tmp_path / "set"), JOB)


def test_sets_of_grey_and_colour_are_refused(tmp_path: Path) -> None:
    packed(tmp_path / "val", [{"image": png(8, 8), "label": 0}])
    with pytest.raises(ConfigError, match=r"train has 1 channels, .*val has 3"):
        open_data(config(tmp_path, val=tmp_path / "val"), JOB)


def named(path: Path, classes: list[str] | None, labels: list[int], dtype: str = "int64") -> str:
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
    fewer = named(tmp_path / "fewer", ["dog"], [0])
    for other, labels, outputs in ((val, [2, 1, 0, 0], 3), (fewer, [1], 2)):
        data = open_data(config(tmp_path, train=train, val=other, classes="union", batch_size=len(labels)), JOB)
        (batch,) = data.val
        assert (batch["label"].tolist(), data.task.outputs) == (labels, outputs)


@pytest.mark.parametrize(
    ("known", "names", "options"),
    [
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
    with pytest.raises(ConfigError, match="val: labels must be below 2, the model's number of classes, got 2"):
        open_data(config(tmp_path, train=val, num_classes=2), JOB)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    assert choose_device(None, World()) == torch.device("cpu")
    with pytest.raises(ConfigError, match="cuda:1 must be one of this node's 0 GPUs"):
        choose_device("cuda", World(1, 2, 1, 2))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": True}, "epochs must be an integer of at least 1, got True"),  # a bool is not a count
        ({"momentum": 1.0}, "momentum must be a number in [0, 1), got 1.0"),
        ({"warmup_epochs": 2.5, "epochs": 2}, "warmup_epochs must be at most epochs (2), got 2.5"),
        ({"lr_decay_factor": 1}, "lr_decay_factor must be a number in (0, 1), got 1"),
        ({"optimizer": "adamax"}, "optimizer must be 'sgd', 'adam', 'adamw', 'lars', 'larc' or 'lamb', got 'adamax'"),
        ({"seed": 10**5000}, "seed must be below 2^63, got a huge int"),  # torch takes no more
        ({"classes": "union", "task": "regression"}, "classes is for classification, got 'union' for regression"),
        ({"model": ""}, "model must be a name, got ''"),
        ({"train": ""}, "train must be a path, got ''"),
        ({"output": None}, "output must be a path, got None"),
        ({"device": "meta"}, "device must be 'cpu', 'cuda' or None, got 'meta'"),  # which torch knows
        ({"local_sgd_period": 1}, "local_sgd_period must be an integer of at least 2, got 1"),
        ({"local_sgd_period": 8, "hook": "bf16"}, "local_sgd_period goes with hook='none' only, got 'bf16'"),
        ({"local_sgd_period": 8, "gradient_lag": 1}, "local_sgd_period goes with gradient_lag=0 only, got 1"),
        ({"gradient_lag": 2}, "gradient_lag must be below 2, got 2"),
        (
            {"gradient_lag": 1, "hook": "powersgd"},
            "gradient_lag goes with hook='none', 'fp16' or 'bf16', got 'powersgd'",
        ),
        (
            {"gradient_lag": 1, "measure_noise_scale": True},
            "gradient_lag goes with measure_noise_scale=False only, got True",
        ),
        ({"local_sgd_overlap": 1}, "local_sgd_overlap needs local_sgd_period, got None"),
        ({"outer_optimizer": "sgd"}, "outer_optimizer needs local_sgd_period, got None"),
        (
            {"local_sgd_period": 4, "local_sgd_overlap": 4},
            "local_sgd_overlap must be below local_sgd_period (4), got 4",
        ),
        (
            {"local_sgd_period": 4, "outer_optimizer": "nesterov", "outer_momentum": 0},
            "outer_optimizer='nesterov' needs an outer_momentum above 0, got 0",
        ),
        (
            {"local_sgd_period": 8, "precision": "fp16"},
            "local_sgd_period goes with precision='float32' or 'bf16', got 'fp16'",
        ),
    ],
)
def test_wrong_configurations_are_refused(values: dict[str, Any], message: str) -> None:
    """Each message names the rule and the value, before a run begins."""
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**{"train": "train", "output": "out"} | values)
    assert str(caught.value) == message


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
    """Images of any size give one score per class; only deep networks begin with zeros in their residual branches."""
    model = ResNet(7, channels, size, width=8)
    assert model(torch.zeros(2, channels, size, size)).shape == (2, 7)
    assert model.stages[0].body[-1].weight.abs().max() == (0 if size > 64 else 1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("alexnet", "model must be 'resnet' or 'module:function', got 'alexnet'"),
        ("cnn3d", "model must be 'resnet' or 'module:function', got 'cnn3d'"),
        ("_tiny:", "model must be 'module:name', got '_tiny:'"),
        ("no_such_module:f", "model 'no_such_module:f': there is no module 'no_such_module' on the Python path"),
        ("_tiny:forest", "model '_tiny:forest': module '_tiny' has no 'forest'"),
        ("_tiny:CLASSES", "model '_tiny:CLASSES' must be a function, got int"),
        ("_tiny:no_model", "model '_tiny:no_model' must return a torch.nn.Module, got str"),
    ],
)
def test_a_model_that_is_not_there_is_refused(name: str, message: str) -> None:
    """The error names the part that is missing."""
    with pytest.raises(ConfigError) as caught:
        load_model(name, ImageClassification(3, 1, (28, 28)))
    assert str(caught.value) == message


def test_views_are_trained_on(tmp_path: Path) -> None:
    """Training and validation take views; classes, channels and sizes are those of their dataset."""
    whole = shardio.open(named(tmp_path / "all", ["cat", "dog", "cow"], [0, 1, 2] * 20))
    parts = whole.split({"train": 0.8, "val": 0.2}, by="label")
    made = replace(config(tmp_path), train=parts["train"].where("label != 1"), val=parts["val"], batch_size=6)
    data = open_data(made, JOB)
    assert data.task.outputs == 3
    seen = [
        sorted(n for batch in loader for n in batch["label"][batch["valid"]].tolist())
        for loader in (data.train, data.val)
    ]
    assert seen == [[0] * 16 + [2] * 16, [0] * 4 + [1] * 4 + [2] * 4]
    assert made.to_dict()["train"] == repr(made.train)


def test_labels_of_views_that_draw(tmp_path: Path) -> None:
    """All labels that a weighted view can draw are looked at, however long its epochs are."""
    unnamed = shardio.open(named(tmp_path / "all", None, [0] * 9 + [4]))
    for samples in (3, 30):
        assert count_classes(unnamed.balanced("label", samples), JOB) == 5
