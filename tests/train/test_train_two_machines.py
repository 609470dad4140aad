"""Runs whose ranks lose one another: the cable between two machines is cut, a rank is killed or never comes."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import _ranks
import pytest
import torch
from _namespaces import INTERFACE, Machine, cut, machines_on_a_switch, mend
from _time_limit import wait_until, within
from _tiny import config, dataset, free_port, records

from shardio.cli import main
from shardio.errors import ConfigError, Preempted, ShardioError
from shardio.train import checkpoint, run
from shardio.train.distributed import join
from shardio.train.learner import Learner

SAMPLES = 101
BATCH = 4
EPOCH = 13  # steps of two ranks
HELD = 20  # the step at which the test interferes, in the second epoch; the last checkpoint before it is at step 18
TIMEOUT = 3  # seconds
MARGIN = 20  # seconds for a process to end, on a busy machine
PATIENCE = 120

LOST = (
    r"shardio: rank {rank} of 2 on \S+ (waited in vain for|lost its connection to) the other ranks \({reason}[^()]*\): "
    r"another process or the network is gone; --resume auto continues from the last checkpoint"
)


def noting(folder: Path, rank: int, *, held: int = -1, stopped: int = -1) -> Callable[..., torch.Tensor]:
    """Return a `Learner.step` that adds the samples of each batch to a file of `folder`, and lets a test interfere.

    Args:
        folder: where each rank has its file.
        rank: the rank of this process.
        held: the step, of those that this process does, before which rank 0 waits until the test releases it.
        stopped: the step before which this process gets SIGTERM.
    """
    steps, train = itertools.count(), Learner.step

    def step(self: Learner, batch: Any, **options: Any) -> torch.Tensor:
        number = next(steps)
        if number == held and rank == 0:
            (folder / "held").touch()
            wait_until((folder / "released").exists, "the test released no step")
        if number == stopped:
            os.kill(os.getpid(), signal.SIGTERM)
        with open(folder / f"rank{rank}.jsonl", "a") as lines:
            lines.write(json.dumps(batch["index"][batch["valid"]].tolist()) + "\n")
        return train(self, batch, **options)

    return step


def noted(folder: Path, rank: int) -> list[list[int]]:
    return [json.loads(line) for line in (folder / f"rank{rank}.jsonl").read_text().splitlines()]


class Started:
    """Processes of a run, one a machine or rank, and the folder where each rank notes its samples."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, command: Sequence[str], environment: dict[str, str]) -> None:
        with open(self.folder / f"stderr{len(self.processes)}", "w") as errors:
            values = _ranks.environment() | environment
            process = subprocess.Popen(command, env=values, stdout=subprocess.DEVNULL, stderr=errors, text=True)
        self.processes.append(process)

    def await_held(self) -> None:
        wait_until(lambda: (self.folder / "held").exists() or self.ended(), "rank 0 did not reach the step")
        assert not self.ended(), self.errors(0)

    def ended(self) -> bool:
        return any(process.poll() is not None for process in self.processes)

    def wait(self, seconds: float) -> list[int]:
        """Return the exit codes of all processes, which must end in time."""
        deadline = time.monotonic() + seconds
        return [process.wait(max(0.01, deadline - time.monotonic())) for process in self.processes]

    def errors(self, number: int) -> str:
        return (self.folder / f"stderr{number}").read_text()


@contextmanager
def starting(folder: Path) -> Iterator[Started]:
    """Yield a run without processes; kill those that are left at the end."""
    folder.mkdir()
    started = Started(folder)
    try:
        yield started
    finally:
        for process in started.processes:
            process.kill()
            process.wait()


def script(folder: Path, root: Path, *more: object, held: int = -1) -> list[str]:
    """Return the arguments of Python that train on the data in `root` for three epochs, see the end of this file."""
    options = ["--model", "_tiny:flat", "--epochs", 3, "--batch-size", BATCH, "--threads", 1, "--device", "cpu"]
    options += ["--output", root / "out", "--resume", "auto", "--checkpoint-every", 3, "--timeout", TIMEOUT, *more]
    return [*map(str, (Path(__file__), folder, held, "train", root / "train", *options))]


def torchrun(machines: Sequence[Machine], started: Started, arguments: Sequence[str], *, elastic: bool = False) -> None:
    """Start torchrun on each machine, with one rank each, which meet at the first machine."""
    first = machines[0]
    for number, machine in enumerate(machines):
        meeting = ["--node-rank", str(number), "--master-addr", first.address, "--master-port", "29400"]
        if elastic:
            # torchrun knows by the host's name which machine it is on, and both have the same.
            meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{first.address}:29400"]
            meeting += ["--rdzv-conf", f"is_host={int(machine is first)}", "--local-addr", machine.address]
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(machines)), *meeting]
        command += ["--nproc-per-node", "1", "--max-restarts", "0", *arguments]
        started.start(machine.command(command), {"GLOO_SOCKET_IFNAME": INTERFACE})


def assert_each_once(batches: Sequence[Sequence[int]]) -> None:
    assert sorted(itertools.chain.from_iterable(batches)) == list(range(SAMPLES))


@pytest.mark.cluster
def test_a_cut_cable_ends_the_run_and_costs_no_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both machines end in time and in words; one process goes on, and then both: each sample counts once per epoch."""
    dataset(tmp_path / "train", SAMPLES)
    with machines_on_a_switch(2) as machines:
        with starting(tmp_path / "first") as first:
            torchrun(machines, first, script(first.folder, tmp_path, held=HELD))
            first.await_held()
            cut(machines[1])
            (first.folder / "released").touch()
            assert first.wait(TIMEOUT + MARGIN) == [1, 1]
            for rank in range(2):
                errors = first.errors(rank)
                (line,) = [line for line in errors.splitlines() if line.startswith("shardio: ")]
                assert re.fullmatch(LOST.format(rank=rank, reason="Timed out waiting 3000ms"), line)
                assert "RuntimeError" not in errors
        place = checkpoint.load(tmp_path / "out" / "last.pt").place
        assert (place.epoch, place.step, place.samples) == (1, 18, (18 - EPOCH) * 2 * BATCH)
        steps = [noted(first.folder, rank) for rank in range(2)]
        assert len(steps[0]) == HELD + 1  # it was in the middle of a step
        done = [batch for batches in steps for batch in batches[EPOCH : place.step]]
        assert sum(map(len, done)) == place.samples

        left = -(-(SAMPLES - place.samples) // BATCH)  # steps of one rank
        with monkeypatch.context() as patched:
            patched.setattr(Learner, "step", noting(tmp_path, 0, stopped=left + 5))
            alone = config(tmp_path, train=tmp_path / "train", epochs=3, batch_size=BATCH, resume="auto")
            with pytest.raises(Preempted, match="SIGTERM stopped the run in epoch 3, after step"):
                run(alone)
        steps = [noted(tmp_path, 0)]
        assert_each_once(done + steps[0][:left])
        place = checkpoint.load(tmp_path / "out" / "last.pt").place
        done = steps[0][left:]
        assert (place.epoch, place.samples) == (2, sum(map(len, done)))

        mend(machines[1])
        with starting(tmp_path / "both") as both:
            torchrun(machines, both, script(both.folder, tmp_path), elastic=True)
            assert both.wait(PATIENCE) == [0, 0], both.errors(0)
        assert_each_once(done + noted(both.folder, 0) + noted(both.folder, 1))
    assert [(record["epoch"], record["world_size"]) for record in records(alone)] == [(1, 2), (2, 1), (3, 2)]


@pytest.mark.long
@pytest.mark.parametrize("way", ["", "--gradient-lag 1", "--local-sgd-period 4 --local-sgd-overlap 3"])
def test_a_rank_that_is_killed_ends_the_other(way: str, tmp_path: Path) -> None:
    """Without a launcher too, a rank ends in one line when the one through which it found the others is killed."""
    dataset(tmp_path / "train", SAMPLES)
    with starting(tmp_path / "ranks") as started:
        port = free_port()
        for rank in range(2):
            command = [sys.executable, *script(started.folder, tmp_path, *way.split(), held=HELD)]
            started.start(command, _ranks.place(rank, 2, port))
        started.await_held()
        started.processes[0].kill()
        assert started.processes[1].wait(MARGIN) == 1
        errors = started.errors(1)
    assert re.search(f"^{LOST.format(rank=1, reason='.*Connection (reset|closed) by peer')}$", errors, re.MULTILINE)
    assert "Traceback" not in errors


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_stays_alone_ends(
    rank: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A rank that the other one never joins ends in time, and says where it waited, and no more than that."""
    port = free_port()
    for name, value in _ranks.place(rank, 2, port).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught, within(MARGIN), join("cpu", 0.5):
        pass
    assert re.fullmatch(
        rf"rank {rank} of 2 on \S+ cannot join the others within 0\.5 s \([^()]*(\(127[^()]*\))?\); start all of them "
        rf"with torchrun, srun or mpirun; rank 0 was expected at 127\.0\.0\.1:{port}",
        str(caught.value),
    )
    assert capfd.readouterr().err == ""


def test_other_errors_stay_as_they_are() -> None:
    """Only what a lost rank or network causes is put in other words: not what a rank does wrong itself."""
    errors = [RuntimeError("mat1 and mat2 must have the same dtype"), ValueError("gloo"), KeyboardInterrupt()]
    mismatch = "[enforce fail at /gloo/gloo/transport/tcp/pair.cc:454] op.preamble.length <= op.nbytes. 20 vs 16"
    for error in (*errors, RuntimeError(mismatch), torch.distributed.DistBackendError("NCCL error: ncclInvalidUsage")):
        with pytest.raises(type(error)) as caught, join("cpu", 1):
            raise error
        assert caught.value is error
    lost = "NCCL error in: NCCLUtils.cpp:94, remote process exited or there was a network error.\nncclRemoteError: gone"
    with (
        pytest.raises(ShardioError, match=r"^rank 0 of 1 on .* lost its connection .* resume='auto' continues") as gone,
        join("cpu", 1),
    ):
        raise torch.distributed.DistBackendError(lost)
    assert isinstance(gone.value.__cause__, torch.distributed.DistBackendError)


def train(folder: Path, held: int) -> None:
    """Run `shardio train` as a rank of a job, with the rest of the command line."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    Learner.step = noting(folder, rank, held=held)  # type: ignore[method-assign]  # no other part sees every batch
    # On a busy machine one rank may start later than the other by more than `TIMEOUT`.
    (folder / f"started{rank}").touch()
    wait_until(lambda: all((folder / f"started{other}").exists() for other in range(size)), "not all ranks started")
    main()


if __name__ == "__main__":
    directory, number = Path(sys.argv[1]), int(sys.argv[2])
    sys.argv[1:3] = []
    train(directory, number)
