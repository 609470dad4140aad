"""`shardio repair`: save what can be saved of a dataset."""

from pathlib import Path
from typing import Annotated

import typer

from ..care.repair import repair as run
from ..format import manifest
from ._progress import progress


def repair(
    dataset: Annotated[Path, typer.Argument(help="The dataset's directory.", metavar="DATASET")],
    like: Annotated[
        Path | None, typer.Option(help="A dataset whose fields and classes it has, for what nothing else says.")
    ] = None,
) -> None:
    """Rebuild a lost index or manifest from the shards, and drop what was cut off.

    A tar that was cut short loses its last, incomplete sample. A shard that cannot be opened is renamed NAME.damaged.

    Examples:

      shardio repair data/photos

      shardio repair data/photos/val --like data/photos/train
    """
    other = None if like is None else manifest.load(like)
    told = {} if other is None else {"like": other.fields, "metadata": other.metadata}
    with progress("shards") as show:
        result = run(dataset, **told, progress=lambda done, total: show("repairing", done, total))
    for line in result.done:
        print(line)
    made = result.manifest
    now = f"{dataset}: {made.samples} samples in {len(made.shards)} shards, digest {made.digest}"
    if not result.done:
        print(f"{now}: nothing to repair; verify --deep also looks at every sample")
    else:
        print(now + {True: ", as before", False: ", not as before", None: ""}[result.same])
