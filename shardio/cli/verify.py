"""`shardio verify`: is a dataset still what its manifest says?"""

from pathlib import Path
from typing import Annotated

import typer

from ..dataset import open as open_dataset
from ..errors import ShardCorrupt
from ..verify import verify as run
from ._progress import progress


def verify(
    dataset: Annotated[Path, typer.Argument(help="The dataset's directory.", metavar="DATASET")],
    deep: Annotated[bool, typer.Option("--deep", help="Read every sample, too, and compute the digest anew.")] = False,
) -> None:
    """Compare a dataset's files with its manifest; exit code 1 if anything differs.

    Examples:

      shardio verify data/photos

      shardio verify data/photos --deep
    """
    with progress("shards") as show:
        result = run(open_dataset(dataset), deep=deep, progress=lambda done, total: show("verifying", done, total))
    for problem in result.problems:
        print(problem)
    if result.problems:
        raise ShardCorrupt(f"{dataset}: {len(result.problems)} problems in {result.shards} shards")
    print(
        f"{dataset}: {result.shards} shards are whole" + (f", {result.samples} samples, digest right" if deep else "")
    )
