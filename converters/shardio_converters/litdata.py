"""LitData's datasets, as `litdata.optimize` writes them, in a local directory; the package litdata reads them."""

import os
import re
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, ConfigError, SourceError
from shardio.foreign.files import File, open_file
from shardio.foreign.names import printable
from shardio.source import load_optional, local_path
from shardio.system.portable import path_of

from ._files import parse_json, plain_name, read_json
from ._source_base import DataclassSource, OneOpenFile
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
_ZSTD = re.compile(r"zstd(:\d+)?")
_MOST_PACKED = 1 << 15  # the most bytes that zstd makes of one
_TOKENS = "TokensLoader"


def litdata(
    src: str | os.PathLike[str], *, names: str | Iterable[str] | None = None, block_size: int | None = None
) -> MapStyle:
    """A local directory that `litdata.optimize` wrote, with its index.json.

    The first sample decides the fields, as for the source `torch`: the keys of a dict are fields; the parts of a tuple
    or list are `image` and `label` if there are two, else `field0`, `field1`, ... Image files and bytes are taken byte
    for byte, PIL images as PNG; arrays and tensors become arrays, of fixed shape where the first and the last sample
    agree; nested lists and dicts become json. Tokens for a TokensLoader become the field `tokens`: each document as it
    was written, or blocks of one length. Chunks compressed with zstd (which needs pyarrow) are unpacked to unnamed
    temporary files in TMPDIR, one at a time, or in memory if LitData compressed samples or batches. Pickles, other
    media and encrypted chunks are not read.

    Args:
        src: the directory.
        names: names for the parts of a sample that is a tuple, a list or a lone value, as in "image,label".
        block_size: the number of tokens in a sample: each chunk is cut into blocks, as TokensLoader(block_size) does,
            and what is left at its end is left out. Without it: a document is a sample.

    Example:
        shardio convert litdata optimized/train data/train --names image,label
        shardio convert litdata optimized/text data/text --block-size 2048
        shardio convert litdata optimized/train data/hdf5 --names image,label --to hdf5

    Raises:
        SourceError: the directory holds no such dataset, a chunk is missing, or the samples hold types that are not
            read.
        ConfigError: `names` do not fit the first sample, or `block_size` is not at least 1, or not for tokens.
    """
    root = local_path(src).absolute()
    config, chunks = _index(root)
    are_tokens = config.get("item_loader") == _TOKENS
    if block_size is not None and (not are_tokens or isinstance(block_size, bool) or block_size < 1):
        raise ConfigError(
            "{block_size} must be at least 1, and goes with tokens for a {}, got {!r}", _TOKENS, block_size
        )
    _package("litdata")
    samples = _Samples(root, block_size)
    found = map_style(samples, printable(root), samples, names or ("tokens" if are_tokens else None), source="litdata")
    if not are_tokens:
        return found
    if block_size is not None:
        lost = sum(chunk["dim"] % block_size for chunk in chunks)
        told = f"left out {lost} tokens at the ends of {len(chunks)} chunks, fewer than {block_size} each"
        return replace(found, remarks=(told,) if lost else ())
    fields = {name: replace(field, shape=(None,)) for name, field in found.fields.items()}
    return replace(found, fields=fields, size=sum(chunk["chunk_bytes"] for chunk in chunks) // found.count)


@final
@dataclass(frozen=True)
class _Samples(DataclassSource):
    """The samples of a directory, as a Dataset. It pickles as a path; each worker opens the chunks itself, one by one.

    Attributes:
        root: the directory.
        block_size: the number of tokens in a sample; None where a sample is what was written.
    """

    root: Path
    block_size: int | None

    @cached_property
    def _index(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        return _index(self.root)

    @cached_property
    def _starts(self) -> list[int]:
        """The number of each chunk's first sample, followed by the number of samples."""
        size = self.block_size
        counts = (chunk["chunk_size"] if size is None else chunk["dim"] // size for chunk in self._index[1])
        return list(accumulate(counts, initial=0))

    @cached_property
    def _chunks(self) -> "OneOpenFile[_Chunk | _TokensChunk]":
        (config, chunks), root, block_size = self._index, self.root, self.block_size
        whole = config.get("compression_level") in (None, "", "chunk")  # else samples or batches are compressed
        packed = ("zstd",) if config.get("compression") and whole else ()

        def opened(number: int) -> _Chunk | _TokensChunk:
            file = open_file(root / chunks[number]["filename"], packed)
            if config.get("item_loader") == _TOKENS:
                return _TokensChunk(file, config, chunks[number], block_size)
            return _Chunk(file, config, chunks[number])

        return OneOpenFile(opened)

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Any:
        number = bisect_right(self._starts, index) - 1
        return self._chunks.get(number)[index - self._starts[number]]


@final
class _Chunk:
    """An open chunk of samples, which LitData reads; unpacked if it is compressed as a whole."""

    def __init__(self, file: File, config: Mapping[str, Any], chunk: Mapping[str, Any]) -> None:
        class AsBytes(_package("litdata.streaming.serializers").BytesSerializer):  # type: ignore[misc]  # the package has no types
            """Gives files as they are, where LitData would decode them."""

            def deserialize(self, item: Any) -> bytes:
                return bytes(item)

        serializers = _package("litdata.streaming.serializers")._get_serializers({kind: AsBytes() for kind in _FILES})
        spec = _package("litdata.utilities._pytree").treespec_loads(config["data_spec"])
        self._file = file
        # LitData unpacks chunks into their own directory, and removes the packed ones, so it gets no path of these.
        self._path = path_of(self._file.fileno())
        self._loader = _package("litdata.streaming.item_loader").PyTreeLoader()
        self._loader.setup({**config, "data_spec": spec}, [dict(chunk)], serializers)
        self._closing = weakref.finalize(self, _close, self._loader)

    def __getitem__(self, row: int) -> Any:
        return self._loader.load_item_from_chunk(row, 0, self._path, 0, 0)

    def close(self) -> None:
        self._closing()


def _close(loader: Any) -> None:
    handle = getattr(loader, "_open_handle", None)
    loader.close(0)
    if handle is not None:
        handle.close()  # LitData drops it open


@final
class _TokensChunk:
    """An open chunk of tokens: the number of documents, the offset of each and of the end (uint32), and the tokens."""

    def __init__(self, file: File, config: Mapping[str, Any], chunk: Mapping[str, Any], block_size: int | None) -> None:
        self._file, self._dtype = file, _tokens_dtype(config)
        head = np.frombuffer(self._file.read(0, 4 * (chunk["chunk_size"] + 2)), "<u4").astype(np.int64)
        if len(head) < chunk["chunk_size"] + 2 or head[0] != chunk["chunk_size"] or (np.diff(head[1:]) < 0).any():
            raise BadSample(f"{chunk['filename']}: damaged: it does not begin with the offsets of its documents")
        self._offsets = head[1:]
        if block_size is not None:
            blocks = np.arange(chunk["dim"] // block_size + 1, dtype=np.int64)
            self._offsets = head[1] + blocks * (block_size * self._dtype.itemsize)

    def __getitem__(self, row: int) -> NDArray[Any]:
        start, stop = self._offsets[row : row + 2].tolist()
        data = self._file.read(start, stop - start)
        if len(data) < stop - start or len(data) % self._dtype.itemsize:
            raise BadSample(f"damaged or cut off: {len(data)} of {stop - start} bytes of {self._dtype}")
        return np.frombuffer(data, self._dtype)

    def close(self) -> None:
        self._file.close()


def _package(module: str) -> Any:
    return load_optional(module, purpose="the converter 'litdata'", extra="litdata")


def _types(layout: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the types of a sample and of all its parts, None for values."""
    yield layout["type"]
    for part in layout["children_spec"]:
        yield from _types(part)


def _tokens_dtype(config: Mapping[str, Any]) -> np.dtype[Any]:
    """Return the dtype of tokens; ValueError if it is none that NumPy has."""
    (stated,) = config["data_format"]
    serializer, _, number = str(stated).partition(":")
    known = {"no_header_tensor": "_TORCH_DTYPES_MAPPING", "no_header_numpy": "_NUMPY_DTYPES_MAPPING"}.get(serializer)
    dtypes = getattr(_package("litdata.constants"), str(known), {})
    try:
        return np.dtype(str(dtypes[int(number)]).removeprefix("torch."))
    except (LookupError, TypeError) as error:
        raise ValueError(f"tokens of {stated!r}") from error


def _index(root: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the configuration and the chunks of an index.

    Raises SourceError unless LitData can read the directory without running code or opening files elsewhere.
    """
    place, index = printable(root / _INDEX), read_json(root / _INDEX)
    try:
        config, chunks = index["config"], index["chunks"]
        version, layout = parse_json(config["data_spec"])
        types = set(_types(layout))
        formats = [str(kind).partition(":")[0] for kind in config["data_format"]]
        sizes = [(plain_name(c["filename"]), c["chunk_size"], c["chunk_bytes"], c.get("dim")) for c in chunks]
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise SourceError(f"{place}: not an index of LitData: {type(error).__name__}: {error}") from error
    if version != 1 or not types <= set(_NESTED):
        told = ", ".join(sorted(map(str, types - set(_NESTED)))) or f"in version {version!r}"
        raise SourceError(f"{place}: samples must be dicts, lists, tuples or single values, they are {told}")
    if refused := sorted(set(formats) - _FORMATS):
        known = "pickles are never loaded" if "pickle" in refused else f"taken are {', '.join(sorted(_FORMATS))}"
        raise SourceError(f"{place}: the samples hold {', '.join(refused)}: {known}")
    if config.get("item_loader") not in (None, "PyTreeLoader", _TOKENS):
        raise SourceError(f"{place}: the samples of a {config['item_loader']} cannot be taken")
    if config.get("encryption"):
        raise SourceError(f"{place}: chunks with encryption are not read: write them anew without it")
    if not _ZSTD.fullmatch(packing := str(config.get("compression") or "zstd")):
        raise SourceError(f"{place}: chunks are compressed by {packing}, shardio unpacks zstd")
    for name, samples, size, tokens in sizes:
        if not (root / name).is_file():
            raise SourceError(f"{printable(root / name)} does not exist")
        most = (root / name).stat().st_size * (_MOST_PACKED if config.get("compression") else 1)
        counts = (samples, size, tokens) if config.get("item_loader") == _TOKENS else (samples, size)
        if any(type(count) is not int or not 0 <= count <= most for count in counts):
            told = f"{samples!r} samples and {tokens!r} tokens in {size!r} bytes"
            raise SourceError(f"{place}: {name} is said to hold {told}, for which the file is too small")
    return config, chunks
