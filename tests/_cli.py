"""The command line as a user has it: in a process of its own."""

import glob
import os
import subprocess
import sys
from pathlib import Path


def run(*args: object, code: int = 0, cwd: Path | None = None, **environ: str) -> str:
    """What a command prints; it must end with the status `code`."""
    command = [sys.executable, "-m", "shardio", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, env=os.environ | environ)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def unfinished(out: Path, pattern: str) -> list[str]:
    """The files of a conversion's run that are called so, while it is at work: folders may go as they are looked at."""
    return glob.glob(f"{glob.escape(str(out))}/.converting/run-*/{pattern}", include_hidden=True)
