"""Try what loaders offer for choosing, weighing, mixing and appending samples, and count what they deliver.

    python -m benchmarks.choosing --json choosing.json --markdown choosing.md
    python -m benchmarks.choosing --libraries shardio,grain --tasks where,mix

Each library has a module `choose_<name>.py` and an environment of its own, created below --work and kept. For each task
that it offers, it delivers an epoch to one process, then to four ranks; four ranks are interrupted midway and go on
from their state; two ranks go on from the same state, with the same global batch. What comes is counted sample by
sample. benchmarks/_choosing.py has the tasks, and what counts as exact.
"""

import json
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, cast

from benchmarks._choosing import (
    EXACT,
    FEWER_RANKS,
    GLOBAL_BATCH,
    RANKS,
    REST,
    RESUMED_WORDS,
    SAMPLES,
    TASKS,
    Asked,
    Chooser,
    Delivered,
    judge,
    judge_split,
)
from benchmarks._environments import NotInstalled, environment
from benchmarks._peers import REFERENCE, libraries
from benchmarks._processes import PeerFailed, ask, environ
from benchmarks._results import options
from benchmarks._rounds import last_line
from benchmarks._run_choosing import KIND, load
from shardio.bench.machine import describe

MARKS = ("<!-- what benchmarks/choosing.py found: {} to {} -->", "<!-- end of what it found -->")


@dataclass(frozen=True, slots=True)
class Failed:
    """A job that failed on a rank."""

    reason: str


Found = dict[tuple[str, int, bool, str], Delivered | Failed]
"""What came, by mode, number of ranks, whether the library's own elastic means were used, and task."""


@dataclass(frozen=True, slots=True)
class Runner:
    """Starts the ranks of one library.

    Attributes:
        library, python: what to run, and with which interpreter.
        work: where caches are.
        folder: where the data is.
    """

    library: str
    python: Path
    work: Path
    folder: Path

    def do(self, what: str) -> dict[str, Any]:
        """Prepare the data or make them grow. Raises PeerFailed."""
        return self._start({"do": what}, 0, 1)

    def jobs(self, world: int, jobs: Sequence[Mapping[str, Any]]) -> list[Delivered | Failed]:
        """Run jobs on `world` ranks; what each of the jobs delivered, by rank. Raises PeerFailed."""
        numbered = [{**job, "port": _free_port()} for job in jobs]
        order = {"do": "jobs", "jobs": numbered, "imports": load(self.library).IMPORTS}
        with ThreadPoolExecutor(world) as pool:
            ranks = list(pool.map(lambda rank: self._start(order, rank, world)["jobs"], range(world)))
        return [_together([rank[number] for rank in ranks]) for number in range(len(jobs))]

    def _start(self, order: Mapping[str, Any], rank: int, world: int) -> dict[str, Any]:
        place = {"library": self.library, "folder": str(self.folder), "rank": rank, "world": world}
        own = _ranks(rank, world) if order["do"] == "jobs" else {}
        command = [str(self.python), "-m", "benchmarks._run_choosing"]
        return ask(command, {**place, **order}, environ(self.library, self.work, KIND) | own)


def _ranks(rank: int, world: int) -> dict[str, str]:
    """The variables that torchrun sets, and those that Lightning does."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "GLOBAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    return {name: str(value) for name, value in names.items()} | {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _together(ranks: Sequence[Mapping[str, Any]]) -> Delivered | Failed:
    errors = [rank["error"] for rank in ranks if "error" in rank]
    return Failed(errors[0]) if errors else Delivered([rank["steps"] for rank in ranks])


def examine(library: str, work: Path, tasks: Sequence[str]) -> dict[str, Any]:
    """What a library delivers for each task that it offers. Raises NotInstalled or PeerFailed."""
    module = load(library)
    python = Path(sys.executable) if library == REFERENCE else environment(library, work, KIND)
    folder = work / "choosing" / library
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    runner = Runner(library, python, work, folder)
    versions = runner.do("prepare")["versions"]
    offered = [task for task in tasks if task in module.HOW]
    found = _deliveries(runner, module, [task for task in offered if task != "features"])
    results = {
        task: {
            "how": module.HOW[task],
            "cells": _features(runner) if task == "features" else _cells(task, module, found),
        }
        for task in offered
    }
    return {"versions": versions, "elastic": module.ELASTIC, "tasks": results}


def _deliveries(runner: Runner, module: Chooser, tasks: Sequence[str]) -> Found:
    """What comes in each mode, on each number of ranks, of each task; data grows while runs are interrupted."""
    found: Found = {}

    def go(mode: str, world: int, elastic: bool, names: Sequence[str]) -> None:
        jobs = [
            {
                "task": name,
                "mode": mode,
                "steps": task.steps(mode),
                "elastic": elastic,
                "global_batch": task.global_batch,
            }
            for name in names
            for task in (TASKS[name.removesuffix(REST)],)
        ]
        for name, delivered in zip(names, runner.jobs(world, jobs), strict=True):
            found[mode, world, elastic, name] = delivered

    ways = _ways(module)
    for elastic in ways:
        go("stop", RANKS, elastic, tasks)
    if "grow" in tasks:
        runner.do("grow")
    go("epoch", 1, False, [*tasks, *(task + REST for task in tasks if TASKS[task].asked is None)])
    for elastic in ways:
        go("epoch", RANKS, elastic, tasks)
    go("resume", RANKS, False, tasks)
    for fewer in {TASKS[task].fewer for task in tasks}:
        go("resume", fewer, ways[-1], [task for task in tasks if TASKS[task].fewer == fewer])
    return found


def _ways(module: Chooser) -> tuple[bool, ...]:
    """Whether a library has means of its own for another number of ranks, in addition to the usual ones."""
    return (False, True) if module.ELASTIC else (False,)


def _features(runner: Runner) -> dict[str, str]:
    """A text for each column: features of one process, of RANKS, and after a job of RANKS was killed midway."""
    cells = []
    for ranks, killed in ((1, False), (RANKS, False), (RANKS, True), (FEWER_RANKS, True)):
        job = {"task": "features", "name": f"features-{ranks}-{killed}", "elastic": False, "global_batch": GLOBAL_BATCH}
        calls = runner.folder / f"{job['name']}.calls"
        if killed:
            calls.with_suffix(".kill").touch()
            runner.jobs(RANKS, [job | {"mode": "derive"}])
            calls.with_suffix(".kill").unlink()
        (done,) = runner.jobs(ranks, [job | {"mode": "derive"}])
        (read,) = runner.jobs(1, [job | {"mode": "derived"}])
        said = done.reason if isinstance(done, Failed) else _judged(TASKS["features"].asked, read)
        again = calls.stat().st_size - SAMPLES if said == EXACT else 0
        cells.append(f"{said} ({again:,} computed again)" if again else said)
    return dict(zip(columns("features"), cells, strict=True))


def columns(task: str) -> tuple[str, str, str, str]:
    """The headings of what a task is tried on."""
    return "epoch", f"{RANKS} ranks", "resumed", f"on {TASKS[task].fewer} ranks"


def _cells(task: str, module: Chooser, found: Found) -> dict[str, str]:
    """A text for each column."""
    one = found["epoch", 1, False, task]
    asked = _asked(task, one)
    if TASKS[task].asked is None:
        cells = [_split(task, one, found["epoch", 1, False, task + REST])]
    else:
        cells = [_judged(asked, one)]
    cells.append(_judged(asked, found["epoch", RANKS, False, task]))
    for world, elastic in ((RANKS, False), (TASKS[task].fewer, _ways(module)[-1])):
        whole = found["epoch", RANKS, elastic, task]
        stopped, rest = found["stop", RANKS, elastic, task], found["resume", world, elastic, task]
        cells.append(_resumed(asked, whole, stopped, rest))
        if elastic and cells[-1] == EXACT and (said := _judged(asked, whole)) != EXACT:
            cells[-1] = f"as without a stop: {said}"
    return dict(zip(columns(task), cells, strict=True))


def _asked(task: str, one: Delivered | Failed) -> Asked | None:
    """What is asked of the ranks: of a split, what one process got."""
    asked = TASKS[task].asked
    if asked is not None or isinstance(one, Failed):
        return asked
    counts = one.counts[:-1]
    return Asked(counts, counts)


def _split(task: str, train: Delivered | Failed, rest: Delivered | Failed) -> str:
    for part in (train, rest):
        if isinstance(part, Failed):
            return part.reason
    return judge_split(task, cast(Delivered, train), cast(Delivered, rest))


def _judged(asked: Asked | None, delivered: Delivered | Failed) -> str:
    if isinstance(delivered, Failed):
        return delivered.reason
    return judge(cast(Asked, asked), delivered)


def _resumed(
    asked: Asked | None, whole: Delivered | Failed, stopped: Delivered | Failed, rest: Delivered | Failed
) -> str:
    """Compare an interrupted run and its continuation with a run that was not interrupted."""
    for delivered in (whole, stopped, rest):
        if isinstance(delivered, Failed):
            return delivered.reason
    whole, stopped, rest = cast(Delivered, whole), cast(Delivered, stopped), cast(Delivered, rest)
    both = Delivered([[[*stopped.in_order, *rest.in_order]]])
    return judge(cast(Asked, asked).like(whole.counts[:-1]), both, RESUMED_WORDS)


def summary(cells: Mapping[str, str]) -> str:
    """Which of a library's cells are exact, in a few words."""
    good = [name for name, text in cells.items() if text.startswith(EXACT)]
    if len(good) == len(cells):
        return EXACT
    return f"exact: {', '.join(good)}" if good else "not exact"


def markdown(result: Mapping[str, Any]) -> str:
    """Two tables: which library does which task exactly, and what each delivered."""
    found = {name: library for name, library in result["libraries"].items() if "tasks" in library}
    names = [f"{name} {next(iter(library['versions'].values()))}" for name, library in found.items()]
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for task in result["tasks"]:
        ones = [library["tasks"].get(task) for library in found.values()]
        cells = ["not offered" if one is None else summary(one["cells"]) for one in ones]
        lines.append(f"| {TASKS[task].title} | " + " | ".join(cells) + " |")
    *same, last = zip(*(columns(task) for task in result["tasks"]), strict=True)
    headings = [*(heading for heading, *_ in same), last[0] if len(set(last)) == 1 else "on other ranks"]
    lines += [
        "",
        "What came:",
        "",
        "| task | library | by | " + " | ".join(headings) + " |",
        "|---" * (len(headings) + 3) + "|",
    ]
    for task in result["tasks"]:
        for name, library in found.items():
            if task in library["tasks"]:
                one = library["tasks"][task]
                cells = [text.replace("|", "\\|") for text in one["cells"].values()]
                lines.append(f"| {TASKS[task].title} | {name} | {one['how']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def between_marks(path: Path, tables: str, tasks: Sequence[str]) -> str:
    """The file's text with the tables between the MARKS of the tasks, or the tables alone if it has none."""
    before, begin, rest = (path.read_text() if path.is_file() else "").partition(MARKS[0].format(tasks[0], tasks[-1]))
    _, end, after = rest.partition(MARKS[1])
    return f"{before}{begin}\n\n{tables}\n{end}{after}" if end else tables


def text(name: str, library: Mapping[str, Any], tasks: Sequence[str]) -> str:
    """A library's results, a line for each task and column."""
    if "failure" in library:
        return f"{name}: {library['failure']}"
    lines = [f"{name} {library['versions']}"]
    for task in tasks:
        one = library["tasks"].get(task)
        if one is None:
            lines.append(f"  {TASKS[task].title}: not offered")
            continue
        lines.append(f"  {TASKS[task].title} ({one['how']})")
        lines += [f"    {column:24} {said}" for column, said in one["cells"].items()]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; return 0, or 1 if a library could not be tried."""
    parser = options(__doc__, rounds=None)
    parser.add_argument("--libraries", default=",".join(libraries(KIND)), help="comma-separated (default: all)")
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated (default: all)")
    parser.add_argument("--work", type=Path, default=Path("/tmp/shardio-choosing"), help="environments and data")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="tables, put between the marks that FILE has")
    args = parser.parse_args(arguments)
    names, tasks = args.libraries.split(","), args.tasks.split(",")
    for wanted, known in ((names, libraries(KIND)), (tasks, tuple(TASKS))):
        if unknown := set(wanted) - set(known):
            parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    result: dict[str, Any] = {"date": date.today().isoformat(), "tasks": tasks, "machine": describe(), "libraries": {}}
    for name in names:
        try:
            found = examine(name, args.work.absolute(), tasks)
        except NotInstalled as error:
            found = {"failure": f"install: {last_line(str(error))}"}
        except PeerFailed as error:
            found = {"failure": last_line(str(error))}
        result["libraries"][name] = found
        print(text(name, found, tasks), flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.markdown is not None:
        args.markdown.write_text(between_marks(args.markdown, markdown(result), tasks))
    return 1 if any("failure" in library for library in result["libraries"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
