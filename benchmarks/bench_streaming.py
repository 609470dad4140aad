"""Peer: MosaicML Streaming on local MDS shards."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._crops import DECODER_NOTES, crop_image, opencv
from benchmarks._workloads import Batch, Workload, arrays, photos

WORKLOADS = {"exact": ("pillow",), "fast": ("opencv",), "tensors": ("",), "records": ("",)}
REQUIREMENTS = (
    "torch==2.13.0",
    "numpy==2.1.3",
    "transformers<5",
    "xxhash<4",
    "zstd",
    "Brotli",
    "python-snappy<1",
    "boto3",
    "catalogue<3",
    "matplotlib<4",
    "pillow==13.0.0",
    "opencv-python-headless==5.0.0.93",
)
WITHOUT_DEPENDENCIES = ("mosaicml-streaming==0.13.0",)  # it requires clients of every cloud, and torchvision
STAND_INS = ("torchvision",)
VERSIONS = ("mosaicml-streaming", "torch", "pillow", "opencv-python-headless")


def label(workload: Workload) -> str:
    """Describe what runs."""
    order = "MDS, worker processes, shuffle py1e"
    return f"{order}; {DECODER_NOTES[workload.variant]}" if workload.data == "photos" else order


def prepare(workload: Workload, source: Path, out: Path) -> None:
    """Write MDS shards, with photos as Streaming's `jpeg`, or as `bytes` for OpenCV."""
    from PIL import Image
    from streaming import MDSWriter

    if workload.data != "photos":
        shape = ",".join(map(str, workload.shape))
        with MDSWriter(out=str(out), columns={"array": f"ndarray:{workload.dtype}:{shape}"}) as writer:
            for array in arrays(workload, source):
                writer.write({"array": np.array(array)})
        return
    kind = "jpeg" if workload.variant == "pillow" else "bytes"
    with MDSWriter(out=str(out), columns={"image": kind, "label": "int"}) as writer:
        for path, of_class in photos(source, workload.count):
            image = Image.open(path) if kind == "jpeg" else path.read_bytes()
            writer.write({"image": image, "label": of_class})


def epoch(workload: Workload, prepared: Path) -> Iterator[Batch]:
    """Loop once over the StreamingDataLoader."""
    return workload.pairs(_loader(workload, prepared))


@cache
def _loader(workload: Workload, prepared: Path) -> Any:
    import torch
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    class Samples(StreamingDataset):  # type: ignore[misc]
        """A dataset of samples as tensors."""

        def __getitem__(self, at: int) -> Any:
            sample = super().__getitem__(at)
            if workload.data != "photos":
                return torch.from_numpy(sample["array"])
            decode = crop_image if workload.variant == "pillow" else opencv
            return torch.from_numpy(decode(sample["image"])), sample["label"]

    clean_stale_shared_memory()
    data = Samples(local=str(prepared), shuffle=True, batch_size=workload.batch_size)
    return StreamingDataLoader(data, **workload.loader)
