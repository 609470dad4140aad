"""Run the command line in a process of its own, as a user does."""

import glob
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import _forked
import pytest
from typer.testing import CliRunner

from shardio.cli import app, main


def run(*args: object, code: int = 0, cwd: Path | None = None, **environ: str) -> str:
    """Run a command and return its output; its exit status must be `code`."""
    words = [*map(str, args)]
    if "PYTHONPATH" in environ:  # other modules than those that are loaded here
        command = [sys.executable, "-m", "shardio", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, env=os.environ | environ)
    else:
        done = _forked.run(_forked.COMMAND, *words, folder=cwd, environ=os.environ | environ)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def here(*words: object) -> str:
    """Run a command in this process, whose errors are raised; return what it printed."""
    done = CliRunner().invoke(app, [*map(str, words)], prog_name="shardio", catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def ended(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Run a command in this process to its end; return its exit code and what it wrote to both outputs."""
    with mock.patch.object(sys, "argv", ["shardio", *map(str, words)]), pytest.raises(SystemExit) as end:
        main()
    assert isinstance(end.value.code, int)
    return end.value.code, *capsys.readouterr()


def python(*words: object, code: int = 0, timeout: float = 120, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run an interpreter of its own, which inherits nothing; its exit status must be `code`."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done


def unfinished(out: Path, pattern: str) -> list[str]:
    """The files of an unfinished conversion that match `pattern`; folders may disappear during the search."""
    return glob.glob(f"{glob.escape(str(out))}/.converting/run-*/{pattern}", include_hidden=True)
