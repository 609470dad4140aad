"""`shardio doctor` as users run it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shardio import diagnosis
from shardio.cli import app
from shardio.diagnosis import Finding
from shardio.errors import ShardioError

SOFTWARE = [
    Finding("PyTorch", "ok", "2.9"),
    Finding("DALI", "optional", "not installed", "pip install dali"),
]


def test_a_table_or_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each finding is a row with a mark; --json has the same. Something optional is no failure."""
    monkeypatch.setattr(diagnosis, "software", lambda: SOFTWARE)
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[:3] == [
        ["software"],
        ["ok", "PyTorch", "2.9"],
        ["optional", "DALI", "not", "installed:", "pip", "install", "dali"],
    ]
    assert ["machine"] in rows
    assert ["storage"] not in rows
    told = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert told["software"]["PyTorch"] == {"state": "ok", "value": "2.9", "advice": ""}
    assert set(told) == {"software", "machine", "job"}


def test_what_is_broken_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is printed all the same, and the error names what is broken."""
    pytest.importorskip("torch", reason="needs torch")  # without it the GPU counts as broken as well
    monkeypatch.setattr(diagnosis, "software", lambda: [*SOFTWARE, Finding("lmdb", "broken", "does not load")])
    done = CliRunner().invoke(app, ["doctor", str(tmp_path / "nowhere")])
    assert isinstance(done.exception, ShardioError)
    assert str(done.exception) == "broken: lmdb, dataset"
    assert "BROKEN    lmdb" in done.stdout
    assert "storage" in done.stdout
