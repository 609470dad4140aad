"""Shared memory without a name, and tensors in it: what producers hand batches over in."""

import math
import mmap
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import DupFd
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

_PAGE = 4096
_ALIGN = 64  # bytes: where tensors may begin
_STAGE = 64  # bytes: of a note, for the stage's name

T = TypeVar("T")


class SharedBuffer:
    """Shared memory of one batch, on either side; passed on to a process that is being started."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.memory = np.empty(0, np.uint8)
        weakref.finalize(self, os.close, handle)

    def __reduce__(self) -> tuple[Any, ...]:
        # DupFd must be made here, while the process is being started: made earlier it is served by a named socket.
        return _slot, (DupFd(self.handle),)

    def reach(self, size: int) -> NDArray[np.uint8]:
        """The memory, mapped to `size` bytes at least; the file grows if it has to."""
        if size > len(self.memory):
            if os.fstat(self.handle).st_size < size:
                os.ftruncate(self.handle, -(-size // _PAGE) * _PAGE)
            self.memory = np.frombuffer(mmap.mmap(self.handle, os.fstat(self.handle).st_size), np.uint8)
        return self.memory


class ProgressNote:
    """What a producer is doing, in memory that its parent reads when nothing comes any more."""

    def __init__(self, slot: SharedBuffer) -> None:
        self._slot = slot
        self._memory = slot.reach(_PAGE)

    def __reduce__(self) -> tuple[Any, ...]:
        return ProgressNote, (self._slot,)

    def task(self, text: str) -> None:
        """Says what is being made."""
        self._write(text, _STAGE, _PAGE)

    def stage(self, name: str) -> None:
        """Says which stage it is in."""
        self._write(name, 0, _STAGE)

    def read(self) -> str:
        """Both; words for it if it has not come to anything yet."""
        stage, task = (
            bytes(part).split(b"\0")[0].decode(errors="replace") for part in np.split(self._memory, [_STAGE])
        )
        return f"{stage}: {task}" if task else "it has not begun on any"

    def _write(self, text: str, start: int, stop: int) -> None:
        data = text.encode()[: stop - start - 1] + b"\0"
        self._memory[start : start + len(data)] = np.frombuffer(data, np.uint8)


def new_shared_buffer(name: str) -> SharedBuffer:
    """Memory of its own, empty so far; `name` is for those who look at /proc."""
    return SharedBuffer(os.memfd_create(name.replace(" ", "-"), os.MFD_CLOEXEC))


def _slot(handle: Any) -> SharedBuffer:
    return SharedBuffer(handle.detach())


@dataclass(frozen=True, slots=True)
class TensorLocation:
    """Where a tensor is in a slot.

    Attributes:
        start: its first byte.
        shape, dtype: its own.
        order: where each axis is among those in memory, the slowest first; () where that is their own order.
    """

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...] = ()

    @classmethod
    def of(cls, tensor: torch.Tensor, start: int) -> "tuple[TensorLocation, torch.Tensor]":
        """The place of a tensor, and its values as they are to stand there: the layout stays."""
        strides = tensor.stride()
        axes = sorted(range(tensor.dim()), key=lambda axis: strides[axis], reverse=True)
        turned = tensor.permute(axes)
        if axes == sorted(axes) or not turned.is_contiguous():
            return cls(start, tuple(tensor.shape), tensor.dtype), tensor.contiguous()
        order = tuple(axes.index(axis) for axis in range(tensor.dim()))
        return cls(start, tuple(turned.shape), tensor.dtype, order), turned

    @property
    def next(self) -> int:
        """Where another tensor may begin."""
        return self.start + -(-self._size // _ALIGN) * _ALIGN

    @property
    def _size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def view(self, memory: NDArray[np.uint8]) -> torch.Tensor:
        """The tensor, in a slot's memory."""
        tensor = torch.from_numpy(memory[self.start : self.start + self._size]).view(self.dtype).reshape(self.shape)
        return tensor.permute(self.order) if self.order else tensor


def map_nested(value: Any, kind: type[T], change: Callable[[T], Any]) -> Any:
    """The same value with `change(x)` in place of every `x` of that kind in its dicts, lists and tuples."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {name: map_nested(item, kind, change) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map_nested(item, kind, change) for item in value)
    return value
