"""Batches brought to their device, one ahead of the consumer, and what is left of their making done there.

A step of the consumer                               meanwhile, on the device
  send(batch k + 1): files to the engine, copies       batch k + 1 is copied and decoded, the model works on batch k
  receive() -> batch k, which was sent a step ago
"""

import warnings
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from ...engines.base import BatchEngine, rows_of
from ...errors import EngineWarning
from ...system.threads import in_order
from ..batch.host_batch import Batch, BatchResult, DeferredField, EncodedImages, FieldInFiles, HostBatch
from ..workers.shared_buffers import map_nested
from .copier import DeviceCopier, HostCopier
from .gpu_direct import GpuDirect


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A batch on its way.

    Attributes:
        delivery: on the host.
        batch: on the device, but for images that engines make.
        begun: by image field the rows that its engine has begun on.
        reads: by field what is read from files to the device.
        failed: why that could not begin.
        mark: behind the copies.
    """

    delivery: HostBatch
    batch: Batch
    begun: Mapping[str, Sequence[int]]
    reads: Mapping[str, Any]
    failed: Exception | None
    mark: Any


MOST_HELD = 3
"""Batches whose copies may be under way."""


@final
class DevicePrefetcher:
    """Sends batches to a device and receives them there, in order.

    Args:
        lane: the way.
        engines: for whole batches, by image field.
        direct: reads from files to the device.
        channels_last: floats of images by pixel, not by channel.
        threads: that make what an engine refuses.
    """

    def __init__(
        self,
        lane: DeviceCopier,
        engines: Mapping[str, BatchEngine],
        direct: GpuDirect | None = None,
        *,
        channels_last: bool = False,
        threads: int = 1,
    ) -> None:
        self._lane, self._engines, self._direct = lane, engines, direct
        self._channels_last, self._threads = channels_last, threads
        self.ahead = max([engine.ahead for engine in engines.values()] or [not isinstance(lane, HostCopier)])
        self._sent: deque[_InFlight | BatchResult] = deque()
        # A batch's page-locked memory must not be used again before its copy has ended.
        self._held: deque[tuple[Any, Batch]] = deque()
        # Engines may look at a batch's files a little longer than until its images are there.
        self._ended: deque[HostBatch] = deque(maxlen=self.ahead + 1)
        # A loader may be dropped while the last batches that it delivered are still on their way.
        weakref.finalize(self, _drain, lane, self._held).atexit = False

    def __len__(self) -> int:
        return len(self._sent)

    def send(self, made: BatchResult) -> None:
        """Begins on a batch, or on what went wrong with it."""
        if isinstance(made, Exception) or not self.ahead:
            self._sent.append(made)
            return
        try:
            self._sent.append(self._on_its_way(made))
        except BaseException:  # an engine may have begun on a batch that is not known here
            self._abandon()
            raise

    def receive(self) -> BatchResult:
        """The oldest batch sent, on the device, or what went wrong with it."""
        sent = self._sent.popleft()
        if not isinstance(sent, _InFlight):
            return sent
        try:
            return self._arrived(sent)
        except BaseException:
            self._drop(sent.reads)
            self._abandon()
            raise

    def _on_its_way(self, made: HostBatch) -> _InFlight:
        begun = {
            name: self._begin(name, value) for name, value in made.batch.items() if isinstance(value, EncodedImages)
        }
        try:
            reads, failed = self._reads(made.batch), None
        except Exception as error:  # noqa: BLE001  # of a file, in its batch's turn
            reads, failed = {}, error
        with self._lane:
            batch = self._copied(made.batch)
            mark = self._lane.mark()
        self._held.append((mark, made.batch))
        while self._held and self._lane.done(self._held[0][0], block=len(self._held) > MOST_HELD):
            self._held.popleft()
        return _InFlight(made, batch, begun, reads, failed, mark)

    def _arrived(self, sent: _InFlight) -> BatchResult:
        ended = {name: self._engines[name].end() if rows else None for name, rows in sent.begun.items()}
        refused = {
            name: [sent.begun[name][place] for place in end[1]] for name, end in ended.items() if end is not None
        }
        if self._engines:
            self._ended.append(sent.delivery)
        if sent.failed is not None:
            return self._from_host(sent.delivery, sent.failed)
        if any(refused.values()):
            return self._remade(sent, ended, refused)
        batch = sent.batch
        for name, rows in sent.begun.items():
            batch[name] = self._whole(sent.delivery.batch[name], ended[name], rows)
        self._lane.wait(sent.mark, batch)
        try:
            batch |= self._read(sent.reads)
        except Exception as error:  # noqa: BLE001  # of a file, in its batch's turn
            self._drop(sent.reads)
            return self._from_host(sent.delivery, error)
        return _finished(sent.delivery, batch)

    def clear(self) -> None:
        """Forgets what was sent and not received."""
        while self._sent:
            sent = self._sent.popleft()
            if not isinstance(sent, _InFlight):
                continue
            for name, rows in sent.begun.items():
                if rows:
                    self._engines[name].end()
            self._drop(sent.reads)

    def _abandon(self) -> None:
        """After a failure in the middle: engines begin anew, so that no batch gets another one's images."""
        for engine in self._engines.values():
            engine.close()
        for sent in self._sent:
            if isinstance(sent, _InFlight):
                self._drop(sent.reads)
        self._sent.clear()

    def _drop(self, reads: Mapping[str, Any]) -> None:
        """Waits for reads that nobody wants any more: they write into memory that would be another's."""
        if self._direct is not None:
            for read in reads.values():
                self._direct.drop(read)

    def _reads(self, batch: Batch) -> Mapping[str, Any]:
        """Begins to read what the device reads itself."""
        begun: dict[str, Any] = {}
        try:
            for name, value in batch.items():
                if self._direct is not None and isinstance(value, FieldInFiles):
                    begun[name] = self._direct.begin(value)
        except BaseException:
            self._drop(begun)
            raise
        return begun

    def _read(self, reads: Mapping[str, Any]) -> Batch:
        """What has been read."""
        return {} if self._direct is None else {name: self._direct.end(read) for name, read in reads.items()}

    def _begin(self, name: str, pictures: EncodedImages) -> Sequence[int]:
        files = {row: value for row, value in enumerate(pictures.rows) if not isinstance(value, Tensor)}
        if files:
            every = len(files) == len(pictures.rows)
            chosen = slice(None) if every else np.array(list(files))
            steps = pictures.steps if every else [rows_of(step, chosen) for step in pictures.steps]
            self._engines[name].begin(list(files.values()), pictures.sizes[chosen], steps)
        return list(files)

    def _copied(self, batch: Batch) -> Batch:
        copied: Batch = {}
        for name, value in batch.items():
            if isinstance(value, DeferredField):
                copied[name] = value.finish(self._lane.copy(value.tensor))
            elif not isinstance(value, EncodedImages | FieldInFiles):
                copied[name] = map_nested(value, Tensor, self._lane.copy)
        return {name: copied.get(name) for name in batch}

    def _whole(self, pictures: EncodedImages, end: tuple[Tensor, Sequence[int]] | None, rows: Sequence[int]) -> Tensor:
        """All images of a batch, those made on the host among those that the engine made."""
        if end is not None and len(rows) == len(pictures.rows):
            return end[0]
        ready = {row: value for row, value in enumerate(pictures.rows) if isinstance(value, Tensor)}
        if end is None:
            whole = self._lane.copy(torch.stack([ready[row] for row in sorted(ready)]))
        else:
            images, _ = end
            whole = images.new_empty((len(pictures.rows), *images.shape[1:]))
            whole[torch.tensor(rows, device=images.device)] = images
            for row, image in ready.items():
                whole[row] = image.to(images.device)
        by_pixel = self._channels_last and whole.is_floating_point()
        return whole.contiguous(memory_format=torch.channels_last) if by_pixel else whole

    def _from_host(self, delivery: HostBatch, error: Exception) -> BatchResult:
        """A batch of which the device could not read a file, as the host finds it."""
        if delivery.by_host is None:
            return error
        try:
            made = delivery.by_host()
        except Exception as found:  # noqa: BLE001  # in its batch's turn
            return found
        return _finished(made, self._copied_now(made))

    def _copied_now(self, delivery: HostBatch) -> Batch:
        """What is copied of a batch, when it is there."""
        with self._lane:
            batch = self._copied(delivery.batch)
            mark = self._lane.mark()
        self._lane.wait(mark, batch)
        self._lane.done(mark, block=True)
        return batch

    def _remade(self, sent: _InFlight, ended: Mapping[str, Any], refused: Mapping[str, Sequence[int]]) -> BatchResult:
        """A batch some of whose images the host has to make. Other fields may have changed with them."""
        self._drop(sent.reads)
        try:
            for name, rows in refused.items():
                deque(in_order(sent.delivery.batch[name].remake, rows, self._threads), maxlen=0)
        except Exception as error:  # noqa: BLE001  # a bad sample, in its batch's turn
            return error
        delivery = sent.delivery if sent.delivery.again is None else sent.delivery.again()
        for name, rows in refused.items():
            if len(rows) == len(sent.begun[name]) > 1 and delivery.bad == sent.delivery.bad:
                reason = " ".join(self._engines[name].reason.split())
                warnings.warn(
                    f"field {name!r}: {len(rows)} images were refused, none is bad, the CPU engine made them. {reason}",
                    EngineWarning,
                    stacklevel=5,
                )
        batch = self._copied_now(delivery)
        batch |= self._read(self._reads(delivery.batch))
        for name, rows in sent.begun.items():
            pictures, end = delivery.batch[name], ended[name]
            kept = [place for place, row in enumerate(rows) if not isinstance(pictures.rows[row], Tensor)]
            left = None if end is None or not kept else (end[0][torch.tensor(kept, device=end[0].device)], ())
            batch[name] = self._whole(pictures, left, [rows[place] for place in kept])
        return _finished(delivery, batch)


def _drain(lane: DeviceCopier, held: "deque[tuple[Any, Batch]]") -> None:
    """Waits for all copies."""
    while held:
        lane.done(held[0][0], block=True)
        held.popleft()


def _finished(delivery: HostBatch, batch: Batch) -> HostBatch:
    return replace(delivery, batch=batch if delivery.finish is None else delivery.finish(batch))
