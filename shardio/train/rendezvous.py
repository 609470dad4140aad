"""The rendezvous of a job's ranks: the address and the port where rank 0 listens, by the launcher's variables."""

import re
import zlib
from collections.abc import Mapping

from ..errors import ConfigError

_PORTS = range(10_000, 30_000)
"""The ports that are derived from a job's number: below those that Linux gives to outgoing connections."""


def init_method(environ: Mapping[str, str]) -> str:
    """Return the `init_method` of `torch.distributed.init_process_group` for several ranks.

    MASTER_ADDR and MASTER_PORT, which torchrun sets, come first. Without them `srun`'s variables suffice, and those of
    Open MPI's `mpirun` where all ranks are on one node.

    Raises ConfigError if the variables do not tell where rank 0 is.
    """
    address, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if address and port:
        return "env://"
    address, port = address or _address(environ), port or str(_port(environ))
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def _address(environ: Mapping[str, str]) -> str:
    """Return the host of rank 0."""
    size = environ.get("OMPI_COMM_WORLD_SIZE")
    if size is not None:
        if environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == size:
            return "127.0.0.1"
        raise ConfigError(
            f"MASTER_ADDR must be the host of rank 0 if mpirun starts ranks on several nodes, got {size} ranks and no "
            "MASTER_ADDR: mpirun -x MASTER_ADDR=HOST"
        )
    if "SLURM_STEP_ID" in environ:
        name = "SLURM_STEP_NODELIST" if "SLURM_STEP_NODELIST" in environ else "SLURM_JOB_NODELIST"
        return _first_host(name, environ.get(name, ""))
    raise ConfigError("MASTER_ADDR must be the host of rank 0, got none: start the ranks with torchrun, srun or mpirun")


def _first_host(name: str, nodes: str) -> str:
    """Return the first host of a list of nodes in Slurm's notation, such as `rack[1-2]node[03-07,12],login`."""
    first = re.sub(r"\[(\w+)[^\]]*\]", r"\1", nodes).partition(",")[0]
    if not re.fullmatch(r"[\w.-]+", first):
        raise ConfigError(f"Slurm's {name} must begin with the name of a host, got {nodes!r}: set MASTER_ADDR")
    return first


def _port(environ: Mapping[str, str]) -> int:
    """Return a port that all ranks of this job compute, and that other jobs on the node are unlikely to."""
    if "OMPI_COMM_WORLD_SIZE" in environ:
        names: tuple[str, ...] = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
    else:
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID")
    job = " ".join(environ[name] for name in names if name in environ)
    if not job:
        raise ConfigError(f"MASTER_PORT must be set, as none of {', '.join(names)} is: rank 0 listens there")
    return _PORTS[zlib.crc32(job.encode()) % len(_PORTS)]
