"""Regression of numbers from volumes: targets, fields, transforms, and a set whose parameters are known."""

import os
import runpy
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from _cli import here
from _datasets import packed
from _tiny import config

import shardio
from shardio.errors import ConfigError, StateMismatch
from shardio.order.world import World
from shardio.train import TrainConfig, checkpoint, run
from shardio.train.data import open_data
from shardio.train.distributed import Job

JOB = Job(World(), torch.device("cpu"))
EXAMPLE = Path(__file__).parents[2] / "examples" / "make_volumes.py"


def volumes(path: Path, samples: int = 24, shape: tuple[int, ...] = (2, 8, 8, 8), seed: int = 0, **more: Any) -> str:
    """A dataset of noise with a level for each channel, and two targets of their own."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(samples):
        levels = random.normal(size=2)[: shape[0]]
        x = levels[:, None, None, None] + random.normal(size=shape)
        y = (100 + 5 * random.normal(size=2)).astype(np.float32)
        made.append({"x": x.astype(np.float16), "y": y} | dict.fromkeys(more, y))
    packed(path, made, {"x": ("float16", shape)} | dict.fromkeys(["y", *more], ("float32", (2,))), container="hdf5")
    return str(path)


def regression(root: Path, **overrides: Any) -> TrainConfig:
    path = root / "train"
    if not path.exists():
        volumes(path)
    given = {"train": path, "task": "regression", "model": None}
    return config(root, **given | {"optimizer": "adamw", "lr": 0.01, "lr_reference_batch": 12} | overrides)


def test_targets_are_standardized(tmp_path: Path) -> None:
    """Telling the mean has the loss 1 and explains nothing; telling the targets themselves explains all."""
    task = open_data(regression(tmp_path), JOB).task
    assert (task.inputs, task.targets, task.channels, task.outputs) == ("x", "y", 2, 2)
    data = shardio.open(tmp_path / "train").read(np.arange(24))
    targets = torch.from_numpy(np.asarray(data["y"]))
    mean = task.losses(torch.zeros(24, 2), targets)
    assert float(mean.mean()) == pytest.approx(1, rel=1e-4)
    told = (targets - targets.mean(0)) / targets.std(0, correction=0)
    torch.testing.assert_close(task.scores(told, targets), torch.ones(24), atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_volumes_are_standardized(dtype: str, tmp_path: Path) -> None:
    """Volumes are learned from as they are stored; the model gets float32 of mean 0 and deviation 1.

    Beside one of floats, one of integers is not taken for the input, unless it is named.
    """
    random = np.random.default_rng(0)
    fields = {"x": (dtype, (2, 8, 8, 8)), "mask": ("uint8", (2, 8, 8, 8)), "y": "float32"}
    scans = [random.integers(20, 220, (2, 8, 8, 8)) for _ in range(24)]
    samples = [{"x": x.astype(dtype), "mask": (x > 99).astype(np.uint8), "y": random.normal()} for x in scans]
    packed(tmp_path / "train", samples, fields, container="hdf5")
    assert open_data(regression(tmp_path, input_field="mask"), JOB).task.inputs == "mask"
    made = regression(tmp_path, input_field=None if dtype == "float32" else "x")
    data = open_data(made, JOB)
    prepared = torch.cat([data.task.prepare(batch["x"]) for batch in data.train])
    assert prepared.dtype == torch.float32
    torch.testing.assert_close(prepared.mean(dim=(0, 2, 3, 4)), torch.zeros(2), atol=1e-3, rtol=0)
    torch.testing.assert_close(prepared.std(dim=(0, 2, 3, 4)), torch.ones(2), atol=1e-2, rtol=0)
    assert run(made).metric == "explained"


@pytest.mark.parametrize(("crop", "sides"), [(None, (8, 8, 8)), (4, (4, 4, 4))])
def test_volumes_are_cropped_flipped_and_turned(crop: int | None, sides: tuple[int, ...], tmp_path: Path) -> None:
    """Training sees other orientations and crops of a volume in every epoch, validation always the same center."""
    made = regression(tmp_path, image_size=crop, val=volumes(tmp_path / "val", 5, seed=1), batch_size=6)
    data = open_data(made, JOB)
    stored = shardio.open(tmp_path / "train")
    first, second = ({int(i): x for b in data.train for i, x in zip(b["index"], b["x"], strict=True)} for _ in range(2))
    assert first[0].shape == (2, *sides)
    assert sum(torch.equal(first[number], second[number]) for number in first) < 6
    if crop is None:
        for number, x in first.items():  # the same voxels, elsewhere
            assert np.array_equal(np.sort(x.numpy(), axis=None), np.sort(np.asarray(stored[number]["x"]), axis=None))
    (batch,) = data.val
    low = (8 - sides[0]) // 2
    window = slice(low, low + sides[0])
    expected = np.stack(shardio.open(tmp_path / "val").read(np.arange(5))["x"])[:, :, window, window, window]
    assert np.array_equal(batch["x"][:5].numpy(), expected)


def test_only_square_planes_are_turned(tmp_path: Path) -> None:
    """Volumes whose sides differ are turned in the planes where they do not; `cnn3d` takes them, too."""
    made = regression(tmp_path, train=volumes(tmp_path / "flat", shape=(1, 4, 8, 8)))
    train, _ = open_data(made, JOB).task.transforms()
    assert [getattr(step, "axes", None) for step in train] == [(-3, -2, -1), (-2, -1)]
    assert run(made).metric == "explained"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_field": "z"}, "input_field needs field 'z' with arrays of numbers"),
        ({"target_field": "x"}, "target_field needs field 'x' with float scalars or vectors of one length; there are"),
        ({"image_size": 9}, "image_size must be at most the shortest side of the volumes, 8, got 9"),
        ({"model": "resnet"}, "model must be 'cnn3d' or 'module:function', got 'resnet'"),
        ({"label_smoothing": 0.1}, r"label_smoothing is for classification, got 0\.1 for regression"),
        ({"num_classes": 3}, "num_classes is for classification, got 3 for regression"),
        ({"task": "classification", "input_field": "x"}, "input_field is for regression: classification takes"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Fields, sizes and options that do not fit the task are refused in words."""
    with pytest.raises(ConfigError, match=message):
        run(regression(tmp_path, **options))


def test_datasets_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Several fields that could be meant, targets that never vary, and sets that differ are refused."""
    with pytest.raises(ConfigError, match="target_field needs one field of float scalars or vectors"):
        run(regression(tmp_path, train=volumes(tmp_path / "two", z=None)))
    assert run(regression(tmp_path, train=tmp_path / "two", target_field="z", epochs=1)).epochs == 1
    with pytest.raises(ConfigError, match="train and val must have the same field 'x'"):
        run(regression(tmp_path, output=tmp_path / "2", val=volumes(tmp_path / "val", shape=(2, 8, 8, 4))))
    with pytest.raises(ConfigError, match="each part of 'y' must be finite and vary"):
        run(regression(tmp_path, output=tmp_path / "3", train=volumes(tmp_path / "one", 1)))


def test_a_run_goes_on_with_the_same_scale_only(tmp_path: Path) -> None:
    """A checkpoint tells the means and deviations; another training set has others, and is refused."""
    made = regression(tmp_path, epochs=1)
    run(made)
    shape = checkpoint.load(tmp_path / "out" / "last.pt").shape
    assert (shape["task"], shape["model"], len(shape["means"])) == ("regression", "cnn3d", 2)
    other = volumes(tmp_path / "other", seed=3)
    with pytest.raises(StateMismatch, match="means is"):
        run(regression(tmp_path, train=other, resume=tmp_path / "out" / "last.pt", epochs=2))


@pytest.mark.long
def test_known_parameters_are_recovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example's volumes, converted, tell their amplitude, slope and growth: with a tenth of the mean's error."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})  # one thread: two are slow where tests share the cores
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path), "--train", "1024", "--val", "128", "--side", "16"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    for name in ("train", "val"):
        here("convert", "hdf5", tmp_path / f"{name}.h5", tmp_path / name, "--to", "hdf5")
        with h5py.File(tmp_path / f"{name}.h5") as file:
            assert np.array_equal(shardio.open(tmp_path / name)[3]["parameters"], file["parameters"][3])
    made = regression(tmp_path, val=tmp_path / "val", batch_size=32, lr=0.001, lr_reference_batch=32, epochs=20)
    assert run(made).score > 0.9
