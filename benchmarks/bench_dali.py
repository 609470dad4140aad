"""Peer: NVIDIA DALI, as a pipeline of CPU operators without a GPU."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._workloads import IMAGE_SIZE, Batch, Workload, arrays, encoded

WORKLOADS = {"exact": ("",), "fast": ("",), "tensors": ("",), "records": ("",)}
REQUIREMENTS = ("nvidia-dali-cuda130==2.4.0", "webdataset==1.0.2", "numpy==2.4.6")
VERSIONS = ("nvidia-dali-cuda130", "nvidia-nvimgcodec-cu13")
BUFFERS = {"photos": 1024, "tensors": 64, "records": 10_000}


def label(workload: Workload) -> str:
    """Describe what runs."""
    end = "a batch's memory is overwritten later"
    if workload.data == "photos":
        pixels = {
            "exact": "accurate IDCT, chroma interpolated, antialiased resize",
            "fast": "fast IDCT, chroma repeated, no antialias",
        }
        return f"CPU pipeline, only the crop is decoded; {pixels[workload.name]}; files shuffled each epoch; {end}"
    if workload.data == "tensors":
        return f"readers.numpy, files shuffled each epoch; {end}"
    return f"readers.webdataset, shuffle buffer of {BUFFERS['records']}; {end}"


def prepare(workload: Workload, source: Path, out: Path) -> None:
    """Write a file per photo or tensor, as DALI's readers take them, and one tar file for records."""
    out.mkdir(parents=True)
    if workload.data == "photos":
        for number, (data, of_class) in enumerate(encoded(source, workload.count)):
            (out / f"{number:08d}-{of_class}.jpg").write_bytes(data)
    elif workload.data == "tensors":
        for number, array in enumerate(arrays(workload, source)):
            np.save(out / f"{number:08d}.npy", array)
    else:
        import webdataset as wds

        with wds.TarWriter(str(out / "records.tar")) as writer:
            for number, array in enumerate(arrays(workload, source)):
                writer.write({"__key__": f"{number:012d}", "bin": array.tobytes()})


def epoch(workload: Workload, prepared: Path) -> Iterator[Batch]:
    """Run the pipeline once per complete batch."""
    pipeline = _pipeline(workload, prepared)
    for _ in range(workload.count // workload.batch_size):
        outputs = pipeline.run()
        data = np.asarray(outputs[0].as_tensor())
        yield data, np.asarray(outputs[1].as_tensor()) if workload.data == "photos" else None


@cache
def _pipeline(workload: Workload, prepared: Path) -> Any:
    from nvidia.dali import Pipeline

    pipeline = Pipeline(
        batch_size=workload.batch_size, num_threads=workload.threads, device_id=None, seed=0, prefetch_queue_depth=2
    )
    photos = partial(_photos, workload.name == "exact")
    define: dict[str, Callable[[Path], tuple[Any, ...]]] = {
        "photos": photos,
        "tensors": _tensors,
        "records": _records,
    }
    with pipeline:
        pipeline.set_outputs(*define[workload.data](prepared))
    pipeline.build()
    return pipeline


def _photos(exact: bool, prepared: Path) -> tuple[Any, ...]:
    from nvidia.dali import fn, types

    files = sorted(prepared.glob("*.jpg"))
    labels = [int(path.stem.split("-")[1]) for path in files]
    data, numbers = fn.readers.file(files=[str(path) for path in files], labels=labels, shuffle_after_epoch=True)
    images = fn.decoders.image_random_crop(
        data,
        device="cpu",
        random_area=[0.08, 1.0],
        random_aspect_ratio=[3 / 4, 4 / 3],
        use_fast_idct=not exact,
        jpeg_fancy_upsampling=exact,
    )
    images = fn.resize(images, size=(IMAGE_SIZE, IMAGE_SIZE), interp_type=types.INTERP_LINEAR, antialias=exact)
    return fn.flip(images, horizontal=fn.random.coin_flip()), numbers


def _tensors(prepared: Path) -> tuple[Any, ...]:
    from nvidia.dali import fn

    return (fn.readers.numpy(files=sorted(str(path) for path in prepared.glob("*.npy")), shuffle_after_epoch=True),)


def _records(prepared: Path) -> tuple[Any, ...]:
    from nvidia.dali import fn

    return (
        fn.readers.webdataset(
            paths=[str(prepared / "records.tar")], ext=["bin"], random_shuffle=True, initial_fill=BUFFERS["records"]
        ),
    )
