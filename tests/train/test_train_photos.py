"""`shardio train` on a plain folder of photos, and on the weights of another training."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _cli
import pytest
import torch
from _builders import jpeg, png, tiff, with_exif
from safetensors.torch import save_file
from torch import nn

import shardio
from shardio.errors import ConfigError
from shardio.train import pretrained
from shardio.train.model import ResNet
from shardio.train.pretrained import load_pretrained


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A function that trains for an epoch on `photos` of two classes in `tmp_path`, and returns what it prints."""
    for number in range(24):
        path = tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(8, 8, seed=number))
    monkeypatch.setenv("SHARDIO_CACHE", str(tmp_path / "cache"))

    def run(*words: object, code: int = 0) -> str:
        given = ("--epochs", 1, "--batch-size", 8, "--device", "cpu", "--threads", 1)
        return _cli.run("train", *words, *given, code=code, cwd=tmp_path)

    return run


def kept(told: str) -> list[Path]:
    """The datasets that a run says that it keeps."""
    return [Path(found) for found in re.findall(r"shorter side, is in (\S+)", told)]


@pytest.mark.long
def test_a_folder_of_photos_is_trained_on(tmp_path: Path, train: Callable[..., str]) -> None:
    """The copy is made once, a tenth of each class is held out, and a resumed run goes on with both."""
    told = train("photos", "--output", "one")
    (copy,) = kept(told)
    assert "validating on a tenth of each class" in told
    assert "22 samples in batches of 8" in told
    made = shardio.open(copy)
    assert (made.classes, len(made)) == (["cat", "dog"], 24)
    before = (copy / "shardio.json").stat().st_mtime_ns
    again = train("photos/", "--output", "one", "--resume", "auto", "--lr", 0.01)
    assert (kept(again), (copy / "shardio.json").stat().st_mtime_ns) == ([copy], before)
    assert "resuming from one/last.pt" in again


@pytest.mark.long
def test_the_copy_is_made_anew_for_other_photos(tmp_path: Path, train: Callable[..., str]) -> None:
    """A photo that has moved to another class, or changed in place to as many bytes, replaces the old copy."""
    (first,) = kept(train("photos", "--output", "one"))
    os.rename(tmp_path / "photos/cat/22.png", tmp_path / "photos/dog/00.png")  # in the same order as before
    (second,) = kept(train("photos", "--output", "two"))
    assert shardio.open(second).read(range(24), ["label"])["label"].sum() == 13
    assert not first.exists()
    photo = tmp_path / "photos/cat/00.png"
    photo.write_bytes(photo.read_bytes())
    (third,) = kept(train("photos", "--output", "three"))
    assert third != second
    stopped = train("photos", "--output", "one", "--resume", "auto", code=1)
    assert "one/last.pt" in stopped


def test_photos_are_upright_and_small(tmp_path: Path, train: Callable[..., str]) -> None:
    """A photo of a telephone, turned by a tag, is stored upright at twice the size of the crops."""
    (tmp_path / "photos/cat/00.png").write_bytes(with_exif(jpeg(200, 300), tiff(6)))
    told = train("photos", "--output", "one", "--image-size", 16)
    assert "at most 32 pixels along the shorter side" in told
    image = shardio.open(kept(told)[0])[0]["image"]
    samples = shardio.from_samples([{"image": image}], fields={"image": "image"})
    (batch,) = shardio.Loader(samples, 1)
    assert batch["image"][0].shape == (48, 32, 3)


def test_validation_photos_of_their_own(tmp_path: Path, train: Callable[..., str]) -> None:
    """With --val, which may be a folder of photos, nothing is held out; with --split, that is as it says."""
    os.rename(tmp_path / "photos", tmp_path / "train")
    (tmp_path / "photos").mkdir()
    os.rename(tmp_path / "train", tmp_path / "photos/train")
    for name in ("cat", "dog"):
        (tmp_path / "photos/val" / name).mkdir(parents=True)
        (tmp_path / "photos/val" / name / "0.png").write_bytes(png(8, 8))
    told = train("photos/train", "--val", "photos/val", "--output", "one")
    assert len(kept(told)) == 2
    assert "24 samples in batches of 8" in told
    assert "tenth" not in told
    assert "12 samples" in train("photos/train", "--split", "train=0.5,val=0.5", "--output", "two")
    assert "it holds folders of images in train, val: give one of them, such as photos/train" in train(
        "photos", "--output", "three", code=1
    )


def test_a_photo_that_is_none(tmp_path: Path, train: Callable[..., str]) -> None:
    """It ends the run before it begins and is named, with the option that leaves it out."""
    (tmp_path / "photos/cat/04.png").write_bytes(b"no image")
    told = train("photos", "--output", "one", code=1)
    assert "(key cat/04.png)" in told
    assert "--on-bad-sample replace leaves out such photos" in told
    given = ("--on-bad-sample", "replace", "--max-bad", 1)
    assert len(shardio.open(kept(train("photos", "--output", "one", *given))[0])) == 23


def torchvision_names() -> dict[str, torch.Tensor]:
    """The weights of a ResNet-18 with 1,000 outputs, by the names that torchvision gives them."""
    inside = {own: name for name, own in pretrained.IN_BLOCK.items()}
    outside = {own: name for name, own in pretrained.OUTSIDE.items()}

    def renamed(name: str) -> str:
        if block := re.fullmatch(r"stages\.(\d)\.(body\.\d|shortcut)\.(.+)", name):
            stage, number = divmod(int(block[1]), 2)
            return f"layer{stage + 1}.{number}.{inside[block[2]]}.{block[3]}"
        part, _, rest = name.rpartition(".")
        return f"{outside[part]}.{rest}"

    found = {renamed(name): weight.contiguous() for name, weight in ResNet(1000, 3, 224).state_dict().items()}
    assert {"conv1.weight", "layer1.0.bn2.running_var", "layer4.1.conv2.weight", "fc.bias"} <= found.keys()
    assert {"layer2.0.downsample.0.weight", "layer4.0.downsample.1.bias"} <= found.keys()
    assert len(found) == 122  # as many as torchvision's has
    return found


@pytest.mark.parametrize("form", ["plain", "state_dict", "safetensors"])
def test_weights_of_a_resnet_18(tmp_path: Path, form: str) -> None:
    """All weights but those of the last layer are those of the file, which names them as torchvision does."""
    weights, path = torchvision_names(), tmp_path / ("w.safetensors" if form == "safetensors" else "w.pth")
    if form == "safetensors":
        save_file(weights, path)
    else:
        torch.save({"state_dict": weights} if form == "state_dict" else weights, path)
    model = ResNet(2, 3, 224)
    head = model.head.weight.clone()
    told = load_pretrained(model, str(path))
    assert told.endswith(f"{path}; head.weight and head.bias begin at random, with 2 outputs")
    own = model.state_dict()
    assert torch.equal(own["stem.0.weight"], weights["conv1.weight"])
    assert torch.equal(own["stages.3.body.3.weight"], weights["layer2.1.conv2.weight"])
    assert torch.equal(own["stages.6.shortcut.0.weight"], weights["layer4.0.downsample.0.weight"])
    assert torch.equal(model.head.weight, head)


@pytest.mark.long
def test_weights_of_an_earlier_run(tmp_path: Path, train: Callable[..., str]) -> None:
    """A run begins with the weights of a checkpoint, or of its average; one that is resumed does not."""
    train("photos", "--output", "one", "--ema", 0.5)
    earlier = torch.load(tmp_path / "one/best.pt", weights_only=True)
    model = ResNet(2, 3, 8)
    load_pretrained(model, str(tmp_path / "one/best.pt"))
    assert torch.equal(model.head.weight, earlier["average"]["module.head.weight"])
    given = ("--output", "two", "--pretrained", "one/best.pt")
    assert "resnet begins with the weights of one/best.pt\n" in train("photos", *given)
    assert "begins with" not in train("photos", *given, "--resume", "auto")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found.pop("0.weight"), "0.weight, which the file lacks"),
        (lambda found: found.update(extra=torch.zeros(1)), "extra, which the model lacks"),
        (
            lambda found: found.update({"0.weight": torch.zeros(4, 9)}),
            r"0.weight of shape \[4, 9\], .* \[4, 3\]",
        ),
        (
            lambda found: found.update({"1.weight": torch.zeros(5, 9)}),
            r"1.weight of shape \[5, 9\], .* \[2, 4\]",
        ),
        (lambda found: found.update({"0.weight": "text"}), "must hold a state dict: tensors by name"),
        (lambda found: found.update({"0.weight": nn.Linear(2, 2)}), "no file of weights, or holds more than weights"),
    ],
)
def test_weights_that_do_not_fit(tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    """Weights of other names or shapes are refused by name; no code in a file is run."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    found = dict(model.state_dict())
    change(found)
    torch.save(found, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match=message):
        load_pretrained(model, str(tmp_path / "w.pt"))


def test_weights_for_larger_images(tmp_path: Path) -> None:
    """The network of small images doesn't take the weights of ResNet-18; the message says what does."""
    torch.save(torchvision_names(), tmp_path / "w.pt")
    with pytest.raises(ConfigError, match=r"and \d+ more; with image_size=224, small images take ResNet-18 as well"):
        load_pretrained(ResNet(2, 3, 64), str(tmp_path / "w.pt"))
