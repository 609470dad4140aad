"""Slurm, mpirun and torchrun start training, end it, and start it again where it was; ranks find each other by them.

Slurm's daemons are real: they run on this machine for these tests.
"""

import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _cli import python
from _launched import VARIABLES, Images, arguments, command, environ, epochs
from _ranks import running, torchrun_of
from _slurm import Cluster, cluster, missing
from _time_limit import wait_until
from _tiny import config

import shardio
from shardio.care.verify import verify
from shardio.errors import ConfigError
from shardio.train import TrainConfig
from shardio.train.distributed import init_method

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "slurm"
STEPS = 4
"""The steps of an epoch."""

REQUEUE = 85
ONE_NODE = ["--nodes", "1", "--ntasks-per-node", "2", "--gpus-per-node", "2", "--cpus-per-task", "1"]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with cluster(tmp_path_factory.mktemp("slurm"), VARIABLES) as made:
        yield made


def two_ranks(folder: Path, **changes: object) -> TrainConfig:
    return config(folder, batch_size=6, **changes)


def whole(number: int) -> list[tuple[int, int, int]]:
    """The log of so many epochs that two ranks have trained."""
    return [(epoch, STEPS * epoch, 2) for epoch in range(1, number + 1)]


@pytest.mark.cluster
def test_an_interactive_shell_is_one_process(slurm: Cluster) -> None:
    """The shell that salloc opens is no rank of several, though its variables tell of two tasks."""
    code = "import os, shardio; print(os.environ['SLURM_NTASKS'], shardio.World.detect().size)"
    shell = ["srun", "--interactive", "--preserve-env", sys.executable, "-c", code]  # as salloc starts it
    assert slurm.run("salloc", "--ntasks", 2, *shell).split() == ["2", "1"]


@pytest.mark.cluster
def test_a_job_queues_itself_again_and_resumes(slurm: Cluster, tmp_path: Path) -> None:
    """examples/slurm/train.sbatch goes on after the signal that announces its end, and after Slurm has requeued it.

    Its two ranks find each other by what srun tells them.
    """
    run = two_ranks(tmp_path, epochs=30, model="_launched:slow_at_first")
    job = slurm.submit(*ONE_NODE, EXAMPLES / "train.sbatch", *arguments(run))

    job.wait("an epoch", lambda: len(epochs(run)) >= 1)
    job.signal("USR1")
    job.wait_for_requeue(1)
    first = len(epochs(run))
    text = job.output.read_text()
    assert f"Exited with exit code {REQUEUE}" in text
    assert text.count("SIGUSR1 stopped the run") == 2  # ranks
    job.start_soon()

    job.wait("another epoch", lambda: len(epochs(run)) > first)
    slurm.run("scontrol", "requeue", job.number)  # which sends SIGTERM, as a preemption does
    job.wait_for_requeue(2)
    job.start_soon()
    job.wait_for_end()

    assert epochs(run) == whole(30)
    stopped = re.findall(r"(SIG\w+) stopped the run in epoch (\d+), after step (\d+)", job.output.read_text())
    resumed = re.findall(r"resuming from .*last.pt: epoch (\d+), (\d+) samples into it", job.output.read_text())
    assert len(resumed) == 2
    _, epoch, step = stopped[0]
    done = int(step) - STEPS * (int(epoch) - 1)
    assert resumed[0] == (epoch, str(12 * done))
    assert int(epoch) == first + 1
    assert int(resumed[1][0]) > first


@pytest.mark.cluster
def test_a_conversion_queues_itself_again_and_resumes(slurm: Cluster, tmp_path: Path) -> None:
    """examples/slurm/convert.sbatch keeps what it has written before the signal."""
    out = tmp_path / "images"
    arguments = ["torch", "_launched:Images", out, "--to", "hdf5", "--shard-size", "2KB"]
    job = slurm.submit("--cpus-per-task", 2, EXAMPLES / "convert.sbatch", *arguments)

    def shards(folder: str) -> dict[str, tuple[int, int]]:
        """The shards in a folder, with what changes if one is written again."""
        found = {path.name: path.stat() for path in out.glob(f"{folder}/*.h5")}
        return {name: (status.st_ino, status.st_mtime_ns) for name, status in found.items()}

    unfinished = ".converting/run-*/shards"
    job.wait("shards", lambda: len(shards(unfinished)) >= 5)
    job.signal("USR1")
    job.wait_for_requeue(1)
    before = shards(unfinished)
    job.start_soon()
    job.wait_for_end()

    assert len(before.items() & shards(".").items()) >= 3  # all but those that the two workers were writing
    assert verify(out).problems == ()
    made, images = shardio.open(out), Images()
    assert len(made) == len(images)
    assert [(bytes(sample["image"]), sample["label"]) for sample in made] == [images[n] for n in range(len(images))]


@pytest.mark.cluster
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs openmpi-bin: no mpirun")
def test_mpirun_needs_no_other_variables(tmp_path: Path) -> None:
    """Two ranks find each other by what mpirun tells them, and stop at a signal that it forwards."""
    run = two_ranks(tmp_path, epochs=4000)
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]
    with running([([*mpirun, *command(run)], environ())]) as (process,):
        wait_until(lambda: epochs(run) or process.poll() is not None)
        process.send_signal(signal.SIGUSR1)
        output = "".join(process.communicate(timeout=120))
    assert process.returncode == REQUEUE, output
    assert "SIGUSR1 stopped the run" in output
    done = epochs(run)
    assert done == whole(len(done))
    assert done


@pytest.mark.cluster
def test_torchrun_starts_all_ranks_again(tmp_path: Path) -> None:
    """After the death of a rank, torchrun's new ranks resume from the last checkpoint."""
    run = two_ranks(tmp_path, epochs=3, model="_launched:kills_rank_1_once")
    torchrun = [*torchrun_of(2)[1:], "--max-restarts", "1"]
    # Without this variable new ranks may read the addresses of the old ones: torch's issue 135712.
    variables = environ() | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = python(*torchrun, *command(run)[1:], env=variables, timeout=200)
    assert re.search(r"resuming from .*last.pt: epoch 2, 0 samples into it", done.stdout + done.stderr)
    assert epochs(run) == whole(3)


SLURM = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "localhost"}
OPENMPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "165150721"}


def host_and_port(environ: dict[str, str]) -> tuple[str, int]:
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
        ("gpu-a.cluster,gpu-b.cluster", "gpu-a.cluster"),
        ("node[003-010,12],login", "node003"),
        ("rack[1-2]node[07-08]", "rack1node07"),
    ],
)
def test_rank_0_is_on_the_first_node_of_a_step(nodes: str, first: str) -> None:
    """Slurm's notation of several hosts is understood."""
    assert host_and_port(SLURM | {"SLURM_STEP_NODELIST": nodes, "SLURM_JOB_NODELIST": "other"})[0] == first


def test_jobs_rarely_share_a_port() -> None:
    """Nearly every step and job has a port of its own, outside the range of outgoing connections.

    The ranks of `mpirun` on one node, also on one of Slurm's, meet on that node.
    """
    assert host_and_port(OPENMPI) == host_and_port(SLURM | OPENMPI)
    assert host_and_port(OPENMPI)[0] == "127.0.0.1"
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
def test_a_variable_that_is_missing_is_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        init_method(environ)
