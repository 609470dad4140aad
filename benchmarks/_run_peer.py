"""The process of a peer in its own environment: pack its data, or measure one round.

    python -m benchmarks._run_peer ORDER.json RESULT.json

The runner writes the order and reads the result. A measurement is a warm-up epoch, which checks every batch, and then
as many timed epochs as fill `seconds`, at least one, which only count samples.
"""

import importlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._peers import Module, load
from benchmarks._workloads import Batch, Workload, numbers

TICKS = os.sysconf("SC_CLK_TCK")


class WrongDelivery(Exception):
    """A peer delivered other samples than requested."""


@dataclass
class Tally:
    """The content of a warm-up epoch, checked batch by batch."""

    workload: Workload
    samples: int = 0
    shape: tuple[int, ...] = ()
    dtype: str = ""
    mean: float = 0.0
    seen: set[int] = field(default_factory=set)

    def add(self, batch: Batch) -> None:
        """Count a batch; WrongDelivery names what is wrong with it."""
        data, labels = batch
        pixels = np.asarray(data)
        if not self.samples:
            self.shape, self.dtype, self.mean = pixels.shape, str(pixels.dtype), float(pixels[:16].mean())
            self._check(pixels)
        elif pixels.shape[1:] != self.shape[1:] or len(pixels) > self.shape[0]:
            raise WrongDelivery(f"a batch of shape {pixels.shape} follows one of {self.shape}")
        if self.workload.labelled:
            if len(np.asarray(labels)) != len(pixels):
                raise WrongDelivery(f"{len(pixels)} images came with {len(np.asarray(labels))} labels")
        else:
            self.seen.update(numbers(pixels).tolist())
        self.samples += len(pixels)

    def _check(self, pixels: Any) -> None:
        wanted, itemsize = self.workload.shape, np.dtype(self.workload.dtype).itemsize
        allowed = {wanted, (wanted[-1], *wanted[:-1])} if self.workload.data == "photos" else {wanted}
        size = 4 if self.workload.variant == "float" else itemsize
        if pixels.shape[1:] not in allowed or pixels.itemsize != size:
            raise WrongDelivery(f"samples are {pixels.dtype} {pixels.shape[1:]}, not {self.workload.dtype} {wanted}")
        if len(pixels) != self.workload.batch_size:
            raise WrongDelivery(f"the first batch has {len(pixels)} samples, not {self.workload.batch_size}")
        if pixels[0].min() == pixels[0].max():
            raise WrongDelivery(f"the first sample is {pixels[0].min()} all over")

    def end(self) -> dict[str, Any]:
        """A summary for the report; WrongDelivery unless the epoch was complete, apart from incomplete batches."""
        least = self.workload.count - self.workload.threads * self.workload.batch_size
        if not max(0, least) < self.samples <= self.workload.count + self.workload.batch_size:
            raise WrongDelivery(f"an epoch of {self.workload.count} samples delivered {self.samples}")
        distinct = len(self.seen) if self.seen else None
        return {
            "samples": self.samples,
            "distinct": distinct,
            "shape": self.shape,
            "dtype": self.dtype,
            "mean": round(self.mean, 2),
        }


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its descendants, those that have ended and been waited for included."""
    children: dict[int, list[int]] = {}
    times: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended in the meantime
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            times[int(entry.name)] = sum(map(int, fields[11:15]))
    total, waiting = 0, [pid]
    while waiting:
        process = waiting.pop()
        total += times.get(process, 0)
        waiting += children.get(process, ())
    return total / TICKS


def measure(module: Module, workload: Workload, prepared: Path, warm: Path, seconds: float) -> dict[str, Any]:
    """Warm up with checks on `warm`, then time epochs of `prepared`; the two are equal unless the cache is cold."""
    cold = warm != prepared
    tally = Tally(warm_workload(workload) if cold else workload)
    for batch in module.epoch(tally.workload, warm):
        tally.add(batch)
    delivered = tally.end()
    if cold:
        timed = time_cold(module, workload, prepared, tally.workload, again(warm))
    else:
        timed = time_epochs(module, workload, prepared, seconds)
    least = (workload.count - (workload.threads + cold) * workload.batch_size) * timed.epochs
    if timed.samples <= max(0, least):
        raise WrongDelivery(f"{timed.epochs} timed epochs of {workload.count} samples delivered {timed.samples}")
    return {
        "samples_per_s": timed.samples / timed.seconds,
        "cpu_s_per_1000": 1000 * timed.cpu / timed.samples,
        "epochs": timed.epochs,
        "seconds": timed.seconds,
        "delivered": delivered,
        "label": module.label(workload),
        "versions": versions(module.VERSIONS),
    }


@dataclass(frozen=True, slots=True)
class Timed:
    """The samples of the timed epochs, and their wall-clock and processor seconds."""

    samples: int
    seconds: float
    cpu: float
    epochs: int


def time_epochs(module: Module, workload: Workload, prepared: Path, seconds: float) -> Timed:
    """Time whole epochs, at least one, until `seconds` have passed."""
    samples = epochs = 0
    cpu, begun = cpu_seconds(os.getpid()), time.perf_counter()
    while not epochs or time.perf_counter() - begun < seconds:
        samples += count(module.epoch(workload, prepared))
        epochs += 1
    return Timed(samples, time.perf_counter() - begun, cpu_seconds(os.getpid()) - cpu, epochs)


def time_cold(module: Module, workload: Workload, prepared: Path, small: Workload, again: Path) -> Timed:
    """Time one epoch of a new loader, less the time of another new one to its first batch from cached data.

    That time is spent compiling and starting workers, so the first batch does not count.
    """
    cost, spent, first = _to_first_batch(module.epoch(small, again))
    count(first)
    cpu, begun = cpu_seconds(os.getpid()), time.perf_counter()
    samples = count(module.epoch(workload, prepared)) - workload.batch_size
    took, used = time.perf_counter() - begun - cost, cpu_seconds(os.getpid()) - cpu - spent
    return Timed(samples, max(took, 1e-3), max(used, 0.0), 1)


def _to_first_batch(batches: Iterator[Batch]) -> tuple[float, float, Iterator[Batch]]:
    """Wall-clock and processor seconds until the first batch, and the remaining batches."""
    cpu, begun = cpu_seconds(os.getpid()), time.perf_counter()
    next(batches)
    return time.perf_counter() - begun, cpu_seconds(os.getpid()) - cpu, batches


def again(warm: Path) -> Path:
    """The warm-up data under a second name, for which a peer creates a new loader."""
    link = warm.with_name(f"{warm.name}-again")
    if not link.is_symlink():
        link.symlink_to(warm.name)
    return link


def warm_workload(workload: Workload) -> Workload:
    """A few batches of a workload, to warm up without reading the full data into the page cache."""
    return replace(workload, count=min(workload.count, 2 * workload.threads * workload.batch_size))


class Epochs:
    """An iterable whose iterations call a function."""

    def __init__(self, epoch: Callable[[], Iterator[Any]]) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        return self._epoch()


def carry_out(module: str, order: str, result: str) -> None:
    """Have `main` of a module do what one file orders, and write the other; the process ends with its workers."""
    made = importlib.import_module(module).main(json.loads(Path(order).read_text()))
    Path(result).write_text(json.dumps(made))
    sys.stdout.flush()
    os._exit(0)  # the workers of some peers would be waited for


def versions(names: tuple[str, ...]) -> dict[str, str]:
    """The versions of those distributions that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def count(batches: Iterator[Batch]) -> int:
    """Count the samples of an epoch, and do nothing else with them."""
    return sum(len(data) for data, _ in batches)


def main() -> None:
    """Run from the command line."""
    order = json.loads(Path(sys.argv[1]).read_text())
    workload = Workload(**order["workload"] | {"shape": tuple(order["workload"]["shape"])})
    module = load(order["library"])
    result: dict[str, Any] = {}
    if order["task"] == "prepare":
        if order["small"]:
            workload = warm_workload(workload)
        module.prepare(workload, Path(order["source"]), Path(order["prepared"]))
    else:
        result = measure(module, workload, Path(order["prepared"]), Path(order["warm"]), order["seconds"])
    Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
