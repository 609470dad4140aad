"""A run that a signal stops or that is killed goes on from a checkpoint as if nothing had happened."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _launched import command, environ, epochs
from _ranks import environment, place, running, start, torchrun, torchrun_of
from _time_limit import wait_until
from _tiny import assert_same_weights, config, free_port, records, weights

import shardio
from shardio.errors import Preempted, StateMismatch
from shardio.order.world import World
from shardio.train import TrainConfig, checkpoint, distributed, run
from shardio.train.distributed import Job
from shardio.train.learner import Learner

REQUEUE = 85


def started(made: TrainConfig, ranks: int, *extra: object) -> Any:
    """Start `shardio train` on some ranks, without a launcher, for a `with` block."""
    words, port = [*command(made), *map(str, extra)], free_port()
    return running((words, environment() | place(rank, ranks, port)) for rank in range(ranks))


def await_epoch(made: TrainConfig, number: int, limit: float = 60) -> None:
    wait_until(lambda: len(epochs(made)) >= number, "no epoch ended", limit)


@pytest.mark.long
@pytest.mark.parametrize("way", ["", "--gradient-lag 1", "--local-sgd-period 5 --local-sgd-overlap 3"])
def test_a_signal_on_one_rank_stops_all(way: str, tmp_path: Path) -> None:
    """Every rank exits with 85 after the same step, whichever got the signal, also with something in flight."""
    made = config(tmp_path, epochs=4000, batch_size=6)
    with started(made, 2, *way.split()) as processes:
        await_epoch(made, 2)
        processes[-1].send_signal(signal.SIGUSR1)
        ended = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [REQUEUE] * 2, ended
    for _, errors in ended:
        assert stopped("SIGUSR1", made) in errors


def stopped(signal_name: str, made: TrainConfig) -> str:
    """Return the message of a run that has stopped and saved a checkpoint there."""
    at = checkpoint.load(Path(made.output, "last.pt")).place
    return f"{signal_name} stopped the run in epoch {at.epoch + 1}, after step {at.step}; --resume auto"


@pytest.mark.long
def test_what_torchrun_makes_of_a_stopped_run(tmp_path: Path) -> None:
    """A run that Ctrl-C stops under torchrun has a checkpoint, and torchrun ends with 1, not 85."""
    made = config(tmp_path, epochs=4000, batch_size=6)
    with running([([*torchrun_of(2), "-m", *command(made)[2:]], environ())]) as (process,):
        await_epoch(made, 2, limit=120)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1, errors
    assert stopped("SIGINT", made) in errors


def test_a_second_interrupt_ends_the_run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """The first Ctrl-C asks for a checkpoint and says so; one more ends the run, unless it is the same one's echo."""
    now = 100.0
    monkeypatch.setattr(distributed.time, "monotonic", lambda: now)
    with ExitStack() as handlers, distributed.StopRequest(Job(World(), torch.device("cpu")), handlers) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        now += 1.5  # torchrun sends its ranks what the terminal sent them
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.agreed() == signal.SIGINT
        now += 1.0
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    told = "shardio: saving a checkpoint after this step; Ctrl-C again ends the run without one"
    assert capfd.readouterr().err.split("\n") == ["", told, ""]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("point", ["checkpoint", "handlers", "exit"])
def test_late_signals_leave_the_exit_code(point: str, tmp_path: Path) -> None:
    """A signal of each kind while a stopped run ends, also while the interpreter does, changes nothing: 85 stays."""
    made = config(tmp_path)
    done = end_late(made, point, "SIGTERM", "SIGINT", "SIGUSR1")
    assert done.returncode == REQUEUE, done.stderr
    assert stopped("SIGTERM", made) in done.stderr


@pytest.mark.long
@pytest.mark.slow
def test_a_second_interrupt_ends_what_is_ending(tmp_path: Path) -> None:
    """A Ctrl-C more than 2 s after the first ends a run that has stopped and is still ending."""
    done = end_late(config(tmp_path), "handlers", "SIGINT", "SIGINT")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (130, "shardio: interrupted")


def end_late(made: TrainConfig, point: str, *signals: str) -> "subprocess.CompletedProcess[str]":
    """Stop a run, and send it signals, 3 s apart, at a point of its end."""
    script = Path(__file__).with_name("_late_signals.py")
    return subprocess.run(
        [sys.executable, script, point, ",".join(signals), *command(made)[3:]],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("lag", [0, 1], ids=["synchronous", "lag"])
@pytest.mark.parametrize("step", [1, 6, 8, 12], ids=["first", "in an epoch", "at its end", "last"])
def test_a_stopped_run_goes_on_to_the_bit(step: int, lag: int, tmp_path: Path) -> None:
    """Stopped by a signal in the middle or at the end of an epoch, a run ends with the weights of one that was not."""
    whole = config(tmp_path, output=tmp_path / "whole", epochs=3, gradient_lag=lag)
    run(whole)
    halves = replace(whole, output=str(tmp_path / "halves"))
    before = signal.getsignal(signal.SIGTERM)
    stop_after(halves, step)
    assert signal.getsignal(signal.SIGTERM) == before
    run(replace(halves, resume="auto"))
    assert_same_weights(whole, halves)
    losses = [[line["train_loss"] for line in records(made)] for made in (whole, halves)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)  # of the whole epoch, before and after the resume


@pytest.mark.parametrize("step", [2, 5], ids=["in an epoch", "at its end"])
def test_a_dataset_grows_between_a_stop_and_a_resume(step: int, tmp_path: Path) -> None:
    """The epoch that was begun ends with the samples, the steps and the losses of the smaller dataset."""
    rng = np.random.default_rng(0)
    sets = {name: rng.integers(0, 255, (count, 1, 8, 8), np.uint8) for name, count in (("old", 50), ("new", 30))}
    for name, images in sets.items():
        labels = np.arange(len(images)) % 3
        np.savez(tmp_path / f"{name}.npz", image=images, label=labels)
    data = tmp_path / "data"
    shardio.convert(tmp_path / "old.npz", data, converter="numpy", container="hdf5", as_image=["image"])
    made = config(tmp_path, train=data, batch_size=4, accumulate=3, metrics_every_steps=1, lr_schedule="constant")
    made = replace(made, output=str(tmp_path / "whole"), checkpoint_every_steps=1)
    run(made)
    grown = replace(made, output=str(tmp_path / "grown"), epochs=3, resume="auto")
    stop_after(grown, step)
    shardio.convert(tmp_path / "new.npz", data, converter="numpy", append=True, as_image=["image"])
    run(grown)
    expected, found = curve(made), curve(grown)
    assert [found[n] for n in range(1, 6)] == [pytest.approx(expected[n]) for n in range(1, 6)]
    assert [line["step"] for line in records(grown)] == [5, 12, 19]
    for key in ("train_loss", "train_accuracy"):
        assert records(grown)[0][key] == pytest.approx(records(made)[0][key])


def stop_after(made: TrainConfig, step: int) -> None:
    """Train until a signal stops the run after its step `step`."""
    batches, train = iter(range(1, 1000)), Learner.step

    def signalled(self: Learner, batch: Any, **options: Any) -> torch.Tensor:
        if options["last"] and next(batches) == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return train(self, batch, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Learner, "step", signalled)
        with pytest.raises(Preempted, match=rf"SIGTERM stopped the run in epoch \d, after step {step};"):
            run(made)


def curve(made: TrainConfig) -> dict[int, tuple[float, float]]:
    """The loss and the accuracy of every step."""
    lines = records(made, "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return {line["step"]: (line["loss"], line["accuracy"]) for line in lines}


@pytest.mark.long
def test_two_ranks_go_on_to_the_bit(tmp_path: Path) -> None:
    """With dropout, clipping and an average, with local SGD, lag, and in bf16; with PowerSGD to one step's rounding."""
    local = {"local_sgd_period": 3, "checkpoint_every_steps": 1, "model": "_tiny:normalised"}
    outer = {"outer_optimizer": "nesterov", "checkpoint_every_steps": 3}
    ways = [
        ({"model": "_tiny:dropping", "clip_norm": 0.5, "ema": 0.9, "checkpoint_every_steps": 3}, 7),
        *(({**local, "local_sgd_start": start}, 7) for start in (2, 9, 7)),
        ({**local, **outer}, 7),
        ({**local, **outer, "local_sgd_overlap": 2}, 8),
        ({"gradient_lag": 1, "accumulate": 2, "batch_size": 3, "ema": 0.9, "checkpoint_every_steps": 2}, 15),
        ({"hook": "bf16", "accumulate": 2, "batch_size": 3, "checkpoint_every_steps": 2}, 15),
        ({"hook": "powersgd", "powersgd_rank": 1, "powersgd_start": 2, "checkpoint_every_steps": 2}, 7),
    ]
    made = config(tmp_path, epochs=3, batch_size=6, output=tmp_path)
    described = json.dumps({"config": made.to_dict(), "ways": ways})
    done = start(Path(__file__).with_name("_resume.py"), described, ranks=2)
    assert done.returncode == 0, done.stderr
    differences = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert differences[:-1] == [[0, 0]] * 8
    # The first step after a resume sends whole gradients, as DDP has not chosen its buckets yet.
    assert max(differences[-1]) < 0.01
    assert "begins anew" not in done.stdout


@pytest.mark.long
def test_gradients_in_flight_go_on_on_any_number_of_ranks(tmp_path: Path) -> None:
    """After a stop at any step of two ranks, one, two and three end with the weights of a run without the stop."""
    made = config(tmp_path, epochs=2, batch_size=6, gradient_lag=1, output=tmp_path / "whole", optimizer="adam")
    whole = replace(made, checkpoint_every_steps=1, keep_checkpoints=8)
    done = torchrun(whole)
    assert done.returncode == 0, done.stderr
    parts = {checkpoint.load(path).place.step: path for path in Path(whole.output).glob("previous*.pt")}
    assert sorted(parts) == [1, 2, 3, 4, 5, 6, 7]
    for ranks in (1, 2, 3):
        halves = [
            replace(made, resume=str(path), output=f"{tmp_path}/{step}-{ranks}", batch_size=12 // ranks)
            for step, path in parts.items()
        ]
        if ranks == 1:
            for half in halves:
                run(half)
        else:
            done = torchrun(*halves, ranks=ranks)
            assert done.returncode == 0, done.stderr
        for half in halves:
            for name, value in weights(whole).items():
                torch.testing.assert_close(weights(half)[name], value, rtol=1e-4, atol=1e-6)


def test_a_run_without_lag_leaves_gradients_in_flight_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so; gradients of another model are refused."""
    made = config(tmp_path, gradient_lag=1)
    stop_after(made, 3)
    saved = checkpoint.load(tmp_path / "out" / "last.pt")
    assert saved.hook["lagged"].keys() == {"1.weight", "1.bias"}
    checkpoint.save_archive(
        tmp_path / "other.pt", replace(saved, hook={"lagged": {"1.bias": torch.zeros(4)}}).to_dict()
    )
    with pytest.raises(StateMismatch, match=r"gradients in flight of '1.bias', torch.float32 \[4\], are not of this"):
        run(replace(made, output=str(tmp_path / "new"), resume=str(tmp_path / "other.pt")))
    capsys.readouterr()
    run(replace(made, resume="auto", gradient_lag=0))
    told = "the gradients of its last step are left out: they are for gradient_lag=1"
    assert told in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_that_is_killed_goes_on_to_the_bit(ranks: int, tmp_path: Path) -> None:
    """Killed at a random step, and resumed: the same loss at every step, and the same weights."""
    made = config(tmp_path, batch_size=12 // ranks, model="_tiny:dropping")
    made = replace(made, metrics_every_steps=1, checkpoint_every_steps=3, lr_schedule="constant")
    options = ["--metrics-every", 1, "--checkpoint-every", 3, "--lr-schedule", "constant"]
    with started(replace(made, epochs=4000), ranks, *options):
        await_epoch(made, 2)
        time.sleep(random.Random(ranks).uniform(0, 0.2))
    newest, _ = checkpoint.Checkpoints(tmp_path / "out").choose()  # `last.pt`, or the one before for a moment
    epochs = checkpoint.load(newest).place.epoch + 2
    whole = replace(made, output=str(tmp_path / "whole"), epochs=epochs)
    halves = replace(whole, output=made.output, resume="auto")
    if ranks == 1:
        run(halves)
        run(whole)
    else:
        done = torchrun(halves, whole)
        assert done.returncode == 0, done.stderr
    assert len(curve(made)) == 4 * epochs
    assert curve(made) == curve(whole)
    assert_same_weights(whole, made)
