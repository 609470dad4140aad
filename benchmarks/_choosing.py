"""What benchmarks/choosing.py asks of each library, and how it judges what the ranks delivered.

A sample is its number: `A` has SAMPLES of them, of which the first stand in classes of very different size, `B` and `C`
are two more sources, and NEW are appended to `A` later. Nothing here imports a library that is compared.
"""

import os
import pickle
import signal
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

SAMPLES, NEW = 1024, 200
CLASS_SIZES = (408, 245, 143, 82, 51, 36, 26, 16, 11, 6)
A = range(SAMPLES)
APPENDED = range(SAMPLES, SAMPLES + NEW)
B = range(10_000, 10_500)
C = range(20_000, 21_000)
SOURCES = (A, B, C)
NUMBERS = C.stop
GLOBAL_BATCH = 32
RANKS, FEWER_RANKS = 4, 2
WINDOW = 4
SHARES = (7, 2, 1)
LATER_SHARES = (1, 2, 7)
CHANGE = 640  # samples before the shares change: whole batches, and whole rounds of the shares
MIXED = 1280
PER_CLASS = 96
TRAIN = 0.9
SHARED_GLOBAL_BATCH = 60  # as 3, 4 and 5 ranks share it
BAD = 517  # the sample that cannot be decoded

_random = np.random.default_rng(33)
LABELS: NDArray[np.int64] = _random.permutation(np.repeat(np.arange(len(CLASS_SIZES)), CLASS_SIZES)).astype(np.int64)
SCORES: NDArray[np.float64] = _random.uniform(0.05, 1.0, SAMPLES)
PATIENTS: NDArray[np.int64] = _random.integers(0, 80, SAMPLES)
CHOSEN: NDArray[np.int64] = _random.permutation(SAMPLES)[:333].astype(np.int64)
WANTED_LABELS, LEAST_SCORE = (0, 3), 0.3
ADDED: NDArray[np.int64] = _random.permutation(10 * SAMPLES)[:SAMPLES].astype(np.int64)
"""Values that are added later: a field, new labels, or features."""


def row(number: int) -> dict[str, Any]:
    """The fields of a sample; those of appended samples and of other sources matter to no task."""
    known = number < SAMPLES
    return {
        "id": number,
        "label": int(LABELS[number]) if known else 0,
        "score": float(SCORES[number]) if known else 0.0,
        "patient": int(PATIENTS[number]) if known else 0,
    }


def payload(number: int) -> bytes:
    """A sample as bytes, of which those of BAD are cut off."""
    data = zlib.compress(str(number).encode())
    return data[:-4] if number == BAD else data


def decoded(data: bytes) -> int:
    """The number of the sample. Raises zlib.error for BAD."""
    return int(zlib.decompress(data))


def feature(calls: Path, number: int) -> int:
    """The feature of a sample: its value in ADDED.

    Calls are counted in the file `calls`; beside a file `.kill` all processes of the group are killed midway.
    """
    with calls.open("ab", buffering=0) as file:
        file.write(b".")
        if file.tell() > SAMPLES // 2 and calls.with_suffix(".kill").exists():
            os.killpg(0, signal.SIGKILL)
    return int(ADDED[number])


def checked(numbers: Iterable[int], values: Iterable[int]) -> list[int]:
    """The numbers of samples, with -1 where the value that came with one is not that of ADDED."""
    return [n if 0 <= n < SAMPLES and value == ADDED[n] else -1 for n, value in zip(numbers, values, strict=True)]


def is_wanted(sample: Mapping[str, Any]) -> bool:
    """The condition of the task `where`."""
    return bool(sample["label"] in WANTED_LABELS and sample["score"] > LEAST_SCORE)


def of_class(number: int) -> list[int]:
    """The samples of a class, ascending."""
    return [int(index) for index in np.flatnonzero(number == LABELS)]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a feed runs.

    Attributes:
        folder: what `prepare` has written.
        rank, world: this process, and how many there are.
        elastic: whether the library's own means for another number of ranks are wanted, if it has several.
        global_batch: samples of a step of all ranks.
    """

    folder: Path
    rank: int
    world: int
    elastic: bool = False
    global_batch: int = GLOBAL_BATCH

    @property
    def batch_size(self) -> int:
        """Samples per batch of a rank: the global batch is the same for every world."""
        return self.global_batch // self.world


class Feed(ABC):
    """One rank's loader for one epoch, or for what is left of it; a library without states leaves out the rest."""

    @abstractmethod
    def __iter__(self) -> Iterator[list[int]]:
        """Yield the numbers of the samples of each step."""

    def state(self) -> Any:
        """Return this rank's state after the steps taken; NotImplementedError of a loader that has none."""
        raise NotImplementedError  # a loader that can't resume, which the report says

    def restore(self, state: Any) -> None:
        """Take a state; call it before iterating."""
        raise NotImplementedError  # as above

    def save(self, path: Path) -> None:
        """Write the state to a file."""
        path.write_bytes(pickle.dumps(self.state()))

    def load(self, path: Path) -> None:
        """Take the state that a rank of this number has written."""
        self.restore(pickle.loads(path.read_bytes()))  # noqa: S301  # our own


class LoaderFeed(Feed):
    """Batches of a loader with `state_dict` and `load_state_dict`; each is a dict with the tensor `id`.

    For a task of BESIDE it also has the tensor of that name, with values of ADDED.
    """

    def __init__(self, loader: Any, task: str = "") -> None:
        self.loader, self._beside = loader, BESIDE.get(task)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.loader:
            numbers = batch["id"].tolist()
            yield numbers if self._beside is None else checked(numbers, batch[self._beside].tolist())

    def state(self) -> Any:
        """The loader's state."""
        return self.loader.state_dict()

    def restore(self, state: Any) -> None:
        """Take a state."""
        self.loader.load_state_dict(state)


class Chooser(Protocol):
    """A library's module `choose_<name>.py`."""

    REQUIREMENTS: tuple[str, ...]
    VERSIONS: tuple[str, ...]
    HOW: Mapping[str, str]
    """For each task that the library offers, what does it."""
    IMPORTS: tuple[str, ...]
    """Modules to import before jobs are forked."""
    ELASTIC: str
    """What the library has for another number of ranks, if it isn't what it uses otherwise."""

    def prepare(self, folder: Path) -> None:
        """Write the data."""

    def grow(self, folder: Path) -> None:
        """Append the new samples to `A`."""

    def feed(self, task: str, place: Place) -> Feed:
        """A loader for a task."""

    def derive(self, place: Place, name: str, compute: Callable[[int], int]) -> None:
        """Write the features of all samples, together with the other ranks; go on where a killed job has stopped.

        Only modules that offer the task `features` have this and `derived`.
        """

    def derived(self, folder: Path, name: str) -> Iterable[tuple[int, int]]:
        """Read the numbers of samples, each with its feature."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The counts that an epoch should have.

    Attributes:
        least, most: for each number, how often it should come.
        total: how many samples there are together; None where `least` and `most` say it.
        groups: numbers that belong together, and how many samples of each group are asked for.
        first: how many of each group are asked for within the first CHANGE samples.
        added: numbers that come only after a run was interrupted: the rest of its epoch may have them or not.
    """

    least: NDArray[np.int64]
    most: NDArray[np.int64]
    total: int | None = None
    groups: Sequence[tuple[NDArray[np.int64], int]] = ()
    first: Sequence[int] = ()
    added: Sequence[int] = ()

    def like(self, counts: NDArray[np.int64]) -> "Asked":
        """What a run that was interrupted should deliver, where one that was not delivered `counts`.

        Where each number is asked for a fixed number of times, what the other run added or left out counts for nothing.
        """
        if np.array_equal(self.least, self.most) or self.total is None:
            least = np.minimum(self.least, counts)
            least[list(self.added)] = 0
            return Asked(least, np.maximum(self.most, counts))
        return Asked(counts, counts)


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do.

    Attributes:
        title: its row in the table.
        asked: the counts of an epoch; None where the library decides which samples there are (`split`).
        limited: whether to stop at the asked total of samples, as loaders of mixtures may be endless.
        fewer: how many ranks resume from the state of RANKS.
        global_batch: samples of a step of all ranks.
    """

    title: str
    asked: Asked | None
    limited: bool = False
    fewer: int = FEWER_RANKS
    global_batch: int = GLOBAL_BATCH

    @property
    def samples(self) -> int:
        """How many samples an epoch has."""
        if self.asked is None:
            return int(TRAIN * SAMPLES)
        return self.asked.total or int(self.asked.least.sum())

    @property
    def stop(self) -> int:
        """The step after which a run is interrupted."""
        return self.samples // self.global_batch // 2

    def steps(self, mode: str) -> int | None:
        """How many steps to take at most in a job `epoch`, `stop` or `resume`; None is to the loader's end."""
        if mode == "stop":
            return self.stop
        whole = self.samples // self.global_batch if self.limited else None
        return whole if whole is None or mode == "epoch" else whole - self.stop


def _once(numbers: Sequence[int] | range) -> Asked:
    counts = np.zeros(NUMBERS, np.int64)
    counts[list(numbers)] = 1
    return Asked(counts, counts)


def _shares(expected: NDArray[np.float64], total: int) -> Asked:
    """Each sample of `A` floor or ceil of its expected count."""
    least, most = np.zeros(NUMBERS, np.int64), np.zeros(NUMBERS, np.int64)
    near = np.round(expected)
    expected = np.where(np.abs(expected - near) < 1e-9, near, expected)
    least[:SAMPLES], most[:SAMPLES] = np.floor(expected), np.ceil(expected)
    return Asked(least, most, total)


def _balanced() -> Asked:
    expected = PER_CLASS / np.asarray(CLASS_SIZES, np.float64)[LABELS]
    groups = [(np.asarray(of_class(number)), PER_CLASS) for number in range(len(CLASS_SIZES))]
    return replace(_shares(expected, PER_CLASS * len(CLASS_SIZES)), groups=groups)


def _mixed(later: Sequence[int]) -> Asked:
    """The shares of the sources, none of whose samples comes twice; the first CHANGE samples by SHARES."""
    most = np.zeros(NUMBERS, np.int64)
    first = [CHANGE * share // sum(SHARES) for share in SHARES]
    counts = [so_far + (MIXED - CHANGE) * share // sum(later) for so_far, share in zip(first, later, strict=True)]
    for source in SOURCES:
        most[source.start : source.stop] = 1
    groups = [(np.asarray(source), count) for source, count in zip(SOURCES, counts, strict=True)]
    return Asked(np.zeros(NUMBERS, np.int64), most, MIXED, groups, first if later != SHARES else ())


TASKS: Mapping[str, Task] = MappingProxyType(
    {
        "all": Task("every sample once", _once(A)),
        "where": Task("choose by a condition", _once([i for i in A if is_wanted(row(i))])),
        "select": Task("choose by numbers", _once(CHOSEN.tolist())),
        "repeat": Task("2.5 times the samples", _shares(np.full(SAMPLES, 2.5), SAMPLES * 5 // 2)),
        "weighted": Task("weigh each sample", _shares(SCORES * SAMPLES / SCORES.sum(), SAMPLES)),
        "balanced": Task("as many of each class", _balanced(), limited=True),
        "mix": Task("mix three sources 70/20/10", _mixed(SHARES), limited=True),
        "stages": Task("other shares midway", _mixed(LATER_SHARES), limited=True),
        "grow": Task("append 200 samples", replace(_once([*A, *APPENDED]), added=APPENDED)),
        "windows": Task("windows of 4 neighbours", _once(range(SAMPLES - WINDOW + 1))),
        "split": Task("split 90/10 by class", None),
        "grouped": Task("split 90/10, patients whole", None),
        "column": Task("add a column", _once(A)),
        "relabel": Task("replace labels", _once(A)),
        "features": Task("features over ranks, killed", _once(A)),
        "three": Task("3 ranks resume from 4", _once(A), fewer=3, global_batch=SHARED_GLOBAL_BATCH),
        "five": Task("5 ranks resume from 4", _once(A), fewer=5, global_batch=SHARED_GLOBAL_BATCH),
        "bad": Task("one bad sample", _once([i for i in A if i != BAD]), global_batch=RANKS),
    }
)
BESIDE: Mapping[str, str] = MappingProxyType({"column": "added", "relabel": "label"})
REST = "-rest"  # the other part of a split is the task's name with this


@dataclass(frozen=True, slots=True)
class Delivered:
    """The numbers of samples that each rank delivered, step by step; those of interrupted runs come first."""

    steps: Sequence[Sequence[Sequence[int]]]  # per rank, per step

    @property
    def in_order(self) -> list[int]:
        """All samples, by step and rank."""
        longest = max((len(steps) for steps in self.steps), default=0)
        return [number for at in range(longest) for steps in self.steps if at < len(steps) for number in steps[at]]

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often each number came; a number that there isn't counts as the last one, which nobody asks for."""
        numbers = np.asarray(self.in_order, np.int64)
        return np.bincount(np.where((numbers < 0) | (numbers >= NUMBERS), NUMBERS, numbers), minlength=NUMBERS + 1)[
            : NUMBERS + 1
        ].astype(np.int64)


EXACT = "exact"
NO_STATE = "no state"


ASKED_WORDS = ("missing", "too many")
RESUMED_WORDS = ("lost", "repeated")


def judge(asked: Asked, delivered: Delivered, words: tuple[str, str] = ASKED_WORDS) -> str:
    """EXACT, or in words and numbers what differs."""
    counts = delivered.counts
    strange, counts = int(counts[NUMBERS]), counts[:NUMBERS]
    few = int(np.maximum(asked.least - counts, 0).sum())
    many = int(np.maximum(counts - asked.most, 0)[asked.most > 0].sum())
    strange += int(counts[asked.most == 0].sum())
    said = [
        f"{number:,} {word}"
        for number, word in zip((few, many, strange), (*words, "not asked for"), strict=True)
        if number
    ]
    got = int(counts.sum())
    if asked.total is not None and got != asked.total:
        said.append(f"{got:,} samples for {asked.total:,}")
    said += _groups(asked, delivered, counts)
    lengths = [len(steps) for steps in delivered.steps]
    if len(set(lengths)) > 1:
        said.append(f"{min(lengths)} to {max(lengths)} steps")
    return "; ".join(said) or EXACT


def _groups(asked: Asked, delivered: Delivered, counts: NDArray[np.int64]) -> list[str]:
    wanted = [count for _, count in asked.groups]
    got = [int(counts[members].sum()) for members, _ in asked.groups]
    said = []
    if got != wanted:
        if len(set(wanted)) == 1:
            said.append(f"{min(got)} to {max(got)} of a class for {wanted[0]}")
        else:
            said.append(f"{_slashed(got)} for {_slashed(wanted)}")
    if asked.first:
        early = np.bincount(delivered.in_order[:CHANGE], minlength=NUMBERS)
        first = [int(early[members].sum()) for members, _ in asked.groups]
        if first != list(asked.first):
            said.append(f"at first {_slashed(first)} for {_slashed(asked.first)}")
    return said


def _slashed(numbers: Sequence[int]) -> str:
    return "/".join(str(number) for number in numbers)


def judge_split(task: str, train: Delivered, rest: Delivered) -> str:
    """EXACT, or how the two parts of a split aren't one: overlaps, classes off by a sample or more, torn groups."""
    ours, others = train.counts[:SAMPLES], rest.counts[:SAMPLES]
    said = []
    if not np.array_equal(ours + others, np.ones(SAMPLES, np.int64)):
        said.append(f"{int((ours + others == 0).sum())} in no part, {int((ours + others > 1).sum())} twice")
    if task == "grouped":
        torn = np.intersect1d(PATIENTS[ours > 0], PATIENTS[others > 0])
        if len(torn):
            said.append(f"{len(torn)} patients torn")
        off = abs(float(ours.sum()) - TRAIN * SAMPLES)
        if off >= np.bincount(PATIENTS).max():
            said.append(f"{off:.0f} samples off the share")
    else:
        got = np.bincount(LABELS[ours > 0], minlength=len(CLASS_SIZES))
        off = float(np.abs(got - TRAIN * np.asarray(CLASS_SIZES)).max())
        if off >= 1:
            said.append(f"a class {off:.1f} samples off its share")
    return "; ".join(said) or EXACT
