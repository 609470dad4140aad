"""What tests of converters share: values of every kind, and all that a source gives."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _builders import decoded, jpeg, png
from numpy.typing import NDArray

from shardio.errors import BadSample
from shardio.source import Field, Source
from shardio.testing import check_source

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


def check_kinds(
    convert: Callable[..., Source], path: Path, kinds: Mapping[str, tuple[Any, Field, Sequence[Any]]]
) -> None:
    """Assert that a file of arrays, called as kinds of values, gives their fields and values."""
    names = {f"f{number}": kind for number, kind in enumerate(kinds)}
    source = convert(path, fields=names)
    assert source.metadata == {"source": convert.__name__}
    assert dict(source.fields) == {name: kinds[kind][1] for name, kind in names.items()}
    samples = [{name: kinds[kind][2][row] for name, kind in names.items()} for row in range(COUNT)]
    check_source(source, samples, path.parent / "out")


def check_equal(found: NDArray[Any], expected: NDArray[Any]) -> None:
    """Assert that arrays are equal, element for element, and in dtype and shape."""
    assert found.dtype == expected.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, expected)
    assert found.shape == expected.shape


def check_cuts(convert: Callable[[Path], Source], folder: Path, step: int) -> None:
    """Assert that the one array file below a folder, wherever it is cut off, is a bad sample by name, or is whole."""
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    source, told = convert(folder), []
    data, expected = path.read_bytes(), source[0]["array"]
    for size in range(0, len(data), step):
        path.write_bytes(data[:size])
        try:
            found = source[0]["array"]
        except BadSample as error:
            told.append(str(error))
        else:
            check_equal(found, expected)
    assert len(told) > 3
    assert all(str(path.relative_to(folder)) in text for text in told)


def all_of(source: Source) -> list[dict[str, Any]]:
    """All samples."""
    return [dict(source[number]) for number in range(len(source.sizes()))]


def column(source: Source, name: str) -> list[Any]:
    """The values of a field in all samples."""
    return [sample[name] for sample in all_of(source)]


def images_of(source: Source) -> list[Any]:
    """The pixels of all images."""
    return [decoded(image).tolist() for image in column(source, "image")]
