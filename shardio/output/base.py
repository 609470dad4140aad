"""The protocol of a place to write to: `folder` is one, and `store` is the other.

    Output              a place for one dataset, known to all processes that write there
      create            -> Writing: shards go there, without a journal, from one process
      begin             -> Lead: a conversion begins or resumes, and this process leads it
      plans, run        -> Run: other ranks, and processes that carry out tasks, take part in it
      leftovers         what killed and replaced writers left there

An unfinished place never passes for a dataset before `publish`, however its writers end.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from ..format.manifest import Manifest
from ..stores.base import ObjectInfo
from ..stores.url import Url
from ..system.directory import Directory
from .records import Record
from .shard_writer import WrittenShard

Beat: TypeAlias = Callable[[int], None]
"""States how many samples a rank has done so far."""


@dataclass(frozen=True, slots=True)
class RankState:
    """The last statement of a rank: the samples done, if it says so, whether it has finished, and its error if any.

    `lost` are words for its end, if it ended without a word.
    """

    samples: int = 0
    over: bool = False
    error: str = ""
    lost: str = ""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Files or objects that shardio alone writes and no manifest names, by names from the dataset's place on.

    Attributes:
        removable: what can be removed, in order.
        kept: what may belong to a writer that is at work.
        state: what the manifest was, so that removing sees whether it has changed.
    """

    removable: tuple[ObjectInfo, ...]
    kept: tuple[ObjectInfo, ...]
    state: object = None


class Writing(Protocol):
    """A dataset that one process writes, from its first shard to its manifest."""

    @property
    def path(self) -> Path | Url:
        """The dataset's place."""

    @property
    def folder(self) -> Directory:
        """The folder to build shards in."""

    def put(self, shard: WrittenShard) -> WrittenShard:
        """Take a shard that is finished in `folder`; return it under the name that it has from now on."""

    def publish(self, completed: Manifest) -> None:
        """Make a dataset of the shards; ObjectChanged if another writer has made one meanwhile."""

    def close(self) -> None:
        """Remove what was not published, as far as that is possible."""


class Run(Protocol):
    """The part of a conversion that all processes share: the shards so far and their records. It can be pickled."""

    @property
    def path(self) -> Path | Url:
        """The place of the records, for messages."""

    def building(self) -> AbstractContextManager[Directory]:
        """Return the folder to build shards in, for a `with` block."""

    def put(self, number: int, record: Record, folder: Directory) -> Record:
        """Take a shard that is finished in `folder`; return its record under the name that it has from now on."""

    def record(self, number: int, record: Record) -> Record:
        """Write the record of a shard that was put; return the one that counts, which may be another process's."""

    def read(self, number: int) -> Record | None:
        """Return the record of a shard, None if there is none; ShardioError if it is damaged."""

    def records(self, numbers: Sequence[int]) -> Iterable[Record | None]:
        """Yield the records of some shards, in the order of `numbers`."""

    def done(self) -> Collection[int]:
        """Return the numbers of the shards that have records."""

    def is_whole(self, number: int, record: Record) -> bool:
        """Return whether shard `number` is as its record says."""

    def exists(self) -> bool:
        """Return whether the conversion has not ended yet."""

    def working(self, rank: int) -> AbstractContextManager[Beat]:
        """State that a rank works as long as the `with` block runs, and then how it ended."""

    def others(self, size: int) -> Callable[[], tuple[Collection[int], Mapping[int, RankState]]]:
        """Return a function that the first rank of `size` calls to see what the others have done.

        It returns the numbers of the shards that have records, and what each rank that has begun has stated.
        """

    def leader(self) -> Callable[[], RankState | None]:
        """Return a function that another rank calls to see the first one; it returns None if that has not begun."""


class Lead(Protocol):
    """A conversion in the process that leads it, and alone ends it."""

    @property
    def run(self) -> Run:
        """The part of it that all processes share."""

    def publish(self, completed: Manifest, numbers: Sequence[int]) -> None:
        """Make a dataset of the shards of these numbers; ObjectChanged if another writer has made one meanwhile."""

    def abandon(self, error: BaseException) -> None:
        """Leave nothing behind if the conversion began here and no shard is finished: there is nothing to resume."""

    def close(self) -> None:
        """Let go of the place, and remove what a published dataset does not need."""


class Output(Protocol):
    """A place for one dataset. It can be pickled."""

    @property
    def path(self) -> Path | Url:
        """The dataset's place."""

    @property
    def poll_seconds(self) -> float:
        """The time between two looks at what other ranks have done."""

    def part(self, split: str) -> "Output":
        """Return the place of a split below this one."""

    def growing(self) -> tuple["Output", Manifest]:
        """Return this place for a conversion that adds shards to the dataset which is there, and its manifest.

        Its `begin` and `publish` raise ObjectChanged if the dataset is another one by then. Raises NotADataset if there
        is none, ManifestError if its manifest cannot be trusted.
        """

    def create(self, *, overwrite: bool) -> Writing:
        """Begin to write a dataset without a journal; ConfigError if there is one that may not be overwritten."""

    def begin(
        self, plan: Mapping[str, Any], *, container: str, beside: bool, resume: bool, overwrite: bool
    ) -> Lead | Manifest:
        """Begin a conversion, or go on with one.

        Args:
            plan: JSON values that distinguish this conversion from others.
            container: the container of its shards.
            beside: whether files of other programs, which are there already, become the shards.
            resume: whether to go on where the last attempt at this conversion has ended.
            overwrite: whether a dataset that is there may be replaced; at a place to add shards it stays, and this says
                whether to start over where a conversion is unfinished.

        Returns:
            The manifest, with `resume`, if this conversion has finished it before.

        Raises ConfigError for a dataset or an unfinished conversion that the options do not provide for.
        """

    def plans(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the plans of unfinished conversions by run, those written last at the end."""

    def pulse(self, run: str, plan: Mapping[str, Any]) -> tuple[object, bool]:
        """Return a value that changes as the first rank of a run works, and whether it certainly does now."""

    def run(self, name: str, container: str, *, beside: bool) -> Run:
        """Take part in a run."""

    def finished(self, plan: Mapping[str, Any]) -> Manifest | None:
        """Return the manifest of the dataset that is there, None if there is none; ConfigError if of another plan.

        With a place to add shards: None unless the last conversion there has added those of this plan.
        """

    def published(self, plan: Mapping[str, Any]) -> Manifest:
        """Return the manifest that the run with this plan, which has ended, has made; ShardioError if it made none."""

    def leftovers(self, since: float | None) -> Leftovers | None:
        """Return what killed and replaced writers left; None if a writer changed the manifest meanwhile: look again.

        What was written later than `since`, in seconds since 1970, is kept, and all that goes with it; None keeps only
        what a process holds a lock on. Raises ManifestError if the manifest, which names the rest, cannot be trusted.
        """

    def remove(self, found: Leftovers) -> bool:
        """Remove the removable leftovers; False, with part of them there, if the manifest changed meanwhile."""
