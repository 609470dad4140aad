"""The rates of reading a dataset's storage without shardio: in sequence and at random, past the page cache."""

import mmap
import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ..dataset.opening import Place, as_dataset, at_bottom
from ..dataset.store_access import DEFAULTS
from ..errors import ConfigError
from ..system import portable

SECONDS = 2.0  # for each of the rates
_ALIGNED = 4096
_SEQUENTIAL = 1 << 20
_MOST_BLOCKS = 100_000  # to choose from, all over the files


@dataclass(frozen=True, slots=True)
class StorageRates:
    """Rates of plain reads of a dataset's shards.

    Attributes:
        sequential: bytes per second, in reads of 1 MiB.
        random: bytes per second, in reads of `random_bytes` at random places.
        random_bytes: the size of these reads: the mean size of a sample, rounded up to 4 KiB.
        threads: the number of threads that read.
        direct: whether the page cache was passed by (O_DIRECT); if not, pages were dropped first, as far as possible.
        file_bytes: the size of all shards.
        seconds: how long one random read takes, alone.
    """

    sequential: float
    random: float
    random_bytes: int
    threads: int
    direct: bool
    file_bytes: int
    seconds: float


def storage_rates(dataset: Place, *, threads: int = 8, seconds: float = SECONDS) -> StorageRates:
    """Read the shards of a dataset, or those that a view is of, sequentially and at random, for `seconds` each.

    Raises ConfigError if the dataset has no files, and what `shardio.open` raises.
    """
    stored = {f"{one.path}": one for one in at_bottom(as_dataset(dataset, DEFAULTS))}
    samples = sum(map(len, stored.values()))
    found = sorted(path for folder in stored for path in Path(folder).rglob("*") if path.is_file())
    if not any(path.stat().st_size >= _ALIGNED for path in found):
        raise ConfigError(f"{dataset}: there is no file of 4 KiB or more to read")
    size = sum(path.stat().st_size for path in found if path.stat().st_size >= _ALIGNED)
    return file_rates(found, size / max(1, samples), threads=threads, seconds=seconds)


def file_rates(paths: Sequence[Path], size: float, *, threads: int = 8, seconds: float = SECONDS) -> StorageRates:
    """Read those of some files that have 4 KiB or more sequentially, and at random about `size` bytes at a time."""
    files = [path for path in paths if path.stat().st_size >= _ALIGNED]
    sizes = [path.stat().st_size for path in files]
    size = max(_ALIGNED, -(-round(size) // _ALIGNED) * _ALIGNED)
    direct = all(_allows_direct(path) for path in files)
    sequential = _rate(files, sizes, _SEQUENTIAL, threads, seconds, direct)
    at_random = _rate(files, sizes, size, threads, seconds, direct, random.Random(0))
    alone = _rate(files, sizes, size, 1, seconds / 4, direct, random.Random(1))
    return StorageRates(sequential, at_random, size, threads, direct, sum(sizes), size / max(1.0, alone))


def _drop_cache(files: list[Path]) -> None:
    """Ask the system to forget the cached pages of files; those that other processes map stay."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            portable.advise(descriptor, 0, 0, "dontneed")
        finally:
            os.close(descriptor)


def _allows_direct(path: Path) -> bool:
    if not hasattr(os, "O_DIRECT"):  # not Linux
        return False
    with ExitStack() as stack:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            os.preadv(descriptor, [stack.enter_context(mmap.mmap(-1, _ALIGNED))], 0)
        except OSError:  # some file systems open it, and then do not read
            return False
    return True


def _rate(
    files: list[Path],
    sizes: list[int],
    block: int,
    threads: int,
    seconds: float,
    direct: bool,
    draw: random.Random | None = None,
) -> float:
    """Read blocks on several threads until the time is over, in the order that is drawn; return bytes per second."""
    if not direct:
        _drop_cache(files)
    step = block if draw is None else max(block, sum(sizes) // _MOST_BLOCKS // _ALIGNED * _ALIGNED)
    places = ((number, start) for number, size in enumerate(sizes) for start in range(0, max(1, size - block), step))
    blocks = list(islice(places, _MOST_BLOCKS + len(files)))
    if draw is not None:
        draw.shuffle(blocks)
    turn = iter(blocks)
    flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if direct else 0)

    def read() -> int:
        total = 0
        with mmap.mmap(-1, block) as buffer:
            while time.monotonic() - begun < seconds and (place := next(turn, None)) is not None:
                total += os.preadv(descriptors[place[0]], [buffer], place[1])
        return total

    with ExitStack() as stack:
        descriptors = [os.open(path, flags) for path in files]
        for descriptor in descriptors:
            stack.callback(os.close, descriptor)
        with ThreadPoolExecutor(threads) as pool:
            begun = time.monotonic()
            reads = [pool.submit(read) for _ in range(threads)]
        return sum(done.result() for done in reads) / (time.monotonic() - begun)
