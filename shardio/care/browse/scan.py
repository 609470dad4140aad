"""Scans of all samples: they find which ones a condition chooses, and how many each class has.

A scan runs on a thread, part by part, for as long as somebody asks for it, and reports how far it has come; so a page
never waits for all of 10^8 samples. It goes on where it stood when it is asked for again.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError, ShardioError
from ...format.fields import present_column
from ...system.types import Indices
from ...views.choice import Where
from ...views.columns import in_parts
from ...views.readable import ReadableDataset

PATIENCE = 15.0
"""Seconds after which a scan that nobody asks for stops."""

MOST_VALUES = 10_000
"""The different values that are counted at most."""

S = TypeVar("S", bound="Scan")


class Scan(ABC):
    """Something that is found out of all samples, in consecutive parts.

    Attributes:
        count: the number of samples.
        seen: the first samples that have been looked at.
        error: why the scan ended early, or "".
    """

    def __init__(self, count: int) -> None:
        self.count, self.seen, self.error = count, 0, ""
        self._changed = threading.Condition()
        self._runs, self._asked, self._stopped = False, 0.0, False

    @abstractmethod
    def _parts(self, first: int) -> Iterator[Any]:
        """Return what is found of the samples from `first` on, part by part."""

    @abstractmethod
    def _take(self, part: Any) -> int:
        """Keep what a part has found; return its number of samples."""

    @property
    def done(self) -> bool:
        """Whether no more is to come."""
        return self.seen >= self.count or bool(self.error)

    def ask(self, seconds: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Have the scan go on, and wait until it is done, there is enough, or the time is up."""
        with self._changed:
            self._asked = time.monotonic()
            if not (self.done or self._runs or self._stopped):
                self._runs = True
                threading.Thread(target=self._run, name="shardio browse scan", daemon=True).start()
            self._changed.wait_for(lambda: self.done or self._stopped or enough(), seconds)

    def stop(self) -> None:
        """End after the part that is being looked at."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            with closing(self._parts(self.seen)) as parts:  # type: ignore[type-var]  # a generator, declared as an iterator
                for part in parts:
                    with self._changed:
                        self.seen += self._take(part)
                        self._changed.notify_all()
                        if self._stopped or time.monotonic() - self._asked > PATIENCE:
                            return
        except Exception as error:  # shown on the page
            with self._changed:
                self.error = f"{error}" or type(error).__name__
            if not isinstance(error, (ShardioError, OSError, MemoryError)):
                raise
        finally:
            with self._changed:
                self._runs = False
                self._changed.notify_all()


@final
class Chosen(Scan):
    """The samples that a condition chooses, in at most one bit per sample looked at.

    Raises ConfigError for text that is no condition on the dataset.
    """

    def __init__(self, dataset: ReadableDataset, condition: str) -> None:
        if dataset.orders_itself:
            raise ConfigError(
                "a condition chooses from stored samples, and {!r} draws them anew in each epoch", dataset
            )
        super().__init__(len(dataset))
        self._dataset, self._where = dataset, Where(condition)
        self._where.bound(dataset)
        self._bits: list[NDArray[np.uint8]] = []
        self._firsts, self._found = [0], [0]  # samples before each part, and how many of them are chosen

    def _parts(self, first: int) -> Iterator[NDArray[np.bool_]]:
        return self._where.masks(self._dataset, first)

    def _take(self, part: NDArray[np.bool_]) -> int:
        found = int(np.count_nonzero(part))
        self._bits.append(np.packbits(part[: len(part) if found else 0]))  # nothing where nothing is found
        self._firsts.append(self._firsts[-1] + len(part))
        self._found.append(self._found[-1] + found)
        return len(part)

    @property
    def found(self) -> int:
        """The number of samples found until now."""
        return self._found[-1]

    def numbers(self, start: int, stop: int) -> list[int]:
        """Return the numbers of the samples that were found at positions start..stop-1, as far as there are some."""
        found, stop = list[int](), min(stop, self.found)
        while (position := start + len(found)) < stop:
            part = int(np.searchsorted(self._found, position, "right")) - 1
            own = np.flatnonzero(np.unpackbits(self._bits[part])) + self._firsts[part]
            found += own[position - self._found[part] :][: stop - position].tolist()
        return found

    def before(self, number: int) -> int:
        """Return how many of the samples found come before sample `number`."""
        if number >= self._firsts[-1]:
            return self.found
        part = int(np.searchsorted(self._firsts, number, "right")) - 1
        bits = np.unpackbits(self._bits[part])[: number - self._firsts[part]]
        return self._found[part] + int(np.count_nonzero(bits))


@final
class Counts(Scan):
    """Counts the samples of each value of a field of integers or bools, up to `MOST_VALUES` different ones."""

    def __init__(self, dataset: ReadableDataset, name: str) -> None:
        super().__init__(dataset.numbers)
        self._dataset, self._name = dataset, name
        self._counts: Counter[int] = Counter()

    def _parts(self, first: int) -> Iterator[tuple[int, NDArray[Any], NDArray[np.int64]]]:
        dataset, name = self._dataset, self._name

        def count(numbers: Indices) -> tuple[int, NDArray[Any], NDArray[np.int64]]:
            selection = dataset.selection(numbers)
            values = selection.column(name)
            if dataset.field(name).optional:
                values = values[selection.column(present_column(name))]
            return len(numbers), *np.unique(values, return_counts=True)

        return in_parts(count, self.count, first=first)

    def _take(self, part: tuple[int, NDArray[Any], NDArray[np.int64]]) -> int:
        samples, values, counts = part
        if (
            len(self._counts) + len(values) > MOST_VALUES
            and len(self._counts.keys() | {*values.tolist()}) > MOST_VALUES
        ):
            raise ConfigError(f"field {self._name!r} has more than {MOST_VALUES:,} different values")
        self._counts.update(dict(zip(map(int, values.tolist()), counts.tolist(), strict=True)))
        return samples

    def counts(self) -> dict[int, int]:
        """Return how many samples have each value, of those looked at until now, in the order of the values."""
        with self._changed:
            return dict(sorted(self._counts.items()))


@final
class Scans:
    """The scans that were asked for last: up to `most` conditions or counts, each once."""

    def __init__(self, most: int = 8) -> None:
        self._kept: dict[object, Scan] = {}
        self._most, self._lock = most, threading.Lock()

    def get(self, key: object, make: Callable[[], S]) -> S:
        """Return the scan of a key; `make` creates it the first time."""
        with self._lock:
            scan = self._kept.pop(key, None) or make()
            self._kept[key] = scan
            while len(self._kept) > self._most:
                self._kept.pop(next(iter(self._kept))).stop()
            return scan  # type: ignore[return-value]  # of the kind that this key was made with

    def peek(self, key: object) -> Scan | None:
        """Return the scan of a key if there is one."""
        return self._kept.get(key)

    def stop(self) -> None:
        """End all scans."""
        with self._lock:
            for scan in self._kept.values():
                scan.stop()
