"""What tests of converters share: values of every kind, and all that a source gives."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _builders import decoded, jpeg, png
from numpy.typing import NDArray

from shardio.source import Source

COUNT = 5
WORDS = ["", "naïve", "日本", "a b", "x" * 300]
PICTURES = [jpeg(seed=1), png(seed=2), jpeg(seed=3), jpeg(seed=4), png(seed=5)]


def numbers(dtype: str, *shape: int) -> NDArray[Any]:
    """COUNT different rows."""
    return (np.arange(COUNT * int(np.prod(shape))) % 120).reshape(COUNT, *shape).astype(dtype)


def changed(dataset: Path, folder: Path, change: Callable[[Any], object]) -> Path:
    """A copy of a dataset whose `index.json` a function has changed."""
    out = Path(shutil.copytree(dataset, folder / "changed"))
    index = json.loads((out / "index.json").read_text())
    change(index)
    (out / "index.json").write_text(json.dumps(index))
    return out


def all_of(source: Source) -> list[dict[str, Any]]:
    """All samples."""
    return [dict(source[number]) for number in range(len(source.sizes()))]


def column(source: Source, name: str) -> list[Any]:
    """The values of a field in all samples."""
    return [sample[name] for sample in all_of(source)]


def images_of(source: Source) -> list[Any]:
    """The pixels of all images."""
    return [decoded(image).tolist() for image in column(source, "image")]
