"""What stands around a measurement: the search for a limit, comparisons, storage rates, reports, plans."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _cli import run
from _datasets import photos as write_photos
from _datasets import tensors
from _jobs import Job

import shardio
from shardio.bench import limit_search
from shardio.bench import versus as versus_module
from shardio.bench.accelerators import ACCELERATORS, SUBMITTABLE, utilisation
from shardio.bench.config import BenchConfig
from shardio.bench.html import page
from shardio.bench.limit_search import PRECISION, Limit, bisect, find_limit
from shardio.bench.measurement import fast_decoding, measure
from shardio.bench.read_plan import read_plan
from shardio.bench.result import BenchResult, Spread, Timeline
from shardio.bench.storage import storage_rates
from shardio.bench.text import limit_text, summary
from shardio.bench.usage import INTERVAL, UsageSampler
from shardio.bench.versus import other_side, versus
from shardio.errors import ConfigError


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 96 JPEGs in several shards."""
    path = tmp_path_factory.mktemp("bench") / "photos"
    write_photos(96, path, shard_size="64KB")
    return path


@pytest.fixture(scope="module")
def measured(photos: Path) -> BenchResult:
    """The result of one short epoch."""
    return measure(BenchConfig(str(photos), batch_size=8, epochs=1, warmup=0))


def test_utilisation_counts_nominal_steps() -> None:
    """Steps that last longer than they should lower it, but for the first of each epoch; it is at most 1."""
    ended, one = np.arange(10) / 10, np.zeros(10, np.int64)
    assert utilisation(ended, one, 0.1) == pytest.approx(1)
    assert utilisation(2 * ended, one, 0.1) == pytest.approx(0.5)
    assert utilisation(ended / 2, one, 0.1) == 1
    assert utilisation(ended[:1], one[:1], 0.1) is None
    two = np.array([0, 0, 0, 1, 1])
    assert utilisation(np.array([0.5, 0.6, 0.7, 5.0, 5.1]), two, 0.1) == pytest.approx(1)
    assert utilisation(np.array([0.5, 0.6, 0.7, 5.0, 5.4]), two, 0.1) == pytest.approx(0.5)
    assert utilisation(np.array([0.5, 0.6]), np.array([0, 1]), 0.1) is None


def test_workloads_follow_a_named_release() -> None:
    """The closed and open workloads are those of MLPerf Storage v3.0; every other one is what-if, and each says so."""
    submittable = {name: known for name, known in ACCELERATORS.items() if known.follows == SUBMITTABLE}
    assert {name: (known.batch_size, known.step_seconds, known.pass_mark) for name, known in submittable.items()} == {
        "unet3d-b200": (7, 0.162, 0.90),
        "retinanet-b200": (24, 0.04755, 0.85),
        "retinanet-mi355": (32, 0.0634, 0.85),
    }
    for name, known in ACCELERATORS.items():
        assert known.name == name
        assert known.follows is not None
        assert known.follows.startswith("MLPerf Storage v")
        assert known.follows.endswith("closed and open" if name in submittable else "what-if")
    assert {"resnet50-h100", "cosmoflow-h100"} <= ACCELERATORS.keys() - submittable.keys()


@pytest.mark.parametrize(
    ("options", "follows"),
    [({"emulate": "retinanet-b200"}, SUBMITTABLE), ({"step_time": 0.1}, None), ({}, None)],
    ids=["emulate", "step", "none"],
)
def test_results_name_what_they_follow(measured: BenchResult, options: Any, follows: str | None) -> None:
    """Report and JSON of a measurement and of a search name the release; those of a step of any length name none."""
    config = replace(measured.config, **options)
    shown = replace(measured, config=config, utilisation=0.97, utilisation_of_slowest=0.96, sample_bytes=3e5)
    assert shown.to_json()["follows"] == follows
    assert (SUBMITTABLE in summary(shown)) is (follows is not None)
    limit = Limit(config, 0.85, 0.1, 4000.0, 2.2, [], sample_bytes=3e5)
    assert limit.to_json()["follows"] == follows
    assert (SUBMITTABLE in limit_text(limit)) is (follows is not None)


@pytest.mark.parametrize("limit", [0.01, 0.099, 0.1, 0.13, 1.0, 1e6])
def test_a_limit_is_found_to_two_percent(limit: float) -> None:
    """The result holds the mark, and is within the precision of the shortest that does."""
    tried: list[float] = []

    def reaches(value: float) -> bool:
        tried.append(value)
        return value >= limit

    if limit == 1e6:
        with pytest.raises(ConfigError, match="no step of up to"):
            bisect(reaches, 0.1)
        return
    found = bisect(reaches, 0.1)
    assert limit <= found
    assert found <= limit * (1 + PRECISION) or len(tried) == limit_search.MOST_PROBES


@pytest.mark.long
@pytest.mark.slow
def test_find_limit(photos: Path) -> None:
    """The search ends with a step that input keeps up with, and says how many accelerators that feeds."""
    config = BenchConfig(str(photos), batch_size=8, seconds=0.1, warmup=0.1, step_time=0.01, image_size=32)
    found = find_limit(config)
    assert found.step_seconds in [probe.step_seconds for probe in found.probes if probe.utilisation >= 0.9]
    assert found.accelerators is None
    with pytest.raises(ConfigError, match="find_limit needs an accelerator: give emulate="):
        find_limit(replace(config, step_time=0.0))


@pytest.mark.long
def test_versus_finds_a_slow_down(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A side whose workers sleep is slower, in turns within one run, with two ranks on each side."""
    (tmp_path / "slow.py").write_text("import time\ndef f(batch):\n    time.sleep(0.02)\n    return batch\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = BenchConfig(str(photos), batch_size=8, image_size=32, ranks=2, threads=1)
    told: list[tuple[int, int]] = []
    other = other_side(config, "map=slow:f,floats=true")
    found = versus(config, other, rounds=8, turn_seconds=0.1, progress=lambda done, of: told.append((done, of)))
    assert found.comparison.finding == "slower"
    assert found.comparison.ratio < 0.8
    assert told[-1] == (8, 8)
    assert len(found.a_rates) == len(found.b_rates) == 8
    json.dumps(found.to_json(), allow_nan=False)


class _Stopwatch:
    """Stands in for ranks, and for the clock: a turn takes as long as it is asked to, and its first steps."""

    now, first_steps = 0.0, 0.0

    def __init__(self, config: BenchConfig) -> None:
        self.turns: list[float] = []

    def __enter__(self) -> "_Stopwatch":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def rate(self, seconds: float) -> float:
        """Take a turn."""
        _Stopwatch.now += seconds + self.first_steps
        return 1.0


@pytest.mark.parametrize(
    ("seconds", "first_steps", "expected"),
    [
        (None, 0.0, 40.0),
        (10.0, 0.0, 20.0),  # 20 rounds of half a second
        (60.0, 0.0, 120.0),  # 40 rounds of 1.5 s
        (1.0, 0.0, 2.0),  # 8 rounds of an eighth of a second
        (10.0, 0.5, 20.0),  # 10 rounds: first steps take as long as the turns
        (1.0, 2.0, 34.0),  # 8 rounds all the same
    ],
)
def test_versus_keeps_to_the_seconds(
    seconds: float | None, first_steps: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides together take twice the seconds that are asked for, if that allows as many rounds as a test needs."""
    monkeypatch.setattr(versus_module, "StandingRanks", _Stopwatch)
    monkeypatch.setattr(versus_module.time, "monotonic", lambda: _Stopwatch.now)
    monkeypatch.setattr(_Stopwatch, "first_steps", first_steps)
    told: list[tuple[int, int]] = []
    config = BenchConfig("a", seconds=seconds)
    found = versus(config, config, rounds=40, progress=lambda done, of: told.append((done, of)))
    turn = 0.5 if seconds is None else min(0.5, seconds / 8) if seconds < 20 else seconds / 40
    assert 2 * len(found.a_rates) * (turn + first_steps) == pytest.approx(expected, rel=0.06)
    assert len(found.a_rates) == len(found.b_rates) >= 8
    assert told[-1] == (len(found.a_rates), len(found.a_rates))


def test_usage_between_two_moments(photos: Path) -> None:
    """What a process took in two parts of a time adds up to the whole, and what its children took is in it."""
    begun = time.monotonic()
    with UsageSampler([os.getpid()]) as sampler:
        subprocess.run([sys.executable, "-c", "sum(range(10_000_000))"], check=True)
        time.sleep(INTERVAL)
    ended = time.monotonic()
    middle = (begun + ended) / 2
    whole = sampler.machine_busy(begun, ended)
    assert sampler.machine_busy(begun, middle) + sampler.machine_busy(middle, ended) == pytest.approx(whole)
    assert whole > 0
    assert sampler.rank(0, begun, ended).peak_memory > 10_000_000


def test_fast_decoding_is_measured(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gain of decode="fast" is a ratio for JPEG files, and none where there is nothing to decode."""
    monkeypatch.setattr("shardio.bench.measurement.FAST_SECONDS", 0.01)
    assert (fast_decoding(BenchConfig(str(photos), image_size=32)) or 0) > 0.2
    tensors(1, tmp_path / "d")
    assert fast_decoding(BenchConfig(str(tmp_path / "d"))) is None


def test_the_other_side() -> None:
    """Another dataset, other settings, or both; settings are written as attributes or as options."""
    config = BenchConfig("a")
    changed = other_side(config, "threads=4,decode=fast,step_time=0.1,isolate=true,shuffle=none")
    assert (changed.threads, changed.decode, changed.step_time, changed.isolate) == (4, "fast", 0.1, True)
    assert changed.shuffle is None
    assert other_side(config, "--batch-size=16") == other_side(config, "batch_size=16")
    assert other_side(config, "b,c/d,decode=fast,threads=auto") == BenchConfig("b,c/d", decode="fast")
    assert other_side(config, "dataset=17,transforms=none") == BenchConfig("17", transforms="none")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("thread=4", "there is no setting 'thread'; give NAME=VALUE, where NAME is one of dataset, batch-size, "),
        ("decode=slow", "versus: decode='slow': Invalid enum value 'slow'"),
        ("batch-size=x", "versus: batch-size='x': Expected `int"),
    ],
)
def test_wrong_other_sides(other: str, message: str) -> None:
    """Each message names the setting as it can be typed, and the value."""
    with pytest.raises(ConfigError, match=message):
        other_side(BenchConfig("a"), other)


def test_the_json_is_documented(photos: Path, measured: BenchResult) -> None:
    """docs/bench.md names each key of the JSON, in all depths but settings, stages and versions."""
    text = (Path(__file__).parents[2] / "docs" / "bench.md").read_text()
    figures = measured.to_json()
    figures["storage"] = asdict(storage_rates(photos, threads=1, seconds=0.01))
    inner = (figures["ranks"][0], figures["stages"], figures["verdict"], figures["timelines"][0], figures["storage"])
    for key in {name for part in (figures, *inner) for name in part}:
        assert f"`{key}`" in text, key


def test_storage_is_read_past_the_cache(photos: Path) -> None:
    """Plain reads of the shards have rates, and the size of a random read fits the samples."""
    rates = storage_rates(photos, threads=2, seconds=0.1)
    assert rates.sequential > 0
    assert rates.random > 0
    assert rates.random_bytes % 4096 == 0
    assert rates.file_bytes >= sum(path.stat().st_size for path in photos.glob("*.tar"))


@pytest.mark.parametrize(
    ("waits", "enough"),
    [
        ([10.0] * 25, True),
        ([10.0] * 24, False),
        (([100.0] + [0.1] * 15) * 10, False),  # ten bursts
        (([100.0] + [0.1] * 15) * 30, True),
        ([10.0] * 500 + [500.0], True),  # one step that stalled
    ],
)
def test_a_range_needs_enough_steps(measured: BenchResult, waits: list[float], enough: bool) -> None:
    """Fifths of a measurement that hold only a few steps, or bursts of them, tell no range; whole epochs do."""
    none = [0.0] * len(waits)
    line = Timeline(begun=none, wait=waits, compute=none, barrier=none, counted_from=0, stride=1, threads=[(0.0, 2)])
    spread = Spread(1532.0, 86.0, 70915.0)
    config = replace(measured.config, seconds=0.3, dataset="<script>alert(1)</script>")
    result = replace(measured, config=config, samples_per_second=spread, rates=[86.0, 70915.0], timelines=[line])
    assert ("1,532, 86 to 70,915 (median and range of 0.3 s" in summary(result)) is enough
    assert (
        "1,532 (median of 0.3 s in five parts, slowest rank; too short to tell how" in summary(result)
    ) is not enough
    assert (">part 2<" in page(result)) is enough
    assert "<script>" not in page(result)  # what is shown stays text
    assert "86 to 70,915" in summary(replace(result, config=measured.config))


def test_a_limit_of_another_workload_feeds_nothing(measured: BenchResult) -> None:
    """The search, too, says that the samples are not the workload's."""
    config = replace(measured.config, emulate="resnet50-h100", step_time=0.1)
    limit = Limit(config, 0.9, 0.1, 4000.0, 2.2, [], sample_bytes=1500.0)
    assert "feeds  not this workload: samples have 1.5 KB on average, and those of resnet50-h100" in limit_text(limit)
    assert "feeds  2.20 x resnet50-h100" in limit_text(replace(limit, sample_bytes=110e3))


@pytest.mark.parametrize(
    ("changes", "starved", "passed", "told"),
    [
        ({"step_time": 0.1}, 0.05, True, ": passed"),
        # The first steps of epochs wait.
        ({"step_time": 0.1}, 0.3, True, "; the first step of each epoch does not count here, but in `starved`"),
        # Samples of less than half, or more than twice, the workload's size reach no mark and miss none.
        (73e6, 0.0, None, "not this workload: samples have 73.0 MB on average, and those of unet3d-h100 146.6 MB"),
        (74e6, 0.0, True, "mark 90%: passed"),
        (293e6, 0.0, True, "mark 90%: passed"),
        (294e6, 0.0, None, "not this workload: samples have 294.0 MB on average, and those of unet3d-h100 146.6 MB"),
    ],
)
def test_marks(measured: BenchResult, changes: Any, starved: float, passed: bool | None, told: str) -> None:
    """The text says whether the mark of an accelerator is reached, and what that leaves out."""
    shown = replace(measured, starved=starved, utilisation=0.97, utilisation_of_slowest=0.96)
    if isinstance(changes, float):
        shown, changes = replace(shown, sample_bytes=changes), {"emulate": "unet3d-h100"}
    shown = replace(shown, config=replace(measured.config, **changes))
    assert shown.passed is passed
    assert shown.to_json()["passed"] is passed
    (line,) = (line for line in summary(shown).splitlines() if line.startswith("utilisation"))
    assert line.endswith(told)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"transforms": "none", "batch_size": "256", "epochs": "3", "shuffle": "global"}),
        ({"image_size": 32}, {"transforms": "train", "image_size": "32"}),
        ({"transforms": "evaluate"}, {"transforms": "evaluate", "image_size": "224"}),
        ({"emulate": "resnet50-h100", "seconds": 2.0, "shuffle": None},
         {"batch_size": "400", "seconds": "2.0", "shuffle": "none"}),
    ],
)  # fmt: skip
def test_the_report_shows_the_settings_that_ran(
    measured: BenchResult, options: dict[str, Any], expected: dict[str, str]
) -> None:
    """Defaults are shown as the values that they stand for, and what was not in use is not shown."""
    shown = page(replace(measured, config=BenchConfig(measured.config.dataset, **options)))
    settings = shown[shown.index("<h2>Settings</h2>") : shown.index("<h2>Machine</h2>")]
    rows = dict(re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td></tr>", settings))
    assert expected.items() <= rows.items()
    assert "None" not in rows.values()
    assert ("seconds" in rows) is ("epochs" not in rows)


@pytest.mark.parametrize("tail", ["drop", "pad"])
@pytest.mark.parametrize("kind", ["whole", "where", "select", "split", "concat", "mixture", "balanced"])
def test_a_plan_is_what_loaders_read(photos: Path, kind: str, tail: Any) -> None:
    """Steps, samples, shards and bytes of each rank are those of its Loader, for a dataset and views of every kind."""
    whole = shardio.open(photos)
    means = dict(zip(whole.manifest.shards.names, whole.shard_means.tolist(), strict=True))
    made: dict[str, Any] = {
        "whole": lambda: whole,
        "where": lambda: whole.where("label == 1"),
        "select": lambda: whole.select([5, 90, 3, 5, *range(40, 70)])[2:],
        "split": lambda: whole.split({"a": 0.5, "b": 0.5}, by="label")["b"],
        "concat": lambda: shardio.concat({"a": whole[80:], "b": whole.where("label == 0")}),
        "mixture": lambda: shardio.mix({"a": whole[:10], "b": whole[30:]}, weights={"a": 1, "b": 2}),
        "balanced": lambda: whole[7:].balanced("label", 50),
    }
    view, (world, batch_size) = made[kind](), (5, 7) if kind == "whole" else (2, 5)
    plan = read_plan(view, world=world, batch_size=batch_size, tail=tail, seed=3, epoch=1)
    job, sizes, touched = Job(view, world, batch_size, tail=tail, fields=["label"]), [], []
    for loader in job.loaders:
        loader.set_epoch(1)
        shards = [view.shard_of(number) for batch in loader for number in batch["index"].tolist()]
        assert len(shards) == plan.per_rank_samples
        touched.append(len(set(shards)))
        sizes.append(sum(means[shard.rpartition("/")[2]] for shard in shards))
        assert plan.steps == len(loader)
    assert plan.per_rank_shards.mean == np.mean(touched)
    assert plan.per_rank_bytes.largest == pytest.approx(max(sizes))
    assert (plan.samples, plan.shards) == (len(view), len(view.shard_means))
    missing = len(view) - plan.steps * world * batch_size
    assert (plan.dropped, plan.repeated) == (max(0, missing), max(0, -missing))


def test_a_view_is_measured(photos: Path) -> None:
    """Ranks read the samples of the view, the result tells what it was, and plain reads are of its dataset's files."""
    view = shardio.open(photos).where("label == 1")
    result = measure(BenchConfig(view, batch_size=4, ranks=2, epochs=1, warmup=0.0, threads=1, prefetch=1))
    means = view.shard_means[view.shard_numbers(np.arange(len(view)))]
    assert result.sample_bytes == pytest.approx(means.mean())
    assert [len(timeline.begun) for timeline in result.timelines] == [len(view) // 8] * 2
    assert result.to_json()["config"]["dataset"] == repr(view)
    assert "label == 1" in page(result)
    everything = storage_rates(photos, threads=1, seconds=0.01).file_bytes
    assert storage_rates(view, threads=1, seconds=0.01).file_bytes == everything


def test_plans_on_the_command_line(photos: Path) -> None:
    """Text and JSON; more ranks than samples are refused."""
    assert "96 samples in" in run("plan", photos, "--world", 4, "--batch-size", 8)
    assert "(1 rank x 32)" in run("plan", photos, "--world", 1, "--batch-size", 32)
    found = json.loads(run("plan", photos, "--world", 4, "--batch-size", 8, "--json", "-"))
    assert (found["schema"], found["steps"], found["looked_at"]) == ("shardio-plan/1", 3, 4)
    told = run("plan", photos, "--world", 128, "--batch-size", 8, code=2)
    assert "96 samples fill no global batch of 1024 (128 ranks x 8); take a smaller --batch-size, or --tail pad" in told
