"""Hostile files do no harm: a short run of `fuzz.py`, and all that it has ever found."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import _fuzz_uses
import fuzz
import pytest
from _fuzz_uses import Finding, Place

import shardio

FUZZ = Path(fuzz.__file__)


def run(*args: object) -> dict[str, Any]:
    """Run `fuzz.py`; fail with its failures if there are any."""
    command = [sys.executable, str(FUZZ), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.stdout, done.stderr
    verdict: dict[str, Any] = json.loads(done.stdout)
    told = [
        f"{one['target']}, {one['use']}: {one['kind']}: {one['cause']}: {one['message']}" for one in verdict["failures"]
    ]
    assert done.returncode == 0, f"seed {verdict['seed']}: " + "\n\n".join(told)
    return verdict


@pytest.mark.attack
def test_a_short_fuzz(tmp_path: Path) -> None:
    """`fuzz.py` damages files of every kind for half a minute, with other damage every day; none does harm."""
    verdict = run("--minutes", 0.5, "--seed", date.today().isoformat(), "--save", tmp_path)
    assert sum(verdict["rounds"].values()) > 30
    assert verdict["results"].keys() == {"right", "refused"}


@pytest.mark.attack
def test_what_was_found_before() -> None:
    """No file that ever did harm, all of which are in `tests/attacks/corpus`, does it again."""
    verdict = run("--replay", fuzz.CORPUS)
    assert sum(verdict["rounds"].values()) == len(list(fuzz.CORPUS.glob("*.json"))) > 0


def lead_elsewhere(place: Place) -> None:
    _fuzz_uses.check_origin(place, [Path("victim/secret.txt").read_bytes()])


def wrong(place: Place) -> None:
    raise Finding("wrong value", "by this test")


HARM: dict[str, tuple[Callable[[Place], object], str]] = {
    "a crash": (lambda place: os.abort(), "crash"),
    "an end in the middle": (lambda place: os._exit(0), "crash"),
    "a hang": (lambda place: time.sleep(60), "hang"),
    "much memory": (lambda place: bytearray(2 * fuzz.MEMORY), "memory"),
    "another exception": (lambda place: {}["x"], "raw exception"),
    "bytes of another file": (lead_elsewhere, "other file"),
    "another file written": (lambda place: Path("victim/new").touch(), "changed outside"),
    "another file removed": (lambda place: Path("victim/secret.txt").unlink(), "changed outside"),
    "its input changed": (lambda place: (place.folder / "new").touch(), "changed outside"),
    "a temporary file": (lambda place: Path("round/tmp/x").touch(), "left behind"),
    "wrong values": (wrong, "wrong value"),
}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_harm_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of harm is found, also right after another one, and what is right or refused is not."""
    monkeypatch.setattr(fuzz, "LIMIT", 2.0)
    children = fuzz.Children(tmp_path)
    children.prepare(["cifar"])
    found = {}
    try:
        for name, (harm, _) in HARM.items():
            monkeypatch.setitem(_fuzz_uses.USES, "convert", harm)
            found[name] = children.carry_out(fuzz.Round("cifar", "convert", "0", 0, ((0, 0),))).kind
            children.close()
        monkeypatch.setitem(_fuzz_uses.USES, "convert", lambda place: shardio.open(place.folder))
        assert children.carry_out(fuzz.Round("cifar", "convert", "0", 0)).kind == "refused"
    finally:
        children.close()
    assert found == {name: kind for name, (_, kind) in HARM.items()}


def test_a_seed_decides_everything() -> None:
    """The same seed draws the same rounds, another one others."""
    names = list(fuzz.TARGETS)
    rounds = [[fuzz.draw(seed, number, names) for number in range(100)] for seed in ("1", "1", "2")]
    assert rounds[0] == rounds[1] != rounds[2]
    assert {one.target for one in rounds[0]} == {*names}
