"""A contact sheet: samples of a dataset, as the loader delivers them, in one picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ..dataset.dataset import Dataset
from ..errors import ConfigError
from ..format.fields import describe_fields
from ..format.mask_colors import colored
from ..loader.loader import Loader
from ..order.world import World
from ..system.os_errors import naming
from ..transforms import RandomHorizontalFlip, RandomResizedCrop, Transform

TILE_SIZE = 160  # pixels, like CAPTION_HEIGHT and GAP
CAPTION_HEIGHT = 20
GAP = 4
_TEXT_COLOR, _BACKGROUND = (40, 40, 40), 255
_CAPTION_WIDTH = TILE_SIZE - 4
_FONT, _SMALLEST, _LARGEST = cv2.FONT_HERSHEY_SIMPLEX, 0.28, 0.4  # its scales


def contact_sheet(
    dataset: Dataset, path: str | Path, *, samples: int = 32, columns: int = 8, augment: bool = False, seed: int = 0
) -> int:
    """Write a PNG that shows random samples, each with its index and label beneath.

    Args:
        dataset: a dataset with one image field.
        path: the path of the PNG.
        samples: the number of samples to show, at most as many as the dataset holds.
        columns: the number of samples per row.
        augment: whether to crop and flip at random, as for training, instead of showing complete images.
        seed: the seed of the choice of samples and of the crops.

    Returns:
        The number of samples shown.

    Raises ConfigError if the dataset has no image field, for fewer than 1 sample or column, and unless the name of the
    file ends in .png.
    """
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise ConfigError(f"a contact sheet is a PNG: its name must end in .png, got {str(path)!r}")
    images = [n for n, f in dataset.fields.items() if f.is_image]
    name = next((n for n in images if dataset.fields[n].role is None), next(iter(images), None))
    if name is None:
        raise ConfigError(
            f"{dataset.path}: a contact sheet draws images, and no field holds them: {describe_fields(dataset.fields)}"
        )
    if samples < 1 or columns < 1:
        raise ConfigError(f"samples and columns must be at least 1, got {samples} and {columns}")
    transforms: Sequence[Transform] = (RandomResizedCrop(TILE_SIZE), RandomHorizontalFlip()) if augment else ()
    fields = [name, *(["label"] if "label" in dataset.fields else [])]
    count = min(samples, len(dataset))
    loader = Loader(
        dataset, count, transforms={name: transforms}, seed=seed, world=World(), fields=fields, threads=2, prefetch=1
    )
    batch = next(iter(loader))
    tiles = [_tile(batch[name][row].numpy(), _caption(batch, row, dataset.classes)) for row in range(count)]
    sheet = _arrange(tiles, min(columns, count))
    with naming(path):
        path.write_bytes(cv2.imencode(".png", cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR))[1].tobytes())
    return count


def _caption(batch: dict[str, Any], row: int, classes: Sequence[str] | None) -> str:
    label = batch["label"][row].item() if "label" in batch else ""
    if classes is not None and isinstance(label, int) and 0 <= label < len(classes):
        return f"#{batch['index'][row].item()} {classes[label]}"
    return f"#{batch['index'][row].item()}  label {label}" if label != "" else f"#{batch['index'][row].item()}"


def _tile(image: NDArray[Any], caption: str) -> NDArray[np.uint8]:
    """Return the image, or the mask in colours, scaled to fit into a square, with its caption beneath."""
    is_mask = image.ndim == 2
    image = colored(image) if is_mask else image
    scale = TILE_SIZE / max(image.shape[:2])
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST if scale > 2 else cv2.INTER_LINEAR
    method = cv2.INTER_NEAREST if is_mask else method
    width, height = (max(1, round(side * scale)) for side in (image.shape[1], image.shape[0]))
    fitted = cv2.resize(image, (width, height), interpolation=method).reshape(height, width, -1)
    tile = np.full((TILE_SIZE + CAPTION_HEIGHT, TILE_SIZE, 3), _BACKGROUND, np.uint8)
    y, x = (TILE_SIZE - height) // 2, (TILE_SIZE - width) // 2
    tile[y : y + height, x : x + width] = fitted
    text = caption.encode("ascii", "replace").decode()  # OpenCV's built-in font has no other characters
    text, scale = _fitting(text)
    cv2.putText(tile, text, (2, TILE_SIZE + 14), _FONT, scale, _TEXT_COLOR, 1, cv2.LINE_AA)
    return tile


def _fitting(text: str) -> tuple[str, float]:
    """Return as much of the text as fits beneath a tile, and the scale of its font."""
    scale = max(_SMALLEST, _LARGEST * min(1.0, _CAPTION_WIDTH / max(1, _width(text, _LARGEST))))
    while _width(text, scale) > _CAPTION_WIDTH:
        text = text[:-1]
    return text, scale


def _width(text: str, scale: float) -> int:
    return int(cv2.getTextSize(text, _FONT, scale, 1)[0][0])


def _arrange(tiles: list[NDArray[np.uint8]], columns: int) -> NDArray[np.uint8]:
    rows = -(-len(tiles) // columns)
    height, width = tiles[0].shape[0] + GAP, tiles[0].shape[1] + GAP
    sheet = np.full((rows * height + GAP, columns * width + GAP, 3), _BACKGROUND, np.uint8)
    for number, tile in enumerate(tiles):
        y, x = number // columns * height + GAP, number % columns * width + GAP
        sheet[y : y + tile.shape[0], x : x + tile.shape[1]] = tile
    return sheet
