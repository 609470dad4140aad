"""Steps on pixels: the CPU engine and torch make the bytes of Pillow and torchvision; DALI comes near."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from _builders import pixels
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps

from shardio.engines import torch_steps
from shardio.engines.dali import DaliEngine
from shardio.engines.size_preserving_steps import carry_out, gaussian_filters
from shardio.transforms import (
    ColorJitter,
    GaussianBlur,
    RandAugment,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomGenerator,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    TrivialAugmentWide,
)
from shardio.transforms.auto_augment import Ranges, operations
from shardio.transforms.color import blend, hue
from shardio.transforms.geometry import rotation, warp
from shardio.transforms.recipe import Recipe
from shardio.transforms.steps import (
    BLACK,
    MEAN_GREY,
    OWN_GREY,
    AutoContrast,
    Blur,
    Equalize,
    Flip,
    Posterize,
    Sharpen,
    SizePreservingStep,
    Solarize,
    Step,
    restrict,
)

Carry = Callable[[NDArray[np.uint8], tuple[Step, ...]], NDArray[np.uint8]]
REFERENCE = Path(__file__).parent / "reference" / "torchvision.npz"
COUNT, SIZE = 12, (120, 168)


def photos(channels: int = 3) -> NDArray[np.uint8]:
    """Synthetic images with gradients, edges and noise: uint8 [12, 120, 168, channels]."""
    made = []
    for seed in range(COUNT):
        image = pixels(*SIZE, 3, seed=seed)
        image[8:20, 10:30] = np.random.default_rng(seed).integers(0, 256, 3)
        made.append(cv2.GaussianBlur(image, (3, 3), 0.8)[..., :channels])
    return np.ascontiguousarray(made)


def by_cpu(images: NDArray[np.uint8], steps: Sequence[SizePreservingStep]) -> NDArray[np.uint8]:
    """Apply the steps as the CPU engine does."""
    made = images.copy()
    carry_out(made, steps)
    return made


def by_torch(images: NDArray[np.uint8], steps: tuple[SizePreservingStep, ...]) -> NDArray[np.uint8]:
    """Apply the steps to the batch, as the nvImageCodec engine does."""
    tensor = torch.from_numpy(images)
    for step in steps:
        tensor = torch_steps.apply_step(tensor, step)
    return tensor.numpy()


def by_dali(images: NDArray[np.uint8], steps: tuple[Step, ...]) -> NDArray[np.uint8]:
    """Apply the steps with DALI's CPU operators, to losslessly encoded files."""
    channels = images.shape[3]
    files = [cv2.imencode(".png", image[:, :, ::-1] if channels == 3 else image)[1].tobytes() for image in images]
    recipe = Recipe.of([], channels=channels, size=SIZE)
    engine = DaliEngine(recipe, channels=channels, batch_size=COUNT, device=torch.device("cpu"), threads=1)
    engine.begin(files, np.array([images.shape[1:3]] * len(images), np.int32), steps)
    made, failed = engine.end()
    assert not failed
    return made.numpy()


TRANSFORMS = {
    "flip": RandomHorizontalFlip(),
    "vertical flip": RandomVerticalFlip(),
    "rotation": RandomRotation(90),
    "bilinear rotation": RandomRotation((10, 40), "bilinear"),
    "jitter": ColorJitter(0.4, 0.4, 0.4),
    "hue": ColorJitter(hue=0.5),
    "jitter and hue": ColorJitter(0.4, (0.5, 1.5), 0.4, 0.1),
    "grey": RandomGrayscale(0.5),
    "blur": GaussianBlur((5, 9)),
    "erasing": RandomErasing(0.7, value=(7, 80, 200)),
    "trivial": TrivialAugmentWide(),
    "rand": RandAugment(3, 20),
    "apply": RandomApply([ColorJitter(0.8, 0.8, 0.8, 0.2), GaussianBlur(5)], 0.5),
    "choice": RandomChoice([GaussianBlur(5), RandomGrayscale(1.0), RandomRotation(30)]),
}


def steps_of(name: str, channels: int) -> tuple[SizePreservingStep, ...]:
    """The steps of a transform for `photos`."""
    transform = RandomErasing(0.7, value=9) if name == "erasing" and channels == 1 else TRANSFORMS[name]
    return transform.steps(np.array([SIZE] * COUNT, np.int32), RandomGenerator(1, 0, 0, np.arange(COUNT)))


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.usefixtures("part")
def test_torch_does_the_same(name: str, channels: int) -> None:
    """The CPU engine's bytes are those of torch, which GPUs use; blurs may differ by one."""
    images, steps = photos(channels), steps_of(name, channels)
    before = images.copy()
    one, other = by_cpu(images, steps).astype(int), by_torch(images, steps).astype(int)
    assert (images == before).all()  # the input is not modified
    blurs = any(isinstance(step, Blur) for step in steps)
    assert np.abs(one - other).max() <= blurs
    assert (one != other).mean() < 0.001
    if not (channels == 1 and name in ("hue", "grey")):
        assert (one != images).any()


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_dali_does_nearly_the_same(name: str, channels: int) -> None:
    """DALI's results differ by a little, and by a few times that in a chain of steps and at edges."""
    images, steps = photos(channels), steps_of(name, channels)
    one, other = by_cpu(images, steps).astype(int), by_dali(images, steps).astype(int)
    equalized = sum((step.mask for step in steps if isinstance(step, Equalize)), np.zeros(COUNT, np.bool_))
    difference = np.abs(one - other)[~equalized]  # for those see below
    assert difference.mean() < 0.6
    assert (difference > 3).mean() < 0.015


@pytest.mark.parametrize("number", range(13))
def test_dali_does_every_operation_nearly_the_same(number: int) -> None:
    """Each operation is nearly equal, from weakest to strongest and with both signs."""
    strength = np.linspace(0, 1, COUNT)
    signed = np.where(np.arange(COUNT) % 2 == 0, strength, -strength)
    step = operation(number, SIZE, strength, signed)
    images = photos()
    one, other = by_cpu(images, (step,)).astype(int), by_dali(images, (step,)).astype(int)
    inside = np.s_[:, 1:-1, 1:-1]  # DALI sharpens the pixels on an edge as well
    equalizes = number == 12  # as OpenCV does, with other roundings than Pillow
    assert np.abs(one - other)[inside].mean() < (2 if equalizes else 0.6)
    assert (np.abs(one - other)[inside] > 2 + equalizes).mean() < (0.01 if equalizes else 0.003)


def operation(
    number: int, size: tuple[int, int], strength: NDArray[np.float64], signed: NDArray[np.float64]
) -> SizePreservingStep:
    sizes = np.array([size] * len(strength), np.int32)
    translation = np.full(sizes.shape, 32.0)
    return operations(Ranges(0.99, 135, 0.99, 6), translation, sizes, strength, signed, bilinear=False)[number]


ALL = np.ones(1, np.bool_)


def turn_hue(image: Image.Image, shift: float) -> Image.Image:
    """Turn hues as torchvision's adjust_hue turns those of PIL images."""
    if image.mode == "L":
        return image
    hue, saturation, value = image.convert("HSV").split()
    turned = np.array(hue) + np.int32(shift * 255).astype(np.uint8)
    return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")


def shear(image: Image.Image, tangent: float) -> Image.Image:
    """Shear along x, around the corner."""
    return image.transform(image.size, Image.Transform.AFFINE, (1, tangent, 0, 0, 1, 0))


def row(value: float, dtype: Any = np.float32) -> NDArray[Any]:
    return np.array([value], dtype)


def size_of(image: Image.Image) -> NDArray[np.int32]:
    return np.array([image.size[::-1]], np.int32)


AS_PILLOW: dict[str, tuple[tuple[float, float], Callable[..., Image.Image], Callable[..., SizePreservingStep]]] = {
    "brightness": ((0, 3), lambda i, v: ImageEnhance.Brightness(i).enhance(v), lambda i, v: blend(BLACK, row(v))),
    "contrast": ((0, 3), lambda i, v: ImageEnhance.Contrast(i).enhance(v), lambda i, v: blend(MEAN_GREY, row(v))),
    "saturation": ((0, 3), lambda i, v: ImageEnhance.Color(i).enhance(v), lambda i, v: blend(OWN_GREY, row(v))),
    "grey": ((0, 0), lambda i, v: i.convert("L").convert(i.mode), lambda i, v: blend(OWN_GREY, row(0))),
    "hue": ((-0.5, 0.5), turn_hue, lambda i, v: hue(row(v, np.float64), ALL)),
    "sharpness": ((0, 3), lambda i, v: ImageEnhance.Sharpness(i).enhance(v), lambda i, v: Sharpen(ALL, row(v))),
    "posterize": (
        (1, 8),
        lambda i, v: ImageOps.posterize(i, int(v)),
        lambda i, v: Posterize(ALL, row(255 << 8 - int(v) & 255, np.uint8)),
    ),
    "solarize": ((0, 256), lambda i, v: ImageOps.solarize(i, v), lambda i, v: Solarize(ALL, row(v))),
    "autocontrast": ((0, 0), lambda i, v: ImageOps.autocontrast(i), lambda i, v: AutoContrast(ALL)),
    "equalize": ((0, 0), lambda i, v: ImageOps.equalize(i), lambda i, v: Equalize(ALL)),
    "rotate": ((-400, 400), lambda i, v: i.rotate(v), lambda i, v: rotation(size_of(i), row(v, float), bilinear=False)),
    "rotate bilinear": (
        (-400, 400),
        lambda i, v: i.rotate(v, Image.Resampling.BILINEAR),
        lambda i, v: rotation(size_of(i), row(v, float), bilinear=True),
    ),
    "shear": ((-1, 1), shear, lambda i, v: warp(np.array([[[1.0, v], [0, 1]]]), 0, 0, bilinear=False)),
    "flip": ((0, 0), lambda i, v: ImageOps.mirror(i), lambda i, v: Flip(ALL)),
    "vertical flip": ((0, 0), lambda i, v: ImageOps.flip(i), lambda i, v: Flip(ALL, vertical=True)),
}


def some_pixels(rng: np.random.Generator, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Noise, or smooth colours of full or of low contrast: uint8 [height, width, 3]."""
    kind = int(rng.integers(3))
    if kind == 0:
        return rng.integers(0, 256, (*size, 3), dtype=np.uint8)
    small = Image.fromarray(rng.integers(0, 256, (size[0] // 8 + 1, size[1] // 8 + 1, 3), dtype=np.uint8))
    smooth = np.asarray(small.resize(size[::-1], Image.Resampling.BICUBIC))
    return smooth if kind == 1 else (smooth // 3 + 60).astype(np.uint8)


@pytest.mark.parametrize("name", AS_PILLOW)
@pytest.mark.usefixtures("part")
def test_pillow_does_the_same(name: str) -> None:
    """Every step gives Pillow's bytes, on grey images and on colours, from one pixel upwards."""
    (low, high), by_pillow, step_of = AS_PILLOW[name]
    rng = np.random.default_rng(list(name.encode()))
    for number in range(120):
        size = (int(rng.integers(1, 70)), int(rng.integers(1, 70))) if number % 10 else (number // 10 + 1, 2)
        array = some_pixels(rng, size)
        image = Image.fromarray(array if number % 3 else np.ascontiguousarray(array[..., 0]))
        value = float(low + (high - low) * (rng.random() if number % 4 else rng.integers(0, 5) / 4))
        wanted = np.asarray(by_pillow(image, value))
        made = by_cpu(np.asarray(image).reshape(1, *size, -1), [step_of(image, value)])
        assert (made == wanted.reshape(made.shape)).all(), (number, size, value)


@pytest.mark.slow
def test_hue_of_every_colour() -> None:
    """All 16,777,216 colours are turned as Pillow turns them."""
    levels = np.arange(256, dtype=np.uint8)
    colours = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), axis=3).reshape(1, 4096, 4096, 3)
    for shift in (0.0, 0.37):
        made = by_cpu(colours, [hue(row(shift, np.float64), ALL)])
        assert (made[0] == np.asarray(turn_hue(Image.fromarray(colours[0]), shift))).all()


def test_blur_is_a_convolution() -> None:
    """A blur is within rounding of a convolution of two dimensions, mirrored at the edges."""
    image = photos()[:1]
    kernel = np.outer(*(gaussian_filters(row(1.3), side)[0] for side in (5, 9)))
    padded = np.pad(image[0], ((2, 2), (4, 4), (0, 0)), "reflect").astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 9), (0, 1))
    wanted = np.einsum("yxckl,kl->yxc", windows, kernel)
    made = by_cpu(image, [Blur(ALL, row(1.3), (5, 9))])[0]
    assert np.abs(made - wanted).max() < 0.501
    own = float(gaussian_filters(row(2), 7)[0, 1::2].sum())  # of two pixels, every second is the same one
    tiny = by_cpu(np.array([[[[0], [200]]]], np.uint8), [Blur(ALL, row(2), (1, 7))])
    assert tiny.ravel().tolist() == [round(200 * (1 - own)), round(200 * own)]


with np.load(REFERENCE) as _reference:
    TORCHVISION = {name: _reference[name] for name in _reference.files}
ONE_SIZE = (24, 32)
AS_TORCHVISION: dict[str, SizePreservingStep] = {
    "brightness": blend(BLACK, row(1.4)),
    "contrast": blend(MEAN_GREY, row(1.4)),
    "saturation": blend(OWN_GREY, row(0.3)),
    "hue": hue(row(-0.3, np.float64), ALL),
    "grey": blend(OWN_GREY, row(0)),
    "rotate": rotation(np.array([ONE_SIZE], np.int32), row(30, np.float64), bilinear=False),
    "rotate bilinear": rotation(np.array([ONE_SIZE], np.int32), row(-77.5, np.float64), bilinear=True),
    "blur": Blur(ALL, row(1.3), (5, 9)),
    **{
        name: operation(number, ONE_SIZE, row(0.6, np.float64), row(sign * 0.6, np.float64))
        for name, number, sign in (("shear x", 0, 1), ("shear y", 1, -1), ("shift x", 2, -1), ("shift y", 3, 1))
    },
    "posterize": Posterize(ALL, row(0xF0, np.uint8)),
    "solarize": Solarize(ALL, row(102)),
    "autocontrast": AutoContrast(ALL),
    "equalize": Equalize(ALL),
    "sharpness": Sharpen(ALL, row(1.594)),
}


@pytest.mark.parametrize("name", AS_TORCHVISION)
@pytest.mark.usefixtures("part")
def test_torchvision_does_the_same(name: str) -> None:
    """Real torchvision makes the same bytes of a PIL image; its blur may differ by one."""
    image = TORCHVISION["image"]
    given = image // 2 + 20 if name == "autocontrast" else image
    (made,) = by_cpu(given[None], [AS_TORCHVISION[name]])
    difference = np.abs(made.astype(int) - TORCHVISION[name])
    assert difference.max() <= (name == "blur")
    assert (difference > 0).mean() < 0.01
    assert (made != given).any()


@pytest.mark.parametrize("carry", [by_cpu, by_torch, by_dali], ids=["cpu", "torch", "dali"])
def test_only_some_images_change(carry: Carry) -> None:
    """A step leaves the images that it is not for, and flat ones, which autocontrast must not divide by zero."""
    images = photos()
    mask = np.arange(COUNT) % 3 == 0
    step = restrict(blend(BLACK, np.full(COUNT, 0.5)), mask)
    assert ((carry(images, (step,)) != images).any(axis=(1, 2, 3)) == mask).all()
    assert (carry(images, (restrict(step, ~mask),)) == images).all()
    flat = np.full((1, *SIZE, 3), 90, np.uint8)
    for step in (AutoContrast(ALL), Equalize(ALL)):
        assert (carry(flat, (step,)) == flat).all()


def _values(step: Any) -> list[list[Any]]:
    return [getattr(step, name).tolist() for name in step.__slots__ if isinstance(getattr(step, name), np.ndarray)]


@pytest.mark.parametrize("transform", [*TRANSFORMS.values(), RandomResizedCrop(64), RandomCrop(64, padding=8)])
def test_choices_belong_to_the_sample(transform: Any) -> None:
    """A sample's random parameters do not depend on its batch, but on the epoch."""
    many = transform.steps(np.array([SIZE] * 40, np.int32), RandomGenerator(3, 1, 2, np.arange(40)))
    for row in (0, 7, 39):
        one = transform.steps(np.array([SIZE], np.int32), RandomGenerator(3, 1, 2, np.array([row])))
        for together, alone in zip(many, one, strict=True):
            assert type(together) is type(alone)
            assert [column[row] for column in _values(together)] == [column[0] for column in _values(alone)]
    for seed, epoch, stream in ((0, 1, 2), (3, 2, 2), (3, 1, 0)):
        other = transform.steps(np.array([SIZE] * 40, np.int32), RandomGenerator(seed, epoch, stream, np.arange(40)))
        assert [_values(step) for step in many] != [_values(step) for step in other]
