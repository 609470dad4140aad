"""The journal of a conversion: its plan, the finished shards and the ranks at work, in a hidden folder of the output.

    OUT/.converting/
      lock            locked by the first rank; the lock ends with its process
      plan.json       describes the conversion; a conversion with another plan does not resume this one
      rank-00003      locked by that rank; how many samples it has done, and the error that ended it
      RUN/shards/         the shards, until all are finished
      RUN/000012.done     the record of shard 12, written after its files, so they are complete

RUN is drawn at random when a conversion begins, and kept when it resumes: processes that outlive an older conversion,
such as a rank of a dead job or a Dask worker that was given up, have no place to write to.

The processes of a conversion share nothing else, on one machine or on many: they need a common file system.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
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
from .skipped import Skipped

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclass(frozen=True, slots=True)
class Record:
    """A finished shard, and the samples that were left out of it. A shard without samples has no file."""

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


_RUN_NAME = re.compile(r"run-[0-9a-f]{8}")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@final
class Journal:
    """The journal of the conversion into `out`.

    Args:
        out: the dataset's directory.
        container: the shards' container.
        run: the run that this process takes part in, "" before that is known.
    """

    def __init__(self, out: Path, container: str, run: str = "") -> None:
        self.folder = out / JOURNAL
        self.run = run
        self._container = containers.get(container)
        self._out = out

    @property
    def shards(self) -> Path:
        """The folder of the shards, until all are finished."""
        return self.folder / self.run / "shards"

    def begin(self, plan: Mapping[str, Any], *, resume: bool) -> None:
        """Start a journal, or resume an existing one. Only the first rank calls this, while it holds the lock.

        Raises ConfigError if another conversion left the journal.
        """
        path = self.folder / "plan.json"
        if resume and path.exists():
            unfinished = json.loads(path.read_bytes())
            compare(f"{self._out}: the unfinished conversion", unfinished, plan)
            self.join(unfinished.get("run"))
            for remains in [*self.shards.glob(".writing-*"), *self.folder.glob("rank-*")]:
                shutil.rmtree(remains) if remains.is_dir() else remains.unlink()
            self.shards.mkdir(exist_ok=True)  # publication removes it, and may have been interrupted
        else:
            for remains in self.folder.iterdir():
                if remains.name != "lock":
                    shutil.rmtree(remains) if remains.is_dir() else remains.unlink()
            self.run = f"run-{secrets.token_hex(4)}"
            self.shards.mkdir(parents=True)
        durable.write(path, json.dumps({**plan, "run": self.run}, indent=1).encode())

    def join(self, run: object) -> None:
        """Take part in the run that a plan names; ShardioError unless it is the name of a run, and so no other path."""
        if not isinstance(run, str) or not _RUN_NAME.fullmatch(run):
            raise ShardioError(f"{self.folder}/plan.json: {run!r} is not the name of a run; start over with overwrite")
        self.run = run

    def plan(self) -> dict[str, Any] | None:
        """Return the plan that the first rank has written, or None if it has not yet."""
        try:
            plan: dict[str, Any] = json.loads((self.folder / "plan.json").read_bytes())
        except FileNotFoundError:
            return None
        return plan

    def write(self, number: int, record: Record) -> None:
        """Write the record of a shard whose files are finished."""
        shard = record.shard
        file = _File(
            shard.name, shard.samples, shard.bytes, shard.checksum, shard.sample_checksums.astype("<u8").tobytes(),
            dict(shard.image_shapes), [(bad.number, bad.reason) for bad in record.skipped],
        )  # fmt: skip
        durable.write(self.folder / self.run / f"{number:06d}.done", msgspec.msgpack.encode(file))

    def read(self, number: int) -> Record | None:
        """Return the record of a shard, or None if there is none."""
        try:
            data = (self.folder / self.run / f"{number:06d}.done").read_bytes()
        except FileNotFoundError:
            return None
        try:
            file = msgspec.msgpack.decode(data, type=_File)
        except msgspec.MsgspecError as error:
            raise ShardioError(f"{self.folder}, the record of shard {number} is damaged: {error}") from error
        if file.samples and not _FILE_NAME.fullmatch(file.name):
            raise ShardioError(f"{self.folder}, the record of shard {number}: {file.name!r} is not the name of a file")
        values = np.frombuffer(file.sample_checksums, "<u8").astype(np.uint64)
        shard = WrittenShard(file.name, file.samples, file.size, file.checksum, values, file.image_shapes)
        return Record(shard, tuple(Skipped(*bad) for bad in file.skipped))

    def done(self) -> set[int]:
        """Return the numbers of the shards that have records."""
        return {int(path.stem) for path in (self.folder / self.run).glob("*.done") if path.stem.isdigit()}

    def is_whole(self, record: Record) -> bool:
        """Return whether a shard's files match their record, by size and checksum; this reads them."""
        shard = record.shard
        if not shard.samples:
            return True
        with contextlib.suppress(FileNotFoundError):
            return checksums.of_files(self.files(shard.name)) == (shard.bytes, shard.checksum)
        return False

    def files(self, name: str) -> list[Path]:
        """Return a shard's files: in `shards`, or in the output if they are adopted or publication was interrupted."""
        folders = (self.shards, self._out)
        names = dict.fromkeys(path.name for folder in folders for path in self._container.files(folder / name))
        return [next((folder / n for folder in folders if (folder / n).exists()), self._out / n) for n in names]

    def retire(self) -> Path:
        """Rename the journal of a finished conversion out of the way, in one step; return the folder to remove."""
        aside = self._out / f"{WORKPLACE}{secrets.token_hex(4)}-new"
        os.rename(self.folder, aside)
        return aside


def compare(what: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise ConfigError unless two plans are of the same conversion; `what` names the origin of `found`."""
    for key in sorted({*found, *wanted} - {"job", "run"}):
        if not _agree(found.get(key), wanted.get(key)):
            raise ConfigError(
                f"{what} has {key} {found.get(key)!r}, not {wanted.get(key)!r}: "
                "give the same source and options, or start over with overwrite"
            )


def _agree(found: Any, wanted: Any) -> bool:
    """Return whether two values of a plan are equal; None in a list, for a bad sample, equals anything."""
    if isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        return all(a == b or a is None or b is None for a, b in zip(found, wanted, strict=True))
    return bool(found == wanted)


@final
class Lock:
    """An exclusive lock on a file, which ends with its process, however that ends.

    Raises ConfigError, which names the holder, if another process holds the lock.
    """

    def __init__(self, path: Path, what: str) -> None:
        self._file = open(path, "a+b")  # noqa: SIM115  held for as long as the work takes
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.seek(0)
            holder = self._file.read().decode(errors="replace").strip() or "another process"
            self._file.close()
            raise ConfigError(f"{path.parent.parent}: {what} is already running here: {holder}") from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                self._file.close()
                raise
            warnings.warn(
                f"{path}: this file system has no locks; nothing prevents two conversions from running at once",
                stacklevel=2,
            )
        self.write(f"process {os.getpid()} on {socket.gethostname()}")

    def write(self, text: str) -> None:
        """Replace the file's text."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(text.encode())
        self._file.flush()

    def release(self) -> None:
        self._file.close()


def is_held(path: Path) -> bool | None:
    """Return whether a process holds the lock at `path`; None without this file, or on a file system without locks."""
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
