"""The bench: it measures real ranks, its totals are correct, and a failing rank ends the run with its error."""

from pathlib import Path

import pytest
from _builders import jpeg

import shardio
from shardio.bench import BenchConfig, BenchResult, decoder, measure, tune_decoder
from shardio.errors import BadSample, ConfigError


def photos(path: Path, count: int = 24) -> Path:
    """A dataset of JPEGs at `path`."""
    with shardio.create(path, fields={"image": "image", "label": "int64"}) as writer:
        for number in range(count):
            writer.append({"image": jpeg(40, 40, seed=number), "label": number})
    return path


@pytest.mark.slow
def test_ranks_share_an_epoch(tmp_path: Path) -> None:
    """Three ranks with batches of four take two steps per epoch each, and every figure matches these steps."""
    config = BenchConfig(str(photos(tmp_path / "d")), batch_size=4, epochs=2, ranks=3, image_size=16, floats=True)
    steps: list[tuple[int, int]] = []
    result = measure(config, lambda done, total: steps.append((done, total)))
    assert steps[-1] == (4, 4)
    assert [[stats.samples for stats in epoch] for epoch in result.epochs] == [[8, 8, 8]] * 2
    rates = sorted(min(stats.samples_per_second for stats in epoch) for epoch in result.epochs)
    assert result.samples_per_second == pytest.approx(sum(rates) / 2)
    assert sum(result.stages.values()) == pytest.approx(1)
    assert 0 < result.starved <= 1
    assert next(iter(result.stages)) in result.limit


@pytest.mark.slow
def test_a_consumer_that_computes_is_not_starved(tmp_path: Path) -> None:
    """With a step time far above the input's, the bench names the consumer as the bottleneck."""
    result = measure(BenchConfig(str(photos(tmp_path / "d", 64)), batch_size=4, epochs=1, step_time=0.2))
    assert result.starved < 0.5
    assert result.samples_per_second < 21


@pytest.mark.slow
def test_an_engine_that_is_the_limit_is_named(tmp_path: Path) -> None:
    """The bench names a batch engine as the bottleneck, although its work is in no worker stage."""
    path = photos(tmp_path / "d", 64)
    result = measure(BenchConfig(str(path), batch_size=16, epochs=2, image_size=200, engine="nvimgcodec"))
    assert result.limit.startswith("engine nvimgcodec: ")
    by_cpu = measure(BenchConfig(str(path), batch_size=16, epochs=2, image_size=200, engine="cpu"))
    assert not by_cpu.limit.startswith("engine")


@pytest.mark.slow
def test_a_failing_rank_ends_the_bench(tmp_path: Path) -> None:
    """An error on one rank is raised here and names that rank, although the other rank works."""
    path = photos(tmp_path / "d")
    shard = path / "shard-000000.tar"
    stored = shardio.open(path)[23]["image"]
    shard.write_bytes(shard.read_bytes().replace(stored, bytes(len(stored))))
    with pytest.raises(BadSample, match=r"row 23 \(sample 23\)"):
        measure(BenchConfig(str(path), batch_size=2, epochs=1, ranks=2, image_size=8))
    went_on = measure(BenchConfig(str(path), batch_size=2, epochs=2, ranks=2, image_size=8, on_bad_sample="replace"))
    assert went_on.bad == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": 0}, "ranks must be at least 1, got 0"),
        ({"step_time": -1.0}, "step_time must be 0 or more seconds, got -1.0"),
        ({"batch_size": 1000}, "24 samples fill no global batch"),
        ({"image_size": 0}, "size must be"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, options: dict[str, int], message: str) -> None:
    """Each message names the rule and the value, before a process is started."""
    path = photos(tmp_path / "d")
    with pytest.raises(ConfigError, match=message):
        measure(BenchConfig(str(path), **{"batch_size": 4, "epochs": 1} | options))  # type: ignore[arg-type]


def test_the_best_share_for_a_decoder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bench measures each share for an epoch and returns the fastest; without a GPU it refuses."""
    tried = []

    def fake(config: BenchConfig) -> BenchResult:
        assert config.hw_decoder_load is not None
        assert config.epochs == 1
        tried.append(config.hw_decoder_load)
        rate = 1000 - abs(config.hw_decoder_load - 0.8)
        return BenchResult(config, rate, 0.0, 0.0, 1, 0.0, 0, {}, "", [])

    monkeypatch.setattr(decoder, "measure", fake)
    told: list[float] = []
    best = tune_decoder(BenchConfig("d", device="cuda"), lambda load, result: told.append(load))
    assert best.config.hw_decoder_load == 0.8
    assert told == tried == list(decoder.LOADS)
    with pytest.raises(ConfigError, match="only a GPU has a JPEG decoder to share with, and the device is None"):
        tune_decoder(BenchConfig("d"))


@pytest.mark.slow
def test_engines_are_measured(tmp_path: Path) -> None:
    """The bench measures the requested engine, and refuses an engine that lacks support before a rank starts."""
    path = photos(tmp_path / "d")
    result = measure(BenchConfig(str(path), batch_size=8, epochs=1, image_size=16, engine="dali"))
    assert result.config.engine == "dali"
    assert [stats.samples for stats in result.epochs[0]] == [24]
    with pytest.raises(ConfigError, match="engine must be one of"):
        measure(BenchConfig(str(path), batch_size=8, engine="gpu"))  # type: ignore[arg-type]
