"""The world is detected from the variables of each launcher, or taken from a mesh of parallel ranks."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from _cli import python
from _datasets import packed

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
        (TORCHRUN | {"RANK": "x"}, "torchrun's RANK must be an integer, got 'x'"),  # not a number
        (TORCHRUN | {"RANK": "8"}, r"rank must be in \[0, 8\), got 8"),  # contradiction
        (TORCHRUN | {"WORLD_SIZE": "0"}, "size must be an integer of at least 1, got 0"),  # no ranks
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
        (("0", 2), r"rank must be in \[0, 2\), got '0'"),
        ((0, "2"), "size must be an integer of at least 1, got '2'"),
        ((2, 2), r"rank must be in \[0, 2\), got 2"),
        ((0, 1, 0.0), r"local_rank must be in \[0, 1\), got 0.0"),
    ],
)
def test_numbers_of_a_world_are_checked(numbers: Any, message: str) -> None:
    """Texts, as the environment holds them, are no integers, and a rank is below the size."""
    with pytest.raises(ConfigError, match=message):
        World(*numbers)


SCRIPT = """
import json, sys
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
import shardio

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
found = {}
for dims in ("dp", "tp", ["dp", "tp"]):
    world = shardio.World.from_mesh(mesh, dims)
    loader = shardio.Loader(sys.argv[1], 3, world=world, seed=1, threads=1)
    batches = [batch["n"].tolist() for batch in loader]
    found[str(dims)] = [[world.rank, world.size, world.local_rank, world.local_size], batches]
with open(f"{sys.argv[2]}/{dist.get_rank()}.json", "w") as file:
    json.dump(found, file)
dist.destroy_process_group()
"""


@pytest.mark.long
def test_ranks_of_one_replica_read_the_same(tmp_path: Path) -> None:
    """Ranks along `dp` read disjoint samples, those that differ in `tp` the same; over both, all four differ."""
    packed(tmp_path / "d", [{"n": n} for n in range(48)], {"n": "int64"})
    (tmp_path / "main.py").write_text(SCRIPT)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "main.py", "d", "."]
    python(*command, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"})
    found: list[dict[str, Any]] = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    for dims, key in (("dp", lambda rank: rank // 2), ("tp", lambda rank: rank % 2)):
        worlds, batches = zip(*(one[dims] for one in found), strict=True)
        assert [world[:2] for world in worlds] == [[key(rank), 2] for rank in range(4)]
        assert [world[2:] for world in worlds] == [[rank, 4] for rank in range(4)]
        for rank in range(4):
            for other in range(4):
                assert (batches[rank] == batches[other]) == (key(rank) == key(other))
        whole = sorted(n for rank in range(4) for batch in batches[rank] for n in batch)
        assert whole == sorted([*range(48), *range(48)])
    worlds, batches = zip(*(one["['dp', 'tp']"] for one in found), strict=True)
    assert [world[:2] for world in worlds] == [[rank, 4] for rank in range(4)]
    assert sorted(n for part in batches for batch in part for n in batch) == list(range(48))


def test_what_a_mesh_does_not_have_is_refused() -> None:
    """An unknown dimension and a rank outside of the mesh are refused."""
    ranks = np.arange(4).reshape(2, 2)
    mesh: Any = SimpleNamespace(
        mesh_dim_names=("dp", "tp"), get_coordinate=lambda: [1, 0], size=lambda place: 2, mesh=ranks
    )
    assert World.from_mesh(mesh, "dp").rank == 1
    with pytest.raises(ConfigError, match="the mesh's dimensions are dp, tp, got 'pp'"):
        World.from_mesh(mesh, "pp")
    mesh.get_coordinate = lambda: None
    with pytest.raises(ConfigError, match="this rank is not in the mesh"):
        World.from_mesh(mesh, "dp")
