"""The bench: it measures real ranks, its totals are correct, and a failing rank ends the run with its error."""

import copy
import os
import random
import re
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _browser import dom
from _datasets import photos

import shardio
from shardio.bench.config import BenchConfig
from shardio.bench.html import page
from shardio.bench.measurement import measure
from shardio.bench.rank import build_loader, suited_to_dataset, warmup_epochs
from shardio.bench.rank_processes import Barrier, Meeting, RankProcesses
from shardio.bench.result import BenchResult
from shardio.errors import BadSample, ConfigError, PipelineStalled, ShardioError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 24 JPEGs."""
    path = tmp_path_factory.mktemp("bench") / "d"
    photos(24, path, shard_size="1MB")
    return path


@pytest.mark.slow
def test_epochs_of_three_ranks(data: Path) -> None:
    """Three ranks with batches of four take two steps per epoch; three epochs warm up, and every figure matches."""
    config = BenchConfig(str(data), batch_size=4, epochs=2, ranks=3, image_size=16, floats=True)
    result = measure(config)
    assert [rank.samples for rank in result.ranks] == [16, 16, 16]
    rates = sorted(result.samples_per_second_in_all.__getattribute__(name) for name in ("smallest", "largest"))
    assert result.samples_per_second_in_all.median == pytest.approx(sum(rates) / 2)
    assert result.samples_per_second.largest * 3 <= result.samples_per_second_in_all.largest * 1.0001
    for rank, timeline in zip(result.ranks, result.timelines, strict=True):
        assert timeline.counted_from == 6
        assert len(timeline.begun) == 10
        assert 0 <= rank.starved <= 1
        assert 0 <= rank.at_barrier <= 1
        assert rank.wait_median <= rank.wait_p99 <= rank.wait_max
        assert rank.peak_memory > 10_000_000
        assert rank.cpu_seconds_per_1000 > 0
    assert {"plan", "read", "decode", "assemble"} <= result.stages.seconds.keys()
    assert all(result.stages.cpu_seconds[name] <= 1.1 * s + 0.01 for name, s in result.stages.seconds.items())
    assert result.to_json()["schema"] == "shardio-bench/1"
    assert result.sample_bytes == pytest.approx(sum(shardio.open(data).manifest.shards.bytes) / 24)


@pytest.mark.parametrize(("steps", "epochs"), [(0, 3), (1, 3), (12, 3), (15, 2), (29, 2), (30, 1), (5000, 1)])
def test_short_epochs_warm_up_longer(steps: int, epochs: int) -> None:
    """The warm-up lasts about 30 steps in whole epochs: one at least, three at most."""
    assert warmup_epochs(steps) == epochs


@pytest.fixture(scope="module")
def timed(data: Path) -> tuple[BenchResult, list[float]]:
    """The result of a second with an accelerator on two ranks, and how far the measurement was now and then."""
    told: list[float] = []
    config = BenchConfig(str(data), batch_size=4, seconds=1.0, warmup=0.4, ranks=2, step_time=0.05)
    return measure(config, told.append), told


@pytest.mark.slow
def test_seconds_with_an_accelerator(timed: tuple[BenchResult, list[float]]) -> None:
    """Steps of a given time are measured for the seconds asked for, over many epochs; the steps' times add up."""
    result, told = timed
    for rank in result.ranks:
        assert rank.seconds == pytest.approx(1.0, abs=0.3)
        assert rank.samples == 4 * (len(result.timelines[rank.rank].begun) - result.timelines[rank.rank].counted_from)
        assert rank.utilisation <= 1
    assert result.samples_per_second.largest <= 80.5
    assert result.passed is (result.utilisation_of_slowest >= 0.9)
    assert result.ceiling == pytest.approx(80, rel=0.2)
    assert told == sorted(told)
    assert 0 < told[0] < told[-1] <= 1
    timeline = result.timelines[0]
    total = timeline.begun[-1] + timeline.wait[-1] + timeline.compute[-1] + timeline.barrier[-1] - timeline.begun[0]
    parts = np.sum([timeline.wait, timeline.compute, timeline.barrier])
    assert parts == pytest.approx(total, abs=1)


@pytest.mark.slow
@pytest.mark.parametrize("barrier", [True, False])
def test_seconds_without_a_warm_up(data: Path, barrier: bool) -> None:
    """All steps count from the first one on, and end after the seconds, whether or not ranks wait for each other."""
    config = BenchConfig(str(data), batch_size=4, seconds=0.3, warmup=0, ranks=2, barrier=barrier)
    result = measure(replace(config, step_time=0.01))
    assert [line.counted_from for line in result.timelines] == [0, 0]
    assert all(0.3 <= rank.seconds < 10 for rank in result.ranks)


def die(config: BenchConfig, rank: int, meeting: Meeting, pipe: Any) -> None:
    """Be a rank that the system kills before it answers, while another one waits for it."""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    meeting.barrier.wait(rank, 60)


@pytest.mark.slow
def test_a_rank_that_dies_is_named() -> None:
    """The others, which wait for it, are ended, and the error says which one it was."""
    config = BenchConfig("d", ranks=2)
    with pytest.raises(ShardioError, match="bench: rank 1 died"), RankProcesses(config, die) as ranks:
        ranks.answers()
    assert not any(process.is_alive() for process in ranks._ranks)


@pytest.mark.slow
def test_a_failing_rank_ends_the_bench(data: Path, tmp_path: Path) -> None:
    """An error on one rank is raised here and names that rank, although the other rank works."""
    path = shutil.copytree(data, tmp_path / "d")
    shard = path / "shard-000000.tar"
    stored = shardio.open(path)[23]["image"]
    shard.write_bytes(shard.read_bytes().replace(stored, bytes(len(stored))))
    with pytest.raises(BadSample, match=r"row 23 \(sample 23, key k23\)"):
        measure(BenchConfig(str(path), batch_size=2, epochs=1, ranks=2, image_size=8))
    went_on = measure(BenchConfig(str(path), batch_size=2, epochs=2, ranks=2, image_size=8, on_bad_sample="replace"))
    assert went_on.bad == 1


@pytest.mark.long
@pytest.mark.slow
def test_functions_and_transforms_of_ones_own(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`module:name` names a function, and a list of transforms; workers may be processes."""
    (tmp_path / "mine.py").write_text(
        "import shardio\n"
        "crop = [shardio.CenterCrop(8)]\n"
        "def small(batch):\n    assert batch['image'].shape[1] == 8\n    return batch\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = BenchConfig(str(data), batch_size=4, epochs=1, transforms="mine:crop", map="mine:small", isolate=True)
    result = measure(config)
    assert result.ranks[0].samples == 24
    assert result.stages.seconds["map"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": 0}, "ranks must be an integer of at least 1, got 0"),
        ({"step_time": -1.0}, r"step_time must be a number in \[0, inf\), got -1\.0"),
        ({"seconds": 0}, r"seconds must be a number in \(0, inf\), got 0"),
        ({"emulate": "resnet50-tpu"}, "emulate must be one of unet3d-b200, .*, got 'resnet50-tpu'"),
        ({"engine": "gpu"}, "engine must be 'auto', 'cpu'"),
        ({"batch_size": 1000}, "24 samples fill no global batch"),
        ({"image_size": 0}, "image_size must be an integer of at least 1, got 0"),
        ({"transforms": "resize"}, "transforms must be one of none, .*, detect or 'module:name', got 'resize'"),
        ({"transforms": "no_such_module:f"}, "transforms 'no_such_module:f': there is no module 'no_such_module'"),
        ({"map": "json:no_such"}, "map 'json:no_such': module 'json' has no 'no_such'"),
    ],
)
def test_wrong_arguments_are_refused(data: Path, options: dict[str, Any], message: str) -> None:
    """Each message names the rule and the value, before a process is started."""
    with pytest.raises(ConfigError, match=message):
        measure(BenchConfig(str(data), **{"batch_size": 4, "epochs": 1} | options))


@pytest.mark.parametrize(
    ("options", "batch_size"),
    [({}, 12), ({"batch_size": 7}, 7), ({"ranks": 30}, 1), ({"emulate": "unet3d-b200"}, None)],
)
def test_a_small_dataset_fills_the_default_batch(data: Path, options: dict[str, Any], batch_size: int | None) -> None:
    """Without a batch size, `shardio bench` takes at most what each rank has of the 24 samples."""
    assert suited_to_dataset(BenchConfig(str(data), **({"ranks": 2} | options))).batch_size == batch_size


@pytest.mark.parametrize(
    ("options", "transforms"),
    [
        ({"emulate": "retinanet-b200"}, "detect"),
        ({"emulate": "retinanet-b200", "transforms": "none"}, "none"),  # it was chosen
        ({"emulate": "resnet50-h100"}, None),  # takes no boxes
        ({"batch_size": 4}, None),
    ],
)
def test_an_emulated_retinanet_loads_boxes(data: Path, options: dict[str, Any], transforms: str | None) -> None:
    """`shardio bench` gives it a detector's batches: images of 800 x 800, and the boxes on them end to end."""
    boxes = shardio.Field("array", "float32", (None, 4), role="boxes", on="image")
    sample = {"image": shardio.open(data)[0]["image"], "boxes": np.array([[1, 2, 9, 8]] * 3, np.float32)}
    config = BenchConfig(shardio.from_samples([sample] * 24, {"image": "image", "boxes": boxes}), **options)
    assert suited_to_dataset(config).transforms == transforms
    assert suited_to_dataset(replace(config, dataset=str(data))).transforms == options.get("transforms")
    if transforms == "detect":
        (batch,) = build_loader(suited_to_dataset(config), shardio.World())
        assert batch["image"].shape == (24, 800, 800, 3)
        assert batch["boxes_offsets"][-1] == len(batch["boxes"]) > 0


def test_an_accelerator_brings_its_batch() -> None:
    """`emulate` decides the batch size and the step time, unless these are given."""
    named = BenchConfig("d", emulate="resnet50-h100")
    assert named.samples_per_step == 400
    assert named.accelerator.samples_per_second == pytest.approx(1786, abs=1)
    other = BenchConfig("d", emulate="resnet50-h100", batch_size=100, step_time=0.1).accelerator
    assert (other.batch_size, other.step_seconds, other.pass_mark) == (100, 0.1, 0.9)
    assert BenchConfig("d").accelerator is None
    assert BenchConfig("d").samples_per_step == 256


@pytest.mark.slow
def test_the_report_in_a_browser(timed: tuple[BenchResult, list[float]], tmp_path: Path) -> None:
    """A real browser shows all pictures and figures, loads nothing else, and reports no error."""
    result, _ = timed
    text = page(result)
    assert not re.search(r"(src|href)=", text)
    (tmp_path / "report.html").write_text(text)
    shown = dom((tmp_path / "report.html").as_uri(), tmp_path)
    for label in ("steps of rank 0", "steps of rank 1", "stages", "histogram of waits", "rates"):
        assert f'aria-label="{label}"' in shown
    assert result.verdict.sentence.split(":")[0] in shown
    assert f"{result.samples_per_second.median:,.0f}" in shown


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_no_rank_is_a_step_ahead(ranks: int) -> None:
    """Whoever passes a barrier finds that all have come to it, however unequal they are."""
    barrier = Barrier(ranks)
    arrived = [0] * ranks
    early: list[tuple[int, int]] = []

    def run(rank: int, own: Barrier) -> None:
        pauses = random.Random(rank)
        for step in range(1, 300 + 1):
            if pauses.random() < 0.1:
                time.sleep(0.001 * pauses.random())
            arrived[rank] = step
            own.wait(rank, 60.0)
            early.extend((rank, step) for others in arrived if others < step)

    # A process has a copy of its own, as each thread here.
    threads = [threading.Thread(target=run, args=(rank, copy.copy(barrier))) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert arrived == [300] * ranks
    assert early == []


def test_a_rank_that_does_not_come() -> None:
    """The wait ends after its limit."""
    with pytest.raises(PipelineStalled, match=r"rank 1 has waited 0 s for the other ranks"):
        Barrier(3).wait(1, 0.01)
