"""Arrays read from files straight into a GPU's memory: GPUDirect Storage, through kvikio.

Only where each row of a field stands in a file as it is delivered: arrays of one shape in uncompressed HDF5, tar and
LMDB shards. Where the driver or the file system cannot, kvikio reads through host memory, which gains nothing.
"""

import contextlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from ...errors import ConfigError, MissingDependency, ShardCorrupt
from ..batch.host_batch import FieldInFiles

_MOST_FILES = 128  # each takes two descriptors


@dataclass(frozen=True, slots=True)
class _Read:
    """A read under way: by run of rows the future and its bytes."""

    stored: FieldInFiles
    tensor: torch.Tensor
    runs: list[tuple[int, Any, int]]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A future that keeps its file open."""

    future: Any
    file: Any

    def get(self) -> int:
        """Waits; the bytes that were read."""
        return int(self.future.get())


@final
class GpuDirect:
    """Reads rows into tensors on a device.

    Raises MissingDependency without kvikio. Warns where reads go through host memory.
    """

    def __init__(self, device: torch.device) -> None:
        try:
            import kvikio
        except ImportError as error:
            raise MissingDependency(
                "gpu_direct needs kvikio: pip install kvikio-cu13, or kvikio-cu12 for CUDA 12"
            ) from error
        self._kvikio, self._device = kvikio, device
        self._files: dict[str, Any] = {}
        # A stream of its own: memory that is new there has no work of others before it.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if reason := _why_not(kvikio):
            warnings.warn(
                f"gpu_direct: {reason}; reads go through host memory, as slow as without it or slower", stacklevel=4
            )

    def begin(self, stored: FieldInFiles) -> _Read:
        """Starts reading; neighbours in a file are one read."""
        dtype = torch.from_numpy(np.empty(0, stored.dtype)).dtype
        with torch.cuda.stream(self._stream):
            tensor = torch.empty(stored.shape, dtype=dtype, device=self._device)
        flat = tensor.reshape(len(tensor), -1).view(torch.uint8)
        size = flat.shape[1]
        apart = (np.diff(stored.offsets) != size) | (np.diff(stored.which) != 0)
        breaks = (np.flatnonzero(apart) + 1).tolist()
        read = _Read(stored, tensor, [])
        try:
            for start, stop in zip([0, *breaks], [*breaks, len(flat)], strict=True):
                file = self._open(stored.paths[int(stored.which[start])])
                target = flat[start:stop].reshape(-1)
                future = file.pread(target, target.numel(), int(stored.offsets[start]))
                read.runs.append((start, _Kept(future, file), target.numel()))
        except BaseException:
            self.drop(read)
            raise
        return read

    def end(self, read: _Read) -> torch.Tensor:
        """What was read, once it is there. ShardCorrupt where a file ends before."""
        found = [(row, future.get(), size) for row, future, size in read.runs]
        for row, got, size in found:
            if got != size:
                raise ShardCorrupt(f"{read.stored.where(row)}: {got} of {size} bytes could be read")
        if read.tensor.is_cuda:  # its memory is read into again only behind what is done with it now
            read.tensor.record_stream(torch.cuda.current_stream(self._device))
        return read.stored.finish(read.tensor)

    def drop(self, read: _Read) -> None:
        """Waits for a read whose result nobody wants."""
        for _, future, _ in read.runs:
            with contextlib.suppress(Exception):  # whatever it met, it no longer writes
                future.get()

    def _open(self, path: str) -> Any:
        """A file, opened once while it is among the last ones used; reads under way keep theirs open."""
        file = self._files.pop(path, None) or self._kvikio.CuFile(path, "r")
        self._files[path] = file
        if len(self._files) > _MOST_FILES:
            del self._files[next(iter(self._files))]
        return file


def check(device: torch.device, *, others: Sequence[str]) -> None:
    """ConfigError where arrays cannot be read straight to the device; `others` are arguments that need them here."""
    if device.type != "cuda":
        raise ConfigError(f"gpu_direct=True reads to a GPU, and needs device='cuda', got {str(device)!r}")
    if others:
        raise ConfigError(f"gpu_direct=True and {others[0]} do not go together: that needs the arrays on the host")


def _why_not(kvikio: Any) -> str | None:
    """Why kvikio reads through host memory; None if it does not."""
    try:
        if not kvikio.cufile_driver.get("is_gds_available"):
            return "this driver has no GPUDirect Storage (nvidia-fs is not loaded)"
    except (AttributeError, KeyError, RuntimeError, ValueError) as error:
        return f"GPUDirect Storage cannot be asked for ({error})"
    return None
