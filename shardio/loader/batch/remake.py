"""Batches that the host makes again because a device refused a part of them."""

from collections import deque
from dataclasses import replace

from ...system.threads import in_order
from .assemble import assemble
from .host_batch import BatchResult, HostBatch, RefusedRows


def remake_images(batch: HostBatch, refused: RefusedRows, threads: int) -> BatchResult:
    """Make the refused images with the CPU engine, on `threads` threads, and assemble the batch again.

    A bad image raises an error, or its row is replaced or masked as always, which may change the row's other fields.
    """
    if batch.rows is None:
        raise ValueError("the batch no longer refers to the rows that it was assembled from")
    rows, part = batch.rows.rows, batch.rows.part
    numbers = sorted({part.start + row for refused_rows in refused.values() for row in refused_rows})
    try:
        deque(in_order(rows.remake, numbers, threads), maxlen=0)
    except Exception as error:  # noqa: BLE001  # a bad sample: raised in the consumer, in this batch's turn
        return error
    return replace(assemble(rows.filled(part)), stored_bytes=batch.stored_bytes)


def read_on_host(batch: HostBatch, error: Exception) -> BatchResult:
    """Make a batch on the host, with bad samples replaced or masked, after the GPU failed to read its files.

    Returns `error` instead if bad samples are to raise, or if an engine for whole batches has begun on the images,
    which cannot be undone.
    """
    if batch.rows is None or batch.rows.spec.on_bad_sample == "raise" or batch.rows.spec.has_batch_engine:
        return error
    rows = batch.rows.rows.restart(batch.rows.part, batch.rows.spec.reading_on_host())
    part = slice(0, len(rows))
    try:
        rows.fill(part)
        return assemble(rows.filled(part))
    except Exception as host_error:  # noqa: BLE001  # raised in the consumer, in this batch's turn
        return host_error
