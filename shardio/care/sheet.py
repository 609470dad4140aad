"""Drawing samples: each is a card of its pictures, side by side, with lines of text beneath, and blocks hold cards."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ..format.mask_colors import colored
from .lettering import drawable, font
from .marks import Mark, draw

TILE_SIZE = 160  # pixels, like CAPTION_HEIGHT and GAP
CAPTION_HEIGHT = 20
GAP = 4
_TEXT_COLOR, _MARK_COLOR, _BACKGROUND = (40, 40, 40), (220, 30, 30), 255
_MARGIN, _BASELINE = 2, 14  # of a line of text, in pixels from the left and from its top
_FRAME = 3  # pixels
_SMALLEST, _LARGEST = 8, 12  # sizes of the font, in pixels

Drawing: TypeAlias = NDArray[np.uint8]
"""Pixels as RGB, uint8 [height, width, 3]."""


@dataclass(frozen=True, slots=True)
class Card:
    """A sample to draw.

    Attributes:
        pictures: pictures and their names: an image, uint8 [height, width, 1 or 3]; a mask, integers
            [height, width], drawn in colours; or None, which leaves the place empty.
        lines: lines of text.
        marked: whether to draw a frame around the pictures.
        marks: by name of a picture, the boxes and points on it, in its pixels.
    """

    pictures: Sequence[tuple[str, NDArray[Any] | None]]
    lines: Sequence[str]
    marked: bool = False
    marks: Mapping[str, Sequence[Mark]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Block:
    """Cards with the same number of pictures, and the line above them; "" for none."""

    heading: str
    cards: Sequence[Card]


def sheet(blocks: Sequence[Block], columns: int) -> Drawing:
    """Return a drawing of one or more blocks, one above the other, with up to `columns` cards in a row."""
    parts = [part for block in blocks for part in _block(block, columns)]
    width = max(part.shape[1] for part in parts)
    beside = [((0, 0), (0, width - part.shape[1]), (0, 0)) for part in parts]
    return np.concatenate([np.pad(p, w, constant_values=_BACKGROUND) for p, w in zip(parts, beside, strict=True)])


def _block(block: Block, columns: int) -> list[Drawing]:
    parts = []
    if block.cards:
        lines = max(len(card.lines) for card in block.cards)
        parts.append(_arranged([_card(card, lines) for card in block.cards], min(columns, len(block.cards))))
    if block.heading:
        width = max([_width(block.heading, _LARGEST) + 2 * _MARGIN, *(part.shape[1] for part in parts)])
        parts.insert(0, _line(block.heading, width))
    return parts


def _card(card: Card, lines: int) -> Drawing:
    """Draw the pictures, with their names if there are several, and `lines` lines of text."""
    tiles = [_tile(picture, card.marks.get(name, ())) for name, picture in card.pictures] or [
        _blank(TILE_SIZE, TILE_SIZE)
    ]
    if len(tiles) > 1:
        names = [_line(name, TILE_SIZE) for name, _ in card.pictures]
        tiles = [np.concatenate(column) for column in zip(tiles, names, strict=True)]
    parts = [_arranged(tiles, len(tiles))[GAP:-GAP, GAP:-GAP]]
    if card.marked:
        for edge in (slice(_FRAME), slice(-_FRAME, None)):
            parts[0][:TILE_SIZE][edge] = parts[0][:TILE_SIZE, edge] = _MARK_COLOR
    width = parts[0].shape[1]
    parts += [_line(text, width) for text in [*card.lines, *[""] * (lines - len(card.lines))]]
    return np.concatenate(parts)


def _tile(picture: NDArray[Any] | None, marks: Sequence[Mark]) -> Drawing:
    """Return a picture scaled to fit into a square, with the marks on it."""
    tile = _blank(TILE_SIZE, TILE_SIZE)
    if picture is None:
        return tile
    is_mask = picture.ndim == 2
    image = colored(picture) if is_mask else picture
    scale = TILE_SIZE / max(image.shape[:2])
    filters = Image.Resampling
    method = filters.NEAREST if is_mask or scale > 2 else filters.BOX if scale < 1 else filters.BILINEAR
    width, height = (max(1, round(side * scale)) for side in (image.shape[1], image.shape[0]))
    whole = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    fitted = whole.resize((width, height), method).convert("RGB")
    draw(fitted, marks, (width / whole.width, height / whole.height))
    y, x = (TILE_SIZE - height) // 2, (TILE_SIZE - width) // 2
    tile[y : y + height, x : x + width] = np.asarray(fitted)
    return tile


def _line(text: str, width: int) -> Drawing:
    """Draw as much of a text as fits into a line."""
    line = Image.fromarray(_blank(CAPTION_HEIGHT, width))
    room = width - 2 * _MARGIN
    text = drawable(text)[:room]  # no character is narrower than a pixel
    sizes = range(_LARGEST, _SMALLEST, -1)
    size = next((size for size in sizes if _width(text, size) <= room), _SMALLEST)
    while _width(text, size) > room:
        text = text[:-1]
    ImageDraw.Draw(line).text((_MARGIN, _BASELINE), text, _TEXT_COLOR, font(size), anchor="ls")
    return np.array(line)


def _width(text: str, size: int) -> int:
    return math.ceil(font(size).getlength(text))


def _arranged(tiles: Sequence[Drawing], columns: int) -> Drawing:
    rows = -(-len(tiles) // columns)
    height, width = tiles[0].shape[0] + GAP, tiles[0].shape[1] + GAP
    arranged = _blank(rows * height + GAP, columns * width + GAP)
    for number, tile in enumerate(tiles):
        y, x = number // columns * height + GAP, number % columns * width + GAP
        arranged[y : y + tile.shape[0], x : x + tile.shape[1]] = tile
    return arranged


def _blank(height: int, width: int) -> Drawing:
    return np.full((height, width, 3), _BACKGROUND, np.uint8)
