"""`shardio repair`: rebuild lost parts of a damaged dataset."""

from pathlib import Path
from typing import Annotated

import typer

from ..care.repair import repair as run
from ..format import manifest
from ._progress import progress


def repair(
    dataset: Annotated[Path, typer.Argument(help="The dataset's directory.", metavar="DATASET")],
    like: Annotated[
        Path | None,
        typer.Option(help="Take fields and class names that the damaged dataset no longer states from this one."),
    ] = None,
) -> None:
    """Rebuild a lost index or manifest from the shards, and drop incomplete samples.

    A tar that was cut short loses its last, incomplete sample. A shard that cannot be opened is renamed NAME.damaged.

    Examples:

      shardio repair data/photos

      shardio repair data/photos/val --like data/photos/train
    """
    similar = None if like is None else manifest.load(like)
    known = {} if similar is None else {"like": similar.fields, "metadata": similar.metadata}
    with progress("shards") as show:
        result = run(dataset, **known, progress=lambda done, total: show("repairing", done, total))
    for line in result.done:
        print(line)
    repaired = result.manifest
    summary = f"{dataset}: {repaired.samples} samples in {len(repaired.shards)} shards, digest {repaired.digest}"
    if not result.done:
        print(f"{summary}: nothing to repair; verify --deep also checks every sample")
    else:
        print(summary + {True: ", as before", False: ", not as before", None: ""}[result.same])
