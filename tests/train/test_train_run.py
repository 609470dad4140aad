"""Complete training runs, in one process and on real ranks."""

import io
import json
import re
import threading
import time
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from _ranks import torchrun
from _tiny import config, dataset, records
from rich.console import Console

import shardio
from shardio.errors import BadSample, ShardioError
from shardio.order.world import World
from shardio.train import TrainConfig, checkpoint, run
from shardio.train.data import open_data
from shardio.train.distributed import Job
from shardio.train.learner import Evaluation, Learner
from shardio.train.model import load_model
from shardio.train.records import Display


def evaluate_alone(made: TrainConfig) -> Evaluation:
    """The accuracy of a run's model, evaluated by one process with another batch size."""
    job = Job(World(), torch.device("cpu"))
    data = open_data(replace(made, batch_size=5), job)
    model = load_model(str(made.model), data.task)
    model.load_state_dict(checkpoint.load(Path(made.output) / "last.pt").model)
    return Learner(made, job, model, 1, data.task).evaluate(data.val)


def working_threads() -> list[str]:
    """The names of the threads that do not just wait for work, once those that are about to have ended."""
    time.sleep(0.1)
    return sorted({thread.name for thread in threading.enumerate()} - {"shardio idle", "shardio keeper"})


def test_one_process_learns_and_writes_everything_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run writes its result, a log, both checkpoints and a line per epoch, and leaves no thread."""
    before = working_threads()
    train, val = dataset(tmp_path / "train", classes=2), dataset(tmp_path / "val", 17, classes=2, seed=1)
    made = config(tmp_path, train=train, val=val, epochs=4, warmup_epochs=0.5, lr=0.2)
    result = run(made)
    assert result.score == result.best_score == 1.0
    assert result.samples_per_second_per_rank > 0
    assert 0 <= result.starved <= 1
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == asdict(result)
    told = [(line["epoch"], line["step"], line["val_count"]) for line in records(made)]
    assert told == [(epoch, 4 * epoch, 17) for epoch in range(1, 5)]
    written = ["best.pt", "last.pt", "log.jsonl", "previous.pt", "result.json"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == written
    plan, *lines = capsys.readouterr().out.splitlines()
    assert plan == "training _tiny:flat on cpu: 48 samples in batches of 12, 4 steps per epoch, 4 epochs"
    table = ["accuracy", "epochs", "samples/s", "starved", "checkpoint"]
    assert [line.split("  ")[0] for line in lines] == [*(f"epoch {number}/4" for number in range(1, 5)), *table]
    assert working_threads() == before
    again = run(replace(made, resume="auto"))  # nothing is left
    assert (again.score, again.best_score, again.epochs, again.samples_per_second_per_rank) == (1.0, 1.0, 4, 0)
    assert len(records(made)) == 4


def test_best_is_the_best_and_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worse later epoch does not change `best.pt` and the best accuracy."""
    accuracies = iter([0.3, 0.9, 0.6])
    monkeypatch.setattr(Learner, "evaluate", lambda *_: Evaluation(next(accuracies), 10, 1.0))
    result = run(config(tmp_path, val=dataset(tmp_path / "val", 10), epochs=3))
    assert (result.score, result.best_score) == (0.6, 0.9)
    assert checkpoint.load(tmp_path / "out" / "best.pt").place.epoch == 2
    assert checkpoint.load(tmp_path / "out" / "last.pt").place.epoch == 3


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    """A loss of NaN ends the run with advice, and no checkpoint holds the bad weights."""
    with pytest.raises(ShardioError, match=r"must stay finite, got nan by epoch 1, step 1: try a smaller lr"):
        run(config(tmp_path, model="_tiny:broken", checkpoint_every_steps=1))
    assert not (tmp_path / "out" / "last.pt").exists()


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere() -> None:
    """A terminal and a pipe show the same figures, and only rank 0 prints."""
    for leads, terminal in [(True, False), (False, False), (False, True), (True, True)]:
        console = Console(file=io.StringIO(), force_terminal=terminal, width=200, color_system=None)
        with closing(Display(leads, 1e-9, console)) as shown:
            assert shown.due()
            shown.show("epoch 2/5", 117, 235, "loss 0.412")
            shown.line("the end of an epoch")
        text = console.file.getvalue()
        assert ("117/235" in text) == ("the end of an epoch" in text) == ("loss 0.412" in text) == leads
        assert ("epoch 2/5  step 117/235  loss 0.412\n" in text) == (leads and not terminal)


@pytest.mark.long
def test_two_ranks_learn_and_one_goes_on(tmp_path: Path) -> None:
    """One process begins, two ranks resume from the checkpoint before a damaged one, and one process goes on."""
    values = {"train": dataset(tmp_path / "train", 101, side=16), "val": dataset(tmp_path / "val", 21, side=16, seed=1)}
    two = config(tmp_path, **values, model="resnet", batch_size=8, epochs=4, lr=0.5, resume="auto", log_every=1e-9)
    run(replace(two, epochs=2, batch_size=16))
    last_checkpoint = tmp_path / "out" / "last.pt"
    last_checkpoint.write_bytes(last_checkpoint.read_bytes()[:-1])
    done = torchrun(two)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"passing over {last_checkpoint}: it does not end with a checksum") == 1
    assert done.stdout.count("previous.pt: epoch 2") == 1
    assert (
        done.stdout.count("training resnet on cpu: 101 samples in batches of 16 (2 ranks x 8), 7 steps per epoch") == 1
    )
    shown = [float(found) for found in re.findall(r"step \d/7  loss .*  accuracy (\S+)", done.stdout)]
    assert max(shown) <= 1.0  # although the last five samples of an epoch are all rank 0's
    assert len(shown) == 21
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["epochs"] == 4
    assert result["score"] >= 0.9
    assert done.stdout.count("epoch 4/4  train loss") == 1  # rank 0 prints, rank 1 does not
    last, alone = records(two)[-1], evaluate_alone(two)
    assert (last["val_accuracy"], last["val_count"]) == (alone.score, 21)
    assert last["val_loss"] == pytest.approx(alone.loss, rel=1e-5)  # all ranks validated with rank 0's running means

    more = run(replace(two, epochs=5, resume="auto"))
    assert (more.epochs, [line["world_size"] for line in records(two)]) == (5, [1, 2, 2, 2, 1])  # one line per epoch
    assert more.score >= 0.9


@pytest.mark.long
@pytest.mark.parametrize(
    "way", [{}, {"gradient_lag": 1}, {"local_sgd_period": 3, "local_sgd_overlap": 2}], ids=["sync", "lag", "overlap"]
)
def test_a_rank_that_fails_ends_the_job(way: dict[str, Any], tmp_path: Path) -> None:
    """When a rank fails, the launcher ends the others, and the error is printed, also with something in flight."""
    done = torchrun(config(tmp_path, model="_tiny:fails_on_rank_1", **way))
    assert done.returncode != 0
    assert "rank 1 has had enough" in done.stderr
    assert "destroyed before the model" not in done.stderr


def test_bad_samples_are_replaced_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged image ends a run by default; with replacement, the run reports the count and the list's path.

    The batch that the ceiling is measured with lists none.
    """
    for name in ("train", "val"):
        path = Path(dataset(tmp_path / "data" / name))
        image = shardio.open(path)[7]["image"]
        shard = path / shardio.open(path).manifest.shards.names[0]
        broken = image[: image.index(b"IDAT")] + bytes(len(image) - image.index(b"IDAT"))
        assert shard.read_bytes().count(image) >= 1
        shard.write_bytes(shard.read_bytes().replace(image, broken, 1))
    given = {"val": tmp_path / "data" / "val", "epochs": 1, "warmup_epochs": 0.5, "batch_size": 48}
    with pytest.raises(BadSample, match="field 'image'"):
        run(config(tmp_path, **given))
    made = config(tmp_path, output=tmp_path / "second", on_bad_sample="replace", max_bad=2, synthetic=True, **given)
    run(made)
    (record,) = records(made)
    assert record["bad_samples"] == 1
    assert record["val_count"] == 47
    lines = records(made, "bad.jsonl")
    assert [line["index"] for line in lines] == [7, 7]
    assert [line["replaced_by"] is None for line in lines] == [False, True]
    assert "1 bad sample replaced: see bad.jsonl" in capsys.readouterr().out
