"""The clock of stages: each second counts once, and decompression is told from the stage around it."""

import threading
from pathlib import Path

import h5py
import numpy as np
import pytest

import shardio
from shardio.system.timing import StageClock, slices, unpacking


def test_a_stage_within_another_counts_once() -> None:
    """The time of the inner stage is its own, and the outer one goes on under its name; other threads are apart."""
    told: list[str] = []
    clock = StageClock(told.append)

    def doing() -> str | None:
        return clock.doing.get(threading.get_ident())

    with clock.stage("read"):
        with unpacking(640):
            sum(range(200_000))
            assert doing() == "decompress"
            elsewhere = threading.Thread(target=lambda: unpacking(10).__enter__())  # a thread that is in no stage
            elsewhere.start()
            elsewhere.join()
        assert doing() == "read"
    assert told == ["read", "decompress", "read"]
    seconds, cpu_seconds, counts = clock.measured()
    assert seconds["decompress"] > seconds["read"] > 0
    assert cpu_seconds.keys() == {"read", "decompress"}
    assert counts == {"unpacked_bytes": 640}
    assert doing() is None


@pytest.mark.parametrize(
    ("limit", "longest", "parts"), [(2.5, 1.0, 8), (30.0, 1.0, 30), (0.8, 0.05, 16), (0.0, 1.0, 0)]
)
def test_slices_of_a_wait(limit: float, longest: float, parts: int) -> None:
    """They make up the limit, and none is more than an eighth of it, which is the most that a suspension counts."""
    found = [*slices(limit, longest)]
    assert sum(found) == pytest.approx(limit)
    assert len(found) - parts in (0, 1)  # of a rest by rounding
    assert all(0 < part <= min(longest, limit / 8) for part in found)


@pytest.mark.parametrize("isolate", [False, True])
def test_chunks_are_decompressed_for_their_rows(isolate: bool, tmp_path: Path) -> None:
    """A Loader tells the time and the bytes of decompression: whole chunks, also of worker processes."""
    (tmp_path / "files").mkdir()
    with h5py.File(tmp_path / "files" / "a.h5", "w") as file:
        rows = np.arange(64 * 100, dtype=np.float32).reshape(64, 100)
        file.create_dataset("x", data=rows, chunks=(16, 100), compression="gzip")
    shardio.index(tmp_path / "files", tmp_path / "d")
    loader = shardio.Loader(tmp_path / "d", 16, shuffle=None, threads=1, isolate=isolate, world=shardio.World())
    assert len(list(loader)) == 4
    stats = loader.stats()
    assert stats.bytes == 64 * 400
    assert stats.stage_seconds["decompress"] > 0
    assert stats.unpacked_bytes >= 64 * 400
    assert stats.unpacked_bytes % (16 * 400) == 0
