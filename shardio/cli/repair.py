"""`shardio repair`: write lost parts of a damaged dataset anew."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ..care.repair import repair as run
from ..format import manifest
from ..system.units import counted
from ._output import JsonFile, write_json
from ._progress import progress

_DEEPER = "`shardio verify --deep` checks every sample; `shardio reshard IN OUT --on-error skip` copies whole ones"
_AGAIN = "`shardio index FILES -o {} --overwrite`"


def repair(
    dataset: Annotated[Path, typer.Argument(help="The dataset's directory.", metavar="DATASET")],
    like: Annotated[
        Path | None,
        typer.Option(help="A similar dataset, to take lost fields and class names from."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Write lost indexes, tables of checksums and the manifest anew. Shards stay as they are.

    Samples that are not whole leave the index of a tar; shards that cannot be opened leave the manifest. The command
    counts both.

    Examples:

      shardio repair data/photos

      shardio repair data/photos --json repaired.json

      shardio repair data/photos/val --like data/photos/train
    """
    similar = None if like is None else manifest.load(like)
    known = {} if similar is None else {"like": similar.fields, "metadata": similar.metadata}
    with progress("shards") as show:
        result = run(dataset, **known, progress=lambda done, total: show("repairing", done, total))
    if write_json(json_file, {"dataset": str(dataset), **result.to_dict()}):
        return
    for line in result.done:
        print(line)
    repaired = result.manifest
    content = f"{counted(repaired.samples, 'sample')} in {counted(len(repaired.shards), 'shard')}"
    summary = f"{dataset}: {content}"
    lost = "" if result.lost == 0 else f", {'an unknown number' if result.lost is None else result.lost} lost"
    digest = f", digest {repaired.digest}"
    again = _AGAIN.format(shlex.quote(str(dataset)))
    if not result.done:
        print(f"{summary}{digest}: nothing to repair, by the sizes of the files")
        print(_DEEPER)
        if repaired.adopted:
            print(f"{again} takes files that were changed on purpose as they are now")
        return
    print(summary + lost + digest + {True: ", as before", False: ", not as before", None: ""}[result.same])
    print(_DEEPER)
    if repaired.adopted and result.lost:
        print(f"when the files are whole again, {again} takes them as they are then")
