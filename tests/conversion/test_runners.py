"""Tasks on threads: progress within a task, and an end for the others once one has failed."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from _time_limit import wait_until

from shardio.conversion import runners
from shardio.conversion.runners import in_threads


def test_progress_comes_within_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples count as they are done, not when their task ends, and the last report has all of them."""
    monkeypatch.setattr(runners, "POLL_SECONDS", 0.0)
    reports: list[int] = []

    def work(task: int, advance: Any) -> Any:
        for _ in range(task):
            advance(1)
        return SimpleNamespace(samples=task)

    in_threads(2)(work, [3, 4], reports.append, lambda result: None)
    assert reports == sorted(reports)
    assert {*range(1, 8)} == {*reports}


def test_a_failure_stops_the_other_tasks() -> None:
    """A task that reports its progress ends when another one has failed, however long it would take."""
    running = threading.Event()
    ended = threading.Event()

    def work(task: int, advance: Any) -> Any:
        if task == 0:
            assert running.wait(10)
            raise ValueError("broken")
        try:
            while True:
                advance(1)
                running.set()
        finally:
            ended.set()

    with pytest.raises(ValueError, match="broken"):
        in_threads(2)(work, [0, 1, 2], lambda done: None, lambda result: None)
    wait_until(ended.is_set)
