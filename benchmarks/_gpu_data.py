"""The data of the GPU benchmark: photos as files and as a dataset, and arrays in HDF5."""

import shutil
from pathlib import Path

import cv2
import numpy as np

import shardio
from shardio.conversion.api import convert
from shardio_converters.imagefolder import imagefolder

SYNTHETIC_PHOTOS = 256
"""The number of different synthetic photos, used where there are no real ones."""

ARRAY = (16, 256, 256)
"""Shape of an array, uint16: 2 MiB."""


def synthetic_photo(number: int) -> bytes:
    """A synthetic JPEG of 375 x 500 pixels and about 48 KB that costs about as much to decode as a photo."""
    random = np.random.default_rng(number)
    y, x = np.mgrid[0:375, 0:500] / 100
    planes = [127 + 90 * np.sin(a * x + b * y + c) for a, b, c in random.uniform(0, 9, (3, 3))]
    grain = cv2.GaussianBlur(random.normal(0, 22, (375, 500, 3)), (3, 3), 0)
    image = np.clip(np.stack(planes, axis=2) + grain, 0, 255).astype(np.uint8)
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()


def photos(source: Path | None, work: Path, count: int) -> tuple[Path, Path, str]:
    """A folder of JPEG files, a dataset of them, and a description; created once and kept below `work`."""
    folder, dataset = work / "photos", work / "photos-tar"
    said = (
        "photos"
        if source is not None
        else f"{SYNTHETIC_PHOTOS} drawn pictures, each several times: no --photos were given"
    )
    if not dataset.is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        files = sorted(source.rglob("*.jpg")) if source is not None else []
        pictures = [path.read_bytes() for path in files[:count]] or [
            synthetic_photo(number) for number in range(SYNTHETIC_PHOTOS)
        ]
        for number in range(count):
            path = folder / f"{number % 100:03d}" / f"{number:06d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(pictures[number % len(pictures)])
        convert(imagefolder(folder), dataset, container="tar", workers=2)
    return folder, dataset, said


def arrays(work: Path, count: int) -> Path:
    """An HDF5 dataset of random arrays."""
    path = work / "arrays-hdf5"
    if not path.is_dir():
        random = np.random.default_rng(0)
        fields = {"array": shardio.Field("array", "uint16", ARRAY)}
        with shardio.create(path, container="hdf5", fields=fields, shard_size="256MB") as writer:
            for _ in range(count):
                writer.append({"array": random.integers(0, 1 << 16, ARRAY, np.uint16)})
    return path
