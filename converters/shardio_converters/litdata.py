"""LitData's datasets, as `litdata.optimize` writes them, in a local directory; the package litdata reads them."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from shardio.errors import SourceError
from shardio.foreign import json_text
from shardio.foreign.names import printable
from shardio.source import load_optional, local_path

from .torch import MapStyle, map_style

_INDEX = "index.json"
_FILES = ("jpeg", "image", "bytes")
_FORMATS = frozenset(
    (
        *(*_FILES, "str", "text", "bool", "int", "float", "pil", "json"),
        *("numpy", "no_header_numpy", "tensor", "no_header_tensor"),
    )
)
_NESTED = (None, "builtins.dict", "builtins.list", "builtins.tuple")
"""The types of a sample and its parts; LitData would import a module that others name."""


def litdata(src: str | os.PathLike[str], *, names: str | Iterable[str] | None = None) -> MapStyle:
    """A local directory that `litdata.optimize` wrote, with its index.json.

    The first sample decides the fields, as for the source `torch`: the keys of a dict are fields; the parts of a tuple
    or list are `image` and `label` if there are two, else `field0`, `field1`, ... Image files and bytes are taken byte
    for byte, PIL images as PNG; arrays and tensors become arrays, of fixed shape where the first and the last sample
    agree; nested lists and dicts become json. Pickles, other media, compressed and encrypted chunks are refused.

    Args:
        src: the directory.
        names: names for the parts of a sample that is a tuple, a list or a lone value, as in "image,label".

    Example:
        shardio convert litdata optimized/train data/train --names image,label
        shardio convert litdata optimized/train data/hdf5 --names image,label --to hdf5

    Raises:
        SourceError: the directory holds no such dataset, a chunk is missing, or the samples hold what is refused.
        ConfigError: `names` do not fit the first sample.
    """
    root = local_path(src).absolute()
    _check(root)
    _package("litdata")
    samples = _Samples(root)
    return map_style(samples, printable(root), samples, names, source="litdata")


@final
@dataclass(frozen=True)
class _Samples:
    """The samples of a directory, as a Dataset. It pickles as a path; each worker opens the chunks itself."""

    root: Path

    def __reduce__(self) -> tuple[type["_Samples"], tuple[Path]]:
        return _Samples, (self.root,)

    @cached_property
    def _dataset(self) -> Any:
        class AsBytes(_package("litdata.streaming.serializers").BytesSerializer):  # type: ignore[misc]  # the package has no types
            """Gives files as they are, where LitData would decode them."""

            def deserialize(self, item: Any) -> bytes:
                return bytes(item)

        return _package("litdata").StreamingDataset(str(self.root), serializers={kind: AsBytes() for kind in _FILES})

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]


def _package(module: str) -> Any:
    return load_optional(module, purpose="the converter 'litdata'", extra="litdata")


def _types(layout: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the types of a sample and of all its parts, None for values."""
    yield layout["type"]
    for part in layout["children_spec"]:
        yield from _types(part)


def _check(root: Path) -> None:
    """Raise SourceError unless LitData can read the directory without running code or opening files elsewhere."""
    place = printable(root / _INDEX)
    try:
        index = json_text.parse(json_text.read_bytes(root / _INDEX))
        config, chunks = index["config"], index["chunks"]
        version, layout = json_text.parse(config["data_spec"])
        types = set(_types(layout))
        formats = [str(kind).partition(":")[0] for kind in config["data_format"]]
        files = [chunk["filename"] for chunk in chunks]
    except (OSError, ValueError) as error:
        raise SourceError(f"{place} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except (LookupError, TypeError, RecursionError) as error:
        raise SourceError(f"{place}: not an index of LitData: {type(error).__name__}: {error}") from error
    if version != 1 or not types <= set(_NESTED):
        told = ", ".join(sorted(map(str, types - set(_NESTED)))) or f"in version {version!r}"
        raise SourceError(f"{place}: samples must be dicts, lists, tuples or single values, they are {told}")
    if refused := sorted(set(formats) - _FORMATS):
        known = "pickles are never loaded" if "pickle" in refused else f"taken are {', '.join(sorted(_FORMATS))}"
        raise SourceError(f"{place}: the samples hold {', '.join(refused)}: {known}")
    if config.get("item_loader") not in (None, "PyTreeLoader"):
        raise SourceError(f"{place}: the samples of a {config['item_loader']} have no fields: tokens cannot be taken")
    for option in ("compression", "encryption"):
        if config.get(option):
            raise SourceError(f"{place}: chunks with {option} are not read: write them anew without it")
    for name in files:
        if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
            raise SourceError(f"{place}: not an index of LitData: a chunk called {name!r}")
        if not (root / name).is_file():
            raise SourceError(f"{printable(root / name)} does not exist")
