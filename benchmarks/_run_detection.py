"""Load photos and boxes with torch's DataLoader and torchvision or Albumentations; detection.py runs it.

    python benchmarks/_run_detection.py FOLDER

Each line of standard input is answered with a number: `torchvision` and `albumentations` with images per second of two
workers; `torchvision-apart` and `albumentations-apart` with the greatest distance, in pixels, of their boxes from the
recorded ones, given the same crops and flips; `pid` with the number of this process. It needs torchvision, torchcodec,
albumentations and OpenCV.
"""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import albumentations
import cv2
import numpy as np
import torch
from albumentations.pytorch import ToTensorV2
from torchcodec.decoders import decode_jpeg
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

SIDE, BATCH_SIZE, WORKERS, LEAST_SECONDS = 640, 16, 2, 4.0
Targets = dict[str, Any]
BY_TORCHVISION = v2.Compose(
    [
        v2.RandomIoUCrop(),
        v2.SanitizeBoundingBoxes(),
        v2.RandomHorizontalFlip(),
        v2.Resize((SIDE, SIDE)),
        v2.ToDtype(torch.float32, scale=True),
    ]
)
LABELED = albumentations.BboxParams("pascal_voc", label_fields=["labels"])
BY_ALBUMENTATIONS = albumentations.Compose(
    [
        albumentations.RandomSizedBBoxSafeCrop(SIDE, SIDE),  # the nearest that it has to RandomIoUCrop
        albumentations.HorizontalFlip(),
        albumentations.ToFloat(255),
        ToTensorV2(),
    ],
    bbox_params=LABELED,
)


def with_torchvision(file: Path, boxes: torch.Tensor) -> tuple[Any, Targets]:
    """A photo and its boxes, as tensors."""
    image = tv_tensors.Image(decode_jpeg(file.read_bytes()))
    targets = {"boxes": on_canvas(boxes, image.shape[-2:]), "labels": torch.arange(len(boxes))}
    image, moved = BY_TORCHVISION(image, targets)
    return image, moved


def with_albumentations(file: Path, boxes: torch.Tensor) -> tuple[Any, Targets]:
    """A photo and its boxes, by way of OpenCV."""
    image = cv2.imread(str(file), cv2.IMREAD_COLOR_RGB)
    made = BY_ALBUMENTATIONS(image=image, bboxes=boxes.numpy(), labels=np.arange(len(boxes)))
    return made["image"], {name: torch.from_numpy(np.asarray(made[name])) for name in ("bboxes", "labels")}


def on_canvas(boxes: torch.Tensor, size: Any) -> Any:
    """Boxes as torchvision takes them."""
    return tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=tuple(size))


class Photos(torch.utils.data.Dataset[tuple[Any, Targets]]):
    """The files of a folder and their boxes, float32 [N, 20, 4]."""

    def __init__(self, folder: Path, load: Callable[[Path, torch.Tensor], tuple[Any, Targets]]) -> None:
        self._files, self._load = sorted((folder / "files").glob("*.jpg")), load
        self._boxes = torch.from_numpy(np.load(folder / "boxes.npy"))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, Targets]:
        return self._load(self._files[index], self._boxes[index])


def collated(samples: list[tuple[Any, Targets]]) -> tuple[torch.Tensor, list[Targets]]:
    """Images as one tensor, and the targets in a list, as torchvision's references do."""
    return torch.stack([image for image, _ in samples]), [targets for _, targets in samples]


def rate(loader: torch.utils.data.DataLoader[tuple[Any, Targets]]) -> float:
    """Images per second over whole epochs."""
    begun, images = time.perf_counter(), 0
    while time.perf_counter() < begun + LEAST_SECONDS:
        images += sum(len(batch) for batch, _ in loader)
    return images / (time.perf_counter() - begun)


def apart(folder: Path, move: Callable[..., np.ndarray[Any, Any]]) -> float:
    """How far boxes that `move` gives are from the recorded ones, in pixels."""
    stored, far = np.load(folder / "boxes.npy"), 0.0
    with np.load(folder / "recorded.npz") as recorded:
        offsets, wanted, numbers = recorded["offsets"], recorded["boxes"], recorded["numbers"]
        sizes, crops, flips = recorded["sizes"].tolist(), recorded["crops"].tolist(), recorded["flips"].tolist()
    for index, (first, end) in enumerate(pairwise(offsets)):
        moved = move(stored[index, numbers[first:end]], sizes[index], crops[index], flips[index])
        far = max(far, float(np.abs(moved - wanted[first:end]).max(initial=0)))
    return far


def moved_by_torchvision(boxes: Any, size: Any, crop: Any, flip: bool) -> Any:
    """Boxes after a crop (top, left, height, width), a flip and the resize."""
    moved = functional.crop(on_canvas(torch.from_numpy(boxes), size), *crop)
    moved = functional.horizontal_flip(moved) if flip else moved
    return functional.resize(moved, [SIDE, SIDE]).numpy()


def moved_by_albumentations(boxes: Any, size: Any, crop: Any, flip: bool) -> Any:
    """The same."""
    top, left, height, width = crop
    steps = albumentations.Compose(
        [
            albumentations.Crop(left, top, left + width, top + height),
            albumentations.HorizontalFlip(p=float(flip)),
            albumentations.Resize(SIDE, SIDE),
        ],
        bbox_params=LABELED,
    )
    made = steps(image=np.zeros((*size, 3), np.uint8), bboxes=boxes, labels=np.arange(len(boxes)))
    return np.asarray(made["bboxes"]).reshape(-1, 4)


def main() -> None:
    """Answer until the input ends."""
    folder = Path(sys.argv[1])
    ways = {
        "torchvision": (with_torchvision, moved_by_torchvision),
        "albumentations": (with_albumentations, moved_by_albumentations),
    }
    loaders = {
        name: torch.utils.data.DataLoader(
            Photos(folder, load),
            BATCH_SIZE,
            shuffle=True,
            num_workers=WORKERS,
            collate_fn=collated,
            drop_last=True,
            persistent_workers=True,
            worker_init_fn=lambda _: cv2.setNumThreads(0),
        )
        for name, (load, _) in ways.items()
    }
    for loader in loaders.values():
        for _ in loader:  # warm up
            pass
    answers: dict[str, Callable[[], float]] = {name: partial(rate, loader) for name, loader in loaders.items()}
    answers |= {f"{name}-apart": partial(apart, folder, move) for name, (_, move) in ways.items()}
    answers["pid"] = os.getpid
    for line in sys.stdin:
        print(answers[line.strip()](), flush=True)


if __name__ == "__main__":
    main()
