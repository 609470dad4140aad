"""Ways of tensors to a device: beside what the consumer does there, or before it goes on."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, final

import torch
from torch import Tensor

from ..batch.host_batch import Batch
from ..workers.shared_buffers import map_nested


class DeviceCopier(Protocol):
    """How tensors come to a device."""

    def __enter__(self) -> None:
        """What is done from here on is done beside what the consumer does."""

    def __exit__(self, *_: object) -> None:
        """Until here."""

    def copy(self, tensor: Tensor) -> Tensor:
        """The tensor on the device, or on its way there: its memory must stay as it is until `wait` is over."""

    def mark(self) -> Any:
        """Behind all that has been begun."""

    def wait(self, mark: Any, batch: Batch) -> None:
        """Has the consumer's work on the device wait until what was begun before `mark` is done."""

    def done(self, mark: Any, *, block: bool) -> bool:
        """Whether it is done; with `block` it waits until it is."""


@final
class HostCopier:
    """The device is the host: nothing is copied."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def copy(self, tensor: Tensor) -> Tensor:
        """Itself."""
        return tensor

    def mark(self) -> Any:
        """Nothing is ever behind."""

    def wait(self, mark: Any, batch: Batch) -> None:
        """Nothing to wait for."""

    def done(self, mark: Any, *, block: bool) -> bool:
        """Always."""
        return True


@final
class CudaCopier:
    """Copies on a stream of their own, from page-locked memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._within: AbstractContextManager[Any] = nullcontext()

    def __enter__(self) -> None:
        self._within = torch.cuda.stream(self._stream)
        self._within.__enter__()  # type: ignore[no-untyped-call, unused-ignore]

    def __exit__(self, *_: object) -> None:
        self._within.__exit__(None, None, None)

    def copy(self, tensor: Tensor) -> Tensor:
        """On its way; memory that is not page-locked is copied before this returns."""
        return tensor.to(self._device, non_blocking=True)

    def mark(self) -> Any:
        """An event."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def wait(self, mark: Any, batch: Batch) -> None:
        """The current stream waits; the tensors' memory is not used again before its work on them is over."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(mark)
        map_nested(batch, Tensor, lambda tensor: tensor.record_stream(current) if tensor.is_cuda else None)

    def done(self, mark: Any, *, block: bool) -> bool:
        """Asks the event."""
        if block:
            mark.synchronize()
        return bool(mark.query())


@final
class BlockingCopier:
    """Any other device of torch: copies are over when they return."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def copy(self, tensor: Tensor) -> Tensor:
        """On the device."""
        return tensor.to(self._device)

    def mark(self) -> Any:
        """Nothing is behind."""

    def wait(self, mark: Any, batch: Batch) -> None:
        """Nothing to wait for."""

    def done(self, mark: Any, *, block: bool) -> bool:
        """Always."""
        return True


def copier_to(device: torch.device) -> DeviceCopier:
    """The way to a device."""
    if device.type == "cuda":
        return CudaCopier(device)
    return HostCopier() if device.type == "cpu" else BlockingCopier(device)
