"""Options that several commands share."""

from collections.abc import Sequence
from typing import Literal

from ..errors import ConfigError


def threads_option(text: str, name: str = "threads") -> int | Literal["auto"]:
    """Parse the value of `--threads`, or of another option of its kind; the loader checks the number."""
    if text == "auto":
        return "auto"
    if not text.isdigit():
        raise ConfigError(f"--{name} must be auto or a whole number, got {text!r}")
    return int(text)


def parse_store_options(texts: Sequence[str] | None) -> dict[str, str] | None:
    """Return what `--store-option KEY=VALUE` says, by key; None if it is not given."""
    if not texts:
        return None
    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ConfigError(f"--store-option must be KEY=VALUE, got {text!r}")
        options[key] = value
    return options
