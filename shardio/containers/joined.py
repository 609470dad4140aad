"""Names of the files that are joined to a shard: `shard-000000.nc` has `shard-000000.join1.nc` and so on next to it."""

import os
import re
from itertools import count, takewhile
from pathlib import Path

_JOINED = re.compile(r"(.+)\.join[1-9][0-9]*(\.[^.]+)?")


def joined_name(shard: str, number: int) -> str:
    """Return the name in a dataset of the file that was joined to a shard: `a.nc` has `a.join1.nc`, `a.join2.nc`."""
    stem, dot, suffix = shard.rpartition(".")
    return f"{stem}.join{number}{dot}{suffix}" if stem else f"{shard}.join{number}"


def shard_of_joined(name: str) -> str:
    """Return the shard that a file of this name was joined to, see `joined_name`; of any other name, that name."""
    found = _JOINED.fullmatch(name)
    return f"{found[1]}{found[2] or ''}" if found else name


def joined_files(shard: Path) -> tuple[Path, ...]:
    """Return the paths of the files next to a shard that were joined to it."""
    paths = (shard.with_name(joined_name(shard.name, number)) for number in count(1))
    return tuple(takewhile(os.path.lexists, paths))
