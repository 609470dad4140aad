"""Measure what must not grow with the dataset: plan, manifest, resume and memory.

    python benchmarks/scale.py --json scale.json

- plan: time and memory until a rank of 16,384 has its plan of 10^9 and 10^12 samples, and for 256 indices;
- open: time and memory for a manifest of 10^6 shards, which processes of a node share;
- resume: time to the first batch in the middle of an epoch of 10^7 samples, beside a fresh start;
- epochs: resident memory after each of ten epochs of JPEG photos.
Each part runs in a process of its own.
"""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import shardio
from benchmarks._results import finish, options
from shardio.format import manifest
from shardio.format.shard_table import ShardTable, TextColumn
from shardio.order.plan import Schedule
from shardio.system.directory import Directory
from shardio.transforms import Transform

MB = 1e6
SHARDS, SAMPLES, PHOTOS = 10**6, 10**7, 8192


def memory(kind: str = "VmRSS") -> float:
    """The memory of this process in MB: resident, or a part of it (`RssAnon`, `RssFile`)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / MB for line in lines if line.startswith(kind + ":"))


def plan(samples: int) -> dict[str, float]:
    """Create a rank's plan and its first indices."""
    before, begun = memory(), time.perf_counter()
    made = shardio.Plan(samples, seed=1, epoch=3)
    schedule = Schedule(samples, shardio.World(5, 16384), 256)
    schedule.part(made, 0)
    ready = time.perf_counter() - begun
    times = []
    for step in range(1, 201):
        begun = time.perf_counter()
        schedule.part(made, step)
        times.append(time.perf_counter() - begun)
    return {"ready_s": ready, "memory_mb": memory() - before, "256_indices_ms": 1000 * median(times)}


def write_manifest(folder: str) -> None:
    """Write a manifest of 10^6 shards that do not exist, because only the manifest is opened."""
    names = TextColumn([f"shard-{number:06d}.tar" for number in range(SHARDS)])
    sums = TextColumn([f"{number:032x}" for number in range(SHARDS)])
    columns = np.full(SHARDS, 1000, np.int64), np.full(SHARDS, 64 << 20, np.int64)
    fields = {"image": shardio.Field("image")}
    manifest.save(
        manifest.Manifest("tar", fields, ShardTable(names, *columns, sums), "xxh3:" + "0" * 32), Directory(folder)
    )


def open_manifest(folder: str) -> dict[str, float]:
    """Time and memory to open the manifest; file memory is shared by all processes of the node."""
    parts = {"memory_mb": "VmRSS", "own_mb": "RssAnon", "shared_mb": "RssFile"}
    before, begun = {name: memory(kind) for name, kind in parts.items()}, time.perf_counter()
    dataset = shardio.open(folder)
    found = {
        "open_s": time.perf_counter() - begun,
        **{name: memory(kind) - before[name] for name, kind in parts.items()},
    }
    begun = time.perf_counter()
    dataset.manifest.shards.locate(shardio.Plan(len(dataset)).indices(0, 256))
    return found | {"locate_256_ms": 1000 * (time.perf_counter() - begun), "samples": len(dataset)}


def resume(folder: str) -> dict[str, float]:
    """Seconds to the first batch, fresh and in the middle of an epoch, alternating."""
    path = Path(folder, "many")
    with shardio.create(path, container="hdf5", fields={"x": "int32"}, shard_size="4MB") as writer:
        for number in range(SAMPLES):
            writer.append({"x": number})
    times: dict[str, list[float]] = {"fresh": [], "resumed": []}
    for _ in range(7):
        for name, seconds in times.items():
            begun = time.perf_counter()
            loader = shardio.Loader(path, 256, world=shardio.World(), threads=2)
            if name == "resumed":
                loader.load_state_dict(loader.state_dict() | {"position": SAMPLES // 2 + 123})
            next(iter(loader))
            seconds.append(time.perf_counter() - begun)
    found = {f"{name}_s": median(seconds) for name, seconds in times.items()}
    return found | {"ratio": found["resumed_s"] / found["fresh_s"]}


def epochs(folder: str) -> dict[str, Any]:
    """Resident memory in MB after each of ten epochs."""
    import cv2

    noise = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    data = cv2.imencode(".jpg", cv2.resize(noise, (500, 375)))[1].tobytes()
    path = Path(folder, "photos")
    with shardio.create(path, fields={"image": "image", "label": "int64"}) as writer:
        for number in range(PHOTOS):
            writer.append({"image": data, "label": number})
    crop: list[Transform] = [shardio.RandomResizedCrop(224), shardio.RandomHorizontalFlip()]
    loader = shardio.Loader(path, 256, transforms=crop, world=shardio.World())
    sizes = []
    for _ in range(10):
        for _ in loader:
            pass
        sizes.append(memory())
    return {"resident_mb": sizes, "growth_after_first": sizes[-1] / sizes[0] - 1}


def alone(task: Callable[..., Any], *arguments: Any) -> Any:
    """Run `task` in a fresh process, and return its result."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(task, arguments)


def main() -> None:
    """Run from the command line."""
    args = options(__doc__).parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        alone(write_manifest, folder)
        result = {
            "plan_1e9": alone(plan, 10**9),
            "plan_1e12": alone(plan, 10**12),
            "open_1e6_shards": alone(open_manifest, folder),
            "resume_1e7_samples": alone(resume, folder),
            "ten_epochs": alone(epochs, folder),
        }
    finish(result, args.json)


if __name__ == "__main__":
    main()
