"""Copiers, which copy tensors to a device; on CUDA the copies overlap the consumer's work."""

from typing import Any, final

import torch
from torch import Tensor

from ..batch.host_batch import Batch
from ..batch.nested import map_nested


class DeviceCopier:
    """Copies tensors to one device; `copy` returns when the copy is done. The host's returns tensors unchanged."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def is_elsewhere(self) -> bool:
        """Whether tensors are copied at all."""
        return self._device.type != "cpu"

    def __enter__(self) -> None:
        """Work queued inside this block overlaps the consumer's."""

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Undo what `__enter__` or an interrupted `__exit__` may have left."""

    def copy(self, tensor: Tensor) -> Tensor:
        """Start to copy a tensor, and return it on the device. The original must not change until the copy is done."""
        return tensor.to(self._device) if self.is_elsewhere else tensor

    def mark(self) -> Any:
        """Return a mark of all work queued so far."""
        return None

    def wait(self, mark: Any, batch: Batch) -> None:
        """Make the consumer's work on the device wait for the work queued before `mark`."""

    def done(self, mark: Any, *, block: bool) -> bool:
        """Return whether the work queued before `mark` is done; with `block`, wait until it is."""
        return True


@final
class CudaCopier(DeviceCopier):
    """Copies on a CUDA stream of its own, from page-locked memory."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._outer: tuple[torch.cuda.Stream, ...] = ()

    def __enter__(self) -> None:
        # The current stream of the copier's device; then that of the current device, which may be another one.
        self._outer = torch.cuda.current_stream(self._device), torch.cuda.current_stream()
        torch.cuda.set_stream(self._stream)

    def leave(self) -> None:
        for stream in self._outer:
            torch.cuda.set_stream(stream)
        self._outer = ()

    def copy(self, tensor: Tensor) -> Tensor:
        # Memory that is not page-locked is copied before this returns.
        return tensor.to(self._device, non_blocking=True)

    def mark(self) -> Any:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def wait(self, mark: Any, batch: Batch) -> None:
        """Make the current stream wait. The tensors' memory is not reused before the stream's work on them is done."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(mark)
        map_nested(batch, Tensor, lambda tensor: tensor.record_stream(current) if tensor.is_cuda else None)

    def done(self, mark: Any, *, block: bool) -> bool:
        if block:
            mark.synchronize()
        return bool(mark.query())


def copier_to(device: torch.device) -> DeviceCopier:
    """Return the copier for a device."""
    return CudaCopier(device) if device.type == "cuda" else DeviceCopier(device)
