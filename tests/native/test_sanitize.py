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


def sanitize(*options: str | Path) -> str:
    """Run the script, which must find nothing, and return what it prints; skip if what it needs is missing."""
    given = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run([SCRIPT, *options], capture_output=True, text=True, timeout=300, env=given)
    if done.returncode == SKIPPED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.attack
def test_a_short_run(tmp_path: Path) -> None:
    """`scripts/sanitize` finds nothing in some seconds: no read or write beyond memory, no overflow, no leak."""
    told = sanitize("--minutes", "0.25", "--seed", "1", "--save", tmp_path / "finding")
    counts = {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+) inputs$", told, re.MULTILINE)}
    assert counts.keys() == TARGETS
    assert min(counts.values()) > 100


@pytest.mark.attack
def test_threads() -> None:
    """`scripts/sanitize --threads` finds no data race in what `test_threads.py` does."""
    assert re.search(r"\b[1-9]\d* passed\b", sanitize("--threads"))
