"""Peer: Hugging Face datasets on its Arrow files, read by PyTorch's DataLoader."""

from collections.abc import Iterator
from functools import cache, partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._crops import DECODER_NOTES, crop_image, opencv
from benchmarks._workloads import PASSES, Batch, Workload, arrays, encoded

WORKLOADS = {"exact": ("pillow",), "fast": ("opencv",), "tensors": ("",), "records": ("",)}
REQUIREMENTS = (
    "torch==2.13.0",
    "numpy==2.4.6",
    "datasets==5.2.0",
    "pillow==13.0.0",
    "opencv-python-headless==5.0.0.93",
)
VERSIONS = ("datasets", "pyarrow", "torch", "pillow", "opencv-python-headless")
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def label(workload: Workload) -> str:
    """Describe what runs."""
    order = "map style, DataLoader with worker processes, batched __getitems__"
    return f"{order}; {DECODER_NOTES[workload.variant]}" if workload.data == "photos" else order


def prepare(workload: Workload, source: Path, out: Path) -> None:
    """Write Arrow files: photos as the Image feature with the files' bytes, else binary."""
    import datasets

    if workload.data == "photos":
        features = datasets.Features({"image": datasets.Image(decode=False), "label": datasets.Value("int64")})
    else:
        features = datasets.Features({"array": datasets.Value("large_binary")})
    made = datasets.Dataset.from_generator(
        partial(_samples, workload, source), features=features, cache_dir=str(out / "made"), writer_batch_size=64
    )
    made.save_to_disk(str(out / "data"))


def _samples(workload: Workload, source: Path) -> Iterator[dict[str, Any]]:
    if workload.data == "photos":
        for data, of_class in encoded(source, workload.count):
            yield {"image": {"bytes": data, "path": None}, "label": of_class}
    else:
        for array in arrays(workload, source):
            yield {"array": array.tobytes()}


def epoch(workload: Workload, prepared: Path) -> Iterator[Batch]:
    """The next batches of one loop over many epochs."""
    return workload.pairs(islice(_batches(workload, prepared), workload.count // workload.batch_size))


@cache
def _batches(workload: Workload, prepared: Path) -> Iterator[Any]:
    import datasets
    from torch.utils.data import DataLoader, RandomSampler

    data = datasets.load_from_disk(str(prepared / "data"))
    if workload.data == "photos" and workload.variant == "pillow":
        data = data.cast_column("image", datasets.Image())
    sampler = RandomSampler(data, num_samples=PASSES * workload.count)  # a new permutation for each epoch
    loader: DataLoader[Any] = DataLoader(data, sampler=sampler, collate_fn=_Collate(workload), **workload.loader)
    return chain.from_iterable(repeat(loader))


class _Collate:
    """Stack rows to a batch directly in shared memory."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        from torch.utils.data import default_collate

        return default_collate([self._sample(row) for row in rows])

    def _sample(self, row: dict[str, Any]) -> Any:
        import torch

        if self._workload.data != "photos":
            flat = np.frombuffer(row["array"], self._workload.dtype)
            return torch.from_numpy(flat.reshape(self._workload.shape))
        image = crop_image(row["image"]) if self._workload.variant == "pillow" else opencv(row["image"]["bytes"])
        return torch.from_numpy(image), row["label"]
