"""A contact sheet: samples of a dataset as one picture, as the loader delivers them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ..dataset.dataset import Dataset
from ..errors import ConfigError
from ..loader.loader import Loader
from ..order.world import World
from ..transforms import RandomHorizontalFlip, RandomResizedCrop, Transform

TILE = 160  # pixels
CAPTION = 20
GAP = 4
_INK, _PAPER = (40, 40, 40), 255


def contact_sheet(
    dataset: Dataset, path: str | Path, *, samples: int = 32, columns: int = 8, augment: bool = False, seed: int = 0
) -> int:
    """Writes a PNG with a tile per sample, in a random order, each with its index and label beneath.

    Args:
        dataset: with one image field.
        path: of the PNG.
        samples: how many, at most the dataset's own number.
        columns: tiles in a row.
        augment: a random resized crop and flip, as for training; otherwise the whole images.
        seed: which samples and which crops.

    Returns:
        The number of samples shown.
    """
    name = next((n for n, f in dataset.fields.items() if f.kind == "image"), None)
    if name is None:
        raise ConfigError(
            f"{dataset.path}: a contact sheet needs an image field; there are {', '.join(dataset.fields)}"
        )
    if samples < 1 or columns < 1:
        raise ConfigError(f"samples and columns must be at least 1, got {samples} and {columns}")
    transforms: Sequence[Transform] = (RandomResizedCrop(TILE), RandomHorizontalFlip()) if augment else ()
    fields = [name, *(["label"] if "label" in dataset.fields else [])]
    count = min(samples, len(dataset))
    loader = Loader(
        dataset, count, transforms={name: transforms}, seed=seed, world=World(), fields=fields, threads=2, prefetch=1
    )
    batch = next(iter(loader))
    classes = dataset.manifest.metadata.get("classes")
    tiles = [_tile(batch[name][row].numpy(), _caption(batch, row, classes)) for row in range(count)]
    _write(path, _arrange(tiles, min(columns, count)))
    return count


def _caption(batch: dict[str, Any], row: int, classes: Any) -> str:
    label = batch["label"][row].item() if "label" in batch else ""
    if isinstance(classes, list) and isinstance(label, int) and 0 <= label < len(classes):
        label = classes[label]
    return f"#{batch['index'][row].item()}  label {label}" if label != "" else f"#{batch['index'][row].item()}"


def _tile(image: NDArray[np.uint8], caption: str) -> NDArray[np.uint8]:
    """The image fitted into a square, its ratio kept, with its caption beneath."""
    scale = TILE / max(image.shape[:2])
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST if scale > 2 else cv2.INTER_LINEAR
    width, height = (max(1, round(side * scale)) for side in (image.shape[1], image.shape[0]))
    fitted = cv2.resize(image, (width, height), interpolation=method).reshape(height, width, -1)
    tile = np.full((TILE + CAPTION, TILE, 3), _PAPER, np.uint8)
    y, x = (TILE - height) // 2, (TILE - width) // 2
    tile[y : y + height, x : x + width] = fitted
    text = caption.encode("ascii", "replace").decode()  # OpenCV's built-in font has no more
    cv2.putText(tile, text[:22], (2, TILE + 14), cv2.FONT_HERSHEY_SIMPLEX, 0.4, _INK, 1, cv2.LINE_AA)
    return tile


def _arrange(tiles: list[NDArray[np.uint8]], columns: int) -> NDArray[np.uint8]:
    rows = -(-len(tiles) // columns)
    height, width = tiles[0].shape[0] + GAP, tiles[0].shape[1] + GAP
    sheet = np.full((rows * height + GAP, columns * width + GAP, 3), _PAPER, np.uint8)
    for number, tile in enumerate(tiles):
        y, x = number // columns * height + GAP, number % columns * width + GAP
        sheet[y : y + tile.shape[0], x : x + tile.shape[1]] = tile
    return sheet


def _write(path: str | Path, sheet: NDArray[np.uint8]) -> None:
    if Path(path).suffix.lower() != ".png":
        raise ConfigError(f"a contact sheet is a PNG: its name must end in .png, got {str(path)!r}")
    encoded = cv2.imencode(".png", cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR))[1]
    Path(path).write_bytes(encoded.tobytes())
