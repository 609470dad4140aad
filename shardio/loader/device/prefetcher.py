"""Batches on their way to the device, one ahead of the consumer.

A step of the consumer                                  meanwhile, on the device
  send(batch k + 1): files to the engine, copies begin    batch k + 1 is copied and decoded, the model works on batch k
  receive() -> batch k, which was sent a step ago

What the device refuses comes back as `HostWork`: the caller has it made on the host, and `complete` takes the result.
"""

import warnings
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from ...engines.base import BatchEngine, rows_of
from ...engines.factory import make_engine
from ...errors import EngineWarning
from ..batch.host_batch import (
    BatchResult,
    DeferredField,
    EncodedImages,
    FieldInFiles,
    HostBatch,
    RefusedRows,
    map_nested,
)
from ..batch.spec import BatchSpec, DeviceOptions
from ..batch.types import Batch
from .copier import DeviceCopier, HostCopier, copier_to
from .gpu_direct import GpuDirect

MOST_HELD = 3
"""Batches whose copies may be under way."""

EngineResult: TypeAlias = tuple[Tensor, Sequence[int]]
"""The images that an engine made, and the places of those that it could not make."""


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A batch on its way.

    Attributes:
        host_batch: the batch on the host.
        batch: the batch on the device, but for images that engines make and fields that are read from files.
        begun: by image field the rows that its engine has begun on.
        reads: by field the pending reads from files.
        error: why those could not begin.
        mark: behind the copies.
    """

    host_batch: HostBatch
    batch: Batch
    begun: RefusedRows
    reads: Mapping[str, Any]
    error: Exception | None
    mark: Any


@final
@dataclass(frozen=True, slots=True)
class HostWork:
    """What the device leaves to the host of one batch: refused images, or files that it could not read.

    Attributes:
        batch: the batch on the host.
        refused: by image field the rows that an engine could not make.
        error: why the device could not read a file; None if it could.
        begun: by image field the rows that its engine has begun on.
        images: by image field what its engine made.
    """

    batch: HostBatch
    refused: RefusedRows
    error: Exception | None
    begun: RefusedRows
    images: Mapping[str, EngineResult | None]


@final
class DevicePrefetcher:
    """Sends batches to a device and receives them there, in order.

    Args:
        copier: copies tensors.
        engines: the engines for whole batches, by image field.
        gpu_direct: reads from files to the device.
        channels_last: whether floats of images stand in memory by pixel.
    """

    def __init__(
        self,
        copier: DeviceCopier,
        engines: Mapping[str, BatchEngine],
        gpu_direct: GpuDirect | None = None,
        *,
        channels_last: bool = False,
    ) -> None:
        self._copier, self._engines, self._gpu_direct = copier, engines, gpu_direct
        self._channels_last = channels_last
        self.ahead = max([engine.ahead for engine in engines.values()] or [not isinstance(copier, HostCopier)])
        self._sent: deque[_InFlight | BatchResult] = deque()
        # A batch's page-locked memory must not be used again before its copy has ended.
        self._held: deque[tuple[Any, Batch]] = deque()
        # Engines may look at a batch's files a little longer than until its images are there.
        self._decoded: deque[HostBatch] = deque(maxlen=self.ahead + 1)
        # A loader may be dropped while the last batches that it delivered are still on their way.
        weakref.finalize(self, _wait_for_copies, copier, self._held).atexit = False

    def __len__(self) -> int:
        return len(self._sent)

    def send(self, made: BatchResult) -> None:
        """Start to bring a batch to the device. An error in its place comes out of `receive` in its turn."""
        if isinstance(made, Exception) or not self.ahead:
            self._sent.append(made)
            return
        try:
            self._sent.append(self._start(made))
        except BaseException:  # an engine may have begun on a batch that is not known here
            self._abandon()
            raise

    def receive(self) -> BatchResult | HostWork:
        """Return the oldest batch sent, on the device, or what went wrong with it, or what the host has to make."""
        sent = self._sent.popleft()
        if not isinstance(sent, _InFlight):
            return sent
        try:
            return self._finish(sent)
        except BaseException:
            self._drop(sent.reads)
            self._abandon()
            raise

    def complete(self, work: HostWork, made: BatchResult) -> BatchResult:
        """Return a batch on the device, of which the host has made what the device refused."""
        if isinstance(made, Exception):
            return made
        try:
            return self._complete(work, made)
        except BaseException:
            self._abandon()
            raise

    def clear(self) -> None:
        """Forget the batches that were sent and not received."""
        while self._sent:
            sent = self._sent.popleft()
            if not isinstance(sent, _InFlight):
                continue
            for name, rows in sent.begun.items():
                if rows:
                    self._engines[name].end()
            self._drop(sent.reads)

    def _start(self, made: HostBatch) -> _InFlight:
        begun = {
            name: self._begin_images(name, value)
            for name, value in made.batch.items()
            if isinstance(value, EncodedImages)
        }
        try:
            reads, error = self._begin_reads(made.batch), None
        except Exception as caught:  # noqa: BLE001  # of a file, in its batch's turn
            reads, error = {}, caught
        with self._copier:
            batch = self._copy(made.batch)
            mark = self._copier.mark()
        self._held.append((mark, made.batch))
        while self._held and self._copier.done(self._held[0][0], block=len(self._held) > MOST_HELD):
            self._held.popleft()
        return _InFlight(made, batch, begun, reads, error, mark)

    def _finish(self, sent: _InFlight) -> BatchResult | HostWork:
        images = {name: self._engines[name].end() if rows else None for name, rows in sent.begun.items()}
        refused = {
            name: [sent.begun[name][place] for place in result[1]]
            for name, result in images.items()
            if result is not None
        }
        if self._engines:
            self._decoded.append(sent.host_batch)
        if sent.error is not None:
            return HostWork(sent.host_batch, {}, sent.error, sent.begun, images)
        if any(refused.values()):
            self._drop(sent.reads)
            return HostWork(sent.host_batch, refused, None, sent.begun, images)
        batch = sent.batch
        for name, rows in sent.begun.items():
            batch[name] = self._merge_images(sent.host_batch.batch[name], images[name], rows)
        self._copier.wait(sent.mark, batch)
        try:
            batch |= self._end_reads(sent.reads)
        except Exception as error:  # noqa: BLE001  # of a file, in its batch's turn
            self._drop(sent.reads)
            return HostWork(sent.host_batch, {}, error, sent.begun, images)
        return _finished(sent.host_batch, batch)

    def _complete(self, work: HostWork, made: HostBatch) -> HostBatch:
        batch = self._copy_now(made)
        if work.error is not None:
            return _finished(made, batch)
        for name, rows in work.refused.items():
            if len(rows) == len(work.begun[name]) > 1 and made.bad_samples == work.batch.bad_samples:
                reason = " ".join(self._engines[name].reason.split())
                warnings.warn(
                    f"field {name!r}: {len(rows)} images were refused, none is bad, the CPU engine made them. {reason}",
                    EngineWarning,
                    stacklevel=5,
                )
        batch |= self._end_reads(self._begin_reads(made.batch))
        for name, rows in work.begun.items():
            encoded, result = made.batch[name], work.images[name]
            # Rows that the host has made since hold tensors; of the others the engine's images stay.
            kept = [place for place, row in enumerate(rows) if not isinstance(encoded.rows[row], Tensor)]
            left = None if result is None or not kept else (result[0][torch.tensor(kept, device=result[0].device)], ())
            batch[name] = self._merge_images(encoded, left, [rows[place] for place in kept])
        return _finished(made, batch)

    def _abandon(self) -> None:
        """After a failure in the middle: engines begin anew, so that no batch gets another one's images."""
        for engine in self._engines.values():
            engine.close()
        for sent in self._sent:
            if isinstance(sent, _InFlight):
                self._drop(sent.reads)
        self._sent.clear()

    def _begin_reads(self, batch: Batch) -> Mapping[str, Any]:
        """Start to read the fields that the device reads from files."""
        begun: dict[str, Any] = {}
        try:
            for name, value in batch.items():
                if self._gpu_direct is not None and isinstance(value, FieldInFiles):
                    begun[name] = self._gpu_direct.begin(value)
        except BaseException:
            self._drop(begun)
            raise
        return begun

    def _end_reads(self, reads: Mapping[str, Any]) -> Batch:
        """Wait for reads, and return their fields."""
        if self._gpu_direct is None:
            return {}
        return {name: self._gpu_direct.end(read) for name, read in reads.items()}

    def _drop(self, reads: Mapping[str, Any]) -> None:
        """Wait for reads that nobody wants any more: they write into memory that would be another's."""
        if self._gpu_direct is not None:
            for read in reads.values():
                self._gpu_direct.drop(read)

    def _begin_images(self, name: str, encoded: EncodedImages) -> Sequence[int]:
        """Give the image files of a batch to their engine; return the rows that they are in."""
        files = {row: value for row, value in enumerate(encoded.rows) if not isinstance(value, Tensor)}
        if files:
            every = len(files) == len(encoded.rows)
            chosen = slice(None) if every else np.array(list(files))
            steps = encoded.steps if every else [rows_of(step, chosen) for step in encoded.steps]
            self._engines[name].begin(list(files.values()), encoded.sizes[chosen], steps)
        return list(files)

    def _copy(self, batch: Batch) -> Batch:
        """Start to copy all tensors of a batch; fields that come another way are None."""
        copied: Batch = {}
        for name, value in batch.items():
            if isinstance(value, DeferredField):
                copied[name] = value.finish(self._copier.copy(value.tensor))
            elif not isinstance(value, EncodedImages | FieldInFiles):
                copied[name] = map_nested(value, Tensor, self._copier.copy)
        return {name: copied.get(name) for name in batch}

    def _copy_now(self, made: HostBatch) -> Batch:
        """Copy all tensors of a batch, and wait until they are there."""
        with self._copier:
            batch = self._copy(made.batch)
            mark = self._copier.mark()
        self._copier.wait(mark, batch)
        self._copier.done(mark, block=True)
        return batch

    def _merge_images(self, encoded: EncodedImages, result: EngineResult | None, rows: Sequence[int]) -> Tensor:
        """All images of a batch: those that the engine made in `rows`, and those that the host made."""
        if result is not None and len(rows) == len(encoded.rows):
            return result[0]
        host_images = {row: value for row, value in enumerate(encoded.rows) if isinstance(value, Tensor)}
        if result is None:
            images = self._copier.copy(torch.stack([host_images[row] for row in sorted(host_images)]))
        else:
            images = result[0].new_empty((len(encoded.rows), *result[0].shape[1:]))
            images[torch.tensor(rows, device=images.device)] = result[0]
            for row, image in host_images.items():
                images[row] = image.to(images.device)
        by_pixel = self._channels_last and images.is_floating_point()
        return images.contiguous(memory_format=torch.channels_last) if by_pixel else images


def prefetcher_for(spec: BatchSpec, target: DeviceOptions, *, threads: int) -> DevicePrefetcher:
    """The prefetcher for batches of a specification, with the engines that make their images on `threads` threads."""
    engines = {
        name: make_engine(
            image.batch_engine,
            image.recipe,
            channels=image.cpu_engine.output_format.channels,
            batch_size=spec.batch_size,
            device=target.device,
            threads=threads,
            channels_last=target.channels_last,
            options=target.engine_options,
        )
        for name, image in spec.images.items()
        if image.batch_engine is not None
    }
    gpu_direct = GpuDirect(target.device) if target.gpu_direct else None
    return DevicePrefetcher(copier_to(target.device), engines, gpu_direct, channels_last=target.channels_last)


def _wait_for_copies(copier: DeviceCopier, held: "deque[tuple[Any, Batch]]") -> None:
    while held:
        copier.done(held[0][0], block=True)
        held.popleft()


def _finished(made: HostBatch, batch: Batch) -> HostBatch:
    return replace(made, batch=batch if made.finish is None else made.finish(batch))
