"""Neither damaged inputs nor threads do harm in the C part, under the sanitizers of the compiler."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "sanitize"
TARGETS = {
    *("jpeg", "lmdb", "rows", "resize", "headers", "recode"),
    *("damage", "area", "permute", "bits", "shuffle", "steps", "restart", "png"),
}
SKIPPED = 5


@pytest.mark.attack
def test_a_short_run(tmp_path: Path) -> None:
    """`scripts/sanitize` finds nothing in some seconds: no read or write beyond memory, no overflow, no leak."""
    done = subprocess.run(
        [SCRIPT, "--minutes", "0.25", "--seed", "1", "--save", tmp_path / "finding"],
        capture_output=True, text=True, timeout=300, env=os.environ | {"PYTHON": sys.executable},
    )  # fmt: skip
    if done.returncode == SKIPPED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+) inputs$", done.stdout, re.MULTILINE)}
    assert counts.keys() == TARGETS
    assert min(counts.values()) > 100


@pytest.mark.attack
def test_threads() -> None:
    """`scripts/sanitize --threads` finds no data race in what `test_threads.py` does."""
    done = subprocess.run(
        [SCRIPT, "--threads"], capture_output=True, text=True, timeout=300, env=os.environ | {"PYTHON": sys.executable}
    )
    if done.returncode == SKIPPED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b[1-9]\d* passed\b", done.stdout), done.stdout
