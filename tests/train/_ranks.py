"""Run the trainer on real ranks: `torchrun`'s module starts this file, which reads its configurations from JSON."""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from _ends import fail_if_threads_stay, watch

from shardio.train import TrainConfig, run


def environment() -> dict[str, str]:
    """The environment variables of a rank that imports from the test folders."""
    here = Path(__file__).resolve().parent
    paths = [str(here), str(here.parent), str(here.parent.parent), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def torchrun_of(ranks: int) -> list[str]:
    """The command of torchrun on this machine, without what it is to run."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def torchrun(*configs: TrainConfig, ranks: int = 2, seconds: float = 100) -> subprocess.CompletedProcess[str]:
    """Train on `ranks` processes, by one configuration after the other; return their output and exit status."""
    described = [Path(config.output).with_suffix(".json") for config in configs]
    for path, config in zip(described, configs, strict=True):
        path.write_text(json.dumps(config.to_dict()))
    return start(Path(__file__), *map(str, described), ranks=ranks, seconds=seconds)


def place(rank: int, ranks: int, port: str) -> dict[str, str]:
    """The variables of a rank on this machine, as a launcher sets them."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} | {name: str(value) for name, value in own.items()}


@contextmanager
def running(commands: Iterable[tuple[Sequence[str], dict[str, str]]]) -> Iterator[list["subprocess.Popen[str]"]]:
    """Start processes, each by its command and environment; kill those that are left at the end of the block."""
    pipe, processes = subprocess.PIPE, list["subprocess.Popen[str]"]()
    try:
        for command, variables in commands:
            processes.append(subprocess.Popen(command, env=variables, stdout=pipe, stderr=pipe, text=True))
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def start(script: Path, *arguments: str, ranks: int, seconds: float = 100) -> subprocess.CompletedProcess[str]:
    """Run a script on `ranks` processes; return their output and exit status."""
    return subprocess.run(
        [*torchrun_of(ranks), str(script), *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=seconds,
    )


if __name__ == "__main__":
    watch()
    if len(sys.argv) > 2:  # one group for all runs
        torch.distributed.init_process_group("gloo")
    for path in sys.argv[1:]:
        run(TrainConfig(**json.loads(Path(path).read_text())))
    if len(sys.argv) > 2:
        gc.collect()
        torch.distributed.destroy_process_group()
    fail_if_threads_stay()
