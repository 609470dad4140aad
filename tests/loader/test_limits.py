"""A sample that claims too much is a bad sample, by its header; memory is taken for none."""

import json
import math
import pickle
import re
import struct
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
from _builders import bmp, encode, jpeg, of_many_scans, pixels, png, webp
from _cli import python
from _datasets import packed

import shardio
from shardio import World
from shardio.engines import fused_images, whole_images
from shardio.engines.cpu import CpuEngine
from shardio.errors import BadSample, ConfigError
from shardio.transforms.recipe import Recipe

HEIGHT, WIDTH = 60, 80
CROP = [shardio.RandomCrop((10, 12))]


def png_claiming(height: int, width: int) -> bytes:
    """A whole PNG of a few bytes that claims a size."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(64 * (3 * 100 + 1)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def of_process(data: bytes, process: int) -> bytes:
    """A JPEG whose frame claims another coding process."""
    frame = re.search(rb"\xff[\xc0\xc2]", data)
    return data[: frame.start() + 1] + bytes([0xC0 + process]) + data[frame.start() + 2 :]


def in_several_scans() -> bytes:
    """A sequential JPEG whose first scan lacks components, by its header."""
    data = jpeg(HEIGHT, WIDTH)
    scan = data.index(b"\xff\xda")
    return data[:scan] + b"\xff\xda\0\x08\x01\x01\x00\x00\x3f\x00" + data[scan + 14 :]


# image, whether a decoder of regions needs only the crop
IMAGES: dict[str, tuple[bytes, bool]] = {
    "baseline JPEG": (jpeg(HEIGHT, WIDTH), True),
    "grey JPEG": (jpeg(HEIGHT, WIDTH, 1), True),
    "JPEG with restarts": (encode("jpg", pixels(HEIGHT, WIDTH), cv2.IMWRITE_JPEG_RST_INTERVAL, 2), True),
    "progressive JPEG": (jpeg(HEIGHT, WIDTH, progressive=True), False),
    "arithmetic JPEG": (of_process(jpeg(HEIGHT, WIDTH), 9), False),
    "JPEG in several scans": (in_several_scans(), False),
    "PNG": (png(HEIGHT, WIDTH), False),
    "WebP": (webp(HEIGHT, WIDTH), False),
    "lossless WebP": (webp(HEIGHT, WIDTH, quality=101), False),
    "BMP": (bmp(HEIGHT, WIDTH), False),
}


def photos(*images: bytes) -> shardio.Dataset:
    rows = [{"image": image, "label": number} for number, image in enumerate(images)]
    return shardio.from_samples(rows, {"image": "image", "label": "int64"})


def load(dataset: Any, **options: Any) -> dict[str, Any]:
    dataset = shardio.open(dataset) if isinstance(dataset, Path) else dataset
    given: dict[str, Any] = {"shuffle": None, "world": World(), "threads": 1, "max_bad": 0.99, "engine": "cpu"}
    return next(iter(shardio.Loader(dataset, len(dataset), **(given | options))))


@pytest.mark.parametrize("name", IMAGES)
def test_pixels_that_decoding_must_hold(name: str, part: str) -> None:
    """The crop counts for JPEGs that are decoded in order, else the whole image; one pixel less is refused."""
    image, streams = IMAGES[name]
    streams &= part == "compiled"
    held = 10 * 12 if streams else HEIGHT * WIDTH
    dataset = photos(image)
    with pytest.raises(BadSample, match=rf"claims 60 x 80 pixels, .*max_image_pixels allows {held - 1}"):
        load(dataset, transforms=CROP, max_image_pixels=held - 1)
    if name not in ("arithmetic JPEG", "JPEG in several scans"):  # these only claim to be
        assert load(dataset, transforms=CROP, max_image_pixels=held)["image"].shape == (1, 10, 12, 3)
        assert load(dataset, max_image_pixels=HEIGHT * WIDTH)["image"][0].shape == (HEIGHT, WIDTH, 3)
    with pytest.raises(BadSample, match=r"claims 60 x 80 pixels, of which 4800 must be held"):
        load(dataset, max_image_pixels=HEIGHT * WIDTH - 1)


@pytest.mark.parametrize("engine", ["nvimgcodec", "dali"])
def test_engines_for_whole_batches(engine: str) -> None:
    """They get no image that is larger than the limit; the CPU engine makes it, if its crop is not."""
    if find_spec("nvidia") is None or find_spec(f"nvidia.{engine}") is None:
        pytest.skip("not installed")
    dataset = photos(*[jpeg(20, 30)] * 2, jpeg(HEIGHT, WIDTH), jpeg(HEIGHT, WIDTH, progressive=True))
    options = {"transforms": CROP, "max_image_pixels": 20 * 30, "engine": engine, "on_bad_sample": "mask"}
    assert load(dataset, **options)["valid"].tolist() == [True, True, True, False]


def test_images_that_grow() -> None:
    """An image of one row that a Resize would make wide beyond the limit is refused."""
    with pytest.raises(BadSample, match=r"resized to 256 x 16776960: max_image_pixels allows 268435456"):
        load(photos(png(1, 65535)), transforms=[shardio.Resize(256), shardio.CenterCrop(224)])


def test_formats_without_a_known_header() -> None:
    """What is no JPEG, PNG, WebP or BMP is not given to a decoder that would take it."""
    engine = CpuEngine(Recipe.of([], channels=3, size=None), channels=3)
    for suffix in ("tiff", "ppm", "jp2"):
        other = encode(suffix, pixels(HEIGHT, WIDTH))
        with pytest.raises(BadSample, match="not a JPEG, PNG, WebP or BMP image"):
            engine([other], np.array([[HEIGHT, WIDTH]], np.int32), [], None)


def test_other_places_that_decode(tmp_path: Path) -> None:
    """TorchDataset has the limits too; verify, stats and show apply the defaults."""
    with pytest.raises(BadSample, match="max_image_pixels allows 4799"):
        shardio.TorchDataset(photos(png(HEIGHT, WIDTH)), max_image_pixels=4799)[0]
    small = shardio.TorchDataset(photos(png(HEIGHT, WIDTH)), max_image_pixels=4800, max_value_bytes=10)
    with pytest.raises(BadSample, match="max_value_bytes allows 10"):
        pickle.loads(pickle.dumps(small))[0]  # noqa: S301
    packed(tmp_path / "d", [{"image": png_claiming(30_000, 30_000)}], {"image": "image"})
    (problem,) = shardio.verify(tmp_path / "d", deep=True).problems
    assert "claims 30000 x 30000 pixels" in problem
    assert any("claims 30000 x 30000 pixels" in f"{bad}" for bad in shardio.stats(tmp_path / "d").bad)
    with pytest.raises(BadSample, match="claims 30000 x 30000 pixels"):
        shardio.convert(tmp_path / "d", tmp_path / "e", resize_shorter=64)
    shardio.convert(
        tmp_path / "d", tmp_path / "f", resize_shorter=64, on_error="skip", max_bad=1, limit=1, dry_run=True
    )


# path -> dataset that claims, and what is claimed, by field
def tar_claims(path: Path) -> None:
    """Eight values of 6 GiB in a tar that has as many bytes, all of them holes."""
    packed(path, [{"value": bytes([number])} for number in range(10)], shard_size="1MB")
    with (path / "shard-000000.tar").open("r+b") as file:
        file.truncate(7 << 30)
    index = np.lib.format.open_memmap(path / "shard-000000.idx.npy", "r+")
    index["value.size"][1:9] = 6 << 30
    index.flush()


def hdf5_claims(path: Path) -> None:
    """Eight values of 6 GiB in data that were never written, in chunks."""
    packed(path, [{"value": bytes([number])} for number in range(10)], container="hdf5", shard_size="1MB")
    with h5py.File(path / "shard-000000.h5", "r+") as file:
        del file["value/data"], file["value/offsets"]
        data = file.create_dataset("value/data", (60 << 30,), np.uint8, chunks=(1 << 16,), compression="gzip")
        file["value/offsets"] = np.cumsum([0, 1, *[6 << 30] * 8, 1])
        data[0], data[48 << 30 | 1] = 0, 9


def chunk_claims(path: Path) -> None:
    """Arrays of 8 bytes, in one chunk of 3 GiB that is compressed to a few bytes."""
    rows = [{"value": np.zeros(8, np.uint8)}] * 10
    packed(path, rows, {"value": ("uint8", (8,))}, container="hdf5", shard_size="1MB")
    with h5py.File(path / "shard-000000.h5", "r+") as file:
        del file["value"]
        chunked = file.create_dataset(
            "value", (10, 8), np.uint8, maxshape=(None, 8), chunks=(3 << 27, 8), compression=1
        )
        chunked.id.write_direct_chunk((0, 0), zlib.compress(bytes(1 << 20)))


LIMITED = """
import json, resource, sys, time
import shardio
options = {"on_bad_sample": "mask", "max_bad": 10, "engine": "cpu", "threads": 2}
room, *paths = sys.argv[1:]
loaders = [shardio.Loader(path, 10, shuffle=None, world=shardio.World(), **options) for path in paths]
(used,) = [int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize")]
resource.setrlimit(resource.RLIMIT_AS, (used + int(room), used + int(room)))
for loader in loaders:
    (batch,) = loader
    print(json.dumps([batch["valid"].tolist(), [bad.reason for bad in loader.quarantine()]]))
"""


def limited(room: int, *paths: Path) -> list[tuple[list[bool], list[str]]]:
    """Load datasets in a process that may use `room` bytes more: which samples are valid, and why others are not."""
    return [json.loads(line) for line in python("-c", LIMITED, room, *paths).stdout.splitlines()]


@pytest.mark.long
def test_what_claims_much_costs_no_memory(tmp_path: Path) -> None:
    """Values of 6 GiB, chunks of 3 GiB and an image of 900 million pixels are bad samples, each by itself."""
    tar_claims(tmp_path / "tar")
    hdf5_claims(tmp_path / "hdf5")
    chunk_claims(tmp_path / "chunk")
    images = [png_claiming(30_000, 30_000) if number == 3 else png(HEIGHT, WIDTH) for number in range(10)]
    packed(tmp_path / "image", [{"image": image} for image in images], {"image": "image"})
    tar, hdf5, chunk, image = limited(1 << 30, *(tmp_path / name for name in ("tar", "hdf5", "chunk", "image")))
    for valid, reasons in (tar, hdf5):
        assert valid == [True, *[False] * 8, True]
        for row, reason in enumerate(reasons, 1):
            assert f"field 'value', row {row}: {6 << 30} bytes are claimed, max_value_bytes allows {1 << 30}" in reason
    assert chunk[0] == [False] * 10
    assert f"its chunk: {3 << 30} bytes are claimed, max_value_bytes allows {1 << 30}" in chunk[1][0]
    assert image[0] == [number != 3 for number in range(10)]
    assert "the png image claims 30000 x 30000 pixels" in image[1][0]


def test_a_limit_that_is_raised(tmp_path: Path) -> None:
    """A chunk of just as many bytes as the limit allows is read."""
    rows, fields = [{"value": np.full(8, number, np.uint8)} for number in range(10)], {"value": ("uint8", (8,))}
    packed(tmp_path / "d", rows, fields, container="hdf5", compression="gzip", shard_size="1MB")
    with h5py.File(tmp_path / "d" / "shard-000000.h5") as file:
        size = math.prod(file["value"].chunks)
    with pytest.raises(BadSample, match=f"{size} bytes are claimed, max_value_bytes allows {size - 1}"):
        load(tmp_path / "d", max_value_bytes=size - 1)
    assert load(tmp_path / "d", max_value_bytes=size, verify=True)["value"][7].tolist() == [7] * 8


def test_memory_that_one_sample_lacks(tmp_path: Path) -> None:
    """A value within the limits for which there is no memory is a bad sample, named; the others are good."""
    tar_claims(tmp_path / "d")
    index = np.lib.format.open_memmap(tmp_path / "d" / "shard-000000.idx.npy", "r+")
    index["value.size"][1:9] = 1
    index["value.size"][4] = 900 << 20
    index.flush()
    ((valid, reasons),) = limited(600 << 20, tmp_path / "d")
    assert valid == [number != 4 for number in range(10)]
    assert "row 4" in reasons[0]
    assert "there is not enough memory to read or decode it" in reasons[0]


@pytest.mark.usefixtures("part")
def test_an_image_whose_decoding_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a bad sample after a quarter of `timeout`, which other samples replace, whoever decodes it."""
    for module in (fused_images, whole_images):
        monkeypatch.setattr(module, "current_limit", lambda: 0.02)
    slow, good = of_many_scans(4096, 99), of_many_scans(64, 3)
    data = shardio.from_samples([{"image": image} for image in (good, slow, good)], {"image": "image"})
    options = {"transforms": [shardio.Resize((8, 8))], "shuffle": None, "world": World(), "threads": 1}
    with pytest.raises(BadSample, match=r"sample 1\), field 'image': .* takes more than 0.02 s, a quarter of timeout"):
        next(iter(shardio.Loader(data, 3, **options)))
    loader = shardio.Loader(data, 3, **options, on_bad_sample="replace", max_bad=1)
    assert next(iter(loader))["index"].tolist()[::2] == [0, 2]
    assert [record.location.index for record in loader.quarantine()] == [1]


@pytest.mark.parametrize("name", ["max_image_pixels", "max_value_bytes"])
@pytest.mark.parametrize("value", [0, 1.5, True, 1 << 63])
def test_limits_that_are_none(name: str, value: Any) -> None:
    """Each limit is an integer of at least 1."""
    with pytest.raises(ConfigError, match=f"{name} must be an integer of at least 1, got"):
        shardio.Loader(photos(png()), 1, **{name: value})
