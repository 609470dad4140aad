"""Batch memory is returned when its last reference is gone, and not before."""

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _datasets import load, packed
from _time_limit import wait_until

import shardio
from shardio.loader.batch.memory import LARGE, BufferPool
from shardio.loader.workers.tuning import Setting, Tuner, Window
from shardio.system import allocation


@pytest.mark.usefixtures("no_collector")
def test_memory_in_use_is_left_alone() -> None:
    """A tensor, a view of it, or an array made from it each keep the memory in use, without the garbage collector."""
    lender = BufferPool((4, 3), np.dtype(np.float32))  # which keeps two
    keepers = []
    for keep in (lambda t: t, lambda t: t[1:2, 0], lambda t: t.numpy()[2:], lambda t: t.permute(1, 0).float()):
        loan = lender.lend()
        loan[:] = len(keepers)
        keepers.append(keep(torch.from_numpy(loan)))
        del loan
    for number, kept in enumerate(keepers):
        assert (np.asarray(kept) == number).all()
    del keepers, kept
    assert len({lender.lend().ctypes.data for _ in range(8)}) <= 2


def arrays(path: Path, batch_bytes: int, count: int) -> Path:
    rows = ({"array": np.full(batch_bytes // 16, number % 256, np.uint8)} for number in range(count))
    packed(path, rows, {"array": ("uint8", (batch_bytes // 16,))}, container="hdf5", shard_size="1GB")
    return path


def watch_allocation(monkeypatch: pytest.MonkeyPatch, found: Callable[[int], object], *, seconds: float = 0.0) -> None:
    """Call `found` with the bytes of each array of a batch that is new; large ones take so many seconds."""
    empty = allocation.empty

    def watched(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        made = empty(shape, dtype)
        found(made.nbytes)
        time.sleep(seconds if made.nbytes >= LARGE // 2 else 0.0)
        return made

    monkeypatch.setattr(allocation, "empty", watched)


def test_large_memory_is_made_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first batch, all memory that a loop will need is made in the background, and none later."""
    made: list[int] = []
    watch_allocation(monkeypatch, made.append)
    data, one = arrays(tmp_path / "d", LARGE, 64), shardio.World()
    loader = shardio.Loader(data, 16, threads=1, prefetch=2, world=one, device="cpu")
    in_use = 2 + 1 + 2  # prefetched, being made, and with the consumer
    batches = iter(loader)
    next(batches)
    wait_until(lambda: made.count(LARGE) == in_use)
    for _ in range(3):
        for batch in loader:
            assert batch["array"].shape == (16, LARGE // 16)
    assert made.count(LARGE) <= in_use + 1  # one more where the worker took a new one at the same moment


def measured(monkeypatch: pytest.MonkeyPatch) -> list[Window]:
    """Return a list to which the tuner adds what it is told of each step."""
    windows: list[Window] = []
    record = Tuner.record

    def recording(tuner: Tuner, window: Window) -> Setting:
        windows.append(window)
        return record(tuner, window)

    monkeypatch.setattr(Tuner, "record", recording)
    return windows


def test_a_loop_that_holds_its_batches_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its memory is new, for ever; only the first of it counts as the start."""
    windows = measured(monkeypatch)
    loader = shardio.Loader(arrays(tmp_path / "d", LARGE // 2, 320), 16, threads=1, prefetch=1, world=shardio.World())
    held = list(loader)
    assert len(held) - len(windows) <= 6


@pytest.mark.long
@pytest.mark.slow
def test_waits_for_new_memory_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tuner does not see them: it would prefetch more batches, which need more new memory."""
    windows = measured(monkeypatch)
    made: list[int] = []
    watch_allocation(monkeypatch, made.append, seconds=1.0)
    data, one = arrays(tmp_path / "d", LARGE // 2, 320), shardio.World()
    loader = shardio.Loader(data, 16, threads=1, prefetch=1, world=one, device="cpu")
    begun = time.monotonic()
    for _ in loader:
        pass
    assert time.monotonic() - begun > made.count(LARGE // 2) > 1
    assert windows
    assert max(window.waited for window in windows) < 0.9


@pytest.mark.parametrize("fields", ["fixed", "ragged"])
def test_batches_that_are_made_together_share_no_storage(fields: str) -> None:
    """A batch written to in place changes no other, breaks no other's backward, and is saved without the others."""
    kind = shardio.Field("array", "float32", (100 if fields == "fixed" else None,))
    data = shardio.from_samples([{"x": np.full(100, n, np.float32)} for n in range(64)], {"x": kind})
    rule = {} if fields == "fixed" else {"transforms": {"x": [shardio.PadTo()]}}
    loader = load(data, 4, shuffle=None, threads=1, **rule)
    assert loader._workers._size.batches > 1
    batches = [batch["x"] for batch in loader]
    weight = torch.ones(100, requires_grad=True)
    loss = (batches[-1] * weight).sum()
    for batch in batches[:-1]:
        batch.zero_()
    assert [batch._version for batch in batches] == [1] * 15 + [0]
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [60 + 61 + 62 + 63] * 100
    saved = io.BytesIO()
    torch.save(batches[-1], saved)
    assert len(saved.getvalue()) < 4 * 400 + 2000
