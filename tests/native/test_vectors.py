"""Other processors give the same bytes: `vectors.c` repeats there what the C part made here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardio import native

ROOT = Path(__file__).parents[2]
SKIPPED = 5
pytestmark = pytest.mark.skipif(native.library() is None, reason="not compiled here")


def run(**environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the script; skip if what it needs is missing."""
    given = os.environ | {"PYTHON": sys.executable} | environment
    done = subprocess.run([ROOT / "scripts" / "aarch64"], capture_output=True, text=True, timeout=300, env=given)
    if done.returncode == SKIPPED:
        pytest.skip(done.stderr.strip())  # no compiler or no emulator; .ci/run installs both
    return done


@pytest.mark.long
def test_aarch64() -> None:
    """An emulated aarch64 processor makes the same images, hues, orders, orientations and transcoded files."""
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    counts = [
        "900 images",
        "372 steps",
        "3 permutations",
        "12 orientations",
        "15 transcoded files",
        "18 shuffles",
        "20 rows of PNGs",
        "24 frames",
    ]
    assert done.stdout.splitlines() == counts


@pytest.mark.long
def test_another_result_is_found() -> None:
    """Where a build computes something else, the cases in which it shows are named."""
    done = run(CC="cc -Dfloor=ceil -DM_PI=3.14", EMULATOR="")
    assert done.returncode == 1
    assert "another result: images, case" in done.stdout
