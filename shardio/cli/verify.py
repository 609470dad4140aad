"""`shardio verify`: compare a dataset with its manifest."""

from functools import partial
from typing import Annotated, Any

import typer

from ..care.verify import verify as run
from ..errors import ShardCorrupt
from ..system.units import counted
from ._output import JsonFile, write_json
from ._progress import progress
from ._store_options import DATASET, with_store_options


@with_store_options
def verify(
    dataset: Annotated[str, typer.Argument(help=DATASET, metavar="DATASET")],
    stores: dict[str, Any],
    deep: Annotated[bool, typer.Option("--deep", help="Also read and decode every sample.")] = False,
    workers: Annotated[int | None, typer.Option(help="Number of threads; by default one per core.")] = None,
    most: Annotated[int, typer.Option(help="Number of bad samples to list per shard; further ones are counted.")] = 20,
    json_file: JsonFile = None,
) -> None:
    """Compare the files of a dataset with its manifest; the exit code is 1 if anything differs.

    Examples:

      shardio verify data/photos

      shardio verify data/photos --deep --json result.json

      shardio verify s3://bucket/photos --cache /local/cache --cache-size 200GB --store-option region=eu-west-1
    """
    with progress("shards") as show:
        result = run(dataset, deep=deep, progress=partial(show, "verifying"), workers=workers, most=most, **stores)
    only_json = write_json(json_file, {"dataset": dataset, "deep": deep, **result.to_dict()})
    for problem in () if only_json else result.problems:
        print(problem)
    if result.found:
        raise ShardCorrupt(f"{dataset}: {counted(result.count, 'problem')} in {counted(result.shards, 'shard')}")
    if not only_json:
        samples = f", {counted(result.samples, 'sample')}" if deep else ""
        intact = f"{counted(result.shards, 'shard')} {'is' if result.shards == 1 else 'are'} intact"
        told = "; its samples have no checksums, so their values are unchecked" if result.unchecked else ""
        print(f"{dataset}: {intact}{samples}, digest matches{told}")
