"""The options of every command that reads or writes datasets at URLs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..dataset.store_access import KEYWORDS, StoreAccess
from ..errors import ConfigError
from ._options import Shown, options_of, with_options

DATASET = "The dataset's directory, or its URL, such as s3://BUCKET/PATH."

_OPTIONS = options_of(
    StoreAccess,
    {"Datasets at URLs or on slow file systems": " ".join(KEYWORDS)},
    {
        "cache": Shown(kind=Path, metavar="DIR"),
        "cache_size": Shown(metavar="SIZE"),
        "store_options": Shown("--store-option", kind=list[str] | None, metavar="KEY=VALUE"),
    },
)


def _keywords(*, store_options: Sequence[str] | None, **cache: Any) -> dict[str, Any]:
    """Return the keywords of `shardio.open` that a command has."""
    options = {}
    for text in store_options or ():
        name, equals, value = text.partition("=")
        if not (name and equals):  # the text may be a key, so it is not repeated
            raise ConfigError("--store-option must be KEY=VALUE, such as region=eu-west-1")
        options[name] = value
    texts = {name: None if value is None else str(value) for name, value in cache.items()}
    return {**texts, "store_options": options or None}


with_store_options = with_options("stores", _OPTIONS, _keywords)
"""Turns `command(..., stores: dict[str, Any])` into a command with the options of a store and of a cache."""
with_store_option = with_options("stores", _OPTIONS[-1:], _keywords)
"""Turns `command(..., stores: dict[str, Any])` into a command with `--store-option`, but no cache."""
