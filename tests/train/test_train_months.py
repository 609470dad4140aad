"""The scripts for machines of two centres train on months of weather, and go on with another number of nodes."""

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from _launched import VARIABLES
from _slurm import Nodes, cluster, missing

import shardio

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ("node1", "node2")
MACHINES = {
    "juwels-booster": (Nodes(NAMES, sockets=2, cores=24, threads=2, gpus=4, bound=True), 12, (2, 1)),
    "perlmutter": (Nodes(NAMES, sockets=1, cores=64, threads=2, gpus=4, bound=True), 32, (2,)),
}
"""What a script's nodes have, the CPUs of a rank, and on how many nodes its jobs run."""

STEPS = 6
"""Of each job."""


def python(folder: Path, *words: object) -> str:
    """Run a script of the examples in `folder`; return what it printed."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=100).stdout


@pytest.fixture(scope="module")
def months(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two months of weather as a dataset, in place."""
    folder = tmp_path_factory.mktemp("months")
    python(folder, EXAMPLES / "make_months.py", "months", "--months", 2)
    shardio.index(f"{folder}/months/*.nc", folder / "data", fields="time", stack="x=t2m,u10,v10", decode_cf=True)
    return folder / "data"


@pytest.fixture(scope="module")
def whole(months: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of one process, by step."""
    train = [EXAMPLES / "train_months.py", months, "--epochs", 1, "--stop-after", 2 * STEPS]
    return losses(python(tmp_path_factory.mktemp("whole"), *train))


def losses(printed: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+): loss (\S+)$", printed, re.M)}


@pytest.mark.cluster
@pytest.mark.alone  # eight ranks beside other tests take longer than Slurm and their timeouts wait
@pytest.mark.parametrize("script", MACHINES)
def test_the_job_goes_on_with_another_number_of_nodes(
    script: str, months: Path, whole: dict[int, float], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """Each node's four ranks make the steps of one process, from its own copy; other nodes go on where the first stop.

    Slurm gives each rank the CPUs that the script asks for, to none of its node's other ranks.
    """
    if (reason := missing(bound=True)) is not None:
        pytest.skip(reason)
    nodes, cpus, counts = MACHINES[script]
    local = tmp_path / "local"
    variables = VARIABLES | {"MASTER_ADDR": "127.0.0.1", "LOCAL": str(local)}
    printed = []
    with cluster(tmp_path_factory.mktemp("slurm"), variables, nodes) as slurm:
        (slurm.folder / "examples").symlink_to(EXAMPLES)
        for number, count in enumerate(counts, 1):
            train = [EXAMPLES / "slurm" / f"{script}.sbatch", months, "--epochs", 1, "--stop-after", number * STEPS]
            job = slurm.submit("--nodes", count, *train)
            job.wait_for_end()
            printed.append(job.output.read_text())
    for number, text in enumerate(printed):
        steps = range(number * STEPS + 1, (number + 1) * STEPS + 1)
        assert losses(text) == pytest.approx({step: whole[step] for step in steps}, rel=2e-3)
    assert any(local.iterdir())
    for text, count in zip(printed, counts, strict=True):
        for number, name in enumerate(NAMES):
            found = re.findall(rf" {name}, task .*: mask 0x(\w+) set$", text, re.M)
            masks = [int(mask, 16) for mask in found]
            assert [mask.bit_count() for mask in masks] == [cpus] * 4 * (number < count)
            assert sum(masks) == functools.reduce(int.__or__, masks, 0)  # no two have a CPU in common
