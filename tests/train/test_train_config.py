"""A training run refuses invalid configurations before it begins."""

from pathlib import Path
from typing import Any

import pytest
from _tiny import config

from shardio.errors import ConfigError
from shardio.train import TrainConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": 0}, "epochs must be a whole number of at least 1, got 0"),
        ({"epochs": True}, "epochs must be a whole number of at least 1, got True"),  # a bool is not a count
        ({"batch_size": 1.5}, "batch_size must be a whole number of at least 1, got 1.5"),
        ({"lr": 0}, "lr must be a number in (0, inf), got 0"),
        ({"lr": float("nan")}, "lr must be a number in (0, inf), got nan"),
        ({"momentum": 1.0}, "momentum must be a number in [0, 1), got 1.0"),
        ({"weight_decay": -1e-4}, "weight_decay must be a number in [0, inf), got -0.0001"),
        ({"warmup_epochs": 2.5, "epochs": 2}, "warmup_epochs must be at most epochs (2), got 2.5"),
        ({"num_classes": 1}, "num_classes must be a whole number of at least 2, got 1"),
        ({"lr_decay_factor": 1}, "lr_decay_factor must be a number in (0, 1), got 1"),
        (
            {"optimizer": "adamax"},
            "optimizer must be 'sgd', 'adam', 'adamw', 'lars', 'larc' or 'lamb', got 'adamax'",
        ),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"seed": 10**5000}, "seed must be below 2^63, got a huge int"),  # torch takes no more
        ({"classes": "union", "task": "regression"}, "classes is for classification, got 'union' for regression"),
        ({"model": ""}, "model must be a name, got ''"),
        ({"train": ""}, "train must be a path, got ''"),
        ({"output": None}, "output must be a path, got None"),
        ({"device": "meta"}, "device must be 'cpu', 'cuda' or None, got 'meta'"),  # which torch knows
        ({"local_sgd_period": 1}, "local_sgd_period must be a whole number of at least 2, got 1"),
        ({"local_sgd_node_period": 2}, "local_sgd_node_period needs local_sgd_period, got 2 without one"),
        (
            {"local_sgd_period": 8, "local_sgd_node_period": 3},
            "local_sgd_node_period must be a divisor of local_sgd_period (8) below it, got 3",
        ),
        (
            {"local_sgd_period": 8, "local_sgd_node_period": 8},
            "local_sgd_node_period must be a divisor of local_sgd_period (8) below it, got 8",
        ),
        ({"local_sgd_period": 8, "hook": "bf16"}, "local_sgd_period goes with hook='none' only, got 'bf16'"),
        (
            {"local_sgd_period": 8, "precision": "fp16"},
            "local_sgd_period goes with precision='float32' or 'bf16', got 'fp16'",
        ),
    ],
)
def test_refusals_name_the_rule_and_the_value(values: dict[str, Any], message: str) -> None:
    """Each message names the rule and the value."""
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**{"train": "train", "output": "out"} | values)
    assert str(caught.value) == message


def test_paths_become_plain_strings(tmp_path: Path) -> None:
    """Paths become strings, so that a checkpoint loads without custom classes."""
    made = config(tmp_path).to_dict()
    assert made["train"] == str(tmp_path / "data" / "train")
    assert {type(value) for value in made.values()} <= {str, int, float, bool, type(None)}
