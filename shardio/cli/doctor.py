"""`shardio doctor`: is everything there that shardio can use?"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from .. import diagnosis
from ..dataset.store_access import StoreAccess
from ..diagnosis import Finding
from ..errors import ShardioError
from ._store_options import DATASET, with_store_options


@with_store_options
def doctor(
    stores: dict[str, Any],
    dataset: Annotated[str | None, typer.Argument(help=DATASET, metavar="DATASET")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what shardio finds: software, machine, job, and the storage of a dataset. Paste it into an issue.

    If the dataset is at a path, it measures for some seconds, past the page cache, how fast the shards are read and how
    fast the folder of a cache is, where it writes and removes a file of 128 MB; and says whether a cache pays.

    The exit code is 1 if something is broken: installed, but it does not load. Whatever is optional or
    missing has a line of advice.

    Examples:

      shardio doctor

      shardio doctor data/photos

      shardio doctor /lustre/photos --cache /local/cache

      shardio doctor s3://bucket/photos --cache /local/cache --cache-size 200GB --store-option region=eu-west-1

      shardio doctor --json > machine.json

      srun --ntasks 2 shardio doctor
    """
    access = StoreAccess.of(*([] if dataset is None else [dataset]), **stores)
    groups = {"software": diagnosis.software(), "machine": diagnosis.machine(), "job": diagnosis.job()}
    if dataset is not None:
        groups["storage"] = diagnosis.storage(dataset, access)
    told = {group: {found.name: _plain(found) for found in findings} for group, findings in groups.items()}
    print(json.dumps(told, indent=1) if as_json else _table(groups))
    broken = [finding.name for findings in groups.values() for finding in findings if finding.state == "broken"]
    if broken:
        raise ShardioError(f"broken: {', '.join(broken)}")


def _table(groups: Mapping[str, Sequence[Finding]]) -> str:
    width = max(len(finding.name) for findings in groups.values() for finding in findings)
    lines = []
    for group, findings in groups.items():
        lines.append(group)
        for found in findings:
            told = f"{found.value}: {found.advice}" if found.advice else found.value
            mark = "BROKEN" if found.state == "broken" else found.state
            lines.append(f"  {mark:8}  {found.name:{width}}  {told}")
    return "\n".join(lines)


def _plain(found: Finding) -> dict[str, Any]:
    figures = {} if found.figures is None else {"figures": dict(found.figures)}
    return {"state": found.state, "value": found.value, "advice": found.advice, **figures}
