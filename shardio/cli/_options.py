"""Options that several commands share."""

from typing import Literal

from ..errors import ConfigError


def threads_option(text: str) -> int | Literal["auto"]:
    """Parse the value of `--threads`; the loader checks the number."""
    if text == "auto":
        return "auto"
    if not text.isdigit():
        raise ConfigError(f"--threads must be auto or a whole number, got {text!r}")
    return int(text)
