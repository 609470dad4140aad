"""The journal of a conversion into a store: its plan and the finished shards, as small objects below the output.

    OUT/.converting/run-1a2b3c4d/
      plan.json       describes the conversion; a conversion with another plan does not resume this one
      000012.done     the record of shard 12, written on the condition that there is none, after its objects
      000012.idx.npy  the index of object 12, where objects are adopted, until all have one; and 000012.sums.idx.npy
      rank-00003      written anew as long as that rank of a job works, see `store_ranks`

A conversion begins a run of its own, and resuming it goes on in the same run, on whatever machine. Each process that
begins or resumes it writes its shards under names of its own (`StoreOutput.writer`), and the first record of a shard
says whose counts. So processes that outlive an older attempt, or two that resume at once, do no harm.
"""

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, final

from ..dataset.output_directory import JOURNAL, PLAN
from ..dataset.store_output import RANK_NAME, RECORD_NAME, RUN_NAME, StoreOutput
from ..errors import ConfigError, ObjectChanged, ObjectNotFound, ShardioError, StoreError
from ..format.manifest import Manifest
from ..stores.base import Condition, ObjectInfo
from ..stores.unharmed import read_unharmed
from ..stores.url import Url
from .journal import Record, compare, decode_plan, decode_record, encode_record

_READERS = 16  # requests at once, while many records are read
_BLOCK = 256
_DELETED = 1000  # objects in one request


@final
class StoreJournal:
    """The journal of the conversion into `out`.

    Args:
        out: the output.
        run: the run that this process takes part in, "" before that is known.

    Attributes:
        path: the place of all runs, for messages.
    """

    def __init__(self, out: StoreOutput, run: str = "") -> None:
        self.path: Url = out.url / JOURNAL
        self.run = run
        self._out = out
        self._etags: dict[int, str | None] = {}  # of the records that were read
        self._is_new = False  # whether this process has begun the run

    def plans(self) -> dict[str, dict[str, Any]]:
        """Return the plans of all unfinished conversions by run, those written last at the end."""
        found = []
        for info in self._out.store.list(self._out.name(JOURNAL)):
            run, _, name = info.name.removeprefix(f"{self.path.path}/").partition("/")
            if name == PLAN and RUN_NAME.fullmatch(run):
                found.append((info.modified or 0.0, run))
        plans = {}
        for _, run in sorted(found):
            try:
                text = bytes(self._out.store.read(self._out.name(JOURNAL, run, PLAN)).data)
            except ObjectNotFound:  # it has finished meanwhile
                continue
            plans[run] = decode_plan(text, f"{self.path}/{run}/{PLAN}")
        return plans

    def begin(self, plan: Mapping[str, Any], *, resume: bool, overwrite: bool) -> Manifest | Condition:
        """Begin a run of its own, or go on in one that was interrupted.

        Args:
            plan: JSON values that distinguish this conversion from others.
            resume: whether to go on where the last attempt at this conversion has ended.
            overwrite: whether a dataset that is there may be replaced.

        Returns:
            The manifest of the dataset if this conversion has finished it before; else the state that the manifest has
            to have when the new one is written.

        Raises ConfigError for a dataset or an unfinished conversion that the options do not provide for.
        """
        out = self._out
        run, replaces = self._run_to_resume(plan) if resume else ("", "new")
        if run and not overwrite:
            now = out.manifest_info()
            overwrite = (now is None and replaces == "new") or (now is not None and now.etag == replaces)
        if resume and not overwrite and (finished := out.manifest()) is not None:
            compare(f"{out.url}: the existing dataset", finished.conversion, plan)
            if run:  # it was killed after its last step but one
                self.run = run
                with suppress(StoreError):  # `clean` removes it
                    self.remove()
            return finished
        condition = out.condition(overwrite=overwrite)
        if not resume and not overwrite and (others := self.plans()):
            raise ConfigError(
                "{}: a conversion has begun there ({}) and may be running; {resume} continues it if it has ended, "
                "{overwrite} starts another one beside it",
                out.url,
                next(reversed(others)),
            )
        self._write_plan(plan, run, condition)
        return condition

    def _run_to_resume(self, plan: Mapping[str, Any]) -> tuple[str, Condition]:
        """Return the run of an unfinished conversion with this plan, and the manifest that it is to replace.

        Returns:
            "" and "new" if no conversion is unfinished.

        Raises ConfigError if all of them have other plans, with what differs in the last one.
        """
        problem: ConfigError | None = None
        for run, found in reversed(self.plans().items()):
            try:
                compare(f"{self.path.parent}: the unfinished conversion", found, plan)
            except ConfigError as error:
                problem = problem or error
                continue
            replaces = found.get("replaces")
            return run, replaces if isinstance(replaces, str) else "new"
        if problem is not None:
            raise problem
        return "", "new"

    def _write_plan(self, plan: Mapping[str, Any], run: str, replaces: Condition) -> None:
        self.run, self._is_new = run or f"run-{self._out.writer}", not run
        if run:
            self._out.store.delete([self._name(name) for name in self.states() if RANK_NAME.fullmatch(name)])
        text = json.dumps({**plan, "run": self.run, "begun": secrets.token_hex(8), "replaces": replaces}, indent=1)
        # Written anew by a process that goes on, too: `clean` sees by its age that somebody works here.
        self._out.store.write(self._name(PLAN), text.encode(), condition=None if run else "new")

    def write(self, number: int, record: Record) -> Record:
        """Write the record of a shard whose objects are there; return the one that counts, which may be another's."""
        before = self._etags.get(number, "new")
        try:
            self._out.store.write(self._record(number), encode_record(record), condition=before)
        except (ObjectChanged, ObjectNotFound):
            written = self.read(number)
            if written is None:
                raise ShardioError(
                    f"{self.path / self.run}: the record of shard {number} has been removed: start over"
                ) from None
            return written
        return record

    def read(self, number: int) -> Record | None:
        """Return the record of a shard, or None if there is none; ShardioError if it is damaged."""
        name = self._record(number)
        try:
            content = self._out.store.read(name)
        except ObjectNotFound:
            return None
        self._etags[number] = content.info.etag
        return decode_record(bytes(content.data), f"{self.path / self.run}, the record of shard {number}")

    def write_index(self, number: int, suffix: str, data: bytes) -> None:
        """Keep the index of an adopted object, or what lies beside it, until all are made; before its record."""
        self._out.store.write(self._name(f"{number:06d}{suffix}"), data)

    def indexed(self, suffixes: Sequence[str]) -> frozenset[int]:
        """Return the numbers of the objects that have records and, as all with samples do, all parts of an index."""
        names = self.states().keys()
        return frozenset(
            number for number in _recorded(names) if all(f"{number:06d}{suffix}" in names for suffix in suffixes)
        )

    def read_index(self, number: int, suffix: str) -> bytes:
        """Return what `write_index` has kept."""
        return read_unharmed(self._out.store, self._name(f"{number:06d}{suffix}"))

    def read_all(self, numbers: Sequence[int]) -> Iterator[Record | None]:
        """Yield the records of some shards, in the order of `numbers`; several are read at once."""
        with ThreadPoolExecutor(_READERS) as pool:
            for start in range(0, len(numbers), _BLOCK):
                yield from pool.map(self.read, numbers[start : start + _BLOCK])

    def done(self) -> list[int]:
        """Return the numbers of the shards that have records, in order."""
        return sorted(_recorded(self.states()))

    def in_run(self, run: str) -> "StoreJournal":
        """Return the journal of another run."""
        return StoreJournal(self._out, run)

    def states(self) -> dict[str, str]:
        """Return the names of the run's objects, each with a text that changes when it is written anew."""
        return {info.name.rpartition("/")[2]: _state(info) for info in self._out.store.list(self._name())}

    def state(self, name: str) -> str | None:
        """Return the text that changes when an object of the run is written anew; None if there is no such object."""
        try:
            return _state(self._out.store.info(self._name(name)))
        except ObjectNotFound:
            return None

    def write_note(self, name: str, text: str) -> None:
        """Write a text for other ranks, or replace it."""
        self._out.store.write(self._name(name), text.encode())

    def read_note(self, name: str) -> str:
        """Return the text that another rank has written."""
        return bytes(self._out.store.read(self._name(name)).data).decode(errors="replace")

    def is_whole(self, record: Record) -> bool:
        """Return whether a shard's objects are as they were written, by size and ETag."""
        return self._out.are_there(record.objects)

    def remove(self) -> None:
        """Remove the run, which is over; the plan last."""
        names = [info.name for info in self._out.store.list(self._name())]
        names.sort(key=lambda name: name.endswith(PLAN))
        for start in range(0, len(names), _DELETED):
            self._out.store.delete(names[start : start + _DELETED])

    def remove_if_empty(self) -> None:
        """Remove the run that this process has begun if nothing is done of it: there is nothing to resume."""
        if self._is_new and not self.done():
            self.remove()

    def _record(self, number: int) -> str:
        return self._name(f"{number:06d}.done")

    def _name(self, *parts: str) -> str:
        return self._out.name(JOURNAL, self.run, *parts)


def object_of_rank(rank: int) -> str:
    """Return the name of the object by which a rank says that it works."""
    return f"rank-{rank:05d}"


def _recorded(names: Iterable[str]) -> Iterator[int]:
    return (int(found[1]) for name in names if (found := RECORD_NAME.fullmatch(name)))


def _state(info: ObjectInfo) -> str:
    return info.etag or f"{info.modified} {info.size}"
