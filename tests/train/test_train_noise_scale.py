"""The gradient noise scale is that of problems whose noise is known."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from _quadratic import NOISE_SCALE
from _ranks import start, torchrun
from _tiny import config, dataset, records, weights
from hypothesis import given
from hypothesis import strategies as st

from shardio.errors import ConfigError
from shardio.train import run
from shardio.train.noise_scale import NoiseScale


@given(st.floats(0.01, 1e6), st.floats(0.01, 1e6), st.integers(1, 999), st.integers(2, 64))
def test_expected_norms_give_the_noise_scale(noise: float, signal: float, batch: int, ranks: int) -> None:
    """The mean squared norm of a gradient of B samples is signal + noise / B: two of them give both."""
    small, large = (signal + noise / size for size in (batch, batch * ranks))
    found = NoiseScale.of_norms(small=small, small_batch=batch, large=large, large_batch=batch * ranks)
    assert found.noise == pytest.approx(noise, rel=1e-3, abs=1e-6 * batch * signal)
    assert found.signal == pytest.approx(signal, rel=1e-3, abs=1e-6 * noise)


def test_advice() -> None:
    """Speed-ups follow the paper: at the critical batch, twice the batch needs three quarters of the steps."""
    scale = NoiseScale(noise=2048.0, signal=2.0)
    assert scale.batch == 1024
    assert scale.speed_up(1024, 2) == pytest.approx(4 / 3)
    assert scale.speed_up(1024, 0.5) == pytest.approx(2 / 3)
    assert scale.speed_up(1e9, 4) == pytest.approx(1, abs=1e-5)  # far above it more samples are of no use
    assert scale.speed_up(1e-3, 4) == pytest.approx(4, abs=1e-4)  # far below it steps are as few as samples are many
    assert scale.advice(1024, 60_000) == (
        "critical batch: about 1,024 samples (noise scale); by rule of thumb at most 244 (square root of the training "
        "set); the batch is 1,024. Expected speed in steps by batch: 0.5 x: 0.67, 1 x: 1.00, 2 x: 1.33, 4 x: 1.60"
    )
    noise = NoiseScale(noise=1.0, signal=-0.1)  # an estimate may be: there is no signal to be seen
    assert math.isinf(noise.batch)
    assert "far above the batch" in noise.advice(8, 100)


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "hook"), [(2, "fp16"), (4, "none")])
def test_ranks_measure_a_quadratic_problem(ranks: int, hook: str) -> None:
    """Real ranks find the noise scale of a quadratic problem, with a hook, and without steps of part of a batch."""
    done = start(Path(__file__).with_name("_quadratic.py"), hook, ranks=ranks)
    assert done.returncode == 0, done.stderr
    noise, signal = json.loads(done.stdout)
    assert NoiseScale(noise, signal).batch == pytest.approx(NOISE_SCALE, rel=0.15)


@pytest.mark.long
def test_a_run_logs_it_and_trains_the_same(tmp_path: Path) -> None:
    """Two ranks log the noise scale after each epoch, and end with the weights of one rank that does not measure."""
    plain = config(tmp_path, train=dataset(tmp_path / "data", 96), output=tmp_path / "plain", batch_size=4, epochs=2)
    measured = replace(plain, output=str(tmp_path / "measured"), batch_size=2, measure_noise_scale=True)
    done = torchrun(measured)
    assert done.returncode == 0, done.stderr
    run(plain)
    assert done.stdout.count("critical batch: ") == 2
    assert all(line["noise_scale"] is None or line["noise_scale"] >= 0 for line in records(measured))
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(measured)[name], value, rtol=1e-4, atol=1e-6)


def test_one_rank_cannot_measure(tmp_path: Path) -> None:
    """A single rank has nothing to compare its gradients with."""
    with pytest.raises(ConfigError, match="measure_noise_scale needs at least 2 ranks"):
        run(config(tmp_path, measure_noise_scale=True))
