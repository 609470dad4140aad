"""The manifest of shards that are written: their table, their digest, and what their images have in common."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..format import checksums, manifest
from ..format.fields import Field
from ..format.pieces import PIECE
from ..format.shard_table import ShardTable, TextColumn
from .shard_writer import WrittenShard

_NONE = np.empty(0, np.uint64)


def describe(
    container: str,
    fields: Mapping[str, Field],
    written: Iterable[WrittenShard],
    metadata: Mapping[str, Any],
    *,
    adopted: bool = False,
    conversion: Mapping[str, Any] | None = None,
    has_sums: bool = False,
) -> manifest.Manifest:
    """Return the manifest of some shards: compute their digest, and the shapes that their images have in common.

    Args:
        container: the container of the shards.
        fields: the fields of the samples.
        written: the shards, in order.
        metadata: JSON values that the manifest keeps.
        adopted: whether the shards are files of other programs.
        conversion: JSON values on how a conversion made the dataset.
        has_sums: whether the checksums of its pieces are beside each shard.
    """
    shards: list[WrittenShard] = []
    digest = checksums.Digest(fields)
    for shard in written:
        digest.update(shard.sample_checksums)
        shards.append(replace(shard, sample_checksums=_NONE))  # to save memory: a dataset may have very many samples
    described = dict(fields)
    for name, field in fields.items():
        if field.kind == "image":
            sizes = {shard.image_shapes[name] for shard in shards if shard.samples}
            described[name] = replace(field, shape=sizes.pop() if len(sizes) == 1 else None)
    return manifest.Manifest(
        container=container,
        fields=described,
        shards=ShardTable(
            names=TextColumn([shard.name for shard in shards]),
            samples=np.array([shard.samples for shard in shards], np.int64),
            bytes=np.array([shard.bytes for shard in shards], np.int64),
            checksums=TextColumn([shard.checksum for shard in shards]),
        ),
        digest=digest.text(),
        metadata=metadata,
        adopted=adopted,
        conversion=conversion or {},
        piece_bytes=PIECE if has_sums else None,
    )
