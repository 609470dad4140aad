"""Write `golden_boxes.npz`: what torchvision.transforms.v2.functional makes of boxes and points.

    python tests/transforms/make_golden_boxes.py   # needs torchvision 0.29.1, which has torch 2.14.1

Of exact cases it holds SHA-256 over all results, and the first results to look at; of others all boxes, and the points
of the first instances.
"""

import hashlib
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _box_cases import CASES, DRAWS, IMAGES, INEXACT, OPTIONS, TRIALS, inputs, parameters, uniform
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

SHOWN = 1000


def carry_out(value: Any, numbers: dict[str, Any], row: int) -> Any:
    kind = numbers["kind"]
    if kind in ("crop", "padded crop"):
        return F.crop(value, *numbers["box"][row].tolist())
    if kind == "pad":
        top, left, height, width = numbers["box"][row].tolist()
        rows, columns = value.canvas_size
        return F.pad(value, [-left, -top, width - columns + left, height - rows + top])
    if kind == "resize":
        return F.resize(value, numbers["size"][row].tolist())
    if kind in ("flip", "vertical flip"):
        flip = F.horizontal_flip if kind == "flip" else F.vertical_flip
        return flip(value) if numbers["mask"][row] else value
    if kind == "rotate":
        return F.rotate(value, float(numbers["angle"][row]))
    shift, shear = numbers["shift"][row].tolist(), numbers["shear"][row].tolist()
    return F.affine(value, float(numbers["angle"][row]), shift, float(numbers["scale"][row]), shear)


class Draws:
    """Stands in for `torch.rand` and `torch.randint`: takes the numbers of one image in order."""

    def __init__(self, numbers: Any) -> None:
        self.numbers, self.at = numbers, 0

    def rand(self, count: int) -> torch.Tensor:
        self.at += count
        return torch.from_numpy(self.numbers[self.at - count : self.at])

    def randint(self, high: int, size: Any) -> torch.Tensor:
        return torch.tensor(int(self.rand(1) * high))


class CropDraws(Draws):
    """The same for RandomIoUCrop: first the options, then four numbers for each trial, of which all may not be used."""

    option, trial, first_line = -1, -1, 0

    def rand(self, count: int) -> torch.Tensor:
        line = sys._getframe(1).f_lineno
        self.first_line = self.first_line or line
        self.trial += line == self.first_line
        self.at = OPTIONS + 4 * (self.option * TRIALS + self.trial) + (0 if line == self.first_line else 2)
        return super().rand(count)

    def randint(self, low: int, high: int, size: Any) -> torch.Tensor:
        self.option, self.trial = self.option + 1, -1
        if self.option == OPTIONS:
            raise StopIteration
        return torch.tensor(int(self.numbers[self.option] * high))


def drawn(transform: Any, draws: Draws, sample: list[Any]) -> list[Any]:
    """Return the result of a transform for a sample with these numbers."""
    rand, randint = torch.rand, torch.randint
    torch.rand, torch.randint = draws.rand, draws.randint
    try:
        return transform(*sample)
    except StopIteration:  # the options are at an end: the sample stays
        return sample
    finally:
        torch.rand, torch.randint = rand, randint


TRANSFORMS = {
    "RandomIoUCrop": (v2.RandomIoUCrop(), CropDraws),
    "RandomZoomOut": (v2.RandomZoomOut(p=1), Draws),
    "ScaleJitter": (v2.ScaleJitter((640, 480), (0.5, 2.0)), Draws),
    "RandomShortestSize": (v2.RandomShortestSize([480, 512, 544], max_size=700), Draws),
}


def drawn_transforms(given: dict[str, Any], starts: Any) -> dict[str, Any]:
    """Return the sizes of what v2's transforms make of images with given draws, the boxes, and which Sanitize keeps."""
    results, numbers = {}, uniform(DRAWS)
    sanitize = v2.SanitizeBoundingBoxes(min_size=8, min_area=100, labels_getter=lambda sample: sample[1])
    for name, (transform, draws) in TRANSFORMS.items():
        sizes, boxes, kept = [], [], []
        for row, (begin, end) in enumerate(pairwise(starts)):
            canvas = tuple(given["sizes"][row].tolist())
            image = tv_tensors.Image(torch.zeros(1, 1, 1, dtype=torch.uint8).expand(1, *canvas))
            own = tv_tensors.BoundingBoxes(
                torch.from_numpy(given["boxes"][begin:end]), format="XYXY", canvas_size=canvas
            )
            if len(own) or name != "RandomIoUCrop":
                own = drawn(transform, draws(numbers[row]), [own, image][: 1 + (name == "RandomIoUCrop")])
                own = own[0] if isinstance(own, list | tuple) else own
            sizes.append(own.canvas_size), boxes.append(own.numpy())
            kept.append(sanitize(own, torch.arange(len(own)))[1].numpy() + begin)
        whole = np.concatenate(boxes) + np.float32(0)
        results[f"{name}/sizes"] = np.array(sizes, np.int32)
        results[f"{name}/boxes"] = whole[:SHOWN]
        results[f"{name}/boxes/sha256"] = np.frombuffer(hashlib.sha256(whole.tobytes()).digest(), np.uint8)
        results[f"{name}/kept"] = np.concatenate(kept).astype(np.int32)
        print(name, flush=True)
    return results


def main() -> None:
    given, results = inputs(), {}
    starts = np.searchsorted(given["owners"], np.arange(IMAGES + 1))
    for case in CASES:
        steps, made = parameters(case), {"boxes": [], "points": []}
        for row, (begin, end) in enumerate(pairwise(starts)):
            canvas = tuple(given["sizes"][row].tolist())
            boxes = tv_tensors.BoundingBoxes(
                torch.from_numpy(given["boxes"][begin:end]), format="XYXY", canvas_size=canvas
            )
            points = tv_tensors.KeyPoints(torch.from_numpy(given["points"][begin:end]), canvas_size=canvas)
            for numbers in steps:
                boxes, points = carry_out(boxes, numbers, row), carry_out(points, numbers, row)
            made["boxes"].append(boxes.numpy()), made["points"].append(points.numpy())
        for name, values in made.items():
            # Adding 0 makes 0 of -0.
            whole = np.concatenate(values) + np.float32(0)
            results[f"{case}/{name}"] = whole if case in INEXACT and name == "boxes" else whole[:SHOWN]
            if case not in INEXACT:
                results[f"{case}/{name}/sha256"] = np.frombuffer(hashlib.sha256(whole.tobytes()).digest(), np.uint8)
        print(case, flush=True)
    results |= drawn_transforms(given, starts)
    np.savez_compressed(Path(__file__).with_name("golden_boxes.npz"), **results)


if __name__ == "__main__":
    main()
