"""`shardio info`: show a summary of a dataset's manifest."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from ..dataset.dataset import open as open_dataset
from ..dataset.epoch_cost import EpochCost, Traffic, epoch_cost
from ..dataset.store_access import StoreAccess, load_manifest
from ..errors import ConfigError, Option, ShardioError
from ..format import cf, manifest
from ..format.fields import Field, describe, fields_to_json
from ..format.pieces import PIECE
from ..stores.url import as_url
from ..system.units import counted, format_size, parse_size
from ..views.saved import holds_view
from ..views.view import BaseDataset
from ._store_options import with_store_option
from ._view_options import DATASET, ViewChoice, with_view_options

_NAME = len("global, later epoch") + 2  # columns


def _cost_option(text: str, *flags: str) -> Any:
    return typer.Option(*flags, help=text, rich_help_panel="The cost of an epoch, with --cost")


@with_store_option
@with_view_options
def info(
    stores: dict[str, Any],
    choice: ViewChoice,
    dataset: Annotated[str, typer.Argument(help=DATASET, metavar="DATASET")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    cost: Annotated[
        bool,
        _cost_option("Estimate the requests and bytes of an epoch from a store.", "--cost"),
    ] = False,
    nodes: Annotated[int | None, _cost_option("The number of nodes of the job. The default is 1.")] = None,
    cache_size: Annotated[
        str | None,
        _cost_option("The most bytes that a node's cache holds, such as 200GB; by default all that it reads."),
    ] = None,
    block: Annotated[
        int | None, _cost_option("How many samples block shuffle keeps together. The default is 64.")
    ] = None,
) -> None:
    """Show a dataset's samples, fields, shards and digest; with --cost also what an epoch costs.

    Or show what a view chooses, and from which dataset. This reads the manifest, and the fields that a view's condition
    or split needs. The cost is an estimate for samples of equal size; docs/remote.md says how it is made.

    Examples:

      shardio info data/photos

      shardio info data/photos --json

      shardio info rare.json

      shardio info s3://bucket/photos --store-option region=eu-west-1

      shardio info data/photos --cost --nodes 8 --cache-size 200GB --block 256
    """
    for name, value in {"--nodes": nodes, "--cache-size": cache_size, "--block": block}.items():
        if value is not None and not cost:
            raise ConfigError(f"{name} goes with --cost")
    if choice != ViewChoice() or (as_url(dataset) is None and holds_view(dataset)):
        if cost:
            raise ConfigError("{} is for whole datasets", Option("cost", True))
        _show_view(dataset, choice.opened(dataset, stores), as_json)
        return
    loaded = load_manifest(dataset, StoreAccess.of(dataset, **stores))
    has_videos = any(field.kind == "video" for field in loaded.fields.values())
    videos = _videos(open_dataset(dataset)) if as_url(dataset) is None and has_videos else {}
    room = None if cache_size is None else parse_size(cache_size, "cache_size")
    given: dict[str, int] = {"nodes": 1 if nodes is None else nodes, "block": 64 if block is None else block}
    costs = epoch_cost(loaded, cache_bytes=room, **given) if cost else ()
    size = int(loaded.shards.bytes.sum())
    if as_json:
        summary = _summary(dataset, loaded, size)
        if cost:
            epochs = [one.to_json() for one in costs]
            summary["cost"] = {"piece_bytes": PIECE, "cache_bytes": room, "block": given["block"], "epochs": epochs}
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
        **_growth(loaded),
        **_origin(loaded),
        **{f"field {name}": _described(field) + videos.get(name, "") for name, field in loaded.fields.items()},
        **{f"metadata {key}": str(value) for key, value in loaded.metadata.items()},
    }
    _print_table(rows.items())
    for line in _cost_lines(costs):
        print(line)


def _videos(dataset: BaseDataset) -> dict[str, str]:
    """Return what the first sample's videos are, by field; nothing of shards that can't be read."""
    from ..care.values import missing, video_facts, video_text  # loads Pillow

    told = dict[str, str]()
    with suppress(ShardioError, OSError):
        for name in (name for name, field in dataset.fields.items() if field.kind == "video" and len(dataset)):
            if not missing(dataset, name, 0):
                told[name] = f"; the first one: {video_text(video_facts(dataset, name, 0))}"
    return told


def _show_view(path: str, view: BaseDataset, as_json: bool) -> None:
    node = view.description({})
    if as_json:
        told = {"path": path, "digest": view.digest, "samples": len(view), "fields": fields_to_json(view.fields)}
        print(json.dumps({**told, "metadata": dict(view.metadata), "view": node}, indent=1))
        return
    videos = _videos(view) if any(field.kind == "video" for field in view.fields.values()) else {}
    _print_table(
        [
            ("view", path),
            *_told(node),
            ("samples", f"{len(view):,}"),
            ("digest", view.digest),
            *(
                (f"field {name}", _described(field) + videos.get(name, "") + _joined(view, name))
                for name, field in view.fields.items()
            ),
        ]
    )


def _joined(view: BaseDataset, name: str) -> str:
    """Return where a field was joined from, as the end of its description."""
    return f"; joined from {place}" if (place := view.joined_from(name)) is not None else ""


def _told(node: Mapping[str, Any], source: str = "") -> Iterator[tuple[str, str]]:
    """Yield what a description of a view says, from the last choice down to the datasets, as rows of a table."""
    before = f"{source}: " if source else ""
    if "dataset" in node:
        yield f"{before}of", f"{node['dataset']}, {node['samples']:,} samples, digest {node['digest']}"
        return
    kind, value = next(iter(node.items()))
    sources = value if kind in ("concat", "mix") else {}
    value = ", ".join(sources) if sources else value if isinstance(value, str) else json.dumps(value)
    rest = [
        f"{key} {given if isinstance(given, str) else json.dumps(given)}"
        for key, given in node.items()
        if key not in (kind, "of", "with") and given not in (None, False)
    ]
    yield f"{before}{kind}", "; ".join([value, *rest])
    joined = [("with", node["with"])] if kind == "join" else []
    for name, inner in sources.items() or [("", node["of"]), *joined]:
        yield from _told(inner, "/".join(filter(None, [source, name])))


def _print_table(rows: Iterable[tuple[str, str]]) -> None:
    listed = list(rows)
    width = max(len(name) for name, _ in listed)
    for name, value in listed:
        print(f"{name:{width}}  {value}")


def _growth(loaded: manifest.Manifest) -> dict[str, str]:
    """Return what the dataset was before the last append, and how often it has grown before that."""
    if not loaded.grew_from:
        return {}
    (digest, samples), more = list(loaded.grew_from.items())[-1], len(loaded.grew_from) - 1
    before = f", and {counted(more, 'time')} before" if more else ""
    return {"grew from": f"{samples:,} samples, {digest}{before}"}


def _origin(loaded: manifest.Manifest) -> dict[str, str]:
    """Return which dataset `shardio derive` computed this one from, and how."""
    derived = loaded.conversion.get("derived")
    if not isinstance(derived, dict):
        return {}
    return {"derived from": f"{derived.get('digest')} by {derived.get('function')}, version {derived.get('version')}"}


def _described(field: Field) -> str:
    return f"{describe(field)}; {cf.told(field.attributes)}" if field.attributes else describe(field)


def _cost_lines(costs: Sequence[EpochCost]) -> Iterator[str]:
    """Yield a table of costs, per node and for all nodes."""
    if not costs:
        return
    yield ""
    yield f"{'estimated cost':{_NAME}}{'per node':26}  all nodes"
    for one in costs:
        for epoch, traffic in (("first", one.first), ("later", one.later)):
            name = f"{one.shuffle}, {epoch} epoch"
            yield f"{name:{_NAME}}{_traffic(traffic):26}  {_traffic(traffic * one.nodes)}"


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
