"""The smaller benchmarks run, on little data: what they report is computed right, whatever the figures."""

import json
from pathlib import Path

import pytest

import shardio
from benchmarks import isolate, scale, settings, shuffle
from benchmarks._results import finish, in_turns
from shardio import World


def test_turns_give_medians() -> None:
    """Each run has one turn a round, and its median counts."""
    calls: list[str] = []
    figures = {"a": iter([3.0, 1.0, 2.0]), "b": iter([30.0, 10.0, 20.0])}

    def run(name: str) -> float:
        calls.append(name)
        return next(figures[name])

    assert in_turns({name: lambda name=name: run(name) for name in figures}, 3) == {"a": 2.0, "b": 20.0}  # type: ignore[misc]
    assert calls == ["a", "b", "b", "a", "a", "b"]


def test_a_result_names_its_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures, the date, cores, processor and versions, in the file and on the screen."""
    finish({"rate": 7}, tmp_path / "r.json")
    told = json.loads((tmp_path / "r.json").read_text())
    assert told == json.loads(capsys.readouterr().out)
    assert told["rate"] == 7
    assert {"cores", "processor", "packages", "compiled"} <= told["machine"].keys()


def test_plans_of_any_size_cost_the_same(tmp_path: Path) -> None:
    """The measured plan is a real one."""
    assert scale.plan(10**12)["memory_mb"] < 100
    scale.write_manifest(str(tmp_path))
    assert scale.open_manifest(str(tmp_path))["samples"] == 10**9


def test_shuffle_quality_tells_orders_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored classes are one long run each, a global shuffle has chance's figures, blocks lie between."""
    monkeypatch.setattr(shuffle, "SAMPLES", 100_000)
    monkeypatch.setattr(shuffle, "CLASSES", 100)
    stored, blocks, everything = (shuffle.quality(order) for order in (None, "block", "global"))
    assert stored["run"] == 1000
    assert everything["run"] == pytest.approx(1.01, abs=0.01)
    assert everything["run"] < blocks["run"] < stored["run"]
    assert everything["classes_in_a_batch"] > blocks["classes_in_a_batch"] > stored["classes_in_a_batch"]
    assert everything["neighbours_distance"] > blocks["neighbours_distance"] > stored["neighbours_distance"] == 1


def test_rates_count_samples(tmp_path: Path) -> None:
    """Whole epochs, at least as long as asked for; the heavy function keeps what it is given."""
    settings.arrays(tmp_path / "d", 40, (3,), "uint8")
    loader = shardio.Loader(tmp_path / "d", 8, world=World(), map=isolate.heavy, map_by="sample")
    assert settings.rate(loader, 0.01) > 0
    assert isolate.rate(loader) > 0
    assert next(iter(loader)).keys() == {"array", "total", "index"}
