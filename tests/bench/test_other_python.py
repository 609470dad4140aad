"""The shardio of another interpreter, measured in turns; what is no such interpreter is refused in words."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from _cli import run

import shardio
from shardio.bench import BenchConfig
from shardio.bench.other_python import OtherPython
from shardio.bench.turn_server import answers
from shardio.errors import ConfigError, ShardioError


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 200 vectors."""
    path = tmp_path_factory.mktemp("bench") / "vectors"
    with shardio.create(path, fields={"x": ("float32", (4,))}) as writer:
        for number in range(200):
            writer.append({"x": np.full(4, number, np.float32)})
    return path


@pytest.mark.long
def test_versus_python(vectors: Path, tmp_path: Path) -> None:
    """Both sides are measured in turns, and text and JSON name them."""
    command = ("bench", vectors, "--batch-size", 8, "--versus-python", sys.executable, "--rounds", 8)
    told = run(*command, "--versus", "threads=1,step-time=0.02", "--json", tmp_path / "v.json", code=3)
    assert f"shardio {shardio.__version__} in " in told
    assert "note: both interpreters import the shardio in " in told
    found = json.loads((tmp_path / "v.json").read_text())
    assert found["schema"] == "shardio-bench-versus/1"
    assert found["b_installation"] == found["a_installation"]
    assert found["b_installation"]["interpreter"] == sys.executable
    assert len(found["a_rates"]) == len(found["b_rates"]) == 8
    assert max(found["b_rates"]) < 420  # 8 samples, steps of 0.02 s


def stand_in(path: Path, script: str) -> str:
    """Write a program that is no interpreter with shardio."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (f"exec {sys.executable} -I -S $*", "measures in turns, got .*: there is no shardio in its environment"),
        ("echo python: No module named shardio.bench.turn_server >&2", "the shardio in its environment is too old"),
        ("echo hello", "measures in turns, got .*: it says 'hello'"),
        ("echo 7", "it says '7'"),
        ("echo '{}'", "its first answer is {}"),
    ],
)
def test_what_has_no_shardio(tmp_path: Path, script: str, message: str) -> None:
    """The message names the rule, the interpreter and what is wrong with it."""
    python = stand_in(tmp_path / "python", script)
    with pytest.raises(ConfigError, match=f"versus_python must be an interpreter whose shardio .*{message}"):
        OtherPython(python, BenchConfig("d"))


def test_an_interpreter_that_fails(tmp_path: Path) -> None:
    """What it said last is told, and what its shardio says."""
    python = stand_in(tmp_path / "python", "echo first >&2; echo broken >&2; exit 3")
    with pytest.raises(ShardioError, match="python ended with exit code 3: broken"):
        OtherPython(python, BenchConfig("d"))
    with pytest.raises(ConfigError, match="versus_python must be an interpreter's path, got '/no/python'"):
        OtherPython("/no/python", BenchConfig("d"))
    with pytest.raises(ShardioError, match=r"python.*: nowhere: no such directory"):
        OtherPython(sys.executable, BenchConfig("nowhere"))


def test_a_setting_that_the_other_version_lacks() -> None:
    """It is named, with the version."""
    with pytest.raises(ConfigError, match=r"shardio [\d.]+ has no setting 'no_such'"):
        next(answers(['{"config": {"dataset": "d", "no_such": 1}}']))
