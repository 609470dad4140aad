"""Data-parallel groups of a larger job: four real gloo processes in a mesh of two by two."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _datasets import packed

from shardio import World
from shardio.errors import ConfigError

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
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
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
    mesh: Any = SimpleNamespace(mesh_dim_names=("dp", "tp"), get_coordinate=lambda: [1, 0], size=lambda place: 2)
    assert World.from_mesh(mesh, "dp").rank == 1
    with pytest.raises(ConfigError, match="the mesh's dimensions are dp, tp, got 'pp'"):
        World.from_mesh(mesh, "pp")
    mesh.get_coordinate = lambda: None
    with pytest.raises(ConfigError, match="this rank is not in the mesh"):
        World.from_mesh(mesh, "dp")


def test_horovod_and_others_say_it_themselves() -> None:
    """The numbers of any launcher make a world: `World(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())`."""
    assert World(3, 8, 1, 2) == World(rank=3, size=8, local_rank=1, local_size=2)
