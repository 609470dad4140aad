"""The journal of a conversion: what it is, which shards stand, and who is at work, in a hidden folder of the output.

    OUT/.converting/
      lock            held by the process that leads; the lock goes when it does
      plan.json       what is converted and how; a conversion that is not the same does not go on with it
      rank-00003      held by that rank; how many samples it has done, and what ended it
      RUN/shards/         the shards, until all are there
      RUN/000012.done     the record of shard 12: written when its files stand, so they are whole

RUN is drawn when a conversion begins, and kept when it goes on: what is left at work of an older one, a rank whose job
has died or a Dask worker that was given up, has no place to write to any more.

It is all that the processes of a conversion share, on one machine or on many: they need a common file system, no more.
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import socket
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import msgspec
import numpy as np

from .. import containers
from ..dataset.output_directory import JOURNAL
from ..dataset.shard_writer import WORKPLACE, WrittenShard
from ..errors import ConfigError, ShardioError
from ..format import checksums
from ..system import durable

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that was left out: its number in the source, and why."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Record:
    """A shard that stands, and what was left out of it. Without samples there is no file."""

    shard: WrittenShard
    skipped: tuple[Skipped, ...]


class _File(msgspec.Struct):
    name: str
    samples: int
    size: int
    checksum: str
    sample_checksums: bytes
    image_shapes: dict[str, tuple[int, int] | None]
    skipped: list[tuple[int, str]]


@final
class Journal:
    """The journal of the conversion into `out`.

    Args:
        out: the dataset's directory.
        container: of its shards.
        run: the run that this process takes part in, where that is known.
    """

    def __init__(self, out: Path, container: str, run: str = "") -> None:
        self.folder = out / JOURNAL
        self.run = run
        self._container = containers.get(container)
        self._out = out

    @property
    def shards(self) -> Path:
        """Where the shards are, until all are there."""
        return self.folder / self.run / "shards"

    def begin(self, plan: Mapping[str, Any], *, resume: bool) -> None:
        """Starts a journal, or goes on with the one that is there: the leader does this, with the lock in its hands.

        Raises ConfigError if another conversion has left the journal.
        """
        place = self.folder / "plan.json"
        if resume and place.exists():
            begun = json.loads(place.read_bytes())
            compare(f"{self._out}: what is left of an unfinished conversion", begun, plan)
            self.run = str(begun["run"])
            for left in [*self.shards.glob(".writing-*"), *self.folder.glob("rank-*")]:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            self.shards.mkdir(exist_ok=True)  # it is gone if the end was cut off
        else:
            for left in self.folder.iterdir():
                if left.name != "lock":
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
            self.run = f"run-{secrets.token_hex(4)}"
            self.shards.mkdir(parents=True)
        durable.write(place, json.dumps({**plan, "run": self.run}, indent=1).encode())

    def plan(self) -> dict[str, Any] | None:
        """What the leader has written, or None if it has not yet."""
        try:
            found: dict[str, Any] = json.loads((self.folder / "plan.json").read_bytes())
        except FileNotFoundError:
            return None
        return found

    def write(self, number: int, record: Record) -> None:
        """Keeps the record of a shard whose files stand."""
        shard = record.shard
        file = _File(
            shard.name, shard.samples, shard.bytes, shard.checksum, shard.sample_checksums.astype("<u8").tobytes(),
            dict(shard.image_shapes), [(bad.number, bad.reason) for bad in record.skipped],
        )  # fmt: skip
        durable.write(self.folder / self.run / f"{number:06d}.done", msgspec.msgpack.encode(file))

    def read(self, number: int) -> Record | None:
        """The record of a shard, or None if there is none."""
        try:
            data = (self.folder / self.run / f"{number:06d}.done").read_bytes()
        except FileNotFoundError:
            return None
        try:
            file = msgspec.msgpack.decode(data, type=_File)
        except msgspec.MsgspecError as error:
            raise ShardioError(f"{self.folder}, the record of shard {number} is damaged: {error}") from error
        values = np.frombuffer(file.sample_checksums, "<u8").astype(np.uint64)
        shard = WrittenShard(file.name, file.samples, file.size, file.checksum, values, file.image_shapes)
        return Record(shard, tuple(Skipped(*bad) for bad in file.skipped))

    def done(self) -> set[int]:
        """The numbers of the shards that have records."""
        return {int(path.stem) for path in (self.folder / self.run).glob("*.done") if path.stem.isdigit()}

    def is_whole(self, record: Record) -> bool:
        """Whether a shard's files are those that its record tells of: they are read for it."""
        shard = record.shard
        if not shard.samples:
            return True
        with contextlib.suppress(FileNotFoundError):
            return checksums.of_files(self.files(shard.name)) == (shard.bytes, shard.checksum)
        return False

    def files(self, name: str) -> list[Path]:
        """A shard's files: among the shards, or in their place already, if they are adopted or the end was cut off."""
        folders = (self.shards, self._out)
        names = dict.fromkeys(path.name for folder in folders for path in self._container.files(folder / name))
        return [next((f / each for f in folders if (f / each).exists()), self._out / each) for each in names]

    def retire(self) -> Path:
        """The conversion is over: takes the journal out of the way in one step. Gives what is to be removed."""
        aside = self._out / f"{WORKPLACE}{secrets.token_hex(4)}-new"
        os.rename(self.folder, aside)
        return aside


def compare(what: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """ConfigError unless two plans are of the same conversion; `what` says whose `found` is."""
    for key in sorted({*found, *wanted} - {"job", "run"}):
        if not _agree(found.get(key), wanted.get(key)):
            raise ConfigError(
                f"{what} has {key} {found.get(key)!r}, not {wanted.get(key)!r}: "
                "give the same source and options, or begin anew with overwrite"
            )


def _agree(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return all(a == b or a is None or b is None for a, b in zip(one, other, strict=True))
    return bool(one == other)


@final
class Lock:
    """An exclusive lock on a file, which goes when its process does, however that ends.

    Raises ConfigError, which names the holder, if another process has it.
    """

    def __init__(self, path: Path, what: str) -> None:
        self._file = open(path, "a+b")  # noqa: SIM115  held for as long as the work takes
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.seek(0)
            holder = self._file.read().decode(errors="replace").strip() or "another process"
            self._file.close()
            raise ConfigError(f"{path.parent.parent}: {what} is at work here already: {holder}") from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                self._file.close()
                raise
            warnings.warn(f"{path}: this file system has no locks; nothing keeps two conversions apart", stacklevel=2)
        self.write(f"process {os.getpid()} on {socket.gethostname()}")

    def write(self, text: str) -> None:
        """Replaces what stands in the file."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(text.encode())
        self._file.flush()

    def release(self) -> None:
        """Lets others have it."""
        self._file.close()


def is_held(path: Path) -> bool | None:
    """Whether some process holds the lock at `path`; None if there is no such file, or no locks at all."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return False
