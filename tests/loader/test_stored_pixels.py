"""Images that are stored as pixels: they load as files of the same pixels do, without a decoder."""

import io
import json
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import pytest
import torch
from _builders import resized
from _cli import run
from _datasets import CONTAINERS, packed
from _jobs import same
from numpy.typing import NDArray
from PIL import Image

import shardio
from shardio import Field, World
from shardio.transforms import Transform

SIZE, COUNT = (20, 28), 24


def picture(number: int, channels: int = 3, size: tuple[int, int] = SIZE) -> NDArray[np.uint8]:
    return np.random.default_rng(number).integers(0, 256, (*size, channels), dtype=np.uint8)


def png(pixels: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0]).save(file, "PNG")
    return file.getvalue()


def datasets(folder: Path, container: str, channels: Literal[1, 3]) -> tuple[Path, Path]:
    forms: dict[str, tuple[Any, Any]] = {
        "pixels": (Field("pixels", shape=SIZE, channels=channels), lambda pixels: pixels),
        "files": (Field("image", shape=SIZE, channels=channels), png),
    }
    for name, (field, form) in forms.items():
        rows = [{"image": form(picture(number, channels)), "label": number} for number in range(COUNT)]
        packed(folder / name, rows, {"image": field, "label": "int64"}, container=container, shard_size=8000)
    return folder / "pixels", folder / "files"


LISTS: dict[str, list[Transform]] = {
    "nothing": [],
    "flip": [shardio.RandomHorizontalFlip()],
    "training": [shardio.RandomResizedCrop(16), shardio.RandomHorizontalFlip()],
    "padding": [shardio.RandomCrop(SIZE, padding=4), shardio.RandomHorizontalFlip()],
    "colour": [shardio.Resize(24), shardio.CenterCrop(20), shardio.ColorJitter(0.4, 0.4, 0.2)],
    "floats": [shardio.RandomHorizontalFlip(), shardio.Normalize(0.4, 0.3)],
    "half": [shardio.RandomCrop(16), shardio.Normalize(0.4, 0.3, dtype="float16"), shardio.RandomErasing(1.0)],
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.usefixtures("part")
def test_pixels_load_as_files_do(tmp_path: Path, name: str, channels: Literal[1, 3]) -> None:
    """Every list of transforms gives the same batches of pixels as of files."""
    container = CONTAINERS[len(name) % 3]
    options: dict[str, Any] = {"transforms": LISTS[name], "world": World(), "seed": 3, "threads": 2, "verify": True}
    loaders = [shardio.Loader(path, 5, **options) for path in datasets(tmp_path, container, channels)]
    for ours, theirs in zip(*loaders, strict=True):
        assert same(ours, theirs)


@pytest.mark.parametrize("options", [{"isolate": True}, {"map": lambda sample: sample}, {"engine": "auto"}])
def test_other_ways_of_loading(tmp_path: Path, options: dict[str, Any]) -> None:
    """Processes and the user's own function get the same pixels; so does a TorchDataset."""
    path, _ = datasets(tmp_path, "hdf5", 3)
    transforms = [shardio.RandomCrop(16), shardio.RandomHorizontalFlip()]
    given: dict[str, Any] = {"transforms": transforms, "world": World(), "seed": 3}
    plain = {
        int(i): image for b in shardio.Loader(path, 6, **given) for i, image in zip(b["index"], b["image"], strict=True)
    }
    for batch in shardio.Loader(path, 6, threads=1, **given, **options):
        for index, image in zip(batch["index"].tolist(), batch["image"], strict=True):
            assert torch.equal(image, plain[index])
    samples = shardio.TorchDataset(path, transforms=transforms, seed=3)
    assert all(torch.equal(samples[index]["image"], image) for index, image in plain.items())


@pytest.mark.long
@pytest.mark.parametrize("container", CONTAINERS)
def test_what_else_knows_them(tmp_path: Path, container: str) -> None:
    """info, verify, show, stats and reshard take a dataset of pixels; a sample is an array."""
    path, _ = datasets(tmp_path, container, 3)
    assert np.array_equal(shardio.open(path)[7]["image"], picture(7))
    assert "image, RGB, 20 x 28, stored as pixels" in run("info", path)
    run("verify", path, "--deep")
    run("show", path, "-o", tmp_path / "sheet.png", "--samples", 6)
    assert cv2.imread(str(tmp_path / "sheet.png")) is not None
    run("stats", path, "--json", tmp_path / "stats.json")
    images = json.loads((tmp_path / "stats.json").read_bytes())["fields"]["image"]["images"]
    every = np.stack([picture(number) for number in range(COUNT)]) / 255
    assert [channel["mean"] for channel in images["channels"]] == pytest.approx(every.mean((0, 1, 2)).tolist())
    assert images["common"] == [[20, 28, COUNT]]
    for other in CONTAINERS:
        run("reshard", path, tmp_path / other, "--to", other)
        again = shardio.open(tmp_path / other)
        assert again.fields == shardio.open(path).fields
        assert again.manifest.digest == shardio.open(path).manifest.digest


def test_damage_is_found(tmp_path: Path) -> None:
    """A changed byte is a bad sample with verify=True, and `shardio verify` names it."""
    path, _ = datasets(tmp_path, "lmdb", 3)
    stored = picture(5).tobytes()
    for shard in path.glob("shard-*"):
        shard.write_bytes(shard.read_bytes().replace(stored, stored[:100] + bytes([stored[100] ^ 1]) + stored[101:]))
    loader = shardio.Loader(path, 6, world=World(), verify=True, on_bad_sample="mask")
    masked = [int(i) for batch in loader for i, valid in zip(batch["index"], batch["valid"], strict=True) if not valid]
    assert masked == [5]
    assert shardio.verify(path).count


def photos(folder: Path, sizes: list[tuple[int, int]]) -> Path:
    (folder / "a").mkdir(parents=True)
    for number, size in enumerate(sizes):
        (folder / "a" / f"{number:03}.png").write_bytes(png(picture(number, size=size)))
    return folder


def test_conversion_stores_pixels(tmp_path: Path) -> None:
    """`--store-pixels` decodes once for all; `--resize` gives all images one size, with Pillow's filter."""
    source = photos(tmp_path / "in", [(20, 28)] * 6)
    run("convert", "imagefolder", source, tmp_path / "same", "--store-pixels", "--to", "hdf5")
    assert shardio.open(tmp_path / "same").fields["image"] == Field("pixels", shape=(20, 28), channels=3)
    assert np.array_equal(shardio.open(tmp_path / "same")[4]["image"], picture(4))
    source = photos(tmp_path / "several", [(20, 28), (31, 9), (64, 64)])
    options = ["convert", "imagefolder", source, tmp_path / "out"]
    with pytest.raises(shardio.ConfigError, match=r"'image' differ in size, 20 x 28 .* and 31 x 9 .*: give resize,"):
        shardio.convert(source, tmp_path / "out", converter="imagefolder", store_pixels=True)
    run(*options, "--store-pixels", "--resize", "16,12")
    for number, size in enumerate([(20, 28), (31, 9), (64, 64)]):
        wanted = resized(Image.fromarray(picture(number, size=size)), (16, 12), "bilinear")
        assert np.array_equal(shardio.open(tmp_path / "out")[number]["image"], np.asarray(wanted))
    run("reshard", tmp_path / "out", tmp_path / "less", "--store-pixels", "--resize", "8,8")
    assert shardio.open(tmp_path / "less").fields["image"].shape == (8, 8)


def test_an_image_of_another_size(tmp_path: Path) -> None:
    """An image of another size, which no look at a few samples had found, is a bad sample that says what to do."""
    source = photos(tmp_path / "in", [(20, 28)] * 90)
    looked_at = np.linspace(0, 89, 64).astype(int).tolist()
    missed = next(number for number in range(90) if number not in looked_at)
    (source / "a" / f"{missed:03}.png").write_bytes(png(picture(1, size=(20, 27))))
    with pytest.raises(shardio.BadSample, match=r"the image is 20 x 27 pixels, others are 20 x 28: give resize,"):
        shardio.convert(source, tmp_path / "out", converter="imagefolder", store_pixels=True)


def test_arrays_become_pixels(tmp_path: Path) -> None:
    """Arrays of pixels are stored as pixels with `as_image`, whichever axis is their channels'."""
    arrays = np.stack([picture(number) for number in range(5)])
    np.savez(tmp_path / "in.npz", image=arrays.transpose(0, 3, 1, 2), label=np.arange(5))
    shardio.convert(tmp_path / "in.npz", tmp_path / "out", converter="numpy", as_image="image", store_pixels=True)
    dataset = shardio.open(tmp_path / "out")
    assert dataset.fields["image"] == Field("pixels", shape=SIZE, channels=3)
    assert np.array_equal(dataset[3]["image"], picture(3))


@pytest.mark.parametrize("size", [None, (10, 14)])
@pytest.mark.parametrize("container", CONTAINERS)
def test_alpha_is_kept(tmp_path: Path, container: str, size: tuple[int, int] | None) -> None:
    """Files with alpha, without it, grey and with a transparent palette become what Pillow makes of them as RGBA."""
    (tmp_path / "in" / "a").mkdir(parents=True)
    images = [
        Image.fromarray(picture(0, 4), "RGBA"),
        Image.fromarray(picture(1, 3)),
        Image.fromarray(picture(2, 1)[:, :, 0]),
        Image.fromarray(picture(3, 4), "RGBA").quantize(16),
    ]
    for number, image in enumerate(images):
        image.save(tmp_path / "in" / "a" / f"{number}.png")
    options: dict[str, Any] = {"store_pixels": True, "keep_alpha": True, "resize": size}
    shardio.convert(tmp_path / "in", tmp_path / "out", converter="imagefolder", container=container, **options)
    dataset = shardio.open(tmp_path / "out")
    assert dataset.fields["image"] == Field("array", "uint8", (4, *(size or SIZE)))
    crop = [shardio.CenterSpatialCrop(8)]
    (batch,) = shardio.Loader(dataset, 4, shuffle=None, transforms={"image": crop}, world=World())
    for number, image in enumerate(images):
        pillow = image.convert("RGBA")
        pillow = pillow if size is None else resized(pillow, size, "bilinear")
        expected = np.asarray(pillow).transpose(2, 0, 1)
        assert np.array_equal(dataset[number]["image"], expected)
        top, left = (expected.shape[1] - 8) // 2, (expected.shape[2] - 8) // 2
        assert np.array_equal(batch["image"][number].numpy(), expected[:, top : top + 8, left : left + 8])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resize": (8, 8)}, "resize goes with store_pixels"),
        ({"keep_alpha": True}, "keep_alpha goes with store_pixels"),
        ({"store_pixels": True, "max_pixels": 99}, "store_pixels stores no image files"),
        ({"store_pixels": True, "resize": (0, 8)}, "resize must be one or two integers of at least 1"),
    ],
)
def test_options_that_contradict(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    """Options that would do nothing are refused, and data without an image to store as pixels."""
    source = photos(tmp_path / "in", [(20, 28)])
    with pytest.raises(shardio.ConfigError, match=message):
        shardio.convert(source, tmp_path / "out", converter="imagefolder", **options)
    np.save(tmp_path / "x.npy", np.arange(5))
    with pytest.raises(shardio.ConfigError, match="store_pixels: there is no image; the fields are "):
        shardio.convert(tmp_path / "x.npy", tmp_path / "out", converter="numpy", store_pixels=True)
