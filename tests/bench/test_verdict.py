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
    fast_decode=1.3,
)
"""Four threads on four processors decode all the time."""

NEIGHBOURS: dict[str, Any] = {"delay": 18.0, "others_busy": 0.5}
"""Other processes use half of the processors, and the threads wait for them half of the time."""

MAP_64: dict[str, Any] = {"stages": {"decode": 14.0, "map": 25.0}}
"""A `map` takes 64 % of the workers' time."""

LOCKED: dict[str, Any] = {"stages": {"plan": 1.0, "decode": 38.0}, "cpu": {"plan": 0.5, "decode": 12.0}, "used": 14.0}
"""The threads wait two thirds of the time, for no processor: 2.6 of the four have nothing to do."""

TURNS: dict[str, Any] = {"stages": {"plan": 4.0, "read": 33.0, "assemble": 2.0}, "used": 10.5}
"""All threads and the loop use one processor, most of them in `read`."""

IDLE: dict[str, Any] = {"stages": {"decode": 4.0}, "cpu": {"decode": 4.0}}
"""The same threads have nothing to do most of the time."""


@pytest.mark.parametrize(
    ("changes", "bottleneck", "setting"),
    [
        ({}, "decode", "decode"),
        # "fast" is in use, there are no images, or it was measured and gains little on these.
        ({"fast_decode": None}, "decode", "store smaller images"),
        ({"fast_decode": 1.05}, "decode", "store smaller images"),
        ({"starved": 0.02}, "consumer", None),
        ({"on_device": 0.8, "engine": "dali"}, "engine", "store smaller images"),
        ({"on_device": 0.8, "engine": "nvimgcodec"}, "engine", "engine"),
        ({"on_device": 0.8, "engine": "dali", "cpu": {"read": 8.0}}, "engine", "engine"),
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
        # As many ranks as processors: more processes would not compute it faster.
        ({"stages": {"map": 39.0}, "cpu": {"map": 9.8}, "cores": 1}, "map", "do the work"),
        # The tuner has left one thread of four, because they took turns; it would not where no processor is free.
        ({"stages": {"map": 9.9}, "cpu": {"map": 9.8}, "workers": 1, "most_workers": 4}, "GIL", "isolate"),
        ({"stages": {"map": 9.9}, "cpu": {"map": 9.8}, "workers": 1}, "map", "do the work"),
        (
            {"stages": {"map": 9.9}, "cpu": {"map": 9.8}, "workers": 1, "most_workers": 4, "others_busy": 0.7},
            "map",
            "do the work",
        ),
        (
            IDLE | {"stages": {"decode": 4.0}, "used": 10.5, "workers": 1, "most_workers": 4},
            "GIL",
            "a larger batch_size",
        ),
        # Threads wait for each other's lock between calls of compiled code, beside processors that have nothing to do.
        (LOCKED, "GIL", "a larger batch_size"),
        (
            {"stages": {"read": 4.0, "decode": 150.0}, "cpu": {"read": 2.0, "decode": 95.0}}
            | {"workers": 16, "cores": 16, "used": 98.0},
            "GIL",
            "a larger batch_size",
        ),
        # A `map` holds the lock that decoding waits for, for less than a processor.
        ({"stages": {"decode": 25.0, "map": 14.0}, "cpu": {"decode": 5.0, "map": 6.0}, "used": 12.0}, "GIL", "isolate"),
        # In processes they wait for something else, as a single thread does; so do those that wait for a processor.
        (LOCKED | {"isolate": True}, "decode", "decode"),
        (LOCKED | {"delay": 25.0}, "decode", "decode"),
        (LOCKED | {"others_busy": 0.6}, "decode", "decode"),
        # Reads wait for the lock, too, if a rank's threads use one processor in all; else they wait for storage.
        (TURNS | {"cpu": {"plan": 1.5, "read": 6.0, "assemble": 1.5}}, "GIL", "a larger batch_size"),
        (TURNS | {"cpu": {"plan": 3.9, "read": 0.6, "assemble": 1.9}, "used": 7.0}, "storage", "threads"),
        (TURNS | {"cpu": {"plan": 3.9, "read": 4.0, "assemble": 1.9}}, "storage", "threads"),
        # Threads wait for the lock outside of stages.
        (IDLE | {"used": 10.5}, "GIL", "a larger batch_size"),
        (IDLE | {"used": 10.5, "isolate": True}, "hand-over", "a larger batch_size"),
        (IDLE | {"used": 10.5, "workers": 1, "stages": {"decode": 1.0}}, "hand-over", "prefetch"),
        (IDLE | {"used": 3.0}, "hand-over", "prefetch"),
        (IDLE | {"used": 21.0, "own": (0.1, 0.1), "waits": (0.09, 0.09)}, "GIL", "a larger batch_size"),
        ({"starved": 0.02, "used": 10.5}, "consumer", None),
        # A `map` takes less time than decoding, which nothing would make much faster.
        ({"stages": {"decode": 25.0, "map": 14.0}, "cpu": {"decode": 24.5, "map": 13.8}}, "map", "do the work"),
        # It takes too little to matter.
        ({"stages": {"decode": 35.0, "map": 4.0}, "cpu": {"decode": 34.0, "map": 3.9}}, "decode", "decode"),
        # Chunks are decompressed for one of their 64 rows, or for all of them.
        (
            {"stages": {"read": 1.0, "decompress": 38.0}, "cpu": {"decompress": 38.0}, "unpacked": 64.0},
            "decompress",
            "store each sample by itself",
        ),
        (
            {"stages": {"read": 1.0, "decompress": 38.0}, "cpu": {"decompress": 38.0}, "unpacked": 1.0},
            "decompress",
            "store the arrays without compression",
        ),
        # Other processes do not hide what is slow here: the waits for them are left out.
        (MAP_64 | NEIGHBOURS | {"cpu": {"decode": 7.0, "map": 13.0}}, "map", "do the work"),
        (MAP_64 | {"cpu": {"decode": 1.4, "map": 2.5}, "delay": 34.0, "others_busy": 0.9}, "map", "do the work"),
        (
            NEIGHBOURS
            | {"stages": {"read": 20.0, "decompress": 19.0}, "cpu": {"read": 0.4, "decompress": 9.0}, "unpacked": 64.0},
            "decompress",
            "store each sample by itself",
        ),
        # Nor does a `map` that takes little hide other processes.
        (
            NEIGHBOURS | {"stages": {"decode": 31.0, "map": 8.0}, "cpu": {"decode": 15.0, "map": 4.0}},
            "other processes",
            "end the other",
        ),
        # Workers wait for a processor that others use.
        (NEIGHBOURS | {"cpu": {"decode": 18.0}}, "other processes", "end the other"),
        # Workers are idle because the consumer waits for a processor.
        (IDLE | {"delay": 3.6, "others_busy": 0.95}, "other processes", "end the other"),
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


def test_busy_neighbours_are_told_beside_the_cause() -> None:
    """The sentence on a cause of one's own says what other processes use, and that its share leaves them out."""
    beside = diagnose(replace(BUSY, **MAP_64, **NEIGHBOURS, cpu={"decode": 7.0, "map": 13.0}))
    assert beside.sentence == (
        "`map` computes: 65% of the workers' time is in it; beside that, other processes use 50% of the processors, "
        "and the waits for them are left out here"
    )
    assert "other processes" not in diagnose(replace(BUSY, **MAP_64, cpu={"decode": 13.0, "map": 24.0})).sentence


def test_what_is_advised_was_measured() -> None:
    """What `decode="fast"` gains is what it gained on these images, for the part of the time that decoding takes."""
    much, little = (diagnose(replace(BUSY, fast_decode=gain)).change for gain in (1.3, 1.05))
    assert str(much) == "decode='fast' (up to 1.28 times the rate)"
    assert str(little).endswith("; on these images decode='fast' gains little (1.05 times the rate)")
    half = diagnose(replace(BUSY, stages={"decode": 39.0}, cpu={"decode": 38.0}, fast_decode=2.0, starved=0.2)).change
    assert str(half) == "decode='fast' (up to 1.25 times the rate)"  # no step waits any more
    removed = diagnose(replace(BUSY, **MAP_64, cpu={"decode": 13.0, "map": 24.0})).change
    assert removed.expected == pytest.approx(39 / 14)


def test_the_slow_rank_is_named() -> None:
    """The sentence names the rank, and what it does longer."""
    waits = diagnose(replace(BUSY, own=(0.02, 0.10), waits=(0.01, 0.09)))
    assert waits.sentence.startswith("rank 1 is slow: a step takes it 100 ms, mostly waiting for its input")
    computes = diagnose(replace(BUSY, own=(0.02, 0.10), waits=(0.01, 0.01)))
    assert "mostly computing" in computes.sentence


@pytest.mark.parametrize("stage", ["read", "map", "decode", "none"])
def test_advised_numbers_are_larger_than_the_current_ones(stage: str) -> None:
    """Whatever the ranks, processors, threads and batches ahead: no number is advised that is there already."""
    on_cpu = {"read": 0.1, "map": 0.1, "decode": 9.0, "none": 0.0}[stage]
    counts = ((1, 2, 3, 4), (2, 3, 5, 8, 64), (1, 2, 3, 8, 63), (1, 2, 7, 8, 9, 32))
    for ranks, cores, threads, prefetch in itertools.product(*counts):
        workers = ranks * threads
        figures = Figures(
            starved=0.9, on_device=0.0, own=(0.1,) * ranks, waits=(0.09,) * ranks, workers=workers, cores=cores,
            seconds=10.0, stages={stage: 0.0 if stage == "none" else 9.9 * workers}, cpu={stage: on_cpu * workers},
            prefetch=prefetch,
        )  # fmt: skip
        change = diagnose(figures).change
        if change.setting in ("threads", "prefetch"):
            assert isinstance(change.value, int)
            assert change.value > {"threads": threads, "prefetch": prefetch}[change.setting]
