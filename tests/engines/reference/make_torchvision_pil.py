"""Write torchvision_pil.json: checksums of torchvision's results on PIL images, for tests that run without torchvision.

Run it where torchvision 0.20 or later is installed: python tests/engines/reference/make_torchvision_pil.py

Each case has an image file (its number in `files`, as base64), what is done with it, and the shape and CRC-32 of the
result: bytes HWC, or floats CHW for `normalize`.
"""

import base64
import io
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

FILTERS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
MODES = dict(zip(FILTERS, (getattr(InterpolationMode, name.upper()) for name in FILTERS), strict=True))


def files() -> list[bytes]:
    """Photos of several sizes, kinds and samplings; the first is small and flat, for many cases."""
    made = []
    kinds: list[tuple[str, str, dict[str, Any]]] = [
        ("JPEG", "RGB", {"quality": 90, "subsampling": 2}),
        ("JPEG", "RGB", {"quality": 75, "subsampling": 1}),
        ("JPEG", "RGB", {"quality": 95, "subsampling": 0, "progressive": True}),
        ("JPEG", "L", {}),
        ("JPEG", "CMYK", {}),
        ("PNG", "P", {}),
        ("PNG", "RGBA", {}),
        ("WEBP", "RGB", {"quality": 80}),
    ]
    for number, (kind, mode, options) in enumerate(kinds):
        rng = np.random.default_rng(number)
        height, width = int(rng.integers(40, 110)), int(rng.integers(40, 110))
        small = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
        file = io.BytesIO()
        image = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).convert(mode)
        image.save(file, kind, **options)
        made.append(file.getvalue())
    return made


def told(result: Any) -> dict[str, Any]:
    """The shape and checksum of an image or a tensor."""
    array = result.numpy() if isinstance(result, torch.Tensor) else np.asarray(result)
    return {"shape": array.shape, "crc": zlib.crc32(np.ascontiguousarray(array).tobytes())}


def main() -> None:
    """Write the file."""
    rng, encoded, cases = np.random.default_rng(1), files(), []
    for number, data in enumerate(encoded):
        image = Image.open(io.BytesIO(data)).convert("RGB")

        def add(name: str, arguments: list[Any], result: Any, number: int = number) -> None:
            cases.append({"file": number, "name": name, "arguments": arguments} | told(result))

        for name, mode in MODES.items():
            short, pair = int(rng.integers(20, 140)), [int(side) for side in rng.integers(1, 140, 2)]
            add("Resize", [short, name], v2.Resize(short, mode)(image))
            add("Resize", [pair, name], v2.Resize(pair, mode)(image))
            height, width = (int(rng.integers(1, side + 1)) for side in (image.height, image.width))
            top, left = int(rng.integers(image.height - height + 1)), int(rng.integers(image.width - width + 1))
            box = [top, left, height, width]
            add("resized_crop", [box, pair, name], F.resized_crop(image, *box, pair, mode))
        for size in (33, 64, 111, 150):
            add("CenterCrop", [size], v2.CenterCrop(size)(image))
            add("Resize, CenterCrop", [size, size - 8], v2.CenterCrop(size - 8)(v2.Resize(size)(image)))
        for box in ([-4, 10, 50, 32], [20, -7, 90, 60], [-3, -3, 120, 120]):
            add("crop", [box], F.crop(image, *box))
        add("horizontal_flip", [], F.horizontal_flip(image))
        for mean, std in (([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]), ([0.5, 0.4, 0.3], [0.25, 1.0, 0.1])):
            tensor = v2.ToDtype(torch.float32, scale=True)(v2.ToImage()(image))
            add("normalize", [mean, std], v2.Normalize(mean, std)(tensor).contiguous())
    path = Path(__file__).with_suffix("").with_name("torchvision_pil.json")
    text = json.dumps({"files": [base64.b64encode(data).decode() for data in encoded], "cases": cases}, indent=None)
    path.write_text(text.replace('{"file"', '\n{"file"') + "\n")
    print(f"{path}: {len(cases)} cases by torchvision {torchvision.__version__}, Pillow {Image.__version__}")


if __name__ == "__main__":
    main()
