"""Compare the engines' pixels on the same 256 photos, seed and transforms, with Pillow as an independent reference.

    python benchmarks/parity.py /tmp/photos --json parity.json

For each list of transforms: the mean, of the image that is furthest apart too, and the largest absolute difference to
the CPU engine's bytes, and for crops and resizes the mean difference of each engine to what Pillow makes of the very
same boxes. Crops and indices must be equal.
"""

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import shardio
from benchmarks._results import finish, options
from shardio.transforms import Transform
from shardio.transforms.random_generator import RandomKeys
from shardio.transforms.recipe import Recipe
from shardio.transforms.steps import Crop, Flip, Scale

COUNT, BATCH, SEED = 256, 64, 7
CROP: list[Transform] = [shardio.RandomResizedCrop(224), shardio.RandomHorizontalFlip()]
TRANSFORMS: dict[str, list[Transform]] = {
    "RandomResizedCrop, flip": CROP,
    "the same, bicubic": [shardio.RandomResizedCrop(224, interpolation="bicubic"), shardio.RandomHorizontalFlip()],
    "the same, without antialias": [shardio.RandomResizedCrop(224, antialias=False), shardio.RandomHorizontalFlip()],
    "CenterCrop, not resized": [shardio.CenterCrop(224)],
    "Resize, CenterCrop": [shardio.Resize(256), shardio.CenterCrop(224)],
    "Resize, CenterCrop, without antialias": [shardio.Resize(256, antialias=False), shardio.CenterCrop(224)],
    "ColorJitter(0.4, 0.4, 0.4, 0.1)": [*CROP, shardio.ColorJitter(0.4, 0.4, 0.4, 0.1)],
    "RandomRotation(30)": [*CROP, shardio.RandomRotation(30)],
    "GaussianBlur(23)": [*CROP, shardio.GaussianBlur(23)],
    "TrivialAugmentWide": [*CROP, shardio.TrivialAugmentWide()],
}
JUDGED = ("RandomResizedCrop, flip", "the same, bicubic", "CenterCrop, not resized", "Resize, CenterCrop")


def epoch(dataset: str, transforms: list[Transform], engine: Any, device: str) -> tuple[list[int], NDArray[np.uint8]]:
    """The indices and pixels of an epoch."""
    loader = shardio.Loader(
        dataset,
        BATCH,
        transforms=transforms,
        engine=engine,
        device=None if engine == "cpu" else device,
        seed=SEED,
        world=shardio.World(),
    )
    batches = list(loader)
    indices = [index for batch in batches for index in batch["index"].tolist()]
    return indices, torch.cat([batch["image"].cpu() for batch in batches]).numpy()


def by_pillow(data: bytes, index: int, transforms: list[Transform]) -> NDArray[np.uint8]:
    """Apply the same steps to one image with Pillow."""
    with Image.open(io.BytesIO(data)) as file:
        image = file.convert("RGB")
    size = np.array([[image.height, image.width]], np.int32)
    recipe = Recipe.of(transforms, channels=3, size=None)
    for step in recipe.steps(size, RandomKeys(SEED, 0, np.array([index]))):
        match step:
            case Crop(boxes):
                top, left, height, width = boxes[0].tolist()
                image = image.crop((left, top, left + width, top + height))
            case Scale(sizes, interpolation):
                height, width = sizes[0].tolist()
                image = image.resize((width, height), getattr(Image.Resampling, interpolation.upper()))
            case Flip(mask):
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mask[0] else image
    return np.asarray(image)


def apart(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> dict[str, float]:
    """The mean absolute difference, that of the image furthest apart, and the largest of all."""
    difference = np.abs(one.astype(np.int16) - other)
    by_image = difference.mean(axis=(1, 2, 3))
    furthest = round(float(by_image.max()), 3)
    return {"mean": round(float(by_image.mean()), 3), "furthest image": furthest, "largest": int(difference.max())}


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__, rounds=None)
    parser.add_argument("photos", type=Path, help="folder of JPEG photos with one folder per class")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--engines", nargs="*", default=["dali", "nvimgcodec"])
    parser.add_argument("--device", default="cpu", help="device of the batch engines")
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = sorted(args.photos.rglob("*.jpg"))
        fields = {"image": shardio.Field("image")}
        chosen = np.random.default_rng(SEED).choice(len(files), args.count // BATCH * BATCH, replace=False)
        with shardio.create(f"{folder}/d", container="tar", fields=fields) as writer:
            for number in chosen.tolist():
                writer.append({"image": files[number].read_bytes()})
        dataset = shardio.open(f"{folder}/d")
        for name, transforms in TRANSFORMS.items():
            indices, pixels = epoch(str(dataset.path), transforms, "cpu", args.device)
            found: dict[str, Any] = {}
            made = {"cpu": pixels}
            for engine in args.engines:
                theirs, made[engine] = epoch(str(dataset.path), transforms, engine, args.device)
                if theirs != indices:
                    raise SystemExit(f"{name}: {engine} delivered other samples than the CPU engine")
                found[engine] = apart(made[engine], pixels)
            if name in JUDGED:
                stored = dataset.read(np.array(indices), ["image"])["image"]
                judge = [by_pillow(data, index, transforms) for data, index in zip(stored, indices, strict=True)]
                found["to Pillow"] = {engine: apart(images, np.stack(judge)) for engine, images in made.items()}
            figures[name] = found
    finish({"count": len(indices), "device": args.device, "parity": figures}, args.json)


if __name__ == "__main__":
    main()
