"""Local SGD does what a simulation with plain torch does, and wrong settings are refused."""

import json
from pathlib import Path

import pytest
from _ranks import start


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
