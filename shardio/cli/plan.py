"""`shardio plan`: what each rank would read."""

from typing import Annotated, Any

import typer

from ..bench.read_plan import ReadPlan, read_plan
from ..dataset.store_access import StoreAccess
from ..system.units import counted, format_size
from ._batch_options import SHUFFLE
from ._options import options_of, with_options
from ._output import JsonFile, write_json
from ._store_options import with_store_option
from ._view_options import DATASET, ViewChoice, with_view_options

OPTIONS = options_of(
    read_plan,
    {"": "world batch_size shuffle block window tail assign seed epoch"},
    {"shuffle": SHUFFLE},
)


@with_store_option
@with_view_options
@with_options("options", OPTIONS)
def plan(
    stores: dict[str, Any],
    choice: ViewChoice,
    dataset: Annotated[str, typer.Argument(help=DATASET, metavar="DATASET")],
    options: dict[str, Any],
    json_file: JsonFile = None,
) -> None:
    """Show what each rank of a job would read in an epoch, without reading a sample.

    For a view, it reads the fields that the view's condition or split needs.

    Examples:

      shardio plan data/photos --world 8 --batch-size 4

      shardio plan data/photos --world 8 --batch-size 4 --tail pad --json -

      shardio plan data/photos --world 8 --batch-size 4 --shuffle block --block 4 --window 2

      shardio plan data/photos --world 8 --batch-size 4 --shuffle block --block 4 --window 2 --assign node

      shardio plan data/photos --world 2 --batch-size 2 --where "label in (0, 3)"

      shardio plan s3://bucket/photos --world 8 --store-option region=eu-west-1
    """
    place = choice.place(dataset, stores)
    found = read_plan(place, **options, access=StoreAccess.of(place, **stores))
    if not write_json(json_file, found.to_json()):
        print(text(found))


def text(found: ReadPlan) -> str:
    """Return a plan as text."""
    size, shards, by_step = found.per_rank_bytes, found.per_rank_shards, found.per_step_shards
    tail = f"{counted(found.dropped or found.repeated, 'sample', ',')} {'left out' if found.dropped else 'repeated'}"
    ranks = "all ranks" if found.looked_at == found.world else f"{found.looked_at} of the ranks, evenly spread"
    world = counted(found.world, "rank", ",")
    rows = (
        ("dataset", f"{counted(found.samples, 'sample', ',')} in {counted(found.shards, 'shard', ',')}"),
        ("steps", f"{found.steps:,} of {counted(found.global_batch, 'sample', ',')} ({world} x {found.batch_size:,})"),
        ("tail", tail if found.dropped or found.repeated else "none"),
        ("samples per rank", f"{found.per_rank_samples:,}"),
        ("bytes per rank", f"{format_size(size.mean)}, {format_size(size.smallest)} to {format_size(size.largest)}"),
        ("balance", f"{size.balance:.1%} (mean of the largest)"),
        ("shards per rank", f"{shards.mean:,.0f}, {shards.smallest:,.0f} to {shards.largest:,.0f}"),
        ("shards per step", f"{by_step.mean:,.1f}, {by_step.smallest:,.0f} to {by_step.largest:,.0f}, of one rank"),
        ("looked at", ranks),
    )
    return "\n".join(f"{name:18}{value}" for name, value in rows)
