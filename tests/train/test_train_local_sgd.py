"""Local SGD does what a simulation with plain torch does, and wrong settings are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from _ranks import start

from shardio.errors import ConfigError
from shardio.train import TrainConfig


@pytest.mark.long
def test_it_is_local_sgd() -> None:
    """Weights, momentum and running statistics follow the simulation; ranks are equal after an average of all."""
    post_local = {"local_sgd_period": 3, "local_sgd_start": 4}
    hierarchical = {"local_sgd_period": 4, "local_sgd_node_period": 2, "local_sgd_start": 1}
    gradients_within_nodes = {"local_sgd_period": 5, "local_sgd_node_period": 1}
    ways = json.dumps([post_local, hierarchical, gradients_within_nodes])
    done = start(Path(__file__).with_name("_local_sgd.py"), ways, ranks=4)
    assert done.returncode == 0, done.stderr
    agreed = [json.loads(line) for line in done.stdout.splitlines()]
    assert agreed == [[0, 1, 2, 3, 4, 7, 10], [0, 4, 8], [0, 5, 10]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_sgd_period": 1}, "local_sgd_period must be a whole number of at least 2, got 1"),
        ({"local_sgd_node_period": 2}, "local_sgd_node_period needs local_sgd_period, got 2 without one"),
        ({"local_sgd_period": 8, "local_sgd_node_period": 3}, r"must be a divisor of local_sgd_period \(8\)"),
        ({"local_sgd_period": 8, "local_sgd_node_period": 8}, r"must be a divisor of local_sgd_period \(8\) below it"),
        ({"local_sgd_period": 8, "hook": "bf16"}, "goes with hook='none' only, got 'bf16'"),
        ({"local_sgd_period": 8, "measure_noise_scale": True}, "goes with measure_noise_scale=False only"),
        ({"local_sgd_period": 8, "precision": "fp16"}, "goes with precision='float32' or 'bf16', got 'fp16'"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    """Periods that do not fit one another, and what goes with gradients of every step only, are refused in words."""
    with pytest.raises(ConfigError, match=message):
        TrainConfig(train="train", output="out", **options)
