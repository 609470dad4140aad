"""`shardio stage`: fetch a dataset into the cache of the node beforehand."""

from typing import Annotated, Any

import typer

from ..care.stage import stage as run
from ..errors import StoreError
from ..system.units import counted, format_size
from ._output import JsonFile, check_place, write_json
from ._progress import progress
from ._store_options import DATASET, with_store_options


@with_store_options
def stage(
    dataset: Annotated[str, typer.Argument(help=f"{DATASET} Or the file of a view.", metavar="DATASET")],
    stores: dict[str, Any],
    json_file: JsonFile = None,
) -> None:
    """Fetch a dataset into the cache of this node, so that no epoch waits for its slow file system or bucket.

    Every loader of this node that is given the same --cache finds it there, in this job and in later ones. It fetches
    only what is missing. Run it once per node; several at once share the work. The exit code is 1 if anything is
    missing in the end. If the cache is too small, nothing is fetched.

    Examples:

      shardio stage /lustre/photos --cache /local/cache --cache-size 200GB

      srun --ntasks 2 shardio stage /lustre/photos --cache /local/cache --json -

      shardio stage s3://bucket/photos --cache /local/cache --store-option region=eu-west-1
    """
    check_place(json_file, "--json")
    with progress("MB") as show:
        done = run(
            dataset,
            **stores,
            progress=lambda done, total: show("staging", -(-done // 1_000_000), -(-total // 1_000_000)),
        )
    only_json = write_json(json_file, {"dataset": dataset, **done.to_dict()})
    for problem in () if only_json else done.problems:
        print(problem)
    if done.problems:
        raise StoreError(f"{dataset}: {counted(len(done.problems), 'shard')} of {done.shards} not staged")
    if not only_json:
        rate = format_size(done.fetched / max(done.seconds, 1e-3))
        came = f"{format_size(done.fetched)} came now, {rate}/s" if done.fetched else "all was there"
        print(f"{dataset}: {counted(done.shards, 'shard')}, {format_size(done.bytes)} in {done.folder}: {came}")
