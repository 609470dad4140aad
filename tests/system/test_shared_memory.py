"""Values in memory that is shared by processes."""

import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardio.foreign.string_array import StringArray
from shardio.system.shared_memory import Shared

SPAWN = multiprocessing.get_context("spawn")


def private_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def look(shared: Shared, pipe: Any) -> None:
    """In the other process: load the value, and send back its content and the private memory that it takes."""
    before = private_kib()
    value = shared.load()
    total = int(value["large"].sum())
    value["small"][0] = -1  # its own
    pipe.send((total, value["texts"][3], value["small"].tolist(), value["plain"], private_kib() - before))


def test_arrays_are_shared_by_processes() -> None:
    """Two processes load the value; the large array takes no memory of their own, and changes stay private."""
    large = np.arange(8_000_000)
    value = {
        "large": large,
        "small": np.arange(3),
        "texts": StringArray(f"größe {n}" for n in range(9)),
        "plain": [1, "a"],
    }
    shared = Shared(value)
    for _ in range(2):
        receiver, sender = SPAWN.Pipe(duplex=False)
        process = SPAWN.Process(target=look, args=(shared, sender))
        process.start()
        assert receiver.poll(30)
        total, text, small, plain, grown = receiver.recv()
        process.join(30)
        assert (total, text, small, plain) == (int(large.sum()), "größe 3", [-1, 1, 2], [1, "a"])
        assert grown < large.nbytes >> 12
    assert value["small"].tolist() == [0, 1, 2]


def test_a_process_that_starts_is_sent_a_few_bytes() -> None:
    """A pipe holds 64 KiB: a larger argument would keep the parent until the process reads it."""
    value = {"texts": ["t" * 100] * 10, "blob": bytes(1 << 20), "arrays": [np.arange(n) for n in range(5000)]}
    rebuild, (_, *others) = Shared(value).__reduce__()
    assert len(pickle.dumps((rebuild, others))) < 1000


def test_texts_that_came_cannot_grow() -> None:
    """Unpickled StringArrays may be in shared memory and cannot grow; file names that are not UTF-8 survive."""
    texts = pickle.loads(pickle.dumps(StringArray(["a", "", "\udcff"])))  # noqa: S301
    assert list(texts) == ["a", "", "\udcff"]
    with pytest.raises(TypeError, match="another process"):
        texts.append("b")


def test_loads_are_apart_and_nothing_stays_open() -> None:
    """A change to one loaded value is not visible in another, and the memory is freed with the last reference."""
    before = len(os.listdir("/proc/self/fd"))
    shared = Shared({"a": np.zeros(2), "nothing": np.empty(0)})
    one, other = shared.load(), shared.load()
    one["a"][0] = 1
    assert (one["a"][0], other["a"][0], other["nothing"].size) == (1, 0, 0)
    del shared, one, other
    assert len(os.listdir("/proc/self/fd")) == before
