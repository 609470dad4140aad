"""A fuzz test: files are damaged, and shardio must neither crash nor hang, nor deliver or do anything wrong.

    python tests/attacks/fuzz.py --minutes 30 --seed 7
    python tests/attacks/fuzz.py --target hdf5 --target checkpoint
    python tests/attacks/fuzz.py --replay tests/attacks/corpus

In each round a target (`_fuzz_targets.py`) is copied, one to three damages (`_damage.py`) are done to its files, and
something is done with it (`_fuzz_uses.py`), in a child process with limits on memory, file size and time. A round fails
if the child crashes, hangs or runs out of memory; if an exception is none of shardio's, or is lost in a thread; if a
value is wrong that a checksum covers, or samples come in another number or order; if bytes of a file outside come out,
a file outside changes, or code from data runs. Each kind of failure is made smaller by leaving damages out, and saved
once to tests/attacks/corpus/, from where `--replay` and the tests repeat it.
"""

import argparse
import base64
import faulthandler
import getpass
import importlib
import itertools
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

import h5py
import numpy as np
import torch

sys.path.append(str(Path(__file__).parents[1]))
from _damage import damage
from _fuzz_targets import TARGETS, converter
from _fuzz_uses import CANARIES, IN_PLACE, Finding, Place, use

MEMORY = 4 << 30
"""Bytes of address space that a child may take beyond what it starts with."""
FILE_SIZE = 1 << 28
LIMIT = 30.0
"""Seconds for one round."""
RESTING = {"MainThread", "shardio idle", "shardio keeper"}
"""The names of threads that are not at work."""
CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Round:
    """One attack: what is damaged, where and how, and what is done with it.

    Attributes:
        target: its name.
        use: its name.
        seed, number: what it was drawn from.
        edits: for each damage the number of the file among the target's, and the seed of the damage.
        files: what `encoded` returned for each damaged file, once they are known; it takes the place of `edits`.
    """

    target: str
    use: str
    seed: str
    number: int
    edits: tuple[tuple[int, int], ...] = ()
    files: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """How a round went.

    Attributes:
        kind: `right` or `refused`, or the kind of failure.
        cause: what failures of one cause have in common.
        message: what failed.
        ways: the kinds of damage.
    """

    kind: str
    cause: str = ""
    message: str = ""
    ways: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return self.kind not in ("right", "refused")


def draw(seed: str, number: int, names: Sequence[str]) -> Round:
    """Draw a round; the same arguments always give the same."""
    random = Random(f"{seed}/{number}")
    target = TARGETS[names[number % len(names)]]
    edits = tuple((random.randrange(1 << 20), random.getrandbits(32)) for _ in range(random.choice([1, 1, 1, 2, 3])))
    return Round(target.name, random.choice(target.uses), seed, number, edits)


# In the child.


def files_of(folder: Path) -> list[str]:
    """The paths of all files and links in a folder."""
    found = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    return sorted(os.fsencode(path.relative_to(folder)).decode(errors="surrogateescape") for path in found)


def state_of(folder: Path) -> dict[str, Any]:
    """What tells whether a folder has changed."""
    found = {}
    for name in files_of(folder):
        status = (folder / name).lstat()
        found[name] = status.st_size, status.st_mtime_ns, status.st_ino, status.st_mode
    return found


def prepare(folder: Path, names: Sequence[str]) -> None:
    """Write the targets."""
    for name in names:
        path = folder / "whole" / name
        path.mkdir(parents=True)
        TARGETS[name].write(path)


def victim(folder: Path) -> None:
    """Write files that nothing may read or change."""
    folder.mkdir()
    secret = CANARIES[0] * 40
    (folder / "secret.txt").write_bytes(secret)
    (folder / "shardio.json").write_text("{}")
    (folder / "shards").mkdir()
    (folder / "shards" / "shard-000000.tar").write_bytes(secret)
    with h5py.File(folder / "other.h5", "w") as file:
        file["data"] = np.frombuffer(secret, np.uint8)


def carry_out(folder: Path, one: Round) -> Result:
    """Do a round in `folder`, which is the working directory and holds `whole` and `victim`."""
    target, place = TARGETS[one.target], folder / "round"
    whole = folder / "whole" / one.target
    shutil.rmtree(place, ignore_errors=True)
    (place / "out").parent.mkdir(parents=True)
    shutil.copytree(whole, place / "data", symlinks=True)
    (place / "victim").symlink_to("../victim")
    (place / "tmp" / f"torchinductor_{getpass.getuser()}").mkdir(parents=True)  # PyTorch makes it for itself
    (folder / "changed.json").write_text("{}")
    ways = attack(place / "data", one)
    before = {name: state_of(folder / name) for name in ("victim", "round/data")}
    names = sorted({*files_of(whole), *files_of(place / "data")})
    changed = frozenset(name for name in names if not same(whole / name, place / "data" / name))
    (folder / "changed.json").write_text(
        json.dumps({name: encoded(place / "data" / name) for name in names if name in changed})
    )
    listed = sorted(os.listdir(folder)), sorted(os.listdir(place))
    given = Place(target, place / "data", place / "out", whole, changed, frozenset(ways))
    kind, cause, message = guarded(one.use, given)
    rest(2.0)
    if kind in ("right", "refused"):
        shutil.rmtree(place / "out", ignore_errors=True)
        if state_of(folder / "victim") != before["victim"] or sorted(os.listdir(folder)) != listed[0]:
            kind, cause = "changed outside", f"{one.use} changed other files"
        elif one.use not in IN_PLACE and state_of(place / "data") != before["round/data"]:
            kind, cause = "changed outside", f"{one.use} changed its input"
        elif sorted(os.listdir(place)) != listed[1] or len(os.listdir(place / "tmp")) > 1:
            kind, cause = "left behind", f"{one.use}"
            message = f"{sorted(os.listdir(place))}, {os.listdir(place / 'tmp')}"
    return Result(kind, cause, message, ways)


def encoded(path: Path) -> str | None:
    """What stands at a path, as text; None if nothing does."""
    if path.is_symlink():
        return f"link:{os.readlink(path)}"
    if path.is_file():
        return base64.b64encode(zlib.compress(path.read_bytes(), 9)).decode()
    return "folder:" if path.is_dir() else "pipe:" if path.exists() else None


def put(path: Path, content: str | None) -> None:
    """Put what `encoded` returned at a path."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if content is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    kind, colon, target = content.partition(":")
    if not colon:
        path.write_bytes(zlib.decompress(base64.b64decode(content)))
    else:
        {"link": lambda: path.symlink_to(target), "folder": path.mkdir, "pipe": lambda: os.mkfifo(path)}[kind]()


def same(one: Path, other: Path) -> bool:
    """Whether two paths are equal files, or links to the same place."""
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and os.readlink(one) == os.readlink(other)
    return one.is_file() and other.is_file() and one.read_bytes() == other.read_bytes()


def attack(folder: Path, one: Round) -> tuple[str, ...]:
    """Damage the files in `folder`; return how."""
    for name, content in one.files.items():
        put(folder / name, content)
    if one.files:
        return ("any_saved",)
    names = [name for name in files_of(folder) if re.search(TARGETS[one.target].files, name)]
    ways, touched = [], set()
    for number, seed in one.edits:
        name = names[number % len(names)]
        if (folder / name).is_file() and (folder / name).stat().st_size:
            links = folder / "out" if (folder / "out").is_dir() else folder  # an output itself is its user's word
            links = None if TARGETS[one.target].converter else links
            ways.append(damage(folder / name, Random(seed), whole=name not in touched, links=links))
            touched.add(name)
    return tuple(ways)


def guarded(name: str, place: Place) -> tuple[str, str, str]:
    """Use damaged files; return the kind of the result, its cause and a message."""
    lost: list[str] = []
    sys.unraisablehook = lambda it: lost.append(f"{it.exc_type.__name__} in {it.object!r}: {it.exc_value}")
    threading.excepthook = lambda it: lost.append(f"{it.exc_type.__name__} in a thread: {it.exc_value}")
    try:
        kind = use(name, place)
    except Finding as finding:
        return finding.kind, name, str(finding)
    except Exception as error:  # noqa: BLE001  that is what is looked for
        kind = "memory" if isinstance(error, MemoryError) else "raw exception"
        return kind, f"{type(error).__name__} at {origin(error)}", traceback.format_exc(limit=-12)
    finally:
        sys.unraisablehook, threading.excepthook = sys.__unraisablehook__, threading.__excepthook__
    return ("lost exception", name, lost[0]) if lost else (kind, "", "")


def rest(seconds: float) -> None:
    """Wait until no thread of shardio is at work.

    A loader begins its next epoch ahead. libhdf5 would take a file that it still opens for a later one of its inode.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end and {thread.name for thread in threading.enumerate()} - RESTING:
        time.sleep(0.001)


def origin(error: BaseException) -> str:
    """The line of shardio that an exception passed last."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/shardio" in frame.filename and "/site-packages/" not in frame.filename]
    lines = [f"{frame.filename.rpartition('/shardio')[2]}:{frame.name}" for frame in ours]
    return lines[-1] if lines else "no line of shardio"


def serve(folder: Path, pipe: Any) -> None:
    """In the child: carry out the rounds that the parent sends."""
    os.setsid()
    os.chdir(folder)
    log = open(folder / "log", "w")  # noqa: SIM115  as long as the process
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    faulthandler.enable(log)
    faulthandler.register(signal.SIGUSR1, log, all_threads=True)
    warnings.simplefilter("ignore")
    os.fsync = lambda file: None  # no round is about power that fails, and waiting for the disk takes most of the time
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "round" / "tmp")
    sizes = Path("/proc/self/statm").read_text().split()
    limit = int(sizes[0]) * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE))
    while (one := pipe.recv()) is not None:
        pipe.send(carry_out(folder, one))


# In the parent.


def load_modules(names: Sequence[str]) -> None:
    """Load what children would otherwise load one after another."""
    for name in names:
        if TARGETS[name].converter:
            converter(TARGETS[name].converter)
    if "checkpoint" in names:
        importlib.import_module("torch._dynamo")  # which optimizers load


class Children:
    """Rounds carried out one after another in a child, which is replaced when it fails.

    The parent only forks: it opens none of the files, so whatever they do to a library ends with the child.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._context = multiprocessing.get_context("fork")
        self._process: Any = None

    def prepare(self, names: Sequence[str]) -> None:
        """Write the targets."""
        process = self._context.Process(target=prepare, args=(self.folder, names))
        process.start()
        process.join()
        if process.exitcode:
            raise RuntimeError("the targets could not be written")
        victim(self.folder / "unharmed")
        shutil.copytree(self.folder / "unharmed", self.folder / "victim")

    def carry_out(self, one: Round) -> Result:
        """Carry out a round, in a new child if the last one failed."""
        if self._process is None:
            ours, theirs = self._context.Pipe()
            (self.folder / "log").touch()
            self._process = self._context.Process(target=serve, args=(self.folder, theirs))
            self._process.start()
            theirs.close()
            self._pipe = ours
        self._pipe.send(one)
        result = self._wait(one)
        if result.failed:
            self.close()
            shutil.rmtree(self.folder / "victim", ignore_errors=True)
            shutil.copytree(self.folder / "unharmed", self.folder / "victim", dirs_exist_ok=True)
        return result

    def _wait(self, one: Round) -> Result:
        try:
            if self._pipe.poll(LIMIT):
                found: Result = self._pipe.recv()
                return found
            os.kill(self._process.pid, signal.SIGUSR1)  # writes what its threads do
            time.sleep(0.5)
            return Result("hang", f"{one.use} takes longer than {LIMIT:.0f} s", self._log())
        except (EOFError, ConnectionError):
            self._process.join(5)
            code = self._process.exitcode
            name = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
            return Result("crash", f"{name} in {one.use}", self._log())

    def _log(self) -> str:
        return (self.folder / "log").read_text(errors="replace").partition("\nExtension modules")[0][-6000:]

    def close(self) -> None:
        """End the child, and the processes that it started."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None


def entry(folder: Path, one: Round, result: Result) -> dict[str, Any]:
    """The round that the child did last, with the damaged files, so that other versions of a format can repeat it."""
    files = json.loads((folder / "changed.json").read_bytes())
    told = {"kind": result.kind, "cause": result.cause, "ways": result.ways}
    return told | asdict(one) | {"files": files}


def smaller(children: Children, one: Round, result: Result) -> dict[str, Any]:
    """Leave out damages without which the last round fails in the same way; return it as a file that repeats it."""
    found = entry(children.folder, one, result)
    for edit in one.edits if result.kind != "hang" else ():  # each attempt would take as long
        fewer = replace(one, edits=tuple(other for other in one.edits if other != edit))
        if fewer.edits and (again := children.carry_out(fewer)).cause == result.cause:
            one, found = fewer, entry(children.folder, fewer, again)
    return found


def saved(paths: Sequence[Path]) -> Iterator[tuple[Path, Round]]:
    """The rounds in files and folders."""
    for path in sorted(file for given in paths for file in (given.glob("*.json") if given.is_dir() else [given])):
        content = json.loads(path.read_bytes())
        edits = tuple((number, seed) for number, seed in content["edits"])
        names = ("target", "use", "seed", "number")
        yield path, Round(*(content[name] for name in names), edits, content["files"])


@dataclass
class Verdict:
    """What a run found."""

    seed: str
    rounds: Counter[str] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


def drawn(seed: str, names: Sequence[str], seconds: float) -> Iterator[tuple[None, Round]]:
    """Rounds until the time is over."""
    begin = time.monotonic()
    for number in itertools.count():
        if time.monotonic() - begin > seconds:
            return
        yield None, draw(seed, number, names)


def fuzz(children: Children, rounds: Iterable[tuple[Path | None, Round]], verdict: Verdict, save: Path) -> None:
    """Carry out rounds; save those that fail and are in no file yet, one of each cause."""
    causes: dict[tuple[str, ...], dict[str, Any]] = {}
    begin = time.monotonic()
    for path, one in rounds:
        result = children.carry_out(one)
        verdict.rounds[one.target] += 1
        verdict.results[result.kind] += 1
        cause = one.target, result.kind, result.cause
        if cause in causes:
            causes[cause]["count"] += 1
        elif result.failed:
            if path is None:
                path = save / f"{one.target}-{result.kind.replace(' ', '-')}-{one.seed}-{one.number}.json"
                save.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(smaller(children, one, result), indent=1) + "\n")
            told = {"target": one.target, "use": one.use, **asdict(result), "count": 1, "file": str(path)}
            causes[cause] = told
            verdict.failures.append(told)
            print(f"{path}: {result.kind}: {result.cause}", file=sys.stderr, flush=True)
    verdict.seconds = time.monotonic() - begin


def main() -> None:
    """Run the fuzz test from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", default="0", help="a number or a text, such as a date")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="only this one; may be repeated")
    parser.add_argument("--save", type=Path, default=CORPUS, help="the folder for failures")
    parser.add_argument("--replay", type=Path, nargs="+", help="repeat the rounds in these files and folders")
    args = parser.parse_args()
    torch.set_num_threads(1)  # before forking, because threads do not survive it
    rounds = list(saved(args.replay)) if args.replay else []
    names = sorted({one.target for _, one in rounds}) or args.target or list(TARGETS)
    load_modules(names)
    folder = Path(tempfile.mkdtemp(prefix="fuzz-")).resolve()
    children = Children(folder)
    try:
        children.prepare(names)
        verdict = Verdict(args.seed)
        fuzz(children, rounds or drawn(args.seed, names, 60 * args.minutes), verdict, args.save)
    finally:
        children.close()
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(vars(verdict), indent=1))
    sys.exit(bool(verdict.failures))


if __name__ == "__main__":
    main()
