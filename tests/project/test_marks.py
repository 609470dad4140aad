"""Which tests run: those that do harm or need a cluster never run unasked."""

import re
from pathlib import Path

import _forked
import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    "attack": "tests/native/test_sanitize.py",
    "cluster": "tests/stores/test_slow_file_system.py",
    "": "tests/order/test_world.py",
}
"""A file with tests of each mark, and one with tests of none."""


@pytest.mark.parametrize(
    ("options", "marks"),
    [
        ((), {""}),
        (("-m", "not slow"), {""}),  # an expression of one's own leaves them out as well
        (("-m", "slow or cluster"), {"cluster"}),
        (("-m", "attack"), {"attack"}),
        (("--all", "-m", "not alone"), {"", "attack", "cluster"}),  # as CI runs them
    ],
)
def test_attacks_run_only_where_they_are_asked_for(options: tuple[str, ...], marks: set[str]) -> None:
    """Tests marked `attack` or `cluster` run with `--all`, or if `-m` names the mark."""
    arguments = ["--collect-only", "-q", "-p", "no:cacheprovider", "-W", "ignore", *options, *FILES.values()]
    done = _forked.run(f"import sys, pytest; sys.exit(pytest.main({arguments}))", folder=ROOT)
    assert done.returncode == 0, done.stdout
    collected = set(re.findall(r"^tests/\S+\.py", done.stdout, re.MULTILINE))
    assert {mark for mark, file in FILES.items() if file in collected} == marks
