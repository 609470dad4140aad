"""The smaller benchmarks run on little data, and compute their results correctly."""

import argparse
import json
import sys
from pathlib import Path

import pytest
from _datasets import tensors

from benchmarks import _gpu_data, gpu, other_python


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


@pytest.mark.slow
def test_another_interpreter_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides take turns with the settings that are given, and their rates are compared."""
    tensors(64, tmp_path / "d")
    command = ["other_python", sys.executable, str(tmp_path / "d"), "--settings", "batch-size=8,step-time=0.01"]
    monkeypatch.setattr("shardio.bench.versus.TURN_SECONDS", 0.05)
    monkeypatch.setattr("sys.argv", [*command, "--rounds", "8", "--json", str(tmp_path / "r.json")])
    other_python.main()
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["settings"] == {"dataset": str(tmp_path / "d"), "batch_size": 8, "step_time": 0.01}
    assert found["comparison"]["rounds"] == len(found["a_rates"]) == len(found["b_rates"]) == 8
    assert max(found["b_rates"]) < 840  # 8 samples, steps of 0.01 s
