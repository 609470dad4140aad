"""The sizes of jobs and tasks: large enough for the interpreter's lock, small enough for memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import jpeg
from _datasets import packed
from hypothesis import given
from hypothesis import strategies as st

import shardio
from shardio.loader.batch.job import LEAST_IMAGES, MOST_AHEAD, job_size, open_jobs
from shardio.loader.batch.spec import BatchOptions, BatchSpec, DeviceOptions, batch_spec

CROP = [shardio.RandomResizedCrop(224)]
FLOATS = [*CROP, shardio.Normalize((0.5,) * 3, (0.5,) * 3)]


def spec_of(rows: list[dict[str, Any]], transforms: Any = None, **target: Any) -> BatchSpec:
    return batch_spec(shardio.from_samples(rows), BatchOptions(None, transforms), DeviceOptions(**target))


SPECS = {
    "photos": spec_of([{"image": jpeg(30, 40)}], CROP),
    "floats": spec_of([{"image": jpeg(30, 40)}], FLOATS),
    "records": spec_of([{"x": np.zeros(3072, np.uint8)}]),
    "volumes": spec_of([{"x": np.zeros((16, 256, 256), np.uint16)}]),
    "large": spec_of([{"x": np.zeros(1 << 22, np.uint8)}]),
}


@given(
    name=st.sampled_from([*SPECS]),
    batch=st.integers(1, 1024),
    threads=st.integers(1, 128),
    prefetch=st.none() | st.integers(1, 64),
)
def test_sizes_fit(name: str, batch: int, threads: int, prefetch: int | None) -> None:
    """One task per thread fits into the memory of batches ahead, and the jobs that may be open occupy all threads."""
    spec = SPECS[name]
    size = job_size(spec, batch, threads, prefetch=prefetch)
    row_bytes = sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in spec.array_layout(1).values())
    least = 1 if name in ("records", "volumes", "large") else LEAST_IMAGES[1]
    assert 1 <= size.first_samples <= size.task_samples <= batch * size.batches
    assert threads * size.task_samples * row_bytes <= MOST_AHEAD or size.task_samples <= least
    if prefetch is not None and name == "photos":
        tasks = -(-batch * size.batches // size.task_samples) * open_jobs(prefetch, size.batches)
        assert tasks >= threads or size.task_samples < 2 * least


@pytest.mark.parametrize(("threads", "least"), [(1, 64), (4, 64), (8, 128), (16, 256)])
def test_tasks_grow_with_threads(threads: int, least: int) -> None:
    """The more threads share the interpreter's lock, the more photos a task makes; small ones begin an epoch."""
    size = job_size(SPECS["photos"], 256, threads)
    assert size.task_samples >= least
    assert size.first_samples <= max(256 // (2 * threads), LEAST_IMAGES[1]) or size.first_samples == size.task_samples
    assert size.first_steps <= 1


def test_an_engine_reads_whole_batches() -> None:
    """For an engine for whole batches a task is a batch, but as an epoch begins and ends."""
    pytest.importorskip("nvidia.nvimgcodec")
    spec = spec_of([{"image": jpeg(30, 40)}], CROP, engine="nvimgcodec")
    for threads in (1, 16, 64):
        size = job_size(spec, 256, threads)
        assert (size.batches, size.task_samples, size.samples_at(threads, 99)) == (1, 256, 256)
        assert size.samples_at(0, 99) == max(16, 256 // (2 * threads))


def test_an_epoch_begins_and_ends_with_small_tasks() -> None:
    """The first batch comes soon, and as an epoch ends no thread waits long for the task of another one."""
    size = job_size(SPECS["photos"], 256, 16)
    steps = 100
    samples = [size.samples_at(step, steps - step - 1) for step in range(steps)]
    assert samples[0] < samples[-1] < samples[50] == 256
    assert samples.count(256) >= steps - size.first_steps - size.last_steps > 80


def test_first_tasks_of_large_arrays_outweigh_their_python() -> None:
    """On many threads, tasks that begin and end an epoch take no more turns at the lock than they save in copying."""
    size = job_size(SPECS["volumes"], 16, 16)
    assert size.samples_at(0, 99) == size.samples_at(15, 0) == 4
    assert size.samples_at(50, 50) == 16
    assert job_size(SPECS["volumes"], 16, 1).first_samples == 8


def test_tasks_of_large_photos_are_short(tmp_path: Path) -> None:
    """Photos of 4 MB take long to decode: few of them make a task, however many threads there are."""
    data = packed(
        tmp_path / "d", [{"image": jpeg(30, 40), "more": bytes(4 << 20)}], {"image": "image", "more": "bytes"}
    )
    spec = batch_spec(data, BatchOptions(["image"], {"image": CROP}), DeviceOptions())
    for threads in (1, 16, 64):
        assert job_size(spec, 256, threads).task_samples <= LEAST_IMAGES[1]
