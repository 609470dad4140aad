"""The messages between the loader's process and its worker processes.

    loader                                    worker w of W, for steps w, w + W, ...
      StartEpoch                        -->   makes the steps' batches one after the other, each in a shared buffer
      BufferFree                        -->   may write into that buffer again
                                        <--   BatchReady, for each batch
                                        <--   WorkerFailed, once; the epoch is over for this worker

Messages are pickled. Only processes of this job send them; they are never read from data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ...order.plan import Order, Schedule
from ..batch.host_batch import HostBatch


@dataclass(frozen=True, slots=True)
class StartEpoch:
    """Asks a worker to make every `stride`-th step of an epoch, from step `first` on, and to drop an older epoch.

    Attributes:
        number: counts the epochs that this loader has begun, which identifies late messages of older epochs.
        plan: the order of the epoch.
        schedule: the steps of the epoch.
        first: the first step for this worker.
        stride: the distance between two of its steps.
    """

    number: int
    plan: Order
    schedule: Schedule
    first: int
    stride: int


@dataclass(frozen=True, slots=True)
class BufferFree:
    """Tells a worker that nothing refers to the batch in a buffer any more."""

    buffer: int


@dataclass(frozen=True, slots=True)
class BatchReady:
    """Tells the loader that a batch is finished.

    Attributes:
        epoch: the `StartEpoch.number` of its epoch.
        buffer: the number of the buffer that holds its tensors.
        used: the number of bytes of the buffer that the tensors take.
        batch: the batch, with a TensorLocation in place of each tensor.
        stage_seconds: seconds that the worker spent in each stage.
        stage_cpu_seconds: the part of them on a processor.
        unpacked_bytes: the bytes that the worker decompressed.
    """

    epoch: int
    buffer: int
    used: int
    batch: HostBatch
    stage_seconds: Mapping[str, float]
    stage_cpu_seconds: Mapping[str, float]
    unpacked_bytes: int


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """Tells the loader that a step could not be made."""

    epoch: int
    error: BaseException


ToWorker: TypeAlias = StartEpoch | BufferFree
FromWorker: TypeAlias = BatchReady | WorkerFailed
