"""`shardio info`: show a summary of a dataset's manifest."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..format import manifest
from ..format.fields import describe
from ..system.units import format_size


def info(
    dataset: Annotated[Path, typer.Argument(help="The dataset's directory.", metavar="DATASET")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a dataset's samples, fields, shards and digest.

    Examples:

      shardio info data/photos

      shardio info data/photos --json
    """
    loaded = manifest.load(dataset)
    size = int(loaded.shards.bytes.sum())
    if as_json:
        print(json.dumps(_summary(dataset, loaded, size), indent=1))
        return
    shards = loaded.shards
    rows = {
        "dataset": str(dataset),
        "container": loaded.container,
        "samples": f"{loaded.samples:,}",
        "shards": f"{len(shards):,}" + _range(shards.names),
        "size": f"{format_size(size)} ({format_size(size / max(1, loaded.samples))} per sample)",
        "digest": loaded.digest,
        **{f"field {name}": describe(field) for name, field in loaded.fields.items()},
        **{f"metadata {key}": str(value) for key, value in loaded.metadata.items()},
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:{width}}  {value}")


def _range(names: Sequence[str]) -> str:
    """Return the names of the first and the last shard, to append to their number."""
    ends = [names[0], names[-1]][: len(names)] if len(names) else []
    return f" ({' to '.join(ends)})" if ends else ""


def _summary(path: Path, loaded: manifest.Manifest, size: int) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(loaded.to_json())
    del content["shards"]
    return {"path": str(path), **content, "shards": len(loaded.shards), "bytes": size}
