"""Steps on pixels: every engine applies them alike, and as torchvision defines them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from _builders import pixels
from numpy.typing import NDArray

from shardio import native
from shardio.engines import opencv_steps, torch_steps
from shardio.engines.dali import DaliEngine
from shardio.transforms import (
    ColorJitter,
    GaussianBlur,
    RandomApply,
    RandomChoice,
    RandomErasing,
    RandomGenerator,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomRotation,
    TrivialAugmentWide,
)
from shardio.transforms.auto_augment import OPERATIONS
from shardio.transforms.color import blend
from shardio.transforms.geometry import rotation
from shardio.transforms.recipe import Recipe
from shardio.transforms.steps import (
    AutoContrast,
    Blend,
    Blur,
    Equalize,
    Hue,
    Posterize,
    Sharpen,
    SizePreservingStep,
    Solarize,
    Step,
    restrict,
)

Carry = Callable[[NDArray[np.uint8], tuple[Step, ...]], NDArray[np.uint8]]
REFERENCE = Path(__file__).parent / "reference" / "torchvision.npz"
COUNT, SIZE = 12, (40, 56)


def photos(channels: int = 3) -> NDArray[np.uint8]:
    """Synthetic images with gradients, edges and noise: uint8 [12, 40, 56, channels]."""
    made = []
    for seed in range(COUNT):
        image = pixels(*SIZE, 3, seed=seed)
        image[8:20, 10:30] = np.random.default_rng(seed).integers(0, 256, 3)
        made.append(cv2.GaussianBlur(image, (3, 3), 0.8)[..., :channels])
    return np.ascontiguousarray(made)


def by_opencv(images: NDArray[np.uint8], steps: tuple[Step, ...]) -> NDArray[np.uint8]:
    """Apply the steps image by image, as the CPU engine does."""
    made = []
    for row, image in enumerate(images):
        for prepared in opencv_steps.prepare(steps):
            image = prepared(image, row)
        made.append(image)
    return np.stack(made)


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
    "rotation": RandomRotation(90),
    "bilinear rotation": RandomRotation((10, 40), "bilinear"),
    "jitter": ColorJitter(0.4, 0.4, 0.4),
    "hue": ColorJitter(hue=0.5),
    "jitter and hue": ColorJitter(0.4, (0.5, 1.5), 0.4, 0.1),
    "grey": RandomGrayscale(0.5),
    "blur": GaussianBlur((5, 9)),
    "erasing": RandomErasing(0.7, value=(7, 80, 200)),
    "trivial": TrivialAugmentWide(),
    "apply": RandomApply([ColorJitter(0.8, 0.8, 0.8, 0.2), GaussianBlur(5)], 0.5),
    "choice": RandomChoice([GaussianBlur(5), RandomGrayscale(1.0), RandomRotation(30)]),
}


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("carry", [by_torch, by_dali], ids=["torch", "dali"])
def test_engines_do_the_same(carry: Carry, name: str, channels: int) -> None:
    """Engines' uint8 results differ by rounding only, and by a few times that in a chain of steps."""
    transform = RandomErasing(0.7, value=9) if name == "erasing" and channels == 1 else TRANSFORMS[name]
    images = photos(channels)
    recipe = Recipe.of([transform], channels=channels, size=SIZE)
    steps = recipe.steps(np.array([SIZE] * COUNT, np.int32), seed=1, epoch=0, indices=np.arange(COUNT))
    before = images.copy()
    one, other = by_opencv(images, steps).astype(int), carry(images, steps).astype(int)
    assert (images == before).all()  # the input is not modified
    assert np.abs(one - other).mean() < 0.15
    assert (np.abs(one - other) > 2).mean() < 0.004
    if not (channels == 1 and name in ("hue", "grey")):
        assert (one != images).any()


@pytest.mark.parametrize("number", range(len(OPERATIONS)))
@pytest.mark.parametrize("carry", [by_torch, by_dali], ids=["torch", "dali"])
def test_every_operation_of_trivial_augment_is_the_same(carry: Carry, number: int) -> None:
    """Each of the thirteen operations is equal on all engines, from weakest to strongest and with both signs."""
    strength = np.linspace(0, 1, COUNT)
    signed = np.where(np.arange(COUNT) % 2 == 0, strength, -strength)
    step = OPERATIONS[number](np.array([SIZE] * COUNT, np.int32), strength, signed, False)
    images = photos()
    one, other = by_opencv(images, (step,)).astype(int), carry(images, (step,)).astype(int)
    assert np.abs(one - other).mean() < 0.1
    assert (np.abs(one - other) > 1).mean() < 0.002


ALL = np.ones(1, np.bool_)
ONE_SIZE = np.array([[24, 32]], np.int32)
AS_TORCHVISION: dict[str, Step] = {
    "brightness": blend("brightness", np.array([1.4])),
    "contrast": blend("contrast", np.array([1.4])),
    "saturation": blend("saturation", np.array([0.3])),
    "hue": Hue(ALL, np.array([-0.3], np.float32)),
    "grey": Blend(ALL, np.zeros(1, np.float32), np.ones(1, np.float32), np.zeros(1, np.float32)),
    "rotate": rotation(ONE_SIZE, np.array([30.0]), bilinear=False),
    "rotate bilinear": rotation(ONE_SIZE, np.array([-77.5]), bilinear=True),
    "blur": Blur(ALL, np.array([1.3], np.float32), (5, 9)),
    "shear x": OPERATIONS[0](ONE_SIZE, np.array([0.6]), np.array([0.6]), False),
    "shear y": OPERATIONS[1](ONE_SIZE, np.array([0.6]), np.array([-0.6]), False),
    "shift x": OPERATIONS[2](ONE_SIZE, np.array([0.6]), np.array([-0.6]), False),
    "shift y": OPERATIONS[3](ONE_SIZE, np.array([0.6]), np.array([0.6]), False),
    "posterize": Posterize(ALL, np.array([0xF0], np.uint8)),
    "solarize": Solarize(ALL, np.array([102.0], np.float32)),
    "autocontrast": AutoContrast(ALL),
    "sharpness": Sharpen(ALL, np.array([1.594], np.float32)),
}


@pytest.mark.parametrize("name", AS_TORCHVISION)
def test_torchvision_means_the_same(name: str) -> None:
    """Results are within one or two of 255 of torchvision, which truncates where shardio rounds."""
    with np.load(REFERENCE) as reference:
        image, wanted = reference["image"], reference[name]
    given = image // 2 + 20 if name == "autocontrast" else image
    (made,) = by_opencv(given[None], (AS_TORCHVISION[name],))
    inside = np.s_[1:-1, 1:-1] if name == "sharpness" else np.s_[:]  # torchvision leaves borders unchanged
    difference = np.abs(made.astype(int) - wanted)[inside]
    assert difference.max() <= 2
    assert difference.mean() < 1
    assert (made != given).any()


@pytest.mark.skipif(native.library() is None, reason="not compiled here")
def test_hue_compiled_and_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled part rotates hues as OpenCV does, for every hue and angle."""
    colours = np.random.default_rng(0).integers(0, 256, (1, 64, 64, 3), dtype=np.uint8)
    colours[0, :8] = colours[0, :8, :, :1]  # grey has no hue
    for shift in (-0.5, -0.21, 0.1, 0.5):
        step = Hue(ALL, np.array([shift], np.float32))
        compiled = by_opencv(colours, (step,))
        with monkeypatch.context() as patch:
            patch.setattr(native, "library", lambda: None)
            plain = by_opencv(colours, (step,))
        assert np.abs(compiled.astype(int) - plain).max() <= 1
        assert (compiled[0, :8] == colours[0, :8]).all()


@pytest.mark.parametrize("carry", [by_opencv, by_torch, by_dali], ids=["opencv", "torch", "dali"])
def test_flat_images_stay(carry: Carry) -> None:
    """Images of a single value are unchanged by autocontrast and equalize, without division by zero."""
    flat = np.full((3, 40, 56, 3), 90, np.uint8)
    mask = np.ones(3, np.bool_)
    assert (carry(flat, (AutoContrast(mask),)) == flat).all()
    assert (carry(flat, (Equalize(mask),)) == flat).all()


@pytest.mark.parametrize("carry", [by_opencv, by_torch, by_dali], ids=["opencv", "torch", "dali"])
def test_only_some_images_change(carry: Carry) -> None:
    """A step for some images leaves the others unchanged, and a step for none leaves all."""
    images = photos()
    mask = np.arange(COUNT) % 3 == 0
    step = restrict(blend("brightness", np.full(COUNT, 0.5)), mask)
    made = carry(images, (step,))
    assert ((made != images).any(axis=(1, 2, 3)) == mask).all()
    assert (carry(images, (restrict(step, ~mask),)) == images).all()


def _values(step: Any) -> list[list[Any]]:
    return [getattr(step, name).tolist() for name in step.__slots__ if isinstance(getattr(step, name), np.ndarray)]


@pytest.mark.parametrize("name", TRANSFORMS)
def test_choices_belong_to_the_sample(name: str) -> None:
    """A sample's random parameters do not depend on its batch, but on the epoch."""
    many = TRANSFORMS[name].steps(np.array([SIZE] * 40, np.int32), RandomGenerator(3, 1, 2, np.arange(40)))
    for row in (0, 7, 39):
        one = TRANSFORMS[name].steps(np.array([SIZE], np.int32), RandomGenerator(3, 1, 2, np.array([row])))
        for together, alone in zip(many, one, strict=True):
            assert type(together) is type(alone)
            assert [column[row] for column in _values(together)] == [column[0] for column in _values(alone)]
    other = TRANSFORMS[name].steps(np.array([SIZE] * 40, np.int32), RandomGenerator(3, 2, 2, np.arange(40)))
    assert [_values(step) for step in many] != [_values(step) for step in other]
