"""`shardio info`: show a summary of a dataset's manifest."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ..dataset.epoch_cost import EpochCost, Prices, Traffic, epoch_cost
from ..dataset.remote_manifest import load_manifest
from ..dataset.store_access import StoreAccess
from ..format import cf, manifest
from ..format.fields import Field, describe
from ..format.pieces import PIECE
from ..system.units import format_size, parse_size
from ._store_options import DATASET, with_store_option

_NAME = len("global, later epoch") + 2  # columns


def _cost_option(text: str, *flags: str) -> Any:
    return typer.Option(*flags, help=text, rich_help_panel="The cost of an epoch, with --cost")


@with_store_option
def info(
    stores: StoreAccess,
    dataset: Annotated[str, typer.Argument(help=DATASET, metavar="DATASET")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    cost: Annotated[
        bool,
        _cost_option("Estimate the requests and bytes of an epoch from a store, and with prices the money.", "--cost"),
    ] = False,
    nodes: Annotated[int, _cost_option("The number of nodes of the job.")] = 1,
    cache_size: Annotated[
        str | None,
        _cost_option("The most bytes that a node's cache holds, such as 200GB; by default all that it reads."),
    ] = None,
    block: Annotated[int, _cost_option("How many samples block shuffle keeps together.")] = 64,
    price_per_1000_requests: Annotated[float | None, _cost_option("The price of 1,000 requests that read.")] = None,
    price_per_gb: Annotated[float | None, _cost_option("The price of 10^9 bytes that leave the store.")] = None,
) -> None:
    """Show a dataset's samples, fields, shards and digest; with --cost also what an epoch costs.

    Only the manifest is read. The cost is an estimate for samples of equal size; docs/remote.md says how it is made.

    Examples:

      shardio info data/photos

      shardio info data/photos --json

      shardio info s3://bucket/photos --store-option region=eu-west-1

      shardio info data/photos --cost --nodes 8 --cache-size 200GB --block 256

      shardio info data/photos --cost --price-per-1000-requests 0.001 --price-per-gb 0.05
    """
    loaded = load_manifest(dataset, stores.check_needed(dataset))
    room = None if cache_size is None else parse_size(cache_size, "cache_size")
    prices, costs = Prices(price_per_1000_requests, price_per_gb), tuple[EpochCost, ...]()
    if cost:
        costs = epoch_cost(loaded, nodes=nodes, cache_bytes=room, block=block, prices=prices)
    size = int(loaded.shards.bytes.sum())
    if as_json:
        summary = _summary(dataset, loaded, size)
        if cost:
            epochs = [one.to_json() for one in costs]
            paid = {"piece_bytes": PIECE, "cache_bytes": room, "block": block, "prices": asdict(prices)}
            summary["cost"] = {**paid, "epochs": epochs}
        print(json.dumps(summary, indent=1))
        return
    shards = loaded.shards
    rows = {
        "dataset": dataset,
        "container": loaded.container,
        "samples": f"{loaded.samples:,}",
        "shards": f"{len(shards):,}" + _range(shards.names),
        "size": f"{format_size(size)} ({format_size(size / max(1, loaded.samples))} per sample)",
        "digest": loaded.digest,
        **{f"field {name}": _described(field) for name, field in loaded.fields.items()},
        **{f"metadata {key}": str(value) for key, value in loaded.metadata.items()},
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:{width}}  {value}")
    for line in _cost_lines(costs):
        print(line)


def _described(field: Field) -> str:
    return f"{describe(field)}; {cf.told(field.attributes)}" if field.attributes else describe(field)


def _cost_lines(costs: Sequence[EpochCost]) -> Iterator[str]:
    """Yield a table of costs, per node and for all nodes."""
    if not costs:
        return
    priced = costs[0].first_price is not None
    yield ""
    yield f"{'estimated cost':{_NAME}}{'per node':26}  {'all nodes':26}{'  price' if priced else ''}"
    for one in costs:
        for epoch, traffic, price in (("first", one.first, one.first_price), ("later", one.later, one.later_price)):
            money = "" if price is None else f"  {price:,.2f}"
            name = f"{one.shuffle}, {epoch} epoch"
            yield f"{name:{_NAME}}{_traffic(traffic):26}  {_traffic(traffic * one.nodes):26}{money}".rstrip()


def _traffic(traffic: Traffic) -> str:
    return f"{traffic.requests:,} GETs, {format_size(traffic.bytes)}"


def _range(names: Sequence[str]) -> str:
    """Return the names of the first and the last shard, to append to their number."""
    ends = [names[0], names[-1]][: len(names)] if len(names) else []
    return f" ({' to '.join(ends)})" if ends else ""


def _summary(path: str, loaded: manifest.Manifest, size: int) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(loaded.to_json())
    del content["shards"]
    return {"path": path, **content, "shards": len(loaded.shards), "bytes": size}
