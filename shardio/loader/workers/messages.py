"""What the loader's process and its worker processes send each other.

    loader                                    worker w of W, for steps w, w + W, ...
      StartEpoch                        -->   makes the steps' batches in its shared buffers, one after the other
      BufferFree                        -->   writes into that buffer again
                                        <--   BatchReady, for each batch
                                        <--   WorkerFailed, once; the epoch is over for this worker

Messages are pickled. They come from this job's own processes, never from data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ...order.plan import Order, Schedule
from ..batch.host_batch import HostBatch


@dataclass(frozen=True, slots=True)
class StartEpoch:
    """Make every `stride`-th step of an epoch, beginning with step `first`. What is left of an older epoch is dropped.

    Attributes:
        number: counts the epochs that this loader has begun, so that late messages of older ones are recognised.
    """

    number: int
    plan: Order
    schedule: Schedule
    first: int
    stride: int


@dataclass(frozen=True, slots=True)
class BufferFree:
    """Nothing refers to the batch in a buffer any more."""

    buffer: int


@dataclass(frozen=True, slots=True)
class BatchReady:
    """A batch stands in a buffer.

    Attributes:
        epoch: the `StartEpoch.number` that it belongs to.
        buffer: the number of the buffer.
        used: bytes of the buffer that are used.
        batch: the batch, with a TensorLocation in place of each tensor.
        stage_seconds: time that the worker spent in each stage.
    """

    epoch: int
    buffer: int
    used: int
    batch: HostBatch
    stage_seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A step could not be made."""

    epoch: int
    error: BaseException


ToWorker: TypeAlias = StartEpoch | BufferFree
FromWorker: TypeAlias = BatchReady | WorkerFailed
