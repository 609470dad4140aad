"""MixUp and CutMix take shares from the seed, weight labels like pixels, and do not depend on how a batch is made."""

from functools import partial
from pathlib import Path
from typing import Any

import _datasets
import h5py
import numpy as np
import pytest
import torch
from _builders import jpeg
from _datasets import packed
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio import CutMix, MixUp
from shardio.errors import ConfigError
from shardio.transforms import RandomGenerator

FLOATS = [shardio.RandomResizedCrop(16), shardio.ToFloat()]
BYTES = [shardio.RandomResizedCrop(16)]


photos = partial(_datasets.photos, classes=5)
load = partial(_datasets.load, transforms=FLOATS, seed=3)


@pytest.mark.parametrize(
    "options", [{}, {"threads": 1}, {"isolate": True, "threads": 1}, {"engine": "dali"}, {"engine": "nvimgcodec"}]
)
def test_mixup(options: dict[str, Any]) -> None:
    """Image and label are the same mixture of a sample and the previous one, with another share in each batch."""
    shares = []
    for plain, mixed in zip(
        load(photos(), engine=options.get("engine", "cpu")), load(photos(), mixing=MixUp(5), **options), strict=True
    ):
        assert plain["index"].tolist() == mixed["index"].tolist()
        label, other = plain["label"], plain["label"].roll(1)
        share = float(mixed["label"][torch.arange(8), label][label != other][0])
        shares.append(share)
        wanted = plain["image"] * share + plain["image"].roll(1, 0) * (1 - share)
        assert (mixed["image"] - wanted).abs().max() < 1e-5
        assert mixed["label"].dtype == torch.float32
        assert mixed["label"].sum(1) == pytest.approx(1)
        assert mixed["label"][torch.arange(8), other] == pytest.approx(
            torch.where(label == other, 1, 1 - share).float()
        )
    assert len(set(shares)) == 3


@pytest.mark.parametrize("transforms", [FLOATS, BYTES], ids=["floats", "bytes"])
@pytest.mark.parametrize("engine", ["cpu", "dali"])
def test_cutmix(engine: str, transforms: list[Any]) -> None:
    """The foreign pixels are one box of the previous sample, and the label has the shares of the areas."""
    boxes = 0
    options = {"engine": engine, "transforms": transforms}
    for epoch in range(4):
        plain, mixed = load(photos(), **options), load(photos(), mixing=CutMix(5), **options)
        plain.set_epoch(epoch)
        mixed.set_epoch(epoch)
        for ours, theirs in zip(plain, mixed, strict=True):
            axis = 1 if transforms is FLOATS else 3
            changed = (ours["image"] != theirs["image"]).any(axis)
            taken = (theirs["image"] == ours["image"].roll(1, 0)).all(axis)
            assert (taken | ~changed).all()
            rows, columns = np.nonzero(changed.any(0).numpy())
            height, width = (int(np.ptp(at)) + 1 if len(at) else 0 for at in (rows, columns))
            own = theirs["label"][torch.arange(8), ours["label"]]
            differs = ours["label"] != ours["label"].roll(1)
            assert own[differs].numpy() == pytest.approx(1 - height * width / 256, abs=0.005)
            boxes += height > 0
    assert boxes > 6


def test_one_of_several() -> None:
    """Each batch gets one of several mixings, chosen independently of the number of threads."""
    mixing = [MixUp(5), CutMix(5)]
    one, two = (list(load(photos(40), 4, mixing=mixing, threads=threads)) for threads in (1, 3))
    assert all(torch.equal(a["image"], b["image"]) for a, b in zip(one, two, strict=True))
    plain = list(load(photos(40), 4))
    whole = [(a["image"] != b["image"]).any(1).float().mean() > 0.9 for a, b in zip(one, plain, strict=True)]
    assert any(whole)
    assert not all(whole)


def test_what_does_not_count_is_left_alone() -> None:
    """Padding is neither mixed nor mixed into other samples."""
    plain, mixed = (list(load(photos(11), 8, tail="pad", mixing=mixing)) for mixing in (None, MixUp(5)))
    valid = plain[-1]["valid"]
    assert valid.tolist() == [True] * 3 + [False] * 5
    assert torch.equal(plain[-1]["image"][~valid], mixed[-1]["image"][~valid])
    own = mixed[-1]["label"][torch.arange(8), plain[-1]["label"]]
    share = float(own[0])
    wanted = plain[-1]["image"][:3] * share + plain[-1]["image"][:3].roll(1, 0) * (1 - share)
    assert (mixed[-1]["image"][:3] - wanted).abs().max() < 1e-5


@given(alpha=st.sampled_from([0.1, 0.2, 0.5, 1.0, 2.0, 8.0]), seed=st.integers(0, 9))
@settings(max_examples=20)
def test_shares_are_of_the_beta_distribution(alpha: float, seed: int) -> None:
    """Shares have mean 1/2 and variance 1 / (4 (2 alpha + 1)), in [0, 1]."""
    found = RandomGenerator(seed, 0, 0, np.arange(20_000)).beta(alpha)
    assert found.min() >= 0
    assert found.max() <= 1
    assert found.mean() == pytest.approx(0.5, abs=0.015)
    assert found.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.06)


@given(st.integers(1, 64), st.integers(1, 64), st.integers(0, 999))
def test_boxes_lie_inside(height: int, width: int, seed: int) -> None:
    """Boxes lie within images of any size, and the share is the remaining area."""
    mix = CutMix(5).draw((height, width), np.ones(4, np.bool_), RandomGenerator(seed, 0, 0, np.arange(1)))
    top, left, tall, wide = mix.box
    assert 0 <= top <= top + tall <= height
    assert 0 <= left <= left + wide <= width
    assert mix.share == pytest.approx(1 - tall * wide / (height * width))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixing": MixUp(5), "transforms": BYTES}, "MixUp needs images that are floats"),
        ({"mixing": MixUp(5), "transforms": [shardio.ToFloat()]}, "images one size"),
        ({"mixing": MixUp(5), "fields": ["image"]}, "needs a field 'label' of integers; there are image .image"),
        ({"mixing": CutMix(5), "fields": ["label"], "transforms": None}, "exactly one image field"),
        ({"mixing": [MixUp(5), CutMix(6)]}, "one number of classes"),
        ({"mixing": [print]}, "number 0 is <built-in"),
        ({"mixing": "mixup"}, r"several of them, such as MixUp\(10\), got 'mixup'"),
        ({"mixing": MixUp(5), "map": dict}, "mixing and map cannot be combined"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    """Fields that cannot be mixed are refused before anything is read."""
    with pytest.raises(ConfigError, match=message):
        load(photos(), **options)


def test_a_label_that_rotted_is_a_bad_sample(tmp_path: Path) -> None:
    """With verify=True, a label damaged on disk is a bad sample and not an invalid argument."""
    rows = [{"image": jpeg(20, 24, seed=number), "label": 3} for number in range(16)]
    packed(tmp_path / "d", rows, container="hdf5", shard_size="1MB")
    with h5py.File(next((tmp_path / "d").glob("*.h5")), "r+") as file:
        file["label"][5] = 1 << 40
    options: dict[str, Any] = {"mixing": MixUp(5), "on_bad_sample": "replace", "max_bad": 3}
    loader = load(shardio.open(tmp_path / "d"), verify=True, **options)
    list(loader)
    assert [bad.location.index for bad in loader.quarantine()] == [5]
    with pytest.raises(ConfigError, match="give a larger num_classes"):
        list(load(shardio.open(tmp_path / "d"), **options))
