"""Write shards by containers' own writers."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shardio.containers import Container
from shardio.format.fields import Field


def written(
    kind: Container, path: Path, fields: Mapping[str, Field], samples: Iterable[Any], first: int = 0, **options: Any
) -> Path:
    """Write stored samples to a shard; return its path."""
    writer = kind.writer(path, fields, first, **options)
    for sample in samples:
        writer.append(sample)
    writer.close()
    return path
