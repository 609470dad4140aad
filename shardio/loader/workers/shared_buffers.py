"""Anonymous shared memory: worker processes hand over the tensors of batches in it."""

import math
import mmap
import os
from dataclasses import dataclass
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...system.background import call_when_gone
from ...system.portable import anonymous_file

_PAGE = 4096
_ALIGN = 64  # bytes; tensors begin at multiples of this
_STAGE = 64  # bytes at the beginning of a ProgressNote, which hold the name of the stage


class SharedBuffer:
    """Shared memory for one batch, mapped in this process. You can pass it to a process that is being started."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.memory = np.empty(0, np.uint8)
        call_when_gone(self, os.close, handle)

    def __reduce__(self) -> tuple[Any, ...]:
        # DupFd must be created while the process is being started: created earlier, it goes through a named socket.
        return _attach, (DupFd(self.handle),)

    def reach(self, size: int) -> NDArray[np.uint8]:
        """Return the memory with at least `size` bytes mapped; the file grows if needed."""
        if size > len(self.memory):
            if os.fstat(self.handle).st_size < size:
                os.ftruncate(self.handle, -(-size // _PAGE) * _PAGE)
            self.memory = np.frombuffer(mmap.mmap(self.handle, os.fstat(self.handle).st_size), np.uint8)
        return self.memory


class ProgressNote:
    """The current stage and task of a worker process, in shared memory that the loader reads after a timeout."""

    def __init__(self, buffer: SharedBuffer) -> None:
        self._buffer = buffer
        self._memory = buffer.reach(_PAGE)

    def __reduce__(self) -> tuple[Any, ...]:
        return ProgressNote, (self._buffer,)

    def task(self, text: str) -> None:
        self._write(text, _STAGE, _PAGE)

    def stage(self, name: str) -> None:
        self._write(name, 0, _STAGE)

    def read(self) -> str:
        """Return the stage and the task as text."""
        stage, task = (
            bytes(part).split(b"\0")[0].decode(errors="replace") for part in np.split(self._memory, [_STAGE])
        )
        return f"{stage}: {task}" if task else "it has not started a task"

    def _write(self, text: str, start: int, stop: int) -> None:
        data = text.encode()[: stop - start - 1] + b"\0"
        self._memory[start : start + len(data)] = np.frombuffer(data, np.uint8)


def new_shared_buffer(name: str) -> SharedBuffer:
    """Return a new, empty buffer; /proc shows it as `name`."""
    return SharedBuffer(anonymous_file(name.replace(" ", "-")))


def _attach(handle: Any) -> SharedBuffer:
    return SharedBuffer(handle.detach())


@dataclass(frozen=True, slots=True)
class TensorLocation:
    """The place and the layout of a tensor in a shared buffer.

    Attributes:
        start: the offset of its first byte.
        shape: its shape in memory, where the axes are sorted by stride, slowest first.
        dtype: its dtype.
        order: for each axis of the tensor, the number of that axis in memory; () if the order is the same.
    """

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...] = ()

    @classmethod
    def of(cls, tensor: torch.Tensor, start: int) -> "tuple[TensorLocation, torch.Tensor]":
        """Return the location of a tensor at `start`, and the contiguous values to write there; strides are kept."""
        strides = tensor.stride()
        axes = sorted(range(tensor.dim()), key=lambda axis: strides[axis], reverse=True)
        in_memory = tensor.permute(axes)
        if axes == sorted(axes) or not in_memory.is_contiguous():
            return cls(start, tuple(tensor.shape), tensor.dtype), tensor.contiguous()
        order = tuple(axes.index(axis) for axis in range(tensor.dim()))
        return cls(start, tuple(in_memory.shape), tensor.dtype, order), in_memory

    @property
    def end(self) -> int:
        """The first offset at which the next tensor may begin."""
        return self.start + -(-self._size // _ALIGN) * _ALIGN

    @property
    def _size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def view(self, memory: NDArray[np.uint8]) -> torch.Tensor:
        """Return the tensor as a view of a buffer's memory."""
        tensor = torch.from_numpy(memory[self.start : self.start + self._size]).view(self.dtype).reshape(self.shape)
        return tensor.permute(self.order) if self.order else tensor
