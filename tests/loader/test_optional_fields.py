"""Batches of optional fields: None in lists, zeros and a column that says so in tensors, whatever makes them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _builders import png
from _jobs import same
from torch.utils.data import DataLoader

import shardio
from shardio import Field, Loader
from shardio.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore:field 'box' is delivered as it is stored:shardio.PairingWarning")

N = 24
CROP = [shardio.RandomResizedCrop(4), shardio.RandomHorizontalFlip(), shardio.Normalize(0.5, 0.25)]


def lacks(name: str, number: int) -> bool:
    """Every optional field has samples with and without it, and batches of both kinds."""
    return number % 8 >= 4 and number % {"image": 2, "caption": 3, "score": 5, "box": 2, "points": 4}[name] == 0


@pytest.fixture(scope="module", params=["tar", "hdf5", "lmdb"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("optional") / request.param
    fields: dict[str, Any] = {
        "image": Field("image", optional=True),
        "label": "int64",
        "caption": Field("text", optional=True),
        "score": Field("scalar", dtype="float32", optional=True),
        "box": Field("array", dtype="float32", shape=(2, 3), optional=True),
        "points": Field("array", dtype="float32", optional=True),
    }
    with shardio.create(path, container=request.param, fields=fields, shard_size=2000) as writer:
        for number in range(N):
            whole = {
                "image": png(height=6 + number % 3, width=8, seed=number),
                "caption": f"caption {number}",
                "score": number + 0.5,
                "box": np.full((2, 3), number + 1, np.float32),
                "points": np.full((number % 4, 2), number, np.float32),
            }
            writer.append({"label": number} | {n: None if lacks(n, number) else value for n, value in whole.items()})
    return path


def batches(data: Any, **options: Any) -> list[dict[str, Any]]:
    arguments: dict[str, Any] = {"batch_size": 4, "shuffle": None, "transforms": {"image": CROP}}
    return list(Loader(data, **(arguments | options)))


def test_batches(data: Path) -> None:
    """What a sample lacks is zeros, also after Normalize, with a column that says so; in lists it is None."""
    for batch in batches(data, transforms={"image": CROP, "box": [shardio.Normalize(5, 2)]}):
        numbers = batch["index"].tolist()
        for name in ("image", "score", "box"):
            there = [not lacks(name, number) for number in numbers]
            assert batch[f"{name}_present"].tolist() == there
            assert batch[f"{name}_present"].dtype == torch.bool
            assert [bool(row.any()) for row in batch[name]] == there
        for name in ("caption", "points"):
            assert [value is None for value in batch[name]] == [lacks(name, number) for number in numbers]
            assert f"{name}_present" not in batch
        assert "label_present" not in batch


def test_what_is_there_is_unchanged(data: Path) -> None:
    """The values that samples have are those that they have where no neighbour lacks one."""
    for batch in batches(data):
        for row, number in enumerate(batch["index"].tolist()):
            if not lacks("image", number):
                alone = batches(data, batch_size=1)[number]
                assert torch.equal(batch["image"][row], alone["image"][0])
                assert batch["score"][row] == (0 if lacks("score", number) else number + 0.5)
            if not lacks("points", number):
                assert batch["points"][row].tolist() == [[number, number]] * (number % 4)


def test_images_of_several_sizes(data: Path) -> None:
    """Images that are not stacked are a list, with None where there is none."""
    for batch in batches(data, transforms=None):
        assert "image_present" not in batch
        for number, image in zip(batch["index"].tolist(), batch["image"], strict=True):
            assert (image is None) == lacks("image", number)
            assert image is None or image.shape == (6 + number % 3, 8, 3)


@pytest.mark.parametrize("options", [{"verify": True}, {"on_bad_sample": "replace"}])
def test_other_ways_to_make_batches(data: Path, options: dict[str, Any]) -> None:
    """Verification and the treatment of bad samples change no value."""
    for one, other in zip(batches(data), batches(data, **options), strict=True):
        assert same(one, other)


def test_dali_makes_the_others(data: Path) -> None:
    """An engine for whole batches makes the images that are there."""
    pytest.importorskip("nvidia.dali")
    for batch in batches(data, engine="dali", transforms={"image": CROP}):
        there = [not lacks("image", number) for number in batch["index"].tolist()]
        assert batch["image_present"].tolist() == there
        assert [bool(row.any()) for row in batch["image"]] == there


def test_maps(data: Path) -> None:
    """A function of the user's own sees of each sample what is there."""

    def told(sample: dict[str, Any]) -> dict[str, Any]:
        return {"said": sample["caption"] is not None, "scored": sample["score_present"], "label": sample["label"]}

    for batch in batches(data, map=told, map_by="sample"):
        for number, said, scored in zip(batch["label"].tolist(), batch["said"], batch["scored"], strict=True):
            assert bool(said) == (not lacks("caption", number))
            assert bool(scored) == (not lacks("score", number))


def test_torch_dataset(data: Path) -> None:
    """A DataLoader gets tensors that it can stack, with the same columns."""
    dataset = shardio.TorchDataset(data, fields=["image", "label", "score"], transforms=CROP)
    for batch in DataLoader(dataset, batch_size=4):
        for name in ("image", "score"):
            assert batch[f"{name}_present"].tolist() == [not lacks(name, n) for n in batch["index"].tolist()]


def test_mixtures(data: Path) -> None:
    """A mixture has optional fields if all of its sources have them."""
    mixture = shardio.mix({"a": data, "b": data})
    for batch in batches(mixture):
        assert batch["score_present"].tolist() == [not lacks("score", n % N) for n in batch["index"].tolist()]


def test_mixing_needs_every_image(data: Path) -> None:
    """MixUp and CutMix cannot mix an image with none."""
    with pytest.raises(ConfigError, match="mixing needs an image and a label of every sample, and 'image' is optional"):
        Loader(data, batch_size=4, transforms={"image": CROP}, mixing=shardio.MixUp(10))
