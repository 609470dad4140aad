"""Names of the files that are merged with a shard: next to `shard-000000.nc`, `shard-000000.join1.nc` and so on."""

import os
import re
from itertools import count, takewhile
from pathlib import Path

_MERGED = re.compile(r"(.+)\.join[1-9][0-9]*(\.[^.]+)?")


def merged_name(shard: str, number: int) -> str:
    """Return the name in a dataset of the file that was merged with a shard: `a.nc` has `a.join1.nc`, `a.join2.nc`."""
    stem, dot, suffix = shard.rpartition(".")
    return f"{stem}.join{number}{dot}{suffix}" if stem else f"{shard}.join{number}"


def shard_of_merged(name: str) -> str:
    """Return the shard that a file of this name was merged with, see `merged_name`; of any other name, that name."""
    found = _MERGED.fullmatch(name)
    return f"{found[1]}{found[2] or ''}" if found else name


def merged_files(shard: Path) -> tuple[Path, ...]:
    """Return the paths of the files next to a shard that were merged with it."""
    paths = (shard.with_name(merged_name(shard.name, number)) for number in count(1))
    return tuple(takewhile(os.path.lexists, paths))
