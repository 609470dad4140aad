"""The options of every command that reads datasets at URLs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from ..dataset.store_access import StoreAccess
from ..errors import ConfigError
from ..stores.url import as_url
from ._option_group import with_options

STORES = "Datasets at URLs"
DATASET = "The dataset's directory, or its URL, such as s3://BUCKET/PATH."


StoreOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        help="An option of the store, such as region=eu-west-1; may be given several times.",
        metavar="KEY=VALUE",
        show_default=False,
        rich_help_panel=STORES,
    ),
]
"""`--store-option` of a command that reads no more than a manifest, or needs no cache."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options of a command that reads datasets at URLs: one field for each option."""

    cache: Annotated[
        Path | None,
        typer.Option(
            help="The folder that keeps what was fetched, for all processes of this node and for later runs; by "
            "default $SHARDIO_CACHE, or shardio in the user's cache directory.",
            metavar="DIR",
            show_default=False,
            rich_help_panel=STORES,
        ),
    ] = None
    cache_size: Annotated[
        str | None,
        typer.Option(
            help="The most bytes that it holds, such as 200GB; by default half of what the disk has free.",
            metavar="SIZE",
            show_default=False,
            rich_help_panel=STORES,
        ),
    ] = None
    store_option: Annotated[
        list[str] | None,
        typer.Option(
            help="An option of the store, such as endpoint=http://10.0.0.1:9000, region=eu-west-1 or "
            "skip_signature=true; may be given several times. Give keys by the environment: other users see arguments.",
            metavar="KEY=VALUE",
            show_default=False,
            rich_help_panel=STORES,
        ),
    ] = None

    def access(self, *places: object) -> StoreAccess:
        """Return the options as arguments of `shardio.open`; ConfigError if one is given and no place is a URL."""
        access = StoreAccess(self.cache, self.cache_size, parse_store_options(self.store_option))
        access.check_needed(*places)
        return access

    def for_output(self, out: str) -> dict[str, str] | None:
        """Return the store's options if the output is a URL; None if it is a local path."""
        return None if as_url(out) is None else parse_store_options(self.store_option)


def parse_store_options(given: Sequence[str] | None) -> dict[str, str] | None:
    """Return the options in texts such as `region=eu-west-1`; None if there are none."""
    if not given:
        return None
    options = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):  # the text may be a key, so it is not repeated
            raise ConfigError("--store-option must be KEY=VALUE, such as region=eu-west-1")
        options[name] = value
    return options


def with_store_options(command: Callable[..., None]) -> Callable[..., None]:
    """Turn `command(..., stores)` into a command that has all options of `StoreOptions`."""
    return with_options(command, "stores", StoreOptions)
