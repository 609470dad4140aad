"""The world: this process's rank among the data-parallel processes of a job."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_LAUNCHERS: tuple[tuple[str, tuple[str, str, str, str]], ...] = (
    # launcher, (rank, size, local rank, local size); the first with both rank and size set wins
    ("torchrun", ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")),
    (
        "Open MPI",
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ),
    # salloc's interactive shell is a step of one task, but its SLURM_NTASKS is that of the whole allocation.
    ("Slurm", ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")),
    ("Slurm", ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")),
)


@dataclass(frozen=True, slots=True)
class World:
    """This process's place among the data-parallel processes of a job.

    Attributes:
        rank: the rank of this process, 0 to size-1.
        size: the number of processes in the job.
        local_rank: the rank of this process on its node, 0 to local_size-1.
        local_size: the number of processes on this node.
        members: the ranks in torch.distributed that this world is of, in ascending order, as `from_mesh` finds them;
            None if unknown.

    Raises ConfigError if a number is out of range.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    members: tuple[int, ...] | None = field(default=None, kw_only=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, value in (("size", self.size), ("local_size", self.local_size)):
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be an integer of at least 1, got {value!r}")
        for name, value, limit in (("rank", self.rank, self.size), ("local_rank", self.local_rank, self.local_size)):
            if not isinstance(value, int) or not 0 <= value < limit:
                raise ConfigError(f"{name} must be in [0, {limit}), got {value!r}")

    @classmethod
    def detect(cls, environ: Mapping[str, str] | None = None) -> "World":
        """Return the world of this process.

        The first of these that applies decides: torch.distributed, if it is initialised; the environment variables of
        torchrun, Open MPI or Slurm (`srun`), in that order; else this process is alone.

        Args:
            environ: variables to use instead of `os.environ`; torch.distributed is then not asked.

        Raises ConfigError if a launcher's variable makes no sense.
        """
        env = os.environ if environ is None else environ
        initialised = rank_in_torch_distributed() if environ is None else None
        if initialised is not None:
            rank, size = initialised
            local_rank, local_size = env.get("LOCAL_RANK"), env.get("LOCAL_WORLD_SIZE")
            if local_rank is None or local_size is None:
                return cls(rank, size, rank, size)
            return cls(rank, size, int(local_rank), int(local_size))
        for launcher, (rank_name, size_name, local_rank_name, local_size_name) in _LAUNCHERS:
            if launcher == "Slurm" and "SLURM_STEP_ID" not in env:
                continue  # in the shell of sbatch itself: one process, whatever is allocated
            if rank_name in env and size_name in env:
                rank, size = _number(env, rank_name, launcher), _number(env, size_name, launcher)
                if local_rank_name not in env or local_size_name not in env:
                    return cls(rank, size, rank, size)
                return cls(rank, size, _number(env, local_rank_name, launcher), _number(env, local_size_name, launcher))
        return cls()

    @classmethod
    def from_mesh(cls, mesh: "DeviceMesh", dims: str | Sequence[str]) -> "World":
        """Return the data-parallel world of a job that also uses other kinds of parallelism.

        Args:
            mesh: a torch DeviceMesh with named dimensions.
            dims: the dimension that splits the data, or several, slowest first: `("replicate", "shard")`. Ranks that
                differ in other dimensions only (tensor, pipeline) get the same samples.

        Raises ConfigError if the mesh has no dimension of such a name, or if this rank is outside the mesh.
        """
        names, wanted = mesh.mesh_dim_names or (), (dims,) if isinstance(dims, str) else tuple(dims)
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            raise ConfigError(f"this rank is not in the mesh {mesh}")
        rank, size, members = 0, 1, [slice(place, place + 1) for place in coordinate]
        for name in wanted:
            if name not in names:
                raise ConfigError(f"the mesh's dimensions are {', '.join(names) or 'unnamed'}, got {name!r}")
            axis = names.index(name)
            rank, size = rank * mesh.size(axis) + coordinate[axis], size * mesh.size(axis)
            members[axis] = slice(None)
        # All processes of a node share its CPUs, whatever their roles in the mesh.
        node = cls.detect()
        ranks = sorted(mesh.mesh[tuple(members)].reshape(-1).tolist())
        return cls(rank, size, node.local_rank, node.local_size, members=tuple(ranks))


def rank_in_torch_distributed() -> tuple[int, int] | None:
    """Return rank and size in torch.distributed, or None if it is not initialised."""
    dist: Any = sys.modules.get("torch.distributed")  # not imported means not initialised
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


def restarts() -> str:
    """Return how often torchrun has restarted the processes of this job; "0" with other launchers."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def launcher_variables(environ: Mapping[str, str] | None = None) -> dict[str, dict[str, str]]:
    """Return the variables of each launcher that are set, in the order in which `World.detect` asks the launchers.

    Args:
        environ: variables to use instead of `os.environ`.
    """
    env = os.environ if environ is None else environ
    found: dict[str, dict[str, str]] = {}
    for launcher, names in _LAUNCHERS:
        more = ("SLURM_STEP_ID",) if launcher == "Slurm" else ()
        found.setdefault(launcher, {}).update({name: env[name] for name in (*names, *more) if name in env})
    return found


def _number(env: Mapping[str, str], name: str, launcher: str) -> int:
    # Slurm's tasks per node read "4", "4(x2)" or "4,3(x2)"; every local rank is below the largest.
    counts = re.fullmatch(r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*", env[name])
    if not counts:
        raise ConfigError(f"{launcher}'s {name} must be an integer, got {env[name]!r}")
    return max(int(part.split("(")[0]) for part in env[name].split(","))
