"""The world is detected from the variables of each launcher."""

from typing import Any

import pytest

from shardio.errors import ConfigError
from shardio.order.world import World

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_ID": "0",
}
SALLOC = {  # an interactive shell: a step of one task, in the allocation of many
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURM_STEP_NUM_TASKS": "1",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, World(0, 1, 0, 1)),  # a plain python process
        (TORCHRUN, World(5, 8, 1, 4)),
        (SLURM, World(5, 8, 1, 4)),
        (OPENMPI, World(5, 8, 1, 4)),
        (SLURM | TORCHRUN | {"RANK": "2"}, World(2, 8, 1, 4)),  # torchrun inside of a Slurm job
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "3,4(x2)"}, World(5, 8, 1, 4)),  # nodes with different numbers of tasks
        ({k: v for k, v in SLURM.items() if k != "SLURM_STEP_ID"}, World()),  # the batch script itself, not a step
        ({"RANK": "1", "WORLD_SIZE": "2"}, World(1, 2, 1, 2)),  # without nodes: all ranks on one
        (SLURM | SALLOC, World()),
    ],
)
def test_detect(environ: dict[str, str], expected: World) -> None:
    """The variables of each launcher give its world."""
    assert World.detect(environ) == expected


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (TORCHRUN | {"RANK": "x"}, "torchrun's RANK must be a whole number, got 'x'"),  # not a number
        (TORCHRUN | {"RANK": "8"}, r"rank must be in \[0, 8\), got 8"),  # contradiction
        (TORCHRUN | {"WORLD_SIZE": "0"}, "size must be a whole number of at least 1, got 0"),  # no ranks
    ],
)
def test_wrong_variables_are_refused(environ: dict[str, str], message: str) -> None:
    """Invalid or contradictory variables of a launcher raise an error."""
    with pytest.raises(ConfigError, match=message):
        World.detect(environ)


def test_torch_distributed_wins(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """An initialised process group takes precedence over environment variables."""
    import torch.distributed as dist

    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert World.detect() == World(0, 1, 0, 1)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (("0", 2), "rank must be a whole number, got '0'"),
        ((0, "2"), "size must be a whole number of at least 1, got '2'"),
        ((2, 2), r"rank must be in \[0, 2\), got 2"),
        ((0, 1, 0.0), "local_rank must be a whole number, got 0.0"),
    ],
)
def test_numbers_of_a_world_are_checked(numbers: Any, message: str) -> None:
    """Texts, as the environment holds them, are no whole numbers, and a rank is below the size."""
    with pytest.raises(ConfigError, match=message):
        World(*numbers)
