"""Photos with boxes, labels and points, transforms of a detector, and what batches deliver of them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import xxhash
from _builders import jpeg, tiff, with_exif
from numpy.typing import NDArray

import shardio
from shardio import Field

FIELDS: dict[str, Any] = {
    "image": "image",
    "boxes": Field("array", "float32", (None, 4), role="boxes", on="image"),
    "labels": Field("array", "int64", (None,), per="boxes"),
    "points": Field(
        "array", "float32", (None, 3, 3), role="points", on="image", per="boxes", attributes={"flip_pairs": [[0, 1]]}
    ),
}
SANITIZE = shardio.SanitizeBoundingBoxes()
TRAIN = [shardio.RandomIoUCrop(), SANITIZE, shardio.RandomHorizontalFlip(), shardio.Resize((48, 40))]


def sample(number: int, count: int | None = None, *, exif: int = 1) -> dict[str, Any]:
    """A photo with boxes, labels that name the photo and the box, and points at two corners and the middle of a box."""
    random = np.random.default_rng(number)
    height, width = random.integers(60, 120, 2).tolist()
    boxes = np.sort(random.uniform(0, 1, (number % 5 if count is None else count, 2, 2)), axis=1) * [width, height]
    points = np.stack((boxes[:, 0], boxes[:, 1], boxes.mean(axis=1)), axis=1)
    photo = jpeg(height, width, seed=number)
    return {
        "image": photo if exif == 1 else with_exif(photo, tiff(exif)),
        "boxes": boxes.reshape(-1, 4).astype(np.float32),
        "labels": 100 * number + np.arange(len(boxes)),
        "points": np.concatenate((points, np.full((len(boxes), 3, 1), 2)), axis=2).astype(np.float32),
    }


def dataset(count: int = 40, first: int = 0) -> shardio.Dataset:
    """A dataset in memory of the samples from number `first` on."""
    return shardio.from_samples(map(sample, range(first, first + count)), FIELDS, shard_samples=7)


def by_image(batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The targets of a batch."""
    return shardio.to_torchvision(batch, instances=["boxes", "labels", "points"])


def corners(boxes: NDArray[Any], matrix: NDArray[Any]) -> NDArray[Any]:
    """Boxes [n, 4] mapped by a matrix that keeps their sides parallel to the axes."""
    ends = boxes.reshape(-1, 2, 2) @ matrix[:2, :2].T + matrix[:2, 2]
    return np.concatenate((ends.min(axis=1), ends.max(axis=1)), axis=1)


def delivered(batches: Iterable[Mapping[str, Any]]) -> Counter[tuple[int, ...]]:
    """The samples in batches, without padding: the numbers of each, and a digest of its image and its instances."""
    found: Counter[tuple[int, ...]] = Counter()
    for batch in batches:
        valid = batch["valid"] if "valid" in batch else np.ones(len(batch["index"]), np.bool_)
        for row, target in enumerate(by_image(batch)):
            digest = xxhash.xxh64()
            for values in (batch["image"][row], batch["image_geometry"][row], *target.values()):
                digest.update(np.ascontiguousarray(values))
            numbers = (int(batch[name][row]) for name in ("index", "source") if name in batch)
            if valid[row]:
                found[*numbers, digest.intdigest()] += 1
    return found
