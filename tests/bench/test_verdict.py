"""The verdict: a table of figures and the bottleneck that they show. `benchmarks/verdicts.py` plants real ones."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from shardio.bench.verdict import Figures, diagnose

BUSY = Figures(
    starved=0.9,
    on_device=0.0,
    own=(0.1,),
    waits=(0.09,),
    workers=4,
    cores=4,
    seconds=10.0,
    stages={"read": 2.0, "decode": 37.0, "assemble": 0.5},
    cpu={"read": 1.5, "decode": 36.0, "assemble": 0.5},
)
"""Four threads on four processors decode all the time."""

IDLE: dict[str, Any] = {"stages": {"decode": 4.0}, "cpu": {"decode": 4.0}}
"""The same threads have nothing to do most of the time."""


@pytest.mark.parametrize(
    ("changes", "bottleneck", "setting"),
    [
        ({}, "decode", "decode"),
        ({"decode": "fast"}, "decode", "store smaller images"),
        ({"starved": 0.02}, "consumer", None),
        ({"on_device": 0.8, "engine": "dali"}, "engine", "store smaller images"),
        ({"on_device": 0.8, "engine": "nvimgcodec"}, "engine", "engine"),
        ({"on_device": 0.8, "engine": "dali", "workers": 3}, "engine", "engine"),
        ({"on_device": 0.8}, "copy", "deliver uint8"),
        # Two threads are busy, and two of the four processors have nothing to do.
        ({"workers": 2, "stages": {"decode": 19.0}, "cpu": {"decode": 18.5}}, "threads", "threads"),
        # Reads wait, and neither for a processor.
        ({"stages": {"read": 38.0, "decode": 1.0}, "cpu": {"read": 1.0, "decode": 1.0}}, "storage", "threads"),
        # Workers wait for the store.
        (
            {"stages": {"fetch": 38.0, "decode": 1.0}, "cpu": {"fetch": 1.0, "decode": 1.0}},
            "network",
            "give a cache_size",
        ),
        # Reads compute: checksums, or libraries.
        (
            {"stages": {"read": 38.0, "decode": 1.0}, "cpu": {"read": 37.0, "decode": 1.0}},
            "read",
            "use more processors",
        ),
        # One processor's worth of `map` among four threads.
        ({"stages": {"map": 39.0}, "cpu": {"map": 9.8}}, "GIL", "isolate"),
        # The same in processes is a function that waits.
        ({"stages": {"map": 39.0}, "cpu": {"map": 9.8}, "isolate": True}, "map", "threads"),
        ({"stages": {"map": 39.0}, "cpu": {"map": 0.4}}, "map", "threads"),
        ({"stages": {"map": 39.0}, "cpu": {"map": 38.0}}, "map", "do the work"),
        # Workers wait for a processor that others use.
        ({"cpu": {"decode": 18.0}, "delay": 18.0, "others_busy": 0.5}, "other processes", "end the other"),
        # Delayed by each other, with nobody else there.
        ({"cpu": {"decode": 18.0}, "delay": 18.0}, "decode", "decode"),
        ({"own": (0.10, 0.02, 0.02), "waits": (0.09, 0.01, 0.01)}, "slow rank", "look at"),
        (IDLE, "hand-over", "prefetch"),
        (IDLE | {"prefetch": 8}, "hand-over", "a larger batch_size"),
        (IDLE | {"isolate": True}, "hand-over", "a larger batch_size"),
        (IDLE | {"at_epoch_start": 0.8, "prefetch": 32}, "start of epochs", "more samples per epoch"),
        # Epochs are short, yet the workers are busy all the time.
        ({"at_epoch_start": 0.8}, "decode", "decode"),
    ],
)
def test_bottlenecks(changes: dict[str, Any], bottleneck: str, setting: str | None) -> None:
    """Each row changes the figures of busy decoders."""
    verdict = diagnose(replace(BUSY, **changes))
    assert verdict.bottleneck == bottleneck
    assert (verdict.change is None) == (setting is None)
    if verdict.change is not None and setting is not None:
        assert verdict.change.setting.startswith(setting)
        assert verdict.change.expected is None or verdict.change.expected >= 1
    assert sum(verdict.shares.values()) == pytest.approx(1)


def test_the_slow_rank_is_named() -> None:
    """The sentence names the rank, and what it does longer."""
    waits = diagnose(replace(BUSY, own=(0.02, 0.10), waits=(0.01, 0.09)))
    assert waits.sentence.startswith("rank 1 is slow: a step takes it 100 ms, mostly waiting for its input")
    computes = diagnose(replace(BUSY, own=(0.02, 0.10), waits=(0.01, 0.01)))
    assert "mostly computing" in computes.sentence


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("cores", [2, 3, 5, 8, 64])
@pytest.mark.parametrize("stage", ["read", "map", "decode", "none"])
def test_advised_numbers_are_larger_than_the_current_ones(ranks: int, cores: int, stage: str) -> None:
    """Whatever the ranks, processors, threads and batches ahead: no number is advised that is there already."""
    for threads, prefetch in itertools.product((1, 2, 3, 8, 63), (1, 2, 7, 8, 9, 32)):
        workers = ranks * threads
        on_cpu = {"read": 0.1, "map": 0.1, "decode": 9.0, "none": 0.0}[stage]
        figures = Figures(
            starved=0.9, on_device=0.0, own=(0.1,) * ranks, waits=(0.09,) * ranks, workers=workers, cores=cores,
            seconds=10.0, stages={stage: 0.0 if stage == "none" else 9.9 * workers}, cpu={stage: on_cpu * workers},
            prefetch=prefetch,
        )  # fmt: skip
        change = diagnose(figures).change
        assert change is not None
        if change.setting in ("threads", "prefetch"):
            assert isinstance(change.value, int)
            assert change.value > {"threads": threads, "prefetch": prefetch}[change.setting]
