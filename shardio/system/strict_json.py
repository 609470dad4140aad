"""JSON as RFC 8259 defines it, without what readers understand differently: how shardio reads JSON that it is given."""

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .regular_files import open_regular

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OTHER_ENCODINGS = (b"\xff\xfe", b"\xfe\xff")
_LARGEST_FILE = 1 << 28  # bytes


def parse(text: bytes | str, *, foreign: bool = False, nan: bool = False) -> Any:
    """Return the value of a JSON text; bytes must be UTF-8.

    Args:
        text: the text.
        foreign: whether to accept a byte order mark, which other programs write.
        nan: whether to accept NaN and infinities, also as `1e999`, which other programs write, and shardio as scalars.

    Raises ValueError for what is not JSON, another encoding, a key that occurs twice in one object, and nesting too
    deep for Python.
    """
    if isinstance(text, bytes):
        text = _decoded(text, foreign)
    try:
        return (_WITH_NAN if nan else _STRICT).decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parse_stored(text: bytes) -> Any:
    """Return the value of a JSON text that shardio stored or adopted, and has checked before: as fast as `json.loads`.

    Raises ValueError for damage, NaN, Infinity and nesting too deep for Python.
    """
    try:
        return json.loads(text, parse_constant=_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_bytes(path: Path) -> bytes:
    """Return the content of a JSON file. Raises ValueError for more than 256 MiB, and OSError."""
    with open(path, "rb", opener=open_regular) as file:
        check_size(os.fstat(file.fileno()).st_size)
        return file.read()


def check_size(size: int) -> None:
    """Raise ValueError for a JSON file of more than 256 MiB."""
    if size > _LARGEST_FILE:
        raise ValueError(f"a JSON file must have at most {_LARGEST_FILE} bytes, it has {size}")


def _decoded(data: bytes, foreign: bool) -> str:
    if data.startswith(_BYTE_ORDER_MARK):
        if not foreign:
            raise ValueError("it begins with a byte order mark; JSON must be UTF-8 without one")
        data = data[len(_BYTE_ORDER_MARK) :]
    if data.startswith(_OTHER_ENCODINGS) or b"\0" in data[:4]:
        raise ValueError("it looks like UTF-16 or UTF-32; JSON must be UTF-8")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error}") from error


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r} occurs twice in one object")
            seen.add(key)
    return found


def _float(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"the number {text} is too large")
    return value


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_WITH_NAN = json.JSONDecoder(object_pairs_hook=_object)
_STRICT = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant)
