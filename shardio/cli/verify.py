"""`shardio verify`: is a dataset still what its manifest says?"""

from pathlib import Path
from typing import Annotated

import typer

from ..care.verify import verify as run
from ..dataset.dataset import open as open_dataset
from ..errors import ShardCorrupt
from ._output import write_json
from ._progress import progress


def verify(
    dataset: Annotated[Path, typer.Argument(help="The dataset's directory.", metavar="DATASET")],
    deep: Annotated[
        bool, typer.Option("--deep", help="Read and decode every sample, too, and compute the digest anew.")
    ] = False,
    workers: Annotated[int | None, typer.Option(help="Threads; without it one per core.")] = None,
    most: Annotated[int, typer.Option(help="Bad samples to list of each shard; the others are counted.")] = 20,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write the result to this file; - is standard output.", metavar="FILE")
    ] = None,
) -> None:
    """Compare a dataset's files with its manifest; exit code 1 if anything differs.

    Examples:

      shardio verify data/photos

      shardio verify data/photos --deep --json result.json
    """
    opened = open_dataset(dataset)
    with progress("shards") as show:
        result = run(
            opened,
            deep=deep,
            progress=lambda done, total: show("verifying", done, total),
            workers=workers,
            most=most,
        )
    alone = write_json(json_file, {"dataset": str(dataset), "deep": deep, **result.to_dict()})
    for problem in () if alone else result.problems:
        print(problem)
    if result.found:
        raise ShardCorrupt(f"{dataset}: {result.count} problems in {result.shards} shards")
    if not alone:
        seen = f", {result.samples} samples, digest right" if deep else ""
        print(f"{dataset}: {result.shards} shards are whole{seen}")
