"""Write torchvision.npz: torchvision's results for one small PIL image, for tests that run without torchvision.

Run it where torchvision 0.20 or later is installed: python tests/engines/reference/make_torchvision.py
"""

import math
from pathlib import Path

import numpy as np
import torchvision
from PIL import Image
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

NEAREST, BILINEAR = InterpolationMode.NEAREST, InterpolationMode.BILINEAR


def image() -> Image.Image:
    """Smooth colours with an edge, a flat part and some noise, 32 x 24 pixels."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[0:24, 0:32] / 32
    planes = np.stack((250 * x, 160 * y + 60 * x, 255 * (0.5 + 0.5 * np.sin(9 * x * y))))
    planes[:, 4:12, 20:28] = np.array([200, 30, 90])[:, None, None]
    noise = random.integers(0, 12, planes.shape)
    return Image.fromarray(np.clip(planes + noise, 0, 255).astype(np.uint8).transpose(1, 2, 0).copy())


def shear(angle: tuple[float, float], given: Image.Image) -> Image.Image:
    """Shear as TrivialAugmentWide does, around the corner."""
    degrees = [math.degrees(math.atan(a)) for a in angle]
    return F.affine(given, 0, [0, 0], 1.0, degrees, center=[0, 0], interpolation=NEAREST)


def main() -> None:
    """Write the file."""
    given = image()
    made = {
        "image": given,
        "brightness": F.adjust_brightness(given, 1.4),
        "contrast": F.adjust_contrast(given, 1.4),
        "saturation": F.adjust_saturation(given, 0.3),
        "hue": F.adjust_hue(given, -0.3),
        "grey": F.rgb_to_grayscale(given, 3),
        "rotate": F.rotate(given, 30, NEAREST),
        "rotate bilinear": F.rotate(given, -77.5, BILINEAR),
        "blur": F.gaussian_blur(given, [9, 5], [1.3, 1.3]),
        "shear x": shear((0.594, 0), given),
        "shear y": shear((0, -0.594), given),
        "shift x": F.affine(given, 0, [-19, 0], 1.0, [0, 0], interpolation=NEAREST),
        "shift y": F.affine(given, 0, [0, 19], 1.0, [0, 0], interpolation=NEAREST),
        "posterize": F.posterize(given, 4),
        "solarize": F.solarize(given, 102.0),
        "autocontrast": F.autocontrast(Image.fromarray(np.asarray(given) // 2 + 20)),
        "equalize": F.equalize(given),
        "sharpness": F.adjust_sharpness(given, 1.594),
    }
    path = Path(__file__).with_name("torchvision.npz")
    np.savez_compressed(path, **{name: np.asarray(result) for name, result in made.items()})
    print(f"{path}: {len(made)} images by torchvision {torchvision.__version__}")


if __name__ == "__main__":
    main()
