"""Conversion: a source's samples packed into shards by many processes, the same bytes whatever their number.

Shards are cut by the source's own sizes before any is written, so each is a task of its own, and which process writes
it changes nothing.
"""

import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from . import manifest, processes
from .errors import BadSample, ConfigError, ShardioError, SourceError
from .shard import ShardBuilder, WrittenShard, encode
from .source import Source
from .units import parse_size
from .writer import DEFAULT_SHARD_SIZE, Place, assemble, on_disk, prepare

_Work: TypeAlias = Callable[["_Settings", Any, Callable[[], None]], Any]
"""What is done with a task; the last argument is called after each sample."""

OnBad: TypeAlias = Literal["raise", "skip"]
Progress: TypeAlias = Callable[[str, int, int], None]
"""Called now and then with what is being done (`checking`, `writing`), samples done, samples in all."""

CHECK_SAMPLES = 256  # samples that one task of the check takes
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that was left out: its number in the source, and why."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Conversion:
    """What a conversion made."""

    manifest: manifest.Manifest
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True, slots=True)
class _Settings:
    """What every task of one conversion shares; sent to each process once."""

    source: Source
    directory: Path
    container: str
    options: Mapping[str, Any] = field(default_factory=dict)


def convert(
    source: Source,
    out: str | Path,
    *,
    container: str = "tar",
    shard_size: int | str = DEFAULT_SHARD_SIZE,
    workers: int = 1,
    on_bad: OnBad = "raise",
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Conversion:
    """Packs all samples of `source` into a dataset at `out`.

    Args:
        source: from a converter.
        out: the dataset's directory; empty or not there yet.
        container: `"tar"`, `"hdf5"` or `"lmdb"`.
        shard_size: a shard ends once its samples take about this much.
        workers: processes; 1 works in this one.
        on_bad: `"raise"` ends at the first bad sample; `"skip"` reads the source twice, first to find the bad ones, and
            leaves those out.
        overwrite: replace the dataset at `out`, which stays until the new one is whole.
        progress: see `Progress`.
        options: the container's own.

    Raises SourceError for a source without samples, BadSample, ConfigError, OSError. Nothing that was cut off passes
    for a dataset: without a `shardio.json` it is none.
    """
    size = parse_size(shard_size, "shard_size")
    if workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers}")
    if on_bad not in get_args(OnBad):
        raise ConfigError(f"on_bad must be 'raise' or 'skip', got {on_bad!r}")
    on_disk(container)
    manifest.check_metadata(source.metadata)
    place = prepare(out, overwrite=overwrite)
    try:
        return _convert(_Settings(source, place.directory, container, options), place, size, workers, on_bad, progress)
    except BaseException:
        place.discard()
        raise


def _convert(
    settings: _Settings, place: Place, shard_size: int, workers: int, on_bad: OnBad, progress: Progress | None
) -> Conversion:
    source, sizes = settings.source, settings.source.sizes()
    if not len(sizes):
        raise SourceError("the source holds no samples")
    report = progress or (lambda what, done, total: None)
    skipped: tuple[Skipped, ...] = ()
    chosen = np.arange(len(sizes))
    if on_bad == "skip":
        found = _run(settings, _check, _blocks(len(sizes)), workers, lambda n: report("checking", n, len(sizes)))
        skipped = tuple(bad for block in found for bad in block)
        chosen = np.delete(chosen, [bad.number for bad in skipped])
        if not len(chosen):
            raise SourceError(f"all {len(sizes)} samples are bad; the first: {skipped[0].reason}")
    cuts = cut(sizes[chosen], shard_size)
    tasks = [_Shard(number, int(start), chosen[start:stop]) for number, (start, stop) in enumerate(cuts)]
    written = _run(settings, _write, tasks, workers, lambda n: report("writing", n, len(chosen)))
    return Conversion(assemble(place, settings.container, source.fields, written, source.metadata), skipped)


def cut(sizes: NDArray[np.int64], shard_size: int) -> list[tuple[int, int]]:
    """Where shards begin and end, [(start, stop), ...]: each ends once it holds `shard_size` bytes or more."""
    ends = np.cumsum(sizes)
    cuts, start = [], 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = min(len(sizes), int(np.searchsorted(ends, before + shard_size)) + 1)
        cuts.append((start, stop))
        start = stop
    return cuts


@dataclass(frozen=True, slots=True)
class _Shard:
    """One shard's task: its number, its first sample's index, and its samples' numbers in the source."""

    number: int
    first: int
    samples: NDArray[np.int64]


def _write(settings: _Settings, task: _Shard, advance: Callable[[], None]) -> WrittenShard:
    fields = settings.source.fields
    builder = ShardBuilder(settings.directory, settings.container, fields, task.number, task.first, settings.options)
    try:
        for number in task.samples.tolist():
            builder.append(settings.source[number])
            advance()
        return builder.finish()
    finally:
        builder.discard()  # finds nothing to remove once the shard stands


def _blocks(count: int) -> list[range]:
    return [range(start, min(start + CHECK_SAMPLES, count)) for start in range(0, count, CHECK_SAMPLES)]


def _check(settings: _Settings, numbers: range, advance: Callable[[], None]) -> list[Skipped]:
    bad = []
    for number in numbers:
        try:
            encode(settings.source[number], settings.source.fields)
        except BadSample as error:
            bad.append(Skipped(number, str(error)))
        advance()
    return bad


def _run(
    settings: _Settings, work: _Work, tasks: Sequence[Any], workers: int, report: Callable[[int], None]
) -> list[Any]:
    """Results of all tasks, in order; the first failure ends the rest."""
    if workers == 1:
        return _run_here(settings, work, tasks, report)
    counter: Synchronized[int] = processes.CONTEXT.Value("q", 0)
    stop = processes.CONTEXT.Event()
    pool = ProcessPoolExecutor(
        min(workers, len(tasks)), processes.CONTEXT, initializer=_begin, initargs=(settings, counter, stop)
    )
    results: list[Any] = []
    pending: deque[Future[Any]] = deque()
    waiting = iter(tasks)
    try:
        while True:
            # A few ahead is enough to keep all processes busy; a million futures would only take memory.
            while len(pending) < 2 * workers and (task := next(waiting, None)) is not None:
                with processes.deaf_children():  # the first call starts all processes
                    pending.append(pool.submit(_one, work, task))
            if not pending:
                return results
            while not pending[0].done() and not any(f.done() and f.exception() for f in pending):
                report(counter.value)
                time.sleep(POLL_SECONDS)
            failed = next((f for f in pending if f.done() and f.exception()), None)
            results.append((failed or pending.popleft()).result())
            report(counter.value)
    except BrokenProcessPool as error:
        hint = "it may have run out of memory, or a script lacks `if __name__ == '__main__':`"
        raise ShardioError(f"a conversion process died; {hint}") from error
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _run_here(settings: _Settings, work: _Work, tasks: Sequence[Any], report: Callable[[int], None]) -> list[Any]:
    done, reported = 0, time.monotonic()

    def advance() -> None:
        nonlocal done, reported
        done += 1
        if time.monotonic() - reported >= POLL_SECONDS:
            reported = time.monotonic()
            report(done)

    results = [work(settings, task, advance) for task in tasks]
    report(done)
    return results


class _Stopped(Exception):
    """Raised in a process whose conversion has failed or been interrupted elsewhere."""


_state: tuple[_Settings, "Synchronized[int]", Event] | None = None


def _begin(settings: _Settings, counter: "Synchronized[int]", stop: Event) -> None:
    """In a new process: keeps what all its tasks share."""
    global _state
    processes.die_with_parent()
    _state = (settings, counter, stop)


def _one(work: _Work, task: Any) -> Any:
    """In a process of the pool: one task."""
    if _state is None:
        raise RuntimeError("a task before the process was set up")
    settings, counter, stop = _state

    def advance() -> None:
        if stop.is_set():
            raise _Stopped
        with counter.get_lock():
            counter.value += 1

    try:
        return work(settings, task, advance)
    except (ShardioError, OSError, _Stopped):
        raise
    except Exception as error:  # noqa: BLE001
        # Anybody's exception may not survive the way to the parent; its text does.
        text = "".join(traceback.format_exception(error))
        raise SourceError(f"the source failed with {type(error).__name__}: {error}\n{text}") from None
