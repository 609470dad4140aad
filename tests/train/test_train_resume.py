"""A run that is killed and resumed has the losses and the weights of one that was not."""

import json
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
from _ranks import start as start_script
from _ranks import torchrun
from _tiny import assert_same_weights, config, records
from test_train_signals import await_epoch, start

from shardio.train import TrainConfig, checkpoint, run


def curve(made: TrainConfig) -> dict[int, tuple[float, float]]:
    """The loss and the accuracy of every step."""
    lines = records(made, "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return {line["step"]: (line["loss"], line["accuracy"]) for line in lines}


@pytest.mark.long
def test_two_ranks_go_on_to_the_bit(tmp_path: Path) -> None:
    """With dropout, clipping and an average, with local SGD, and in bf16; with PowerSGD to the rounding of one step."""
    ways = [
        ({"model": "_tiny:dropping", "clip_norm": 0.5, "ema": 0.9, "checkpoint_every_steps": 3}, 7),
        ({"local_sgd_period": 3, "local_sgd_start": 2, "checkpoint_every_steps": 1, "model": "_tiny:normalised"}, 7),
        ({"local_sgd_period": 3, "local_sgd_start": 9, "checkpoint_every_steps": 1, "model": "_tiny:normalised"}, 7),
        ({"local_sgd_period": 3, "local_sgd_start": 7, "checkpoint_every_steps": 1, "model": "_tiny:normalised"}, 7),
        ({"hook": "bf16", "accumulate": 2, "batch_size": 3, "checkpoint_every_steps": 2}, 15),
        ({"hook": "powersgd", "powersgd_rank": 1, "powersgd_start": 2, "checkpoint_every_steps": 2}, 7),
    ]
    made = config(tmp_path, epochs=3, batch_size=6, output=tmp_path)
    described = json.dumps({"config": made.to_dict(), "ways": ways})
    done = start_script(Path(__file__).with_name("_resume.py"), described, ranks=2)
    assert done.returncode == 0, done.stderr
    differences = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert differences[:5] == [[0, 0]] * 5
    # The first step after a resume sends whole gradients, as DDP has not chosen its buckets yet.
    assert max(differences[5]) < 0.01
    assert "begins anew" not in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_that_is_killed_goes_on_to_the_bit(ranks: int, tmp_path: Path) -> None:
    """Killed at a random step, and resumed: the same loss at every step, and the same weights."""
    made = config(tmp_path, batch_size=12 // ranks, model="_tiny:dropping")
    made = replace(made, metrics_every_steps=1, checkpoint_every_steps=3, lr_schedule="constant")
    options = ["--metrics-every", 1, "--checkpoint-every", 3, "--lr-schedule", "constant"]
    killed = start(replace(made, epochs=4000), ranks, *options)
    try:
        await_epoch(made, 2)
        time.sleep(random.Random(ranks).uniform(0, 0.2))
    finally:
        for process in killed:
            process.kill()
            process.communicate()
    newest, _ = checkpoint.CheckpointFolder(tmp_path / "out").choose()  # `last.pt`, or the one before for a moment
    place = checkpoint.load(newest).place
    epochs = place.epoch + 2
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
