"""`shardio info`: what a dataset is made of."""

import json
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
    described = manifest.load(dataset)
    size = int(described.shards.bytes.sum())
    if as_json:
        print(json.dumps(_summary(dataset, described, size), indent=1))
        return
    shards = described.shards
    rows = {
        "dataset": str(dataset),
        "container": described.container,
        "samples": f"{described.samples:,}",
        "shards": f"{len(shards):,}" + (f" ({shards.names[0]} to {shards.names[-1]})" if len(shards) else ""),
        "size": f"{format_size(size)} ({format_size(size / max(1, described.samples))} per sample)",
        "digest": described.digest,
        **{f"field {name}": describe(field) for name, field in described.fields.items()},
        **{f"metadata {key}": str(value) for key, value in described.metadata.items()},
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:{width}}  {value}")


def _summary(path: Path, described: manifest.Manifest, size: int) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(described.to_json())
    del whole["shards"]
    return {"path": str(path), **whole, "shards": len(described.shards), "bytes": size}
