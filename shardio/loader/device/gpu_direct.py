"""Arrays read from files straight into a GPU's memory: GPUDirect Storage, through kvikio.

This works for fields whose stored rows are byte for byte the delivered ones: arrays of one shape in uncompressed HDF5,
tar and LMDB shards. If the driver or the file system does not support it, kvikio reads through host memory, which gains
nothing.
"""

import contextlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from ...dataset.readable import ReadableDataset
from ...errors import ConfigError, MissingDependency, ShardCorrupt
from ..batch.host_batch import FieldInFiles

_MOST_FILES = 128  # each takes two descriptors


@dataclass(frozen=True, slots=True)
class _Read:
    """The pending reads of one field.

    Attributes:
        field: the field.
        tensor: the tensor on the device that receives it.
        runs: for each run of neighbouring rows its first row, its pending read, its size in bytes, and its file, which
            stays open as long as the read is pending.
    """

    field: FieldInFiles
    tensor: torch.Tensor
    runs: list[tuple[int, Any, int, Any]]


@final
class GpuDirect:
    """Reads rows from files into tensors on a device.

    Raises MissingDependency without kvikio. Warns if reads go through host memory.
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
        # A separate stream: no other work is pending on the memory that it allocates.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if reason := _reason_for_host_reads(kvikio):
            warnings.warn(
                f"gpu_direct: {reason}; reads go through host memory, as slow as without it or slower", stacklevel=4
            )

    def begin(self, field: FieldInFiles) -> _Read:
        """Start to read a field; neighbouring rows of a file form one read."""
        dtype = torch.from_numpy(np.empty(0, field.dtype)).dtype
        with torch.cuda.stream(self._stream):
            tensor = torch.empty(field.shape, dtype=dtype, device=self._device)
        flat = tensor.reshape(len(tensor), -1).view(torch.uint8)
        size = flat.shape[1]
        separate = (np.diff(field.offsets) != size) | (np.diff(field.files) != 0)
        breaks = (np.flatnonzero(separate) + 1).tolist()
        read = _Read(field, tensor, [])
        try:
            for start, stop in zip([0, *breaks], [*breaks, len(flat)], strict=True):
                file = self._open(field.paths[int(field.files[start])])
                target = flat[start:stop].reshape(-1)
                future = file.pread(target, target.numel(), int(field.offsets[start]))
                read.runs.append((start, future, target.numel(), file))
        except BaseException:
            self.drop(read)
            raise
        return read

    def end(self, read: _Read) -> torch.Tensor:
        """Wait for a read, and return the field; raise ShardCorrupt if a file ends too early."""
        results = [(row, int(future.get()), size) for row, future, size, _ in read.runs]
        for row, received, size in results:
            if received != size:
                raise ShardCorrupt(f"{read.field.describe(row)}: {received} of {size} bytes could be read")
        if read.tensor.is_cuda:  # its memory is reused only after the work that is queued on it now
            read.tensor.record_stream(torch.cuda.current_stream(self._device))
        return read.field.finish(read.tensor)

    def drop(self, read: _Read) -> None:
        """Wait for a read whose result is not needed: its memory cannot be reused before."""
        for _, future, *_ in read.runs:
            with contextlib.suppress(Exception):  # a failed read no longer writes either
                future.get()

    def _open(self, path: str) -> Any:
        """Return the file at `path`. The files used last stay open, and pending reads keep theirs open."""
        file = self._files.pop(path, None) or self._kvikio.CuFile(path, "r")
        self._files[path] = file
        if len(self._files) > _MOST_FILES:
            del self._files[next(iter(self._files))]
        return file


def check_gpu_direct(device: torch.device, dataset: ReadableDataset, *, others: Sequence[str]) -> None:
    """Raise ConfigError unless arrays can be read straight to `device`; `others` are arguments that prevent it."""
    if dataset.in_store:
        raise ConfigError(f"gpu_direct reads local files, and {dataset.path} is in a store: leave it out")
    if device.type != "cuda":
        raise ConfigError(f"gpu_direct=True reads to a GPU, and needs device='cuda', got {str(device)!r}")
    if others:
        raise ConfigError(
            f"gpu_direct=True and {others[0]} cannot be combined: {others[0]} needs the arrays on the host"
        )


def _reason_for_host_reads(kvikio: Any) -> str | None:
    """Return the reason why kvikio reads through host memory; None if it does not."""
    try:
        if not kvikio.cufile_driver.get("is_gds_available"):
            return "the driver does not support GPUDirect Storage (nvidia-fs is not loaded)"
    except (AttributeError, KeyError, RuntimeError, ValueError) as error:
        return f"kvikio does not say whether GPUDirect Storage is available ({error})"
    return None
