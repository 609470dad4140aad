"""The ranks find rank 0 by the variables of their launcher alone."""

import re

import pytest

from shardio.errors import ConfigError
from shardio.train.rendezvous import init_method

SLURM = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "localhost"}
OPENMPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "165150721"}


def host_and_port(environ: dict[str, str]) -> tuple[str, int]:
    """The address and the port that the variables lead to."""
    found = re.fullmatch(r"tcp://(.+):(\d+)", init_method(environ))
    assert found
    return found[1], int(found[2])


def test_the_users_address_comes_first() -> None:
    """MASTER_ADDR and MASTER_PORT, torchrun's or the user's, win over the launcher's variables; one alone as well."""
    assert init_method(SLURM | {"MASTER_ADDR": "head", "MASTER_PORT": "29500"}) == "env://"
    assert host_and_port(SLURM | {"MASTER_ADDR": "head"}) == ("head", host_and_port(SLURM)[1])
    assert host_and_port(SLURM | {"MASTER_PORT": "29500"}) == ("localhost", 29500)
    assert host_and_port(SLURM | {"MASTER_ADDR": "fd00::2", "MASTER_PORT": ""})[0] == "[fd00::2]"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("localhost", "localhost"),
        ("gpu-a.cluster,gpu-b.cluster", "gpu-a.cluster"),
        ("node[003-010,12],login", "node003"),
        ("node[9]", "node9"),
        ("rack[1-2]node[07-08]", "rack1node07"),
    ],
)
def test_rank_0_is_on_the_first_node_of_a_step(nodes: str, first: str) -> None:
    """Slurm's notation of several hosts is understood."""
    assert host_and_port(SLURM | {"SLURM_STEP_NODELIST": nodes, "SLURM_JOB_NODELIST": "other"})[0] == first


def test_open_mpi_on_one_node() -> None:
    """The ranks of `mpirun` on one node, also on one of Slurm's, meet on that node."""
    assert host_and_port(OPENMPI) == host_and_port(SLURM | OPENMPI)
    assert host_and_port(OPENMPI)[0] == "127.0.0.1"


def test_jobs_rarely_share_a_port() -> None:
    """Nearly every step and job has a port of its own, outside the range of outgoing connections."""
    jobs = [SLURM | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)} for job in range(50) for step in range(2)]
    ports = {host_and_port(environ)[1] for environ in [*jobs, OPENMPI]}
    assert len(ports) > 95
    assert all(10_000 <= port < 30_000 for port in ports)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR must be the host of rank 0, got none"),
        ({"MASTER_ADDR": "head"}, "MASTER_PORT must be set, as none of SLURM_JOB_ID, SLURM_STEP_ID is"),
        (OPENMPI | {"OMPI_COMM_WORLD_SIZE": "4"}, "got 4 ranks and no MASTER_ADDR: mpirun -x MASTER_ADDR=HOST"),
        (SLURM | {"SLURM_STEP_NODELIST": "[1-2"}, r"SLURM_STEP_NODELIST must begin with .* got '\[1-2'"),
        ({"SLURM_STEP_ID": "0"}, "SLURM_JOB_NODELIST must begin with the name of a host, got ''"),
    ],
)
def test_what_is_missing_is_named(environ: dict[str, str], message: str) -> None:
    """An error names the variable that would help."""
    with pytest.raises(ConfigError, match=message):
        init_method(environ)
