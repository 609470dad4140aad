"""The journal of a conversion: its plan, the finished shards and the ranks at work, in a hidden folder of the output.

    OUT/.converting/
      lock            locked by the first rank, which it names; the lock ends with its process
      plan.json       describes the conversion; a conversion with another plan does not resume this one
      rank-00003      locked by that rank; how many samples it has done, and the error that ended it
      RUN/shards/         the shards, until all are finished
      RUN/000012.done     the record of shard 12 after its checksum, written after its files, so they are complete

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
import socket
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import msgspec
import numpy as np
import xxhash

from .. import containers
from ..containers import piece_sums
from ..dataset.output_directory import JOURNAL, PLAN, Output, check_made
from ..dataset.shard_writer import WORKPLACE, WrittenShard
from ..dataset.store_output import NamedState
from ..errors import ConfigError, ShardioError
from ..system.directory import Directory
from .skipped import Skipped

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclass(frozen=True, slots=True)
class Record:
    """A finished shard. One without samples has no file.

    Attributes:
        shard: the shard.
        skipped: the samples that were left out of it.
        rotated: the number of its images that an EXIF tag rotates or mirrors.
        objects: in a store, the shard's objects as they were written.
        rounded: by field, the most by which a cast has changed a number.
    """

    shard: WrittenShard
    skipped: tuple[Skipped, ...]
    rotated: int = 0
    objects: tuple[NamedState, ...] = ()
    rounded: Mapping[str, float] = field(default_factory=dict)


class _File(msgspec.Struct):
    name: str
    samples: int
    size: int
    checksum: str
    sample_checksums: bytes
    image_shapes: dict[str, tuple[int, int] | None]
    skipped: list[tuple[int, str]]
    rotated: int = 0
    objects: list[NamedState] = []
    rounded: dict[str, float] = {}


_RUN_NAME = re.compile(r"run-[0-9a-f]{8}")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,249}")
_DONE_NAME = re.compile(r"([0-9]{6,18})\.done")
_CHECKSUM = 16  # bytes of XXH3-128 before a record
_MOST_TEXT = 1 << 24
"""Bytes of a plan or of a rank's file, far more than either has."""


@final
class Journal:
    """The journal of the conversion into `out`. Its folders are opened for each use, and no link in it is followed.

    Args:
        out: the output.
        container: the shards' container.
        run: the run that this process takes part in, "" before that is known.

    Attributes:
        path: the journal's path, for messages.
    """

    def __init__(self, out: Output, container: str, run: str = "") -> None:
        self.path = out.path / JOURNAL
        self.run = run
        self._container = containers.get(container)
        self._out = out

    def open(self) -> Directory:
        """Open the journal's folder; FileNotFoundError if there is none."""
        return self._out.open().directory(JOURNAL)

    def exists(self) -> bool:
        """Return whether there is a journal: an unfinished conversion."""
        try:
            return self._out.open().kind(JOURNAL) is not None
        except FileNotFoundError:
            return False

    def open_shards(self) -> Directory:
        """Open the folder of the shards, where they are until all are finished."""
        return self._open_run().directory("shards")

    def _open_run(self) -> Directory:
        return self.open().directory(self.run)

    def begin(self, plan: Mapping[str, Any], lock: "Lock", *, resume: bool) -> None:
        """Start a journal, or resume an existing one. Only the first rank calls this, which holds `lock`.

        Raises ConfigError if another conversion left the journal, and for a journal that holds anything else.
        """
        folder = self.open()
        check_made(folder)
        if resume and (unfinished := self.plan()) is not None:
            compare(f"{self._out.path}: the unfinished conversion", unfinished, plan)
            self.join(unfinished.get("run"))
            for name in folder.names():
                if name.startswith("rank-"):
                    folder.unlink(name)
            try:  # publication moves shards, and older releases remove their folder after it
                shards = self._open_run().make("shards", exist_ok=True)
            except FileNotFoundError as error:
                raise ShardioError(
                    "{} names {!r}, a run that is not there; start over with {overwrite}", self.path / PLAN, self.run
                ) from error
            for name in shards.names():
                if name.startswith(WORKPLACE):
                    shards.remove(name)
        else:
            for name in folder.names():
                if name != LOCK:
                    folder.remove(name)
            self.run = f"run-{secrets.token_hex(4)}"
            folder.make(self.run).make("shards")
        begun = secrets.token_hex(8)
        folder.write(PLAN, json.dumps({**plan, "run": self.run, "begun": begun}, indent=1).encode())
        lock.write(f"{holder()}, {begun}")

    def is_led(self, plan: Mapping[str, Any]) -> bool:
        """Return whether the process that holds the lock has written `plan`, and not one that died before."""
        try:
            folder = self.open()
            held = is_held(folder, LOCK) is not False  # None on a file system without locks
            return held and first_line(folder.read(LOCK, _MOST_TEXT)).endswith(f", {plan.get('begun')}".encode())
        except FileNotFoundError:
            return False

    def join(self, run: object) -> None:
        """Take part in the run that a plan names; ShardioError unless it is the name of a run, and so no other path."""
        if not isinstance(run, str) or not _RUN_NAME.fullmatch(run):
            raise ShardioError("{}: {!r} is not the name of a run; start over with {overwrite}", self.path / PLAN, run)
        self.run = run

    def plan(self) -> dict[str, Any] | None:
        """Return the plan that the first rank has written, or None if it has not yet; ShardioError if it is damaged."""
        try:
            text = self.open().read(PLAN, _MOST_TEXT)
        except FileNotFoundError:
            return None
        return decode_plan(text, f"{self.path / PLAN}")

    def write(self, number: int, record: Record) -> None:
        """Write the record of a shard whose files are finished."""
        self._open_run().write(f"{number:06d}.done", encode_record(record))

    def read(self, number: int) -> Record | None:
        """Return the record of a shard, or None if there is none; ShardioError if it is damaged."""
        name = f"{number:06d}.done"
        try:
            data = self._open_run().read(name)
        except FileNotFoundError:
            return None
        return decode_record(data, f"{self.path}, the record of shard {number}")

    def done(self) -> set[int]:
        """Return the numbers of the shards that have records."""
        return {int(found[1]) for name in self._open_run().names() if (found := _DONE_NAME.fullmatch(name))}

    def is_whole(self, record: Record) -> bool:
        """Return whether a shard's files match their record, by size and checksum; this reads them.

        Their table of checksums is written anew if it is lost or damaged, or an older release has written none.
        """
        shard = record.shard
        if not shard.samples:
            return True
        files = self.files(shard.name)
        if not all(path.is_file() for path in files):
            return False
        with contextlib.suppress(FileNotFoundError):
            size, checksum, table = piece_sums.of_files(files)
            if (size, checksum) == (shard.bytes, shard.checksum):
                if not any(piece_sums.matches(folder / shard.name, table) for folder in self._folders()):
                    self.open_shards().write(piece_sums.path_of(Path(shard.name)).name, table)
                return True
        return False

    def files(self, name: str) -> list[Path]:
        """Return a shard's files: in `shards`, or in the output if they are adopted or publication was interrupted."""
        folders = self._folders()
        names = dict.fromkeys(path.name for folder in folders for path in self._container.files(folder / name))
        return [next((folder / n for folder in folders if (folder / n).exists()), folders[-1] / n) for n in names]

    def _folders(self) -> tuple[Path, Path]:
        return self.path / self.run / "shards", self._out.path

    def retire(self) -> str:
        """Rename the journal of a finished conversion out of the way, in one step; return its new name to remove."""
        out, aside = self._out.open(), f"{WORKPLACE}{secrets.token_hex(4)}-new"
        out.rename(JOURNAL, out, aside)
        return aside


def encode_record(record: Record) -> bytes:
    """Return the stored form of a record: its checksum, and then what it says."""
    shard = record.shard
    file = _File(
        shard.name, shard.samples, shard.bytes, shard.checksum, shard.sample_checksums.astype("<u8").tobytes(),
        dict(shard.image_shapes), [(bad.number, bad.reason) for bad in record.skipped], record.rotated,
        list(record.objects), dict(record.rounded),
    )  # fmt: skip
    data = msgspec.msgpack.encode(file)
    return xxhash.xxh3_128_digest(data) + data


def decode_record(data: bytes, place: str) -> Record:
    """Return the record that `encode_record` has stored; ShardioError, which names `place`, if it is damaged."""
    checksum, data = data[:_CHECKSUM], data[_CHECKSUM:]
    if checksum != xxhash.xxh3_128_digest(data):  # the shard itself does not tell a damaged image size
        raise ShardioError("{} is damaged: it does not begin with its checksum; start over with {overwrite}", place)
    try:
        file = msgspec.msgpack.decode(data, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ShardioError(f"{place} is damaged: {error}") from error
    if not 0 <= file.samples == len(file.sample_checksums) / 8:
        raise ShardioError(f"{place} is damaged: {len(file.sample_checksums)} bytes for {file.samples} checksums")
    for name in [*([file.name] if file.samples else []), *(name for name, _, _ in file.objects)]:
        if not _FILE_NAME.fullmatch(name):
            raise ShardioError(f"{place}: {name!r} is not the name of a file")
    values = np.frombuffer(file.sample_checksums, "<u8").astype(np.uint64)
    shard = WrittenShard(file.name, file.samples, file.size, file.checksum, values, file.image_shapes)
    return Record(shard, tuple(Skipped(*bad) for bad in file.skipped), file.rotated, tuple(file.objects), file.rounded)


def decode_plan(text: bytes, place: str) -> dict[str, Any]:
    """Return a plan as it was written; ShardioError, which names `place`, if it is damaged."""
    try:
        plan = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ShardioError("{} is damaged: {}; start over with {overwrite}", place, error) from error
    if not isinstance(plan, dict):
        raise ShardioError("{} is damaged: not an object; start over with {overwrite}", place)
    return plan


def remove_retired(out: Output) -> None:
    """Remove the journals of finished conversions that were killed before they had removed them."""
    try:
        final = out.open()
    except FileNotFoundError:
        return
    for name in final.names():
        if name.startswith(WORKPLACE) and final.kind(name) == "directory":
            folder = final.directory(name)
            if folder.kind(LOCK) == "file" and is_held(folder, LOCK) is False:
                check_made(folder)
                final.remove(name)


_ADDED = frozenset(("names",))
"""Keys that plans of the first datasets lack, which is no difference."""


def compare(what: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise ConfigError unless two plans are of the same conversion; `what` names the origin of `found`."""
    unknown = _ADDED - found.keys()
    for key in sorted({*found, *wanted} - {"job", "run", "begun", "replaces"} - unknown):
        if not _agree(found.get(key), wanted.get(key)):
            raise ConfigError(
                "{} has {} {!r}, not {!r}: give the same source and options, or start over with {overwrite}",
                what,
                key,
                found.get(key),
                wanted.get(key),
            )


def _agree(found: Any, wanted: Any) -> bool:
    """Return whether two values of a plan are equal; None in a list, for a bad sample, equals anything."""
    if isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        return all(a == b or a is None or b is None for a, b in zip(found, wanted, strict=True))
    return bool(found == wanted)


LOCK = "lock"
_MOST_HOLDER = 1000  # bytes
_LOOK_SECONDS = 0.5
"""For how long a lock may be taken by those who look whether it is held."""


@final
class Lock:
    """An exclusive lock on a file, which ends with its process, however that ends.

    Args:
        directory: the directory of the file.
        name: the file, which is created if needed.
        what: what holds the lock, for the message.

    Raises ConfigError, which names the holder, if another process holds the lock.
    """

    def __init__(self, directory: Directory, name: str, what: str) -> None:
        self._file = os.fdopen(directory.open(name, os.O_RDWR | os.O_CREAT), "r+b", buffering=0)
        try:
            self._take()
        except BlockingIOError as error:
            text = first_line(self._file.read(_MOST_HOLDER))
            other = text.decode(errors="replace").strip() or "another process"
            self._file.close()
            raise ConfigError(f"{directory.path.parent}: {what} is already running here: {other}") from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                self._file.close()
                raise
            warnings.warn(
                f"{directory.path / name}: this file system has no locks; "
                "nothing prevents two conversions from running at once",
                stacklevel=2,
            )
        self.write(holder())

    def _take(self) -> None:
        deadline = time.monotonic() + _LOOK_SECONDS
        while True:
            try:
                return fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def write(self, line: str) -> None:
        """Replace the file's first line. The file is never empty again, however this process ends."""
        self._file.seek(0)
        self._file.write(line.encode() + b"\n")
        self._file.truncate()

    def release(self) -> None:
        self._file.close()


def first_line(text: bytes) -> bytes:
    """Return what the holder of a lock wrote last; the end of an older, longer line may follow."""
    return text.partition(b"\n")[0]


def holder() -> str:
    """Return the text by which this process says that it holds a lock."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def is_held(directory: Directory, name: str) -> bool | None:
    """Return whether a process holds the lock `name`; None without this file, or on a file system without locks."""
    try:
        with os.fdopen(directory.open(name, os.O_RDONLY), "rb") as file:
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
