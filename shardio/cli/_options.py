"""Options that several commands share."""

from typing import Literal

from ..errors import ConfigError


def threads_option(text: str, name: str = "threads") -> int | Literal["auto"]:
    """Parse the value of `--threads`, or of another option of its kind; the loader checks the number."""
    if text == "auto":
        return "auto"
    if not text.isdigit():
        raise ConfigError(f"--{name} must be auto or a whole number, got {text!r}")
    return int(text)
