"""`shardio merge`: write several datasets as one."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..conversion.api import convert as convert_source
from ..conversion.dataset_source import DatasetSource
from ..dataset.store_access import StoreAccess
from ..errors import ConfigError
from ._conversion import convert, with_conversion_options
from ._options import options_of, with_options
from ._store_options import with_store_options


@with_store_options
@with_conversion_options
@with_options("merging", options_of(convert_source, {"": "classes"}))
def merge(
    paths: Annotated[
        list[str],
        typer.Argument(
            help="The datasets' directories or URLs, then the new one's directory or URL.", metavar="IN... OUT"
        ),
    ],
    conversion: dict[str, Any],
    stores: dict[str, Any],
    merging: dict[str, Any],
) -> None:
    """Merge datasets: write their samples, one dataset after the other, as one. Their fields must be the same.

    Examples:

      shardio merge data/2024 data/2025 data/all --to hdf5

      shardio merge s3://bucket/2024 data/2025 data/all --cache /local/cache --store-option region=eu-west-1

      shardio merge data/a data/b data/mixed --shuffle 1

      shardio merge data/pets data/farm data/animals --classes union
    """
    if len(paths) < 3:
        raise ConfigError(f"merge takes at least two datasets and OUT, got {' '.join(paths)}")
    *datasets, out = paths
    source = DatasetSource(datasets, StoreAccess.of(*datasets, out, **stores), **merging)
    convert(source, Path(out), conversion, stores["store_options"])
