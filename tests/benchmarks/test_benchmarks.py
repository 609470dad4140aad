"""The smaller benchmarks run on little data, and compute their results correctly."""

import argparse
import json
import sys
import time
from pathlib import Path

import pytest
from _builders import jpeg
from _datasets import tensors

from benchmarks import _gpu_data, _processes, derive, detection, find, gpu, other_python, writing
from benchmarks._gpu_parts import Case, Settings, Step, in_turns
from benchmarks._processes import PeerFailed


def small(**changes: object) -> argparse.Namespace:
    """Options of the GPU benchmark for little data on the CPU."""
    given = {"photos": None, "device": "cpu", "only": list(gpu.LIMITS), "batch_size": 4, "size": 32, "seconds": 0.02}
    given |= {"rounds": 1, "budget": 480.0, "photos_count": 40, "arrays_count": 32, "threads": [1], "json": None}
    return argparse.Namespace(**(given | changes))


def test_the_benchmark_of_writing_compares_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each size of rows has rates of both sides and their ratio, and nothing stays in the folder."""
    (tmp_path / "work").mkdir()
    options = {"--work": tmp_path / "work", "--mbytes": 1, "--shards": 2, "--rounds": 1, "--json": tmp_path / "r.json"}
    monkeypatch.setattr(sys, "argv", ["writing", *(str(word) for pair in options.items() for word in pair)])
    monkeypatch.setattr(writing, "ROWS", {"small": (1024, 4), "large": (38_400, 2)})
    writing.main()
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert rows.keys() == {"small", "large"}
    assert all(row["mbytes_per_second"].keys() == {"extend", "copy"} and row["ratio"] > 0 for row in rows.values())
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.slow
def test_the_benchmark_of_derive_compares_equal_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Photos have the rates of derive and Loader, rows of derive and copy; nothing stays in the folder."""
    for name in ("work", "photos"):
        (tmp_path / name).mkdir()
    for number in range(4):
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(jpeg(300, 400, seed=number))
    options = {"--work": tmp_path / "work", "--photos": tmp_path / "photos", "--rows": 300}
    options |= {"--rounds": 1, "--json": tmp_path / "r.json"}
    monkeypatch.setattr(sys, "argv", ["derive", *(str(word) for pair in options.items() for word in pair)])
    derive.main()
    found = json.loads((tmp_path / "r.json").read_text())
    for name, other in {"photos": "loader", "rows": "copy"}.items():
        assert found[name]["samples_per_second"].keys() == {"derive", other}
        assert found[name]["ratio"] > 0
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.long
def test_the_gpu_benchmark_runs_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every experiment measures the operators for the CPU, has a row for each case, and a table is made of them."""
    monkeypatch.setattr(_gpu_data, "SYNTHETIC_PHOTOS", 3)
    monkeypatch.setattr(_gpu_data, "ARRAY", (2, 16, 16))
    result = gpu.measure(small(json=tmp_path / "r.json"), tmp_path)
    assert json.loads((tmp_path / "r.json").read_text()) == result
    assert "drawn pictures" in result["images"]
    assert list(result["experiments"]) == list(gpu.LIMITS)
    for name, found in result["experiments"].items():
        assert "failed" not in found
        assert not [row for row in found["rows"] if "failed" in row]
        assert all(row["rate"] > 0 for row in found["rows"] if row.get("unit") in ("images/s", "GB/s")), name
    inputs = {row["what"]: row["waited"] for row in result["experiments"]["train"]["rows"]}
    assert inputs.keys() > {f"train, {name}" for name in ("synthetic", "engine cpu", "engine dali", "DALI alone")}
    assert all(0 < waited < 1 for waited in inputs.values())
    lines = list(gpu.table(result["experiments"]))
    assert len(lines) == 2 + sum(len(found["rows"]) for found in result["experiments"].values())


def test_what_a_cut_off_experiment_found_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole rows count, the newest of each case, with the reason; the experiments behind it run."""

    def cut_off(command: list[str], limit: float) -> None:
        assert 5 <= limit <= 480
        rows = [{"what": what, "rate": rate, "unit": "images/s"} for what, rate in (("a", 1.0), ("b", 5.0), ("a", 2.0))]
        Path(command[-1]).write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"what": "c", "ra')
        raise PeerFailed("no end after 9 s: ...")

    monkeypatch.setattr(_gpu_data, "photos", lambda *_: (tmp_path, tmp_path, ""))
    monkeypatch.setattr(_gpu_data, "arrays", lambda *_: tmp_path)
    monkeypatch.setattr(_processes, "run", cut_off)
    experiments = gpu.measure(small(only=["host", "dali"]), tmp_path)["experiments"]
    assert [found["failed"] for found in experiments.values()] == ["no end after 9 s: ..."] * 2
    assert [(row["what"], row["rate"]) for row in experiments["dali"]["rows"]] == [("a", 2.0), ("b", 5.0)]
    late = gpu.measure(small(only=["host"], budget=1.0), tmp_path)["experiments"]["host"]
    assert (late["rows"], late["failed"]) == ([], "no time was left")


def test_the_gpu_table_says_what_to_change() -> None:
    """A case that is faster than the first one of its group says what to change, and one that fails says why."""
    settings = Settings("cpu", "", "", "", [1], 8, 32, seconds=0.02, rounds=3)

    def case(what: str, seconds: float, **said: str) -> Case:
        return Case(what, lambda: lambda: time.sleep(seconds) or 0.0, **said)

    def broken() -> Step:
        raise ModuleNotFoundError("No module named 'nvidia'")

    cases = [case("own", 0.004), case("other", 0.001, faster="take it"), case("third", 0.02, faster="no", slower="yes")]
    rows = {row["what"]: row for row in in_turns(settings, [*cases, Case("absent", broken)])}
    assert {name: row.get("change") for name, row in rows.items()} == {
        "own": "", "other": "take it", "third": "yes", "absent": None,
    }  # fmt: skip
    assert rows["own"]["ratio"] == 1
    assert rows["own"]["rate"] < 8 / 0.004
    assert rows["absent"]["failed"] == "ModuleNotFoundError: No module named 'nvidia'"
    text = "\n".join(gpu.table({"host": {"rows": list(rows.values())}}))
    assert "take it" in text
    assert "failed: ModuleNotFoundError" in text


def test_loaders_with_and_without_boxes_make_the_same_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Loader without boxes crops as the one with boxes did, which the benchmark checks; both have a rate."""
    for number in range(20):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(60 + number, 80, seed=number))
    monkeypatch.setattr(detection, "SIDE", 32)
    monkeypatch.setattr(detection, "BATCH_SIZE", 4)
    result = tmp_path / "result.json"
    monkeypatch.setattr(sys, "argv", ["", "--photos", str(tmp_path), "--rounds", "1", "--json", str(result)])
    detection.main()
    for found in (json.loads(result.read_text())[by] for by in ("by the clock", "by processor time")):
        assert found["of the rate without boxes"] > 0
        assert found["images per second"].keys() == {"boxes", "without boxes"}


@pytest.mark.slow
def test_keys_are_looked_up_in_memory_and_in_a_file(tmp_path: Path) -> None:
    """The benchmark of `find` measures both, and removes its file."""
    found = find.measured(argparse.Namespace(samples=1000, keys=100, rounds=1, work=tmp_path))
    assert found["seconds"].keys() == {"memory", "mapped", "opened"}
    assert not [*tmp_path.iterdir()]


@pytest.mark.long
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
