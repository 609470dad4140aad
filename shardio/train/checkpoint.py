"""The checkpoints of a run: their content, how they are written, and which of them a run resumes from.

Each is an archive of torch.save that ends with a checksum over all that comes before it. The archive is a zip file, and
the checksum is its comment, so that torch.load and any zip tool still read the file:

    the archive, whose last two bytes state the length of the comment
    `shardio xxh3-128 `
    XXH3-128 over all bytes before these, as 32 hexadecimal digits
"""

import math
import os
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, final

import torch
import xxhash

from ..errors import ConfigError, StateMismatch
from ..system import replacement
from ..system.regular_files import open_regular

VERSION = 4
LAST = "last.pt"
PREVIOUS = "previous.pt"
BEST = "best.pt"

_MARK = b"shardio xxh3-128 "
_DIGITS = 32
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class TrainingPosition:
    """The progress of training. It is global, so it means the same on any number of ranks.

    Attributes:
        epoch: the current epoch, from 0.
        samples: number of samples of that epoch that all ranks together have trained on.
        step: number of optimizer steps since the beginning of training.
        loss: sum of the losses of these samples.
        bad: number of samples of that epoch that were replaced.
        score: sum of the scores of these samples: in classification, the number of correct ones.
        best_score: score of the best epoch so far; None before the first validation.
    """

    epoch: int = 0
    samples: int = 0
    step: int = 0
    loss: float = 0.0
    score: float = 0.0
    bad: int = 0
    best_score: float | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state that training resumes from.

    Attributes:
        place: the progress of training.
        model: state of the model.
        optimizer: state of the optimizer.
        scaler: state of the loss scaling of fp16, empty without it.
        average: the moving average of the weights, empty without one.
        hook: what each rank's communication hook remembers, empty if that is nothing.
        random: the state of each rank's random numbers.
        loader: state of the training loader.
        shape: the arguments that the model was created from; they must be the same on resuming.
        config: the configuration of the run, for information only.
    """

    place: TrainingPosition
    model: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    scaler: Mapping[str, Any]
    average: Mapping[str, Any]
    hook: Mapping[str, Any]
    random: Mapping[str, Any]
    loader: Mapping[str, Any]
    shape: Mapping[str, Any]
    config: Mapping[str, Any]

    def check_shape(self, shape: Mapping[str, Any], path: Path) -> None:
        """Raise StateMismatch, with both values, if the checkpoint is of another model than `shape` describes."""
        for name, value in shape.items():
            if not _same(self.shape.get(name), value):
                raise StateMismatch(f"{path}: {name} is {self.shape.get(name)!r} there, {value!r} here")

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` takes: plain values, and copies of tensors in host memory."""
        parts = {f.name: _copy(getattr(self, f.name)) for f in fields(self)}
        return {"version": VERSION, **parts, "place": asdict(self.place)}

    @classmethod
    def from_dict(cls, content: Any, path: Path) -> "Checkpoint":
        """Check what was read from `path`, and return it; StateMismatch if it is no checkpoint of this version."""
        version = content.get("version") if isinstance(content, dict) else None
        if version != VERSION:
            raise StateMismatch(f"{path}: a checkpoint's version must be {VERSION}, got {version!r}")
        names = [f.name for f in fields(cls)]
        if wrong := [name for name in names if not isinstance(content.get(name), dict)]:
            raise StateMismatch(f"{path}: a checkpoint needs {', '.join(wrong)}")
        parts = {name: content[name] for name in names}
        return cls(**parts | {"place": _position(parts["place"], path)})


def _same(one: Any, other: Any) -> bool:
    """Return whether two parts of a shape are equal; numbers may differ by the rounding of sums over other ranks."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return type(one) is type(other) and bool(one == other)


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        copied = OrderedDict((key, _copy(item)) for key, item in value.items())
        if hasattr(value, "_metadata"):  # the versions of a model's modules
            copied._metadata = value._metadata  # type: ignore[attr-defined]  # torch sets it on state dicts
        return copied
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _position(values: Mapping[Any, Any], path: Path) -> TrainingPosition:
    names = [f.name for f in fields(TrainingPosition)]
    counts = [values.get(name) for name in ("epoch", "samples", "step", "bad")]
    best = values.get("best_score")
    if (
        set(values) != set(names)
        or not all(type(count) is int and count >= 0 for count in counts)
        or not all(type(values[name]) is float and math.isfinite(values[name]) for name in ("loss", "score"))
        or not (best is None or (type(best) is float and math.isfinite(best)))
    ):
        raise StateMismatch(f"{path}: not the progress of a training: {dict(values)!r}")
    return TrainingPosition(**values)


@final
class Checkpoints:
    """The checkpoints in the output of a run: the last ones and the best one.

    One process writes them, in a thread, from copies in host memory, while training goes on. Whatever interrupts it,
    and if one file is damaged later, a whole checkpoint is left. The `with` block ends when the last one is written.

    Args:
        folder: the output of the run.
        keep: how many of the last checkpoints are kept: `last.pt`, `previous.pt`, `previous-2.pt` and so on.

    Attributes:
        candidates: their paths, the newest first; not all may exist.

    Raises ConfigError if there is a directory where a checkpoint is to be written.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        older = [PREVIOUS, *(f"previous-{number}.pt" for number in range(2, keep))][: keep - 1]
        self.candidates = tuple(folder / name for name in (LAST, *older))
        for path in (*self.candidates, folder / BEST):
            if path.is_dir():
                raise ConfigError(f"{path} is a directory, where a checkpoint is to be written")
        self._folder = folder
        self._wrote_last = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shardio checkpoint")
        self._writing: Future[None] | None = None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._thread.shutdown(wait=True)
        if error is None:
            self.wait()

    def choose(self) -> tuple[Path, tuple[str, ...]]:
        """Return the newest checkpoint that is whole, and a line for each newer one that is passed over.

        Raises StateMismatch if none is whole. This reads the files.
        """
        reasons: list[str] = []
        for path in self.candidates:
            if path.is_file():
                if (reason := damage(path)) is None:
                    return path, tuple(reasons)
                reasons.append(f"{path}: {reason}")
        raise StateMismatch(f"{self._folder}: no checkpoint to resume from is whole: {'; '.join(reasons)}")

    def save(self, checkpoint: Checkpoint, *, best: bool = False) -> None:
        """Begin to write `last.pt`, and `best.pt` too if it is the best one; the old `last.pt` becomes `previous.pt`.

        Raises OSError if the checkpoint before it could not be written.
        """
        self.wait()
        self._writing = self._thread.submit(self._write, checkpoint.to_dict(), best)

    def wait(self) -> None:
        """Wait until all checkpoints are written; raise OSError if one could not be."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, content: Mapping[str, Any], best: bool) -> None:
        last, *older = self.candidates
        whole = last.is_file() and (self._wrote_last or damage(last) is None)  # a damaged one takes no other's place
        self.clean()
        if whole:
            for path, older_path in reversed(list(pairwise(older))):
                if path.is_file():
                    path.replace(older_path)
        save_archive(last, content, previous=older[0] if older and whole else None)
        self._wrote_last = True
        if best:
            save_archive(self._folder / BEST, content)

    def clean(self) -> None:
        """Remove the unfinished files that killed processes have left."""
        replacement.remove_abandoned(self._folder, (LAST, BEST))


def save_archive(path: Path, content: Any, *, previous: Path | None = None) -> None:
    """Replace the file at `path` atomically by an archive of `content`, whatever torch.save takes.

    The old file is renamed to `previous`, if given. Raises OSError with `path` if the file cannot be written; the old
    file then stays.
    """
    with replacement.replacing(path, previous=previous) as file:
        output = _Output(file)
        try:
            torch.save(content, output)  # type: ignore[arg-type]  # which only writes to it
        except RuntimeError as error:
            raise output.error or error  # noqa: B904  torch's own error only says that a write failed
        _seal(file)


def load(path: Path) -> "Checkpoint":
    """Read the checkpoint at `path` into host memory; no code in the file is run.

    Raises ConfigError if there is no such file, StateMismatch if it is damaged, holds what only code can restore, or is
    no checkpoint of this version.
    """
    if not path.exists():
        raise ConfigError("{resume} must be 'auto' or the path of a checkpoint; there is no file {}", path)
    try:
        with open(path, "rb", opener=open_regular) as file:
            if reason := _damage(file):
                raise StateMismatch(f"{path}: {reason}")
            check_sizes(file)
            content = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise StateMismatch(f"{path}: it cannot be read: {error.strerror or error}") from error
    except StateMismatch:
        raise
    except Exception as error:  # torch and zipfile raise many kinds for what is no archive of torch.save
        words = f"{error}".partition("\n")[0]
        raise StateMismatch(f"{path}: not a checkpoint that torch.load(weights_only=True) reads: {words}") from error
    return Checkpoint.from_dict(content, path)


def damage(path: Path) -> str | None:
    """Return why the archive at `path` is not what `save_archive` wrote, None if it is; this reads the file once."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            return _damage(file)
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"


@final
class _Output:
    """A file for torch.save that keeps the first error of writing."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        self._file.flush()


def _seal(file: BinaryIO) -> None:
    """Give a zip archive the comment that holds its checksum."""
    file.seek(-2, os.SEEK_END)
    file.write(struct.pack("<H", len(_MARK) + _DIGITS) + _MARK)
    size = file.tell()
    file.seek(0)
    digits = _checksum(file, size)
    file.seek(size)
    file.write(digits)


def _damage(file: BinaryIO) -> str | None:
    size = os.fstat(file.fileno()).st_size
    start = size - _DIGITS - len(_MARK)
    file.seek(max(0, start))
    end = file.read()
    if start < 0 or not end.startswith(_MARK):
        return "it does not end with a checksum: it is cut short, or this version of shardio did not write it"
    expected = end[len(_MARK) :]
    file.seek(0)
    actual = _checksum(file, size - _DIGITS)
    return (
        None if actual == expected else f"its checksum {actual.decode()} is not {expected.decode('ascii', 'replace')}"
    )


def _checksum(file: BinaryIO, size: int) -> bytes:
    """Return the checksum over the next `size` bytes of `file`, or as many as there are."""
    state, block = xxhash.xxh3_128(), memoryview(bytearray(_BLOCK))
    while size > 0 and (read := file.readinto(block[: min(size, _BLOCK)])):  # type: ignore[attr-defined]  # BinaryIO lacks it
        state.update(block[:read])
        size -= read
    return state.hexdigest().encode()


def check_sizes(file: BinaryIO) -> None:
    """Raise StateMismatch if members of an archive unpack to more than the file holds: torch.save compresses nothing.

    The file is at its beginning then.
    """
    if zipfile.is_zipfile(file):  # else it is of torch before 1.6, which could not pack anything
        with zipfile.ZipFile(file) as archive:
            claimed = sum(member.file_size for member in archive.infolist())
        if claimed > (size := os.fstat(file.fileno()).st_size):
            raise StateMismatch(f"{file.name}: its members claim {claimed} bytes, the file has {size}")
    file.seek(0)
