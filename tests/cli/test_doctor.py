"""`shardio doctor` as users run it."""

import json
from pathlib import Path

import pytest
from _cli import ended, here

from shardio import diagnosis
from shardio.diagnosis import Finding

SOFTWARE = [
    Finding("PyTorch", "ok", "2.9"),
    Finding("DALI", "optional", "not installed", "pip install dali"),
]


def test_a_table_or_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each finding is a row with a mark; --json has the same. Something optional is no failure."""
    monkeypatch.setattr(diagnosis, "software", lambda: SOFTWARE)
    rows = [line.split() for line in here("doctor").splitlines()]
    assert rows[:3] == [
        ["software"],
        ["ok", "PyTorch", "2.9"],
        ["optional", "DALI", "not", "installed:", "pip", "install", "dali"],
    ]
    assert ["machine"] in rows
    assert ["storage"] not in rows
    told = json.loads(here("doctor", "--json"))
    assert told["software"]["PyTorch"] == {"state": "ok", "value": "2.9", "advice": ""}
    assert set(told) == {"software", "machine", "job"}


def test_what_is_broken_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table is printed all the same, and the error names what is broken."""
    pytest.importorskip("torch", reason="needs torch")  # without it the GPU counts as broken as well
    monkeypatch.setattr(diagnosis, "software", lambda: [*SOFTWARE, Finding("lmdb", "broken", "does not load")])
    code, table, error = ended(capsys, "doctor", tmp_path / "nowhere")
    assert (code, error) == (1, "shardio: broken: lmdb, dataset\n")
    assert "BROKEN    lmdb" in table
    assert "storage" in table
