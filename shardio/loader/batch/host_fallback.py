"""The images of a batch that an engine for whole batches refuses, made on the host."""

from collections import deque
from dataclasses import replace
from functools import partial

from ...system.threads import in_order
from .assemble import assemble
from .bad_samples import fill_alone
from .host_batch import HostBatch, RefusedRows


def make_refused_images(batch: HostBatch, refused: RefusedRows, threads: int) -> HostBatch:
    """Make the refused images with the CPU engine, on `threads` threads, and assemble the batch again.

    A bad image raises its error, or its row is replaced or masked as always, which may change the row's other fields.
    """
    if batch.made_from is None:
        raise ValueError("the batch no longer refers to the rows that it was assembled from")
    rows, part = batch.made_from
    numbers = sorted({part.start + row for refused_rows in refused.values() for row in refused_rows})
    deque(in_order(partial(fill_alone, rows), numbers, threads), maxlen=0)
    return replace(assemble(rows, part), stored_bytes=batch.stored_bytes)
