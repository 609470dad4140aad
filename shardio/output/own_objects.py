"""The names that shardio alone gives to objects at a dataset's place in a store, beside its manifest.

photos/shard-000012-1a2b3c4d.tar        a shard, and its other files beside it; 1a2b3c4d is the writer's own name
photos/shardio.shards-<checksum>.npy    only with more than 10,000 shards: their columns
photos/.converting/run-1a2b3c4d/        an unfinished conversion, or the sign of a writer at work
  writing           written anew with each shard of a writer of `create`
  plan.json         describes the conversion; a conversion with another plan does not resume this one
  000012.done       the record of shard 12, written on the condition that there is none, after its objects
  000012.idx.npy    the index of object 12, where objects are adopted, until all have one; and 000012.sums.idx.npy
  rank-00003        written anew every few seconds as long as that rank works
  rank-00003.over   written when it has finished its part
  rank-00003.failed the error that ended it
"""

import re

from ..format import manifest
from .records import JOURNAL, PLAN, RECORD_NAME, RUN_NAME

WRITING = "writing"
RANK_NAME = re.compile(r"rank-[0-9]{5,9}(\.over|\.failed)?")
_OF_A_RUN = (RECORD_NAME, RANK_NAME, re.compile(r"[0-9]{6,18}(\.sums)?\.idx\.npy"))
_SHARD_OBJECT = re.compile(r"(shard-[0-9]{6,}-[0-9a-f]{8})(\.[a-z0-9]+)+")


def stem_of(name: str) -> str | None:
    """Return the name, up to the first dot, of the shard that an object is a file of; None unless shardio named it."""
    found = _SHARD_OBJECT.fullmatch(name)
    return None if found is None else found[1]


def is_own(name: str) -> bool:
    """Return whether shardio gives an object beside a manifest this name, and no other program does; not the manifest.

    Args:
        name: the object's name, from the dataset's place on.
    """
    if stem_of(name) or (name != manifest.TABLE_NAME and manifest.TABLE_PATTERN.fullmatch(name)):
        return True
    parts = name.split("/")
    return (
        len(parts) == 3
        and parts[0] == JOURNAL
        and RUN_NAME.fullmatch(parts[1]) is not None
        and (parts[2] in (PLAN, WRITING) or any(one.fullmatch(parts[2]) for one in _OF_A_RUN))
    )
