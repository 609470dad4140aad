"""The comparison of how loaders choose samples: what is delivered is judged rightly, and failures are told in words."""

import json
import os
import re
import signal
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from benchmarks import _environments, _run_choosing
from benchmarks._choosing import (
    ADDED,
    APPENDED,
    BAD,
    CHANGE,
    CHOSEN,
    CLASS_SIZES,
    EXACT,
    LABELS,
    MIXED,
    PATIENTS,
    SAMPLES,
    SOURCES,
    TASKS,
    A,
    Asked,
    Delivered,
    Place,
    checked,
    decoded,
    feature,
    judge,
    judge_split,
    payload,
)
from benchmarks._peers import HERE, libraries
from benchmarks._peers import load as load_peer
from benchmarks._run_choosing import KIND, load
from benchmarks.choosing import MARKS, Failed, Runner, _features, _resumed, between_marks, main, markdown


def asked(task: str) -> Asked:
    """What a task asks for."""
    found = TASKS[task].asked
    assert found is not None
    return found


def on_one(numbers: Sequence[int]) -> Delivered:
    """A delivery of one rank in one step."""
    return Delivered([[list(numbers)]])


def mixture(early: tuple[int, ...], late: tuple[int, ...]) -> list[int]:
    """So many samples of each source within the first CHANGE samples, and so many after them."""
    first = [source[n] for source, count in zip(SOURCES, early, strict=True) for n in range(count)]
    rest = [
        source[a + n] for source, a, b in zip(SOURCES, early, late, strict=True) for n in range(min(b, len(source) - a))
    ]
    return first + rest


@pytest.mark.parametrize("library", libraries(KIND))
def test_every_library_is_complete(library: str) -> None:
    """Each module has its functions, offers tasks that exist, and installs the one torch by itself."""
    module = load(library)
    for needed in (module.prepare, module.grow, module.feed):
        assert callable(needed)
    assert set(module.HOW) <= set(TASKS)
    assert ("features" in module.HOW) == hasattr(module, "derive") == hasattr(module, "derived")
    assert all(module.HOW.values())
    assert module.VERSIONS
    if any(item.startswith("torch==") for item in module.REQUIREMENTS):
        assert _environments._steps(load_peer(library, KIND))[0] == ["torch==2.13.0"]


@pytest.mark.parametrize(
    ("task", "numbers", "said"),
    [
        ("select", CHOSEN.tolist(), EXACT),
        ("select", CHOSEN[::-1].tolist(), EXACT),  # the order is the loader's
        ("select", CHOSEN[:-2].tolist(), "2 missing"),
        ("select", [*CHOSEN.tolist(), int(CHOSEN[0])], "1 too many"),
        ("select", [*CHOSEN.tolist(), -1], "1 not asked for"),
        ("repeat", [*range(SAMPLES), *range(SAMPLES), *range(0, SAMPLES, 2)], EXACT),
        ("repeat", [*range(SAMPLES)] * 2, "2,048 samples for 2,560"),
        ("mix", mixture((448, 128, 64), (448, 128, 64)), EXACT),
        ("mix", mixture((448, 128, 64), (447, 128, 65)), "895/256/129 for 896/256/128"),
        ("stages", mixture((448, 128, 64), (64, 128, 448)), EXACT),
        ("stages", mixture((447, 129, 64), (65, 127, 448)), "at first 447/129/64 for 448/128/64"),
    ],
)
def test_an_epoch_is_counted(task: str, numbers: list[int], said: str) -> None:
    """Each sample has to come as often as asked, and each group, whatever the order."""
    assert judge(asked(task), on_one(numbers)) == said


def test_ranks_take_equal_steps() -> None:
    """What ranks deliver together is counted as one, and their steps are compared."""
    numbers = CHOSEN.tolist()
    assert judge(asked("select"), Delivered([[numbers[:100], numbers[100:]], [[], []]])) == EXACT
    assert judge(asked("select"), Delivered([[numbers[:100], numbers[100:]], [[]]])) == "1 to 2 steps"


def test_balance_counts_classes() -> None:
    """As many of each class, and of the samples of a class floor or ceil of their share."""
    members = [np.flatnonzero(label == LABELS) for label in range(len(CLASS_SIZES))]
    even = [int(n) for rows in members for n in np.resize(rows, 96)]
    assert judge(asked("balanced"), on_one(even)) == EXACT
    drawn = [int(n) for rows in members for n in np.random.default_rng(0).choice(rows, 96)]
    assert "too many" in judge(asked("balanced"), on_one(drawn))
    assert "of a class for 96" in judge(asked("balanced"), on_one(even[1:]))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (slice(0, 100), slice(100, 333), EXACT),
        (slice(0, 100), slice(90, 333), "10 repeated"),
        (slice(0, 100), slice(110, 333), "10 lost"),
        (slice(0, 100), slice(100, 320), EXACT),  # as without an interruption, where the last 13 are left out
    ],
)
def test_a_resumed_run_is_compared_with_a_whole_one(before: slice, after: slice, said: str) -> None:
    """What the two parts deliver together is what is asked, or what a run does that wasn't interrupted."""
    whole = on_one(CHOSEN[:320].tolist())
    parts = (on_one(CHOSEN[before].tolist()), on_one(CHOSEN[after].tolist()))
    assert _resumed(asked("select"), whole, *parts) == said
    assert _resumed(asked("select"), whole, Failed("ValueError: no"), parts[1]) == "ValueError: no"


def test_what_was_added_meanwhile_may_come_in_the_next_epoch() -> None:
    """An epoch that was interrupted may end with the samples that it began with, but must have all of these."""
    old, whole = list(A), on_one([*A, *APPENDED])
    assert _resumed(asked("grow"), whole, on_one(old[:500]), on_one(old[500:])) == EXACT
    assert _resumed(asked("grow"), whole, on_one(old[:500]), on_one([*old[500:], *APPENDED])) == EXACT
    assert _resumed(asked("grow"), whole, on_one(old[:500]), on_one(old[510:])) == "10 lost"
    assert _resumed(asked("grow"), whole, on_one(old[:500]), on_one([*old[500:], old[0]])) == "1 repeated"


def test_draws_are_compared_with_the_same_draws() -> None:
    """Where a library draws at random, a resumed run has to deliver what the whole one does."""
    whole = mixture((440, 130, 70), (450, 120, 70))
    assert len(whole) == MIXED
    assert _resumed(asked("mix"), on_one(whole), on_one(whole[:CHANGE]), on_one(whole[CHANGE:])) == EXACT
    assert _resumed(asked("mix"), on_one(whole), on_one(whole[:CHANGE]), on_one(whole[:CHANGE])) == (
        "640 lost; 640 repeated"
    )


def test_splits_are_judged() -> None:
    """Both parts together are the data; classes keep their shares, and patients stay whole."""
    order = np.argsort(LABELS, kind="stable")
    fair = np.concatenate([np.flatnonzero(label == LABELS)[: round(0.9 * n)] for label, n in enumerate(CLASS_SIZES)])
    both = np.arange(SAMPLES)
    assert judge_split("split", on_one(fair.tolist()), on_one(np.setdiff1d(both, fair).tolist())) == EXACT
    assert judge_split("split", on_one(order[:922].tolist()), on_one(order[922:].tolist())).startswith("a class ")
    whole = PATIENTS < 72
    parts = on_one(np.flatnonzero(whole).tolist()), on_one(np.flatnonzero(~whole).tolist())
    assert judge_split("grouped", *parts) == EXACT
    assert "patients torn" in judge_split("grouped", on_one(fair.tolist()), on_one(np.setdiff1d(both, fair).tolist()))
    assert "1 in no part" in judge_split("split", on_one(fair[1:].tolist()), on_one(np.setdiff1d(both, fair).tolist()))


def test_values_that_were_added_are_compared() -> None:
    """A sample counts only with its own value."""
    values = ADDED[:3].tolist()
    assert checked([0, 1, 2], values) == [0, 1, 2]
    assert checked([2, 1, SAMPLES], values) == [-1, 1, -1]


def test_one_payload_is_bad() -> None:
    """All samples but one can be decoded."""
    assert [decoded(payload(number)) for number in (0, BAD - 1, BAD + 1)] == [0, BAD - 1, BAD + 1]
    with pytest.raises(zlib.error):
        decoded(payload(BAD))


def test_a_job_is_killed_midway(tmp_path: Path) -> None:
    """The function that computes features ends its process group after half of the calls, if it is told to."""
    calls = tmp_path / "calls"
    calls.with_suffix(".kill").touch()
    if not (child := os.fork()):
        os.setpgrp()
        for number in range(SAMPLES):
            feature(calls, number)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert calls.stat().st_size == SAMPLES // 2 + 1
    calls.with_suffix(".kill").unlink()
    assert [feature(calls, number) for number in range(10)] == ADDED[:10].tolist()


class Computing:
    """A runner of a library that keeps `kept` samples of a killed job, and whose output lacks `lost`."""

    def __init__(self, folder: Path, kept: int, lost: int) -> None:
        self.folder, self._kept, self._lost = folder, kept, lost

    def jobs(self, world: int, jobs: Sequence[Mapping[str, Any]]) -> list[Delivered | Failed]:
        """Compute as many samples as are left, or read the output."""
        (job,) = jobs
        calls = self.folder / f"{job['name']}.calls"
        if job["mode"] == "derived":
            return [on_one(range(self._lost, SAMPLES))]
        before = calls.stat().st_size if calls.is_file() else 0
        if calls.with_suffix(".kill").exists():
            calls.write_bytes(b"." * 512)
            return [Failed("the process died")]
        calls.write_bytes(b"." * (before + SAMPLES - (self._kept if before else 0)))
        return [Delivered([[]] * world)]


@pytest.mark.parametrize(
    ("kept", "lost", "said"),
    [
        (512, 0, [EXACT] * 4),
        (500, 0, [EXACT, EXACT, "exact (12 computed again)", "exact (12 computed again)"]),
        (512, 3, ["3 missing"] * 4),
    ],
)
def test_features_are_counted(tmp_path: Path, kept: int, lost: int, said: list[str]) -> None:
    """Each sample must have its feature once; what a job computes again after a kill is told."""
    cells = _features(cast(Runner, Computing(tmp_path, kept, lost)))
    assert cells == dict(zip(("epoch", "4 ranks", "resumed", "on 2 ranks"), said, strict=True))


def test_each_table_has_its_place(tmp_path: Path) -> None:
    """A page holds the tables of several results, each between marks of its tasks."""
    page = tmp_path / "page.md"
    begins = [MARKS[0].format(*ends) for ends in (("all", "grouped"), ("column", "bad"))]
    page.write_text("".join(f"text\n{begin}\nold\n{MARKS[1]}\n" for begin in begins))
    made = between_marks(page, "new", ["column", "relabel", "bad"])
    assert made == f"text\n{begins[0]}\nold\n{MARKS[1]}\ntext\n{begins[1]}\n\nnew\n{MARKS[1]}\n"


class Faulty:
    """A library whose loader does what the task says."""

    def feed(self, task: str, place: Place) -> Iterator[list[int]]:
        """Deliver, fail or hang."""
        if task == "fails":
            raise ValueError("no such\nsampler. See the manual.")
        if task == "hangs":
            time.sleep(30)
        return iter([[place.rank], [2]])


def test_failing_jobs_stop_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that raises, and one that doesn't end, have an error in words; the next one runs."""
    monkeypatch.setattr(_run_choosing, "JOB_SECONDS", 0.5)
    order = {"folder": str(tmp_path), "rank": 1, "world": 4}
    results = [
        _run_choosing.in_a_process(
            Faulty(),  # type: ignore[arg-type]
            order,
            {"task": task, "mode": "epoch", "steps": None, "elastic": False, "global_batch": 4, "port": 1},
            tmp_path / "job",
        )
        for task in ("fails", "hangs", "delivers")
    ]
    assert results == [
        {"error": "ValueError: no such sampler"},
        {"error": "no end after 0 s"},
        {"steps": [[1], [2]]},
    ]


def test_the_documented_tables_are_those_of_the_result() -> None:
    """The page shows the tables of the results that it links to."""
    page = (HERE.parent / "docs" / "comparison.md").read_text()
    names = re.findall(r"results/([^)]*-(?:choosing|columns)\.json)", page)
    assert 0 < len(set(names)) == len(names) == page.count(MARKS[1])
    for name in names:
        assert markdown(json.loads((HERE / "results" / name).read_text())) in page


@pytest.mark.long
def test_shardio_chooses_exactly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From end to end: ranks are real processes, and the result and its tables say what came."""
    size = ["--libraries", "shardio", "--tasks", "select,mix,five,bad", "--work", str(tmp_path / "work")]
    assert main([*size, "--json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")]) == 0
    result = json.loads((tmp_path / "r.json").read_text())
    for task in result["libraries"]["shardio"]["tasks"].values():
        assert set(task["cells"].values()) == {EXACT}
    assert markdown(result) == (tmp_path / "r.md").read_text()
    assert "| choose by numbers | exact |" in markdown(result)
    assert "choose by numbers (select)" in capsys.readouterr().out
