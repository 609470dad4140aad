"""The smaller benchmarks run on little data, and compute their results correctly."""

import argparse
import json
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from _datasets import packed, tensors

import shardio
from benchmarks import _gpu_data, _gpu_parts, gpu, isolate, other_python, parity, settings, shuffle
from benchmarks._results import finish, in_turns
from benchmarks.before_after import rates_of
from shardio import World


def test_turns_give_medians() -> None:
    """Each configuration runs once per round, and its median is reported."""
    calls: list[str] = []
    figures = {"a": iter([3.0, 1.0, 2.0]), "b": iter([30.0, 10.0, 20.0])}

    def run(name: str) -> float:
        calls.append(name)
        return next(figures[name])

    assert in_turns({name: lambda name=name: run(name) for name in figures}, 3) == {"a": 2.0, "b": 20.0}  # type: ignore[misc]
    assert calls == ["a", "b", "b", "a", "a", "b"]


def test_a_result_names_its_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A result holds figures, date, cores, processor and versions, in the file and on the screen."""
    finish({"rate": 7}, tmp_path / "r.json")
    told = json.loads((tmp_path / "r.json").read_text())
    assert told == json.loads(capsys.readouterr().out)
    assert told["rate"] == 7
    assert {"cores", "processor", "packages", "compiled"} <= told["machine"].keys()


def test_shuffle_quality_tells_orders_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data stored by class has one run per class, a global shuffle runs as by chance, and blocks lie between."""
    monkeypatch.setattr(shuffle, "SAMPLES", 100_000)
    monkeypatch.setattr(shuffle, "CLASSES", 100)
    stored, blocks, everything = (shuffle.quality(order) for order in (None, "block", "global"))
    assert stored["run"] == 1000
    assert everything["run"] == pytest.approx(1.01, abs=0.01)
    assert everything["run"] < blocks["run"] < stored["run"]
    assert everything["classes_in_a_batch"] > blocks["classes_in_a_batch"] > stored["classes_in_a_batch"]
    assert everything["neighbours_distance"] > blocks["neighbours_distance"] > stored["neighbours_distance"] == 1


def test_rates_count_samples(tmp_path: Path) -> None:
    """Rates count whole epochs that last at least the requested time; the heavy function keeps its input."""
    settings.arrays(tmp_path / "d", 40, (3,), "uint8")
    loader = shardio.Loader(tmp_path / "d", 8, world=World(), map=isolate.heavy, map_by="sample")
    assert settings.rate(loader, 0.01) > 0
    assert isolate.rate(loader) > 0
    assert next(iter(loader)).keys() == {"array", "total", "index"}


def small(**changes: object) -> argparse.Namespace:
    """Options of the GPU benchmark for a small dataset."""
    given = {"photos": None, "device": "cpu", "batch_size": 8, "seconds": 0.1, "budget": 120.0, "photos_count": 40}
    return argparse.Namespace(**(given | {"arrays_count": 32, "threads": [1], "rounds": 1} | changes))


@pytest.mark.long
def test_the_gpu_benchmark_says_what_it_cannot_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU the CPU is measured, each missing figure has a reason, and the plot is drawn."""
    monkeypatch.setattr(_gpu_data, "SYNTHETIC_PHOTOS", 3)
    monkeypatch.setattr(_gpu_data, "ARRAY", (2, 16, 16))
    monkeypatch.setattr(gpu, "ENGINES", ("cpu", "dali"))
    result = gpu.measure(small(), tmp_path)
    assert {name: list(rates) for name, rates in result["decode"].items()} == {"cpu": ["1"], "dali": ["1"]}
    assert all(rate > 0 for rates in result["decode"].values() for rate in rates.values())
    assert result["tensors"]["gb_per_second"] > 0
    assert result["skipped"] == dict.fromkeys(("train", "overlap"), "there is no GPU")
    assert "drawn pictures" in result["images"]
    gpu.plot(result, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
    assert json.loads(json.dumps(result)) == result


def test_a_measurement_that_fails_is_left_out(tmp_path: Path) -> None:
    """Measurements that die, time out or start too late are reported, and the others continue."""
    session = gpu.Session(time.monotonic() + 60, limit=60)
    assert session.measure("no GPU", "versions", device="cuda") is None
    # The message depends on whether torch was built with CUDA.
    assert re.search("not compiled with CUDA|no NVIDIA driver", session.skipped["no GPU"])
    session.deadline = 0
    assert session.measure("late", "versions", device="cpu") is None
    assert session.skipped["late"] == "no time was left"


def test_training_is_measured_beside_synthetic_input() -> None:
    """Training reports its rate relative to synthetic input, or nothing where that rate is unknown."""
    train = {"synthetic": {"images_per_second": 100.0}, "dali": {"images_per_second": 99.0}, "cpu": None}
    assert gpu._starved(train) == {"dali": pytest.approx(0.01)}
    assert gpu._starved({"synthetic": None}) == {}
    model = _gpu_parts.resnet50(10)
    assert sum(p.numel() for p in model.parameters()) == 25_557_032 - 990 * 2049  # of a thousand classes, less 990


def test_pillow_goes_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Pillow reference of the parity benchmark makes the engines' crops."""
    monkeypatch.setattr(parity, "BATCH", 4)
    files = [_gpu_data.synthetic_photo(number) for number in range(4)]
    packed(tmp_path / "d", [{"image": data} for data in files], shard_size="10MB")
    for name in parity.JUDGED:
        indices, made = parity.epoch(str(tmp_path / "d"), parity.TRANSFORMS[name], "cpu", "cpu")
        judged = [parity.by_pillow(files[index], index, parity.TRANSFORMS[name]) for index in indices]
        assert parity.apart(made, np.stack(judged))["mean"] < 3


@pytest.mark.slow
def test_another_interpreter_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides take turns with the settings that are given, and their rates are compared."""
    tensors(64, tmp_path / "d")
    command = ["other_python", sys.executable, str(tmp_path / "d"), "--settings", "batch-size=8,step-time=0.02"]
    monkeypatch.setattr("shardio.bench.versus.TURN_SECONDS", 0.1)
    monkeypatch.setattr("sys.argv", [*command, "--rounds", "8", "--json", str(tmp_path / "r.json")])
    other_python.main()
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["settings"] == {"dataset": str(tmp_path / "d"), "batch_size": 8, "step_time": 0.02}
    assert found["comparison"]["rounds"] == len(found["a_rates"]) == len(found["b_rates"]) == 8
    assert max(found["b_rates"]) < 420  # 8 samples, steps of 0.02 s


def test_an_interpreter_that_ends_is_named(tmp_path: Path) -> None:
    """The error says which one ended, and how."""
    with (
        rates_of(["false"], tmp_path, {}) as ask,
        pytest.raises(RuntimeError, match="false has ended with exit code 1"),
    ):
        ask("{}")
