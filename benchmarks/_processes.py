"""Run a peer's work in a fresh process of its own environment, and run the programs that measure limits."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks._peers import HERE, load
from benchmarks._workloads import Workload

START = "import sys; from benchmarks._run_peer import carry_out; carry_out(*sys.argv[1:])"  # MODULE ORDER RESULT
TIME_LIMIT = 1200.0  # seconds for one process
TAIL = 1200  # characters of a failed process's output to include in the error


class PeerFailed(Exception):
    """A peer's process failed; the message holds the end of its output."""


def run_peer(python: Path, library: str, workload: Workload, order: Mapping[str, Any], work: Path) -> dict[str, Any]:
    """Run `_run_peer.py` with that interpreter on `order`, and return its result. Raises PeerFailed."""
    given = {"library": library, "workload": asdict(workload)} | dict(order)
    return ask([str(python), "-m", "benchmarks._run_peer"], given, environ(library, work))


def ask(command: Sequence[str], order: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a command with two more words, the JSON files of its order and of its result. Raises PeerFailed."""
    with tempfile.TemporaryDirectory() as folder:
        request, result = Path(folder, "order.json"), Path(folder, "result.json")
        request.write_text(json.dumps(dict(order)))
        run([*command, str(request), str(result)], environ)
        if not result.is_file():
            raise PeerFailed("the process ended without a result")
        made: dict[str, Any] = json.loads(result.read_text())
        return made


def run(command: list[str], environ: Mapping[str, str] | None = None, limit: float = TIME_LIMIT) -> str:
    """Run a command in a process group of its own for `limit` seconds at most, and return its output.

    Raises PeerFailed.
    """
    process = subprocess.Popen(
        command,
        cwd=HERE.parent,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
        raise PeerFailed(f"no end after {limit:.0f} s: ...{printed.strip()[-TAIL:]}") from None
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    if process.returncode:
        raise PeerFailed(f"exit status {process.returncode}: ...{printed.strip()[-TAIL:]}")
    return printed


def environ(library: str, work: Path, kind: str = "bench") -> dict[str, str]:
    """The environment variables of a peer's process: no GPU, caches below `work`, stand-ins on the module path."""
    module = load(library, kind)
    paths = [str(HERE / "stand_ins" / name) for name in module.STAND_INS]
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    own = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(paths), "XDG_CACHE_HOME": str(work / "cache")}
    return inherited | own | {"HF_HOME": str(work / "cache" / "huggingface")} | dict(module.ENVIRONMENT)


def chill(folder: Path) -> None:
    """Drop the files below `folder` (or one file) from the page cache, after writing dirty pages."""
    files = [folder] if folder.is_file() else [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
