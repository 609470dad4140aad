"""RandomResizedCrop and flip for the peers whose users write them in Python: the same work for any loader.

The box has the distribution of torchvision's RandomResizedCrop. `pillow` does what torchvision does to a Pillow
image: it decodes the whole image and resizes it with a filter as wide as the scale (antialias), which
costs more than OpenCV's plain bilinear. `opencv` is the fastest decoder that pip offers as a plain function.
"""

import io
import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._workloads import IMAGE_SIZE

if TYPE_CHECKING:
    from PIL import Image

SCALE = (0.08, 1.0)
LOG_RATIO = (math.log(3 / 4), math.log(4 / 3))


def random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """The left, top, width and height of a random crop."""
    for _ in range(10):
        area = width * height * random.uniform(*SCALE)
        ratio = math.exp(random.uniform(*LOG_RATIO))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def crop_image(image: "Image.Image") -> NDArray[np.uint8]:
    """Crop, resize and randomly flip a Pillow image that is not decoded yet: `[224, 224, 3]`."""
    from PIL import Image

    left, top, width, height = random_box(*image.size)
    box = (left, top, left + width, top + height)
    made = image.convert("RGB").resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BILINEAR, box=box)
    if random.random() < 0.5:
        made = made.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.array(made)


def pillow(data: bytes) -> NDArray[np.uint8]:
    """Decode a JPEG with Pillow, then crop, resize and randomly flip it: `[224, 224, 3]`."""
    from PIL import Image

    return crop_image(Image.open(io.BytesIO(data)))


def opencv(data: bytes) -> NDArray[np.uint8]:
    """Decode a JPEG with OpenCV, then crop, resize and randomly flip it: `[224, 224, 3]`."""
    import cv2

    cv2.setNumThreads(0)  # one thread per worker: nested threads only add overhead
    image: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    left, top, width, height = random_box(image.shape[1], image.shape[0])
    made: Any = cv2.resize(image[top : top + height, left : left + width], (IMAGE_SIZE, IMAGE_SIZE))
    if random.random() < 0.5:
        cv2.flip(made, 1, dst=made)
    pixels: NDArray[np.uint8] = made
    return pixels


DECODERS: dict[str, Callable[[bytes], NDArray[np.uint8]]] = {"pillow": pillow, "opencv": opencv}
DECODER_NOTES = {
    "pillow": "Pillow decodes the whole image, antialiased resize",
    "opencv": "OpenCV decodes the whole image",
}
