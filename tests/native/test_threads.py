"""Threads that call compiled code together get what one alone gets, on an interpreter without the GIL too."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from _builders import jpeg
from _cli import python
from _datasets import CONTAINERS, files, packed

from shardio import convert, native
from shardio.native import numbers, rows
from shardio.order.plan import Plan
from shardio.views.index_map import BitMap

pytestmark = pytest.mark.skipif(native.library() is None, reason="not compiled here")
T = TypeVar("T")
THREADS, SAMPLES = 8, 60
SCRIPT = """
import threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from shardio.native import rows
from shardio.order.permutation import Permutation

THREADS = 8
table = np.random.default_rng(1).integers(0, 256, (512, 100), dtype=np.uint8)

def work(number):
    order = Permutation(3_001, number % 3)(np.arange(3_001))
    chosen = np.random.default_rng(number % 3).permutation(len(table))
    out = np.empty_like(table)
    rows.gather(table.ctypes.data + chosen * table.strides[0], table.shape[1], out)
    return order.tobytes() + out.tobytes()

barrier = threading.Barrier(THREADS)

def together(number):
    barrier.wait()  # the first calls look up the library's functions at once
    return [work(number + turn) for turn in range(40)]

with ThreadPoolExecutor(THREADS) as threads:
    found = list(threads.map(together, range(THREADS)))
wanted = [work(number) for number in range(3)]
assert all(each == wanted[(number + turn) % 3] for number, turns in enumerate(found) for turn, each in enumerate(turns))
print("equal")
"""


def test_first_calls_of_many_threads() -> None:
    """Positions of plans and rows are those of one thread, where all threads call for the first time at once."""
    assert python("-c", SCRIPT).stdout == "equal\n"


def together(work: Callable[[int], T]) -> list[T]:
    """Return what `work` returns for 0, 1, ..., each in a thread of its own; all begin at once."""
    barrier = threading.Barrier(THREADS)

    def begin(number: int) -> T:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(begin, range(THREADS)))


def sample(number: int) -> dict[str, Any]:
    """A photo, and values of 20 to 40 KB, whose pages readers map together, and note that they did."""
    random = np.random.default_rng(number)
    return {
        "image": jpeg(50 + number % 5, 60, seed=number),
        "wide": random.random((100, 60), np.float32),
        "blob": random.bytes(20_000 + 1000 * (number % 20)),
        "label": number,
    }


@pytest.mark.parametrize(
    "options",
    [*({"container": name} for name in CONTAINERS), {"container": "hdf5", "compression": "gzip"}],
    ids=lambda options: "-".join(options.values()),
)
def test_readers(tmp_path: Path, options: dict[str, Any]) -> None:
    """Threads that share an open dataset read each sample as it was stored, in the order of their own plans."""
    dataset = packed(tmp_path / "d", map(sample, range(SAMPLES)), shard_size="500KB", **options)

    def read(number: int) -> None:
        for epoch in range(3):
            order = Plan(SAMPLES, seed=number, epoch=epoch).indices(0, SAMPLES)
            dataset.read_ahead(range(SAMPLES), dataset.fields)
            assert (dataset.read(order, ["label"])["label"] == order).all()
            dataset.check(order, {})

    together(read)


def test_conversions(tmp_path: Path) -> None:
    """Threads that convert at once, each to its own folder, write the bytes that one alone writes."""
    source = packed(tmp_path / "source", map(sample, range(SAMPLES)))

    def converted(name: object) -> dict[str, bytes]:
        out = tmp_path / f"{name}"
        convert(source, out, resize_shorter=40, jpeg_restarts=True, shuffle=1, container="hdf5")
        return files(out)

    assert together(converted) == [converted("alone")] * THREADS


def test_arrays_and_files(photo_folder: Path) -> None:
    """Threads that convert numbers, look up set bits and read files at once get what one alone gets."""
    values, one, zero = np.arange(500_000), np.ones(1, np.float32), np.zeros(1, np.float32)
    every_second = BitMap(np.full((1000, 64), 0b10101010, np.uint8), np.arange(1001) * 256)
    paths = [os.fsencode(path) for path in sorted(photo_folder.rglob("*.jpg"))]
    sizes = np.array([os.stat(path).st_size for path in paths])

    def made(_: int) -> list[bytes]:
        out = np.empty(len(values), np.float32)
        assert numbers.convert([values], (one, one, zero), None, "float32", [out], None)
        found = every_second(np.arange(len(every_second)))
        return [out.tobytes(), found.tobytes(), *map(bytes, rows.read_files(paths, sizes))]

    assert together(made) == [made(0)] * THREADS


def test_images_and_steps() -> None:
    """Threads that decode, resize, transcode and carry out every step at once make what one alone makes."""
    from vectors import image_cases, other_cases, step_cases  # needs torch

    def made(_: int) -> list[bytes]:
        return [*islice(image_cases(), 200), *step_cases(), *other_cases()]

    assert together(made) == [made(0)] * THREADS
