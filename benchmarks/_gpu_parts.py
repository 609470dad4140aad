"""The measurements of `gpu.py`: functions of plain arguments that return figures, each run in its own process."""

import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from statistics import median
from typing import Any

import numpy as np
import torch

import shardio
from benchmarks._resnet50 import resnet50
from shardio.transforms import Precision, Transform

SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WARM = 8
"""Batches before the clock starts: pipelines fill, and kernels are chosen."""
REPEATS = 32
"""How often an epoch has each sample, so that an epoch takes long enough to measure."""


def _sync(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def long_epochs(dataset: str) -> shardio.View:
    """A dataset whose epochs are far longer than what is under way at once: at an epoch's end, all threads wait."""
    data = shardio.open(dataset)
    return data.select(np.tile(np.arange(len(data)), REPEATS))


def rate(batches: Iterator[Any], batch_size: int, device: str, seconds: float) -> float:
    """Samples per second of an endless stream, measured for some seconds after a warm-up."""
    for _ in range(WARM):
        next(batches)
    _sync(device)
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        next(batches)
        count += 1
    _sync(device)
    return count * batch_size / (time.perf_counter() - begun)


def loader(
    dataset: str, device: str, batch_size: int, *, engine: Any, threads: int, dtype: Precision, load: float
) -> shardio.Loader:
    """A loader of random crops, flipped and normalized."""
    transforms: list[Transform] = [
        shardio.RandomResizedCrop(SIZE),
        shardio.RandomHorizontalFlip(),
        shardio.Normalize(MEAN, STD, dtype=dtype),
    ]
    return shardio.Loader(
        long_epochs(dataset),
        batch_size,
        transforms=transforms,
        engine=engine,
        threads=threads,
        device=device,
        channels_last=True,
        world=shardio.World(),
        engine_options={"hw_decoder_load": load} if engine != "cpu" and device != "cpu" else None,
    )


def endless(batches: Any) -> Iterator[Any]:
    """Repeat epochs without end."""
    return chain.from_iterable(repeat(batches))


def dali_alone(folder: str, device: str, batch_size: int, threads: int, load: float) -> Iterator[Any]:
    """DALI as its manual shows it: its own file reader and random crops, with the same result as `loader`."""
    from nvidia.dali import fn, pipeline_def, types

    gpu = device != "cpu"

    def pipeline() -> Any:
        files, labels = fn.readers.file(file_root=folder, shuffle_after_epoch=True, name="files")
        where = {"device": "mixed", "hw_decoder_load": load} if gpu else {"device": "cpu"}
        images = fn.decoders.image_random_crop(
            files, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3], jpeg_fancy_upsampling=True, **where
        )
        images = fn.resize(images, size=(SIZE, SIZE), interp_type=types.INTERP_LINEAR, antialias=True)
        images = fn.crop_mirror_normalize(
            images,
            mirror=fn.random.coin_flip(),
            dtype=types.FLOAT16 if gpu else types.FLOAT,
            output_layout="HWC",
            mean=[255 * m for m in MEAN],
            std=[255 * s for s in STD],
        )
        return images, labels

    options = {"batch_size": batch_size, "num_threads": threads, "device_id": 0 if gpu else None}
    made = pipeline_def(**options, prefetch_queue_depth=3, seed=0)(pipeline)()
    made.build()
    while True:
        images, labels = made.run()
        images = torch.utils.dlpack.from_dlpack(images.as_tensor()).permute(0, 3, 1, 2)
        labels = torch.utils.dlpack.from_dlpack(labels.as_tensor())[:, 0].long()
        yield {"image": images, "label": labels.to(images.device)}


def decode(
    dataset: str, folder: str, device: str, batch_size: int, seconds: float, engine: str, threads: int, load: float
) -> dict[str, float]:
    """Images per second of an engine, or of DALI alone (`"dali alone"`)."""
    if engine == "dali alone":
        batches = dali_alone(folder, device, batch_size, threads, load)
    else:
        dtype: Precision = "float32" if device == "cpu" else "float16"
        batches = endless(loader(dataset, device, batch_size, engine=engine, threads=threads, dtype=dtype, load=load))
    return {"images_per_second": rate(batches, batch_size, device, seconds)}


def overlap(arrays: str, device: str, seconds: float) -> dict[str, float]:
    """The share of the copy time that is hidden behind the consumer's work on the device."""
    batch_size = 16
    batches = endless(shardio.Loader(long_epochs(arrays), batch_size, device=device, world=shardio.World(), prefetch=4))
    size = next(batches)["array"].nbytes
    host = torch.empty(size, dtype=torch.uint8).pin_memory()
    copy = _each(lambda: host.to(device, non_blocking=True), device, 0.5)
    feed = _each(lambda: next(batches), device, seconds / 3)
    square = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    one = _each(lambda: square @ square, device, 0.5)
    times = max(1, round(2 * max(copy, feed) / one))  # a consumer that input keeps up with

    def work() -> None:
        for _ in range(times):
            square @ square

    alone = _each(work, device, seconds / 3)

    def both() -> None:
        next(batches)
        work()

    together = _each(both, device, seconds)
    hidden = (alone + copy - together) / copy
    times_ms = {"copy_ms": copy, "feed_ms": feed, "work_ms": alone, "both_ms": together}
    return {name: 1e3 * spent for name, spent in times_ms.items()} | {"hidden": min(1.0, hidden)}


def _each(call: Callable[[], Any], device: str, seconds: float) -> float:
    """The mean duration of a call in seconds, among many in a row."""
    for _ in range(WARM):
        call()
    _sync(device)
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        call()
        count += 1
        if count % 32 == 0:
            _sync(device)
    _sync(device)
    return (time.perf_counter() - begun) / count


def tensors(arrays: str, device: str, seconds: float) -> dict[str, float]:
    """GB/s of HDF5 arrays to the device, and of copies of pinned memory of that size; medians of alternating runs."""
    batch_size = 16
    batches = endless(shardio.Loader(long_epochs(arrays), batch_size, device=device, world=shardio.World(), prefetch=6))
    size = next(batches)["array"].nbytes
    pinned = device != "cpu"
    host = [torch.empty(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(3)]
    there = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(3)]
    turn = 0

    def copy() -> None:
        nonlocal turn
        there[turn % 3].copy_(host[turn % 3], non_blocking=True)
        turn += 1

    _each(lambda: next(batches), device, seconds / 3)  # the number of threads is tuned meanwhile
    ours, limit = [], []
    for _ in range(3):
        ours.append(size / _each(lambda: next(batches), device, seconds / 6) / 1e9)
        limit.append(size / _each(copy, device, seconds / 6) / 1e9)
    return {"gb_per_second": median(ours), "copy_gb_per_second": median(limit), "share": median(ours) / median(limit)}


def train(
    dataset: str, folder: str, device: str, batch_size: int, seconds: float, feed: str, threads: int, load: float
) -> dict[str, float]:
    """Images per second of training ResNet-50 in bfloat16, and the share of time spent waiting for input.

    Args:
        dataset, folder: the same photos.
        device: a GPU.
        batch_size: images per step.
        seconds: duration of the measurement.
        feed: `"synthetic"` (one batch again and again), `"dali alone"`, or an engine of shardio.
        threads: number of input threads.
        load: share of the images for the GPU's JPEG decoder.
    """
    torch.backends.cudnn.benchmark = True
    model = resnet50().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()
    stats = None
    if feed == "synthetic":
        shape = (batch_size, 3, SIZE, SIZE)
        image = torch.randn(shape, device=device, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
        batches: Iterator[Any] = repeat({"image": image, "label": torch.zeros(batch_size, device=device).long()})
    elif feed == "dali alone":
        batches = dali_alone(folder, device, batch_size, threads, load)
    else:
        stats = loader(dataset, device, batch_size, engine=feed, threads=threads, dtype="bfloat16", load=load)
        batches = endless(stats)
    waited = 0.0

    def step() -> None:
        nonlocal waited
        begun = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - begun
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            loss = loss_of(model(batch["image"]), batch["label"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(2 * WARM):
        step()
    _sync(device)
    begun, count, waited = time.perf_counter(), 0, 0.0
    while time.perf_counter() - begun < seconds:
        step()
        count += 1
        if count % 8 == 0:  # keep the host from running far ahead, so that it waits for input only
            _sync(device)
    _sync(device)
    spent = time.perf_counter() - begun
    return {"images_per_second": count * batch_size / spent, "waited": waited / spent}


def versions(device: str) -> dict[str, Any]:
    """The versions of the software and the device that were measured."""
    found: dict[str, Any] = {"torch": torch.__version__, "numpy": np.__version__, "device": device}
    if device != "cpu":
        found |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return found


def run(part: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run a part by name."""
    parts: dict[str, Callable[..., dict[str, Any]]] = {
        "decode": decode,
        "overlap": overlap,
        "tensors": tensors,
        "train": train,
        "versions": versions,
    }
    return parts[part](**arguments)
