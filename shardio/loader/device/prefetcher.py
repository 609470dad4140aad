"""The prefetcher: it brings batches to the device, one or two ahead of the one that is asked for.

A step of the feed                                      meanwhile, on the device
  send(batch k + 1): files to the engine, copies begin    batch k + 1 is copied and decoded, the model works on batch k
  receive() -> batch k, which was sent a step ago

The host makes the images that an engine refuses.
"""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from ...engines.base import BatchEngine, rows_of
from ...engines.factory import make_engine
from ...system import background
from ...system.threads import in_order
from ..batch.assemble import assemble
from ..batch.bad_samples import fill_alone
from ..batch.host_batch import Batch, BatchResult, DeferredField, EncodedImages, HostBatch, RefusedRows
from ..batch.nested import map_nested
from ..batch.spec import BatchSpec, DeviceOptions
from .copier import DeviceCopier, copier_to

MOST_HELD = 3
"""The number of batches whose copies may be in progress."""

EngineResult: TypeAlias = tuple[Tensor, Sequence[int]]
"""The images of an engine, and the places among them of those that it could not make."""


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A batch that was sent and not received.

    Attributes:
        host_batch: the batch on the host.
        batch: the batch on the device, without the images that engines make.
        begun: by image field, the rows that its engine has begun.
        mark: the copier's mark of the batch's copies.
    """

    host_batch: HostBatch
    batch: Batch
    begun: RefusedRows
    mark: Any


@final
class DevicePrefetcher:
    """Sends batches to a device and receives them there, in order.

    Args:
        spec: the batches.
        target: the device and the engine.
        threads: the number of threads of the host, also for the images that an engine refuses.
        largest: the most samples of a batch.

    Attributes:
        ahead: the number of batches to send before one is received; 0 if nothing happens on a device.
        device: the device.
        has_engines: whether engines make images of whole batches.
        in_use: held by the thread that uses the engines: one epoch's thread may end while the next one's begins.
    """

    def __init__(self, spec: BatchSpec, target: DeviceOptions, *, threads: int, largest: int) -> None:
        self._engines: Mapping[str, BatchEngine] = {
            name: make_engine(
                image.batch_engine,
                image.recipe,
                channels=image.cpu_engine.output_format.channels,
                batch_size=largest,
                device=target.device,
                threads=threads,
                decode=spec.options.decode,
                channels_last=target.channels_last,
                options=target.engine_options,
            )
            for name, image in spec.images.items()
            if image.batch_engine is not None
        }
        self._copier = copier_to(target.device)
        self._channels_last, self._threads = target.channels_last, threads
        self.ahead = max([engine.ahead for engine in self._engines.values()] or [int(self._copier.is_elsewhere)])
        self.device, self.has_engines = target.device, bool(self._engines)
        self.in_use = threading.Lock()
        self._sent: deque[_InFlight | BatchResult] = deque()
        self._intact = True  # False within a call, and after one that did not come to its end
        self._parents: list[object] = []
        # The page-locked memory of a batch must not be reused before its copy is done.
        self._held: deque[tuple[Any, Batch]] = deque()
        # Engines may read the files of a batch for a while after its images are finished.
        self._decoded: deque[HostBatch] = deque(maxlen=self.ahead + 1)
        # A loader may be deleted while the last batches that it delivered are still being copied.
        background.call_when_gone(self, _wait_for_copies, self._copier, self._held)

    def __len__(self) -> int:
        return len(self._sent)

    def send(self, result: BatchResult) -> None:
        """Start to bring a batch to the device. `receive` returns an error, sent instead of a batch, in its turn."""
        if isinstance(result, Exception) or not self.ahead:
            self._sent.append(result if isinstance(result, Exception) else _finished(result, result.batch))
            return
        self._intact = False  # an engine may have begun a batch that is not in the queue
        self._sent.append(self._start(result))
        self._intact = True

    def receive(self) -> BatchResult:
        """Return the oldest batch sent, on the device, or its error. The host makes what the device refused of it."""
        sent = self._sent[0]
        received: BatchResult
        if isinstance(sent, _InFlight):
            self._intact = False
            received = self._finish(sent)
            self._intact = True
        else:
            received = sent
        self._sent.popleft()
        return received

    def check_process(self) -> None:
        """Raise PipelineClosed in a forked process where the engines, already in use, are the parent's."""
        for engine in self._engines.values():
            engine.check_process()

    def forget(self, feed: object) -> None:
        """Forget all batches, in a forked process: they are the parent's, and are kept so that nothing frees them.

        So are those that its feed has already received.
        """
        self._parents += [self._sent, feed]
        self._sent, self.in_use = deque(), threading.Lock()

    def clear(self) -> None:
        """Drop the batches that were sent and not received.

        After a failure or an interrupt in the middle of any call, this restarts the engines, so that no batch gets the
        images of another.
        """
        if self._intact:
            self._intact = False
            for sent in self._sent:
                if isinstance(sent, _InFlight):
                    for name in [name for name, rows in sent.begun.items() if rows]:
                        self._engines[name].end()
        else:
            for engine in self._engines.values():
                engine.close()
            self._copier.leave()
        self._sent.clear()
        self._intact = True

    def _start(self, host_batch: HostBatch) -> _InFlight:
        begun = {
            name: self._begin_images(name, value)
            for name, value in host_batch.batch.items()
            if isinstance(value, EncodedImages)
        }
        batch, mark = self._copy(host_batch.batch)
        self._held.append((mark, host_batch.batch))
        while self._held and self._copier.done(self._held[0][0], block=len(self._held) > MOST_HELD):
            self._held.popleft()
        return _InFlight(host_batch, batch, begun, mark)

    def _finish(self, sent: _InFlight) -> BatchResult:
        images = {name: self._engines[name].end() if rows else None for name, rows in sent.begun.items()}
        refused = {
            name: [sent.begun[name][place] for place in result[1]]
            for name, result in images.items()
            if result is not None
        }
        if self._engines:
            self._decoded.append(sent.host_batch)
        if any(refused.values()):
            return self._make_refused(sent, refused, images)
        batch = sent.batch
        for name, rows in sent.begun.items():
            batch[name] = self._merge_images(sent.host_batch.batch[name], images[name], rows)
        self._copier.wait(sent.mark, batch)
        return _finished(sent.host_batch, batch)

    def _make_refused(
        self, sent: _InFlight, refused: RefusedRows, images: Mapping[str, EngineResult | None]
    ) -> BatchResult:
        """Return a batch, some of whose images an engine could not make, on the device, or the error of a bad one."""
        try:
            made = _made_on_host(sent.host_batch, refused, self._threads)
        except Exception as error:  # noqa: BLE001  # a bad sample's: reported in its batch's turn
            return error
        batch, mark = self._copy(made.batch)
        self._copier.wait(mark, batch)
        self._copier.done(mark, block=True)
        for name, rows in refused.items():
            if len(rows) == len(sent.begun[name]) > 1 and made.bad_samples == sent.host_batch.bad_samples:
                reason = " ".join(self._engines[name].reason.split())
                warning = (
                    f"field {name!r}: the engine refused {len(rows)} good images, which the CPU engine made. {reason}"
                )
                made = replace(made, warnings=(*made.warnings, warning))
        for name, rows in sent.begun.items():
            encoded, result = made.batch[name], images[name]
            # Rows that the host has made meanwhile hold tensors; the other rows keep the engine's images.
            kept = [place for place, row in enumerate(rows) if not isinstance(encoded.rows[row], Tensor)]
            left = None if result is None or not kept else (result[0][torch.tensor(kept, device=result[0].device)], ())
            batch[name] = self._merge_images(encoded, left, [rows[place] for place in kept])
        return _finished(made, batch)

    def _begin_images(self, name: str, encoded: EncodedImages) -> Sequence[int]:
        """Give the image files of a batch to their engine, and return their rows."""
        files = {row: value for row, value in enumerate(encoded.rows) if not isinstance(value, Tensor)}
        if files:
            complete = len(files) == len(encoded.rows)
            chosen = slice(None) if complete else np.array(list(files))
            steps = encoded.steps if complete else [rows_of(step, chosen) for step in encoded.steps]
            self._engines[name].begin(list(files.values()), encoded.sizes[chosen], steps)
        return list(files)

    def _copy(self, batch: Batch) -> tuple[Batch, Any]:
        """Start to copy all tensors of a batch, and mark that; images that engines make become None."""
        copied: Batch = dict.fromkeys(batch)
        with self._copier:
            for name, value in batch.items():
                if isinstance(value, DeferredField):
                    copied[name] = value.finish(self._copier.copy(value.tensor))
                elif not isinstance(value, EncodedImages):
                    copied[name] = map_nested(value, Tensor, self._copier.copy)
            return copied, self._copier.mark()

    def _merge_images(self, encoded: EncodedImages, result: EngineResult | None, rows: Sequence[int]) -> Tensor:
        """Return all images of a batch: the engine's, which belong in `rows`, and those that the host made."""
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
        reorder = self._channels_last and images.is_floating_point()
        return images.contiguous(memory_format=torch.channels_last) if reorder else images


def _wait_for_copies(copier: DeviceCopier, held: "deque[tuple[Any, Batch]]") -> None:
    while held:
        copier.done(held[0][0], block=True)
        held.popleft()


def _made_on_host(batch: HostBatch, refused: RefusedRows, threads: int) -> HostBatch:
    """Make the refused images with the CPU engine, on `threads` threads, and assemble the batch again.

    A bad image raises its error, or its row is replaced or masked as always, which may change the row's other fields.
    """
    if batch.made_from is None:
        raise ValueError("the batch no longer refers to the rows that it was assembled from")
    rows, part = batch.made_from
    numbers = sorted({part.start + row for refused_rows in refused.values() for row in refused_rows})
    deque(in_order(partial(fill_alone, rows), numbers, threads), maxlen=0)
    return replace(assemble(rows, part), stored_bytes=batch.stored_bytes)


def _finished(host_batch: HostBatch, batch: Batch) -> HostBatch:
    """Return the batch on the device, after the function that applies to the whole batch."""
    if host_batch.finish is None and batch is host_batch.batch:
        return host_batch
    return replace(host_batch, batch=batch if host_batch.finish is None else host_batch.finish(batch))
