"""The world: which of how many data-parallel processes this one is."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_LAUNCHERS: tuple[tuple[str, tuple[str, str, str, str]], ...] = (
    # launcher, (rank, size, local rank, local size); the first whose rank and size are both set wins
    ("torchrun", ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")),
    (
        "Open MPI",
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ),
    ("Slurm", ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")),
)


@dataclass(frozen=True, slots=True)
class World:
    """The data-parallel processes of a job, seen from one of them.

    Attributes:
        rank: this process, 0 to size-1.
        size: processes in the job.
        local_rank: this process among those of its node.
        local_size: processes on this node.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    def __post_init__(self) -> None:
        for name, value in (("size", self.size), ("local_size", self.local_size)):
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name, value, limit in (("rank", self.rank, self.size), ("local_rank", self.local_rank, self.local_size)):
            if not isinstance(value, int) or not 0 <= value < limit:
                raise ConfigError(f"{name} must be in [0, {limit}), got {value!r}")

    @classmethod
    def detect(cls, environ: Mapping[str, str] | None = None) -> "World":
        """This process's world: torch.distributed if initialised, else the launcher's variables, else one process.

        The variables of torchrun, Open MPI and Slurm (`srun`) are known, in that order. ConfigError if they are wrong.
        """
        env = os.environ if environ is None else environ
        dist: Any = sys.modules.get("torch.distributed")  # where nobody has imported it, nobody has initialised it
        if environ is None and dist is not None and dist.is_available() and dist.is_initialized():
            rank, size = dist.get_rank(), dist.get_world_size()
            local_rank, local_size = env.get("LOCAL_RANK"), env.get("LOCAL_WORLD_SIZE")
            if local_rank is None or local_size is None:
                return cls(rank, size, rank, size)
            return cls(rank, size, int(local_rank), int(local_size))
        for launcher, (rank_name, size_name, local_rank_name, local_size_name) in _LAUNCHERS:
            if launcher == "Slurm" and "SLURM_STEP_ID" not in env:
                continue  # inside sbatch's own shell: the script is one process, whatever was allocated
            if rank_name in env and size_name in env:
                rank, size = _number(env, rank_name, launcher), _number(env, size_name, launcher)
                if local_rank_name not in env or local_size_name not in env:
                    return cls(rank, size, rank, size)
                return cls(rank, size, _number(env, local_rank_name, launcher), _number(env, local_size_name, launcher))
        return cls()

    @classmethod
    def from_mesh(cls, mesh: "DeviceMesh", dims: str | Sequence[str]) -> "World":
        """The data-parallel world of a job that is parallel in other ways too.

        Args:
            mesh: torch's DeviceMesh, with named dimensions.
            dims: the dimension along which data is split, or several (`("replicate", "shard")`), the first one slowest.
                Ranks that differ in other dimensions only (tensor, pipeline) get the same samples.

        Raises ConfigError for a name that the mesh does not have, or on a rank outside of it.
        """
        names, wanted = mesh.mesh_dim_names or (), (dims,) if isinstance(dims, str) else tuple(dims)
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            raise ConfigError(f"this rank is not in the mesh {mesh}")
        rank, size = 0, 1
        for name in wanted:
            if name not in names:
                raise ConfigError(f"the mesh's dimensions are {', '.join(names) or 'unnamed'}, got {name!r}")
            place = names.index(name)
            rank, size = rank * mesh.size(place) + coordinate[place], size * mesh.size(place)
        # Processors are shared by all processes of a node, whatever they are to each other.
        node = cls.detect()
        return cls(rank, size, node.local_rank, node.local_size)


def _number(env: Mapping[str, str], name: str, launcher: str) -> int:
    # Slurm's tasks per node read "4", "4(x2)" or "4,3(x2)"; the largest is what a local rank can be sure to be below.
    counts = re.fullmatch(r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*", env[name])
    if not counts:
        raise ConfigError(f"{launcher}'s {name} must be a whole number, got {env[name]!r}")
    return max(int(part.split("(")[0]) for part in env[name].split(","))
