"""The comparison with other loaders: peers are complete, ratios are fair, and a failing peer does not end the run."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import _environments, _limits, _rounds
from benchmarks._peers import Peer, libraries, load
from benchmarks._processes import PeerFailed
from benchmarks._report import as_json, table
from benchmarks._rounds import Outcome, Plan, compare
from benchmarks._run_peer import Tally, WrongDelivery
from benchmarks._summary import summarise
from benchmarks._workloads import WORKLOADS, arrays, make_arrays, numbers
from benchmarks.compare import main

DELIVERED = {"dtype": "uint8", "mean": 0}
RECORDS = replace(WORKLOADS["records"], count=64, batch_size=8)


def outcome(*rates: float | None, failure: str = "") -> Outcome:
    """Rounds with these rates, at one second of processor time per 1,000 samples."""
    rounds = [None if rate is None else {"samples_per_s": rate, "cpu_s_per_1000": 1.0} for rate in rates]
    return Outcome(rounds, failure, "what is run")


@pytest.mark.parametrize("library", libraries())
def test_every_peer_is_complete(library: str) -> None:
    """Each module has its functions and constants, describes what it runs, and installs the one torch by itself."""
    module = load(library)
    assert callable(module.prepare)
    assert callable(module.epoch)
    assert module.REQUIREMENTS
    if any(item.startswith("torch") for item in module.REQUIREMENTS):
        assert _environments._steps(module)[0] == ["torch==2.13.0"]
    assert module.VERSIONS
    assert set(module.WORKLOADS) <= set(WORKLOADS)
    for name, variants in module.WORKLOADS.items():
        assert len(set(variants)) == len(variants) > 0
        for variant in variants:
            assert module.label(replace(WORKLOADS[name], variant=variant))


def test_rows_hold_medians_and_stand_in_order(tmp_path: Path) -> None:
    """Rows are sorted by speed, failed peers last with reasons; ratios are to the limit and to shardio, by rounds."""
    outcomes = {
        "limit": outcome(100.0, 50.0, 100.0),
        "shardio-tar": outcome(50.0, 30.0, 60.0),
        "broken": outcome(None, None, None, failure="install: no wheel\nERROR: for this Python"),
        "other": outcome(25.0, 15.0, None),
    }
    rows = summarise(outcomes, "shardio-tar")
    assert [row.name for row in rows] == ["limit", "shardio-tar", "other", "broken"]
    assert (rows[2].samples_per_s, rows[2].cpu_s_per_1000) == (20.0, 1.0)
    assert rows[2].of_limit == pytest.approx(0.275)  # median of 0.25 and 0.3
    assert rows[2].of_reference == pytest.approx(0.5)
    text = table(rows, 1000)
    assert text.splitlines()[-1].endswith("FAILED: ERROR: for this Python")
    assert text.splitlines()[0].startswith("peer")
    plan = Plan(replace(RECORDS, variant="x"), tmp_path, tmp_path)
    result = json.loads(json.dumps(as_json(plan, rows, "shardio-tar", {})))
    assert result["peers"]["broken"]["samples_per_s"] is None
    assert "variant" not in result["workload"]


def test_a_failing_peer_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that cannot be installed and one that fails in round two are reported; the third completes all rounds."""
    calls: list[str] = []

    def ready(plan: Plan, peer: Peer, say: Callable[[str], None]) -> _rounds.Ready:
        if peer.library == "ffcv":
            raise _environments.NotInstalled("Debian packages are missing: apt-get install libopencv-dev")
        return _rounds.Ready(peer.library, plan.workload, Path(), Path(), Path())

    def measure(plan: Plan, item: _rounds.Ready | _limits.Limit) -> dict[str, float]:
        name = item.library if isinstance(item, _rounds.Ready) else "limit"
        calls.append(name)
        if name == "torch" and calls.count("torch") == 2:
            raise PeerFailed("exit status 1: ...MemoryError")
        return {"samples_per_s": 10.0, "cpu_s_per_1000": 1.0}

    monkeypatch.setattr(_rounds, "make_ready", ready)
    monkeypatch.setattr(_rounds, "measure", measure)
    said: list[str] = []
    chosen = [Peer("ffcv"), Peer("torch", "h5py"), Peer("tfdata")]
    outcomes = compare(Plan(RECORDS, tmp_path, tmp_path, rounds=3), chosen, said.append)
    assert outcomes["ffcv"].failure == "install: Debian packages are missing: apt-get install libopencv-dev"
    assert outcomes["torch-h5py"].failure == "round 2/3: exit status 1: ...MemoryError"
    assert [result is None for result in outcomes["torch-h5py"].rounds] == [False, True, True]
    assert calls.count("tfdata") == calls.count("limit") == 3
    assert calls[0] != calls[3]  # each round another one begins
    assert any("torch-h5py failed" in line for line in said)
    assert all(len(one.rounds) == 3 for one in outcomes.values())


def test_what_is_delivered_is_checked(tmp_path: Path) -> None:
    """The check counts array elements, and refuses short epochs, other shapes or dtypes, and empty samples."""
    make_arrays(RECORDS, tmp_path / "records.npy")
    data = arrays(RECORDS, tmp_path / "records.npy")
    assert numbers(data[5:8]).tolist() == [5, 6, 7]
    tally = Tally(RECORDS)
    for start in range(0, 64, 8):
        tally.add((data[start : start + 8], None))
    assert tally.end() | {"mean": 0} == DELIVERED | {"samples": 64, "distinct": 64, "shape": (8, 3072)}
    short = Tally(RECORDS)
    short.add((data[:8], None))
    with pytest.raises(WrongDelivery, match="an epoch of 64 samples delivered 8"):
        short.end()
    for wrong, message in (
        (data[:8, :100], r"samples are uint8 \(100,\), not uint8 \(3072,\)"),
        (data[:8].astype("float32"), "samples are float32"),
        (data[:3], "the first batch has 3 samples, not 8"),
        (np.zeros((8, 3072), "uint8"), "the first sample is 0 all over"),
    ):
        with pytest.raises(WrongDelivery, match=message):
            Tally(RECORDS).add((wrong, None))


@pytest.mark.long
def test_records_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two rounds of shardio and the limit run with this interpreter, and the result names machine and versions."""
    size = ["--count", "256", "--batch-size", "32", "--rounds", "2", "--seconds", "0.01"]
    place = ["--work", str(tmp_path / "work"), "--json", str(tmp_path / "result.json")]
    own = ["--python-of", f"shardio={sys.executable}"]
    assert main(["--workload", "records", "--peers", "shardio-hdf5", *size, *place, *own]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    mine = result["peers"]["shardio-hdf5"]
    assert mine["delivered"] | {"mean": 0} == DELIVERED | {"samples": 256, "distinct": 256, "shape": [32, 3072]}
    assert len(mine["rates"]) == len(result["peers"]["limit"]["rates"]) == 2
    assert mine["of_reference"] == 1.0
    assert mine["of_limit"] > 0
    assert result["workload"]["threads"] == 2
    assert result["machine"]["cores"] > 0
    assert result["unsupported"] == {"spdl": "does not run records"}
    assert "shardio-hdf5" in capsys.readouterr().out
