"""The benchmark of many cores: images sleep in a build of its own, and calls of compiled code are counted."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from _builders import jpeg
from _datasets import load, packed, tensors

from benchmarks import _compiled, many_cores
from shardio import native

pytestmark = pytest.mark.skipif(native.library() is None, reason="not compiled here")


@pytest.mark.long
@pytest.mark.slow
def test_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images take time and no processor, and each row has its rate and the microseconds outside compiled code."""
    compiled = []

    def sleeping(folder: Path, microseconds: int) -> object:
        compiled.append(_compiled.sleeping(folder, microseconds))
        assert b"clock_nanosleep" in (folder / "_sleeping.so").read_bytes()
        return compiled[-1]

    packed(tmp_path / "d", ({"image": jpeg(24, 32, seed=n)} for n in range(8)), {"image": "image"})
    monkeypatch.setattr(many_cores, "sleeping", sleeping)
    monkeypatch.setattr(many_cores, "THREADS", (1, 4))
    monkeypatch.setattr(many_cores, "SETTLE", 0.0)
    monkeypatch.setattr(many_cores, "SECONDS", 0.3)
    command = ["many_cores", "--photos", str(tmp_path / "d"), "--json", str(tmp_path / "r.json"), "--rounds", "1"]
    monkeypatch.setattr("sys.argv", [*command, "--only", "photos", "encoded"])
    many_cores.main()
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert [(row["what"], row["threads"]) for row in rows] == [(w, t) for w in ("photos", "encoded") for t in (1, 4)]
    assert all(row["lock_us_per_sample"] > 0 for row in rows)
    one, four = (row["images_per_second"] for row in rows[:2])
    assert one <= 1e6 / many_cores.DECODE_US
    assert four <= 4e6 / many_cores.DECODE_US


def test_counted_calls_are_those_of_the_compiled_part() -> None:
    """Batches are the same, calls are counted from all threads, and their processor time is summed."""
    library, data = native.library(), tensors(64)
    assert library is not None
    counted = _compiled.CountedLibrary(library)
    plain = [batch["array"].numpy() for batch in load(data, threads=2)]
    with _compiled.in_place(counted):
        assert native.library() is counted
        begun = time.process_time()
        assert all(map(np.array_equal, plain, (batch["array"].numpy() for batch in load(data, threads=2))))
    assert native.library() is not counted
    assert counted.calls > 0
    assert 0 < counted.seconds < time.process_time() - begun
