"""What a device refuses of a batch, made on the host: images of an engine, or rows that the GPU could not read."""

from collections import deque
from dataclasses import replace
from functools import partial

import numpy as np

from ...system.threads import in_order
from .assemble import assemble
from .bad_samples import fill, fill_alone
from .host_batch import HostBatch, RefusedRows
from .rows import Rows


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


def read_on_host(batch: HostBatch, error: Exception) -> HostBatch:
    """Make a batch on the host, with bad samples replaced or masked, after the GPU failed to read its files.

    Raises `error` instead if bad samples are to raise, or if an engine for whole batches has begun on the images, which
    cannot be undone.
    """
    if batch.made_from is None:
        raise error
    rows, part = batch.made_from
    if rows.spec.options.on_bad_sample == "raise" or rows.spec.has_batch_engine:
        raise error
    spec, planned = replace(rows.spec, gpu_direct_fields=frozenset()), rows.planned[part]
    arrays = {name: array[part] for name, array in rows.arrays.items()}
    for name, (shape, dtype) in spec.array_layout(len(planned.indices)).items():
        if name not in arrays:
            arrays[name] = np.empty(shape, dtype)
    again = Rows(spec, rows.order, planned, arrays, pads=rows.pads, clock=rows.clock)
    whole = slice(0, len(again))
    fill(again, whole)
    return assemble(again, whole)
