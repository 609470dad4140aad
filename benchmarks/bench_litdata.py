"""Peer: LitData, optimised into its own chunks."""

from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._crops import DECODER_NOTES, DECODERS
from benchmarks._workloads import Batch, Workload, arrays, photos

WORKLOADS = {"exact": ("pillow",), "fast": ("opencv",), "tensors": ("",), "records": ("",)}
REQUIREMENTS = (
    "torch==2.13.0",
    "numpy==2.4.6",
    "litdata==0.2.76",
    "obstore==0.12.0",  # how it reads from S3 where it is installed
    "pillow==13.0.0",
    "opencv-python-headless==5.0.0.93",
)
VERSIONS = ("litdata", "torch", "pillow", "opencv-python-headless")
BATCH_DECODE: dict[str, int | str] = {"photos": "auto", "tensors": "auto", "records": 256}  # 256, as for small samples
CHUNK_BYTES = {"photos": "64MB", "tensors": "64MB", "records": "16MB"}
ENVIRONMENT = {"DISABLE_VERSION_CHECK": "1", "LITDATA_DISABLE_VERSION_CHECK": "1"}


def label(workload: Workload) -> str:
    """Describe what runs."""
    order = "StreamingDataLoader, worker processes, chunks shuffled, then within blocks of 256"
    return f"{order}; bytes stored, {DECODER_NOTES[workload.variant]}" if workload.data == "photos" else order


def prepare(workload: Workload, source: Path, out: Path) -> None:
    """Write chunks with `optimize`: 64 MB each, or 16 MB for records, which `batch_decode` needs to be fast."""
    import litdata

    if workload.data == "photos":
        make: Any = _photo
        inputs: list[Any] = [(str(path), of_class) for path, of_class in photos(source, workload.count)]
    else:
        make = partial(_array, workload, str(source))
        inputs = list(range(workload.count))
    size = CHUNK_BYTES[workload.data]
    litdata.optimize(make, inputs, output_dir=str(out), chunk_bytes=size, num_workers=1, start_method="fork")


def _photo(item: tuple[str, int]) -> tuple[bytes, int]:
    return Path(item[0]).read_bytes(), item[1]


def _array(workload: Workload, source: str, index: int) -> Any:
    import torch

    return torch.from_numpy(np.array(_rows(workload, source)[index]))


@cache
def _rows(workload: Workload, source: str) -> Any:
    return arrays(workload, Path(source))


def epoch(workload: Workload, prepared: Path) -> Iterator[Batch]:
    """Loop once over the StreamingDataLoader."""
    return workload.pairs(_loader(workload, prepared))


@cache
def _loader(workload: Workload, prepared: Path) -> Any:
    import litdata

    transform = partial(_decoded, workload.variant) if workload.data == "photos" else None
    data = litdata.StreamingDataset(
        str(prepared), shuffle=True, drop_last=True, transform=transform, batch_decode=BATCH_DECODE[workload.data]
    )
    return litdata.StreamingDataLoader(data, **workload.loader)


def _decoded(decoder: str, sample: tuple[bytes, int]) -> tuple[Any, int]:
    import torch

    return torch.from_numpy(DECODERS[decoder](sample[0])), sample[1]
