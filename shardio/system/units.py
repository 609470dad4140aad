"""Sizes in bytes as people write them: `64MB`, `1.5GiB`, 4096; counts with their nouns; values in messages."""

import re
from typing import Any

from ..errors import ConfigError, Option

_UNITS = {"": 1, "B": 1} | {p + s: b**e for s, b in (("B", 1000), ("iB", 1024)) for e, p in enumerate("KMGT", start=1)}


def parse_size(value: int | str, name: str = "size") -> int:
    """Return a size in bytes, given as an int or as text such as `64MB` (MB = 10^6) or `64MiB` (MiB = 2^20).

    Raises ConfigError, with `name` in its message, if `value` is no size, less than 1 byte, or 2^63 bytes and more.
    """
    if isinstance(value, str) and value.strip().isdigit():
        raise ConfigError("{} needs a unit, such as 64MB or 1GiB; got {!r}", Option(name), value)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(value))
    unit = match[2].replace("k", "K") if match else ""
    if not match or unit not in _UNITS or (size := float(match[1]) * _UNITS[unit]) < 1:
        raise ConfigError("{} must be a size such as 64MB or 1GiB, got {!r}", Option(name), value)
    if size >= 1 << 63:
        raise ConfigError("{} must be less than 2^63 bytes, got {}", Option(name), str(value)[:80])
    return int(size)


def format_size(size: float) -> str:
    """Return a size in bytes as text in decimal units: `1.5 GB`."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def counted(count: int, noun: str, form: str = "") -> str:
    """Return a count with its noun, which takes an `s` in the plural: `1 sample`, `2 samples`.

    `form` is the count's, as in a format string: `,` for `2,000 samples`.
    """
    return f"{count:{form}} {noun}" if count == 1 else f"{count:{form}} {noun}s"


def shown(value: Any) -> str:
    """Return a value for a message, in at most 80 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integers of more than 4300 digits
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
