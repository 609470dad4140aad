"""What a run writes down beside its checkpoints: metrics by step, scalars for TensorBoard, a trace, and its ceiling."""

import json
import re
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from _tiny import assert_same_weights, config, dataset, records, run_until

from shardio.errors import MissingDependency, StateMismatch
from shardio.train import checkpoint, run
from shardio.train.records import Records


def test_metrics_are_written_by_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`metrics.jsonl` has the loss, accuracy, rate and gradients of one step in so many; the epochs' means agree."""
    made = config(tmp_path, metrics_every_steps=1, log_every=1e-9, lr=0.05)
    run(made)
    lines = records(made, "metrics.jsonl")
    assert [(line["epoch"], line["step"]) for line in lines] == [(1 + step // 4, 1 + step) for step in range(8)]
    epochs = records(made)
    for epoch, steps in zip(epochs, (lines[:4], lines[4:]), strict=True):
        for name in ("loss", "accuracy"):
            assert epoch[f"train_{name}"] == pytest.approx(sum(line[name] for line in steps) / 4)
    for line in lines:
        assert 0 <= line["accuracy"] <= 1
        assert 0 <= line["starved"] <= 1
        assert line["communication"] == 0  # of a single rank
        assert line["gradient_norm"] > 0
        assert line["samples_per_second"] == line["samples_per_second_per_rank"] > 0
    assert lines[-1]["lr"] == epochs[-1]["lr"]
    shown = [line for line in capsys.readouterr().out.splitlines() if " step " in line]
    assert len(shown) == 8
    pattern = (
        r"epoch 2/2  step 4/4  loss \d\.\d{3}  accuracy [01]\.\d{3}  \|g\| \d\S*  lr \S+  [\d,]+ samples/s  st.* %"
    )
    assert re.fullmatch(pattern, shown[-1])


def test_steps_after_the_checkpoint_are_forgotten(tmp_path: Path) -> None:
    """A run that goes on from a checkpoint writes each step and each epoch once, whatever was written after it.

    TensorBoard's own reader finds the scalars of both files.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    val = dataset(tmp_path / "val", 10)
    made = config(tmp_path, val=val, metrics_every_steps=1, tensorboard=True, checkpoint_every_steps=3)
    run_until(made, 5)
    assert checkpoint.load(tmp_path / "out" / "last.pt").place.step == 4
    with (tmp_path / "out" / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "step": 5, "loss": 1.0}\n{"epoch": 2, "st')  # as a killed process leaves it
    run(replace(made, resume="auto"))
    lines = records(made, "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert [line["epoch"] for line in records(made)] == [1, 2]
    found = EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    found.Reload()
    scalars = found.Scalars("train/loss")
    assert [scalar.step for scalar in scalars] == list(range(1, 9))
    assert [scalar.value for scalar in scalars] == pytest.approx([line["loss"] for line in lines])
    assert [scalar.step for scalar in found.Scalars("val/accuracy")] == [4, 8]
    assert {"train/lr", "train/gradient_norm", "speed/starved", "epoch/train_loss"} <= set(found.Tags()["scalars"])


@pytest.mark.parametrize("line", ["no JSON", "[1]", '{"epoch": 1}', '{"step": "1"}'])
def test_metrics_of_something_else_are_refused(line: str, tmp_path: Path) -> None:
    """A line that no run wrote is an error that names it, and the file stays as it is."""
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(StateMismatch, match=r"metrics\.jsonl, line 2: every line must be JSON with 'step'"):
        Records(tmp_path, epochs=1, step=1, tensorboard=False)
    assert (tmp_path / "metrics.jsonl").read_text().endswith(f"{line}\n")


def test_tensorboard_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package, the error says how to install it."""
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingDependency, match=r"tensorboard needs tensorboard: pip install .*'tensorboard>="):
        run(config(tmp_path, tensorboard=True))


def test_a_trace_and_the_ceiling_change_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`profile` writes a trace of ten steps of the model's layers, `synthetic` prints the rate on one batch first."""
    plain = config(tmp_path, output=tmp_path / "plain", epochs=6)
    run(plain)
    capsys.readouterr()
    measured = replace(plain, output=str(tmp_path / "with"), synthetic=True, profile=True)
    ceiling = f"{run(measured).synthetic_samples_per_second_per_rank:,.0f}"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"one batch in memory: {ceiling} samples/s, {ceiling} per rank"
    told = rf"in memory   {ceiling} samples/s on one batch: input costs \d+\.\d %"
    assert any(re.fullmatch(told, line) for line in lines)
    assert_same_weights(plain, measured)
    trace = json.loads((tmp_path / "with" / "trace-rank0.json").read_text())
    names = [event.get("name", "") for event in trace["traceEvents"]]
    assert sum(name.startswith("ProfilerStep#") for name in names) >= 10
    assert "aten::linear" in names


def test_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    """`keep_checkpoints` names the last ones by their age; the older ones are gone."""
    run(config(tmp_path, epochs=5, keep_checkpoints=4))
    names = ["last.pt", "previous.pt", "previous-2.pt", "previous-3.pt"]
    assert [checkpoint.load(tmp_path / "out" / name).place.epoch for name in names] == [5, 4, 3, 2]
    assert not (tmp_path / "out" / "previous-4.pt").exists()
    for name in names[:3]:
        (tmp_path / "out" / name).write_bytes(b"damaged")
    run(config(tmp_path, epochs=5, keep_checkpoints=4, resume="auto"))  # from the oldest one
    assert checkpoint.load(tmp_path / "out" / "last.pt").place.epoch == 5
    run(config(tmp_path, output=tmp_path / "one", epochs=3, keep_checkpoints=1))
    assert not (tmp_path / "one" / "previous.pt").exists()


def test_numbers_that_overflow_are_null(tmp_path: Path) -> None:
    """Every line is JSON that other programs read, whatever a gradient in fp16 came to."""
    with closing(Records(tmp_path, epochs=0, step=0, tensorboard=True)) as written:
        written.step({"step": 1, "loss": 0.5, "gradient_norm": float("inf"), "lr": float("nan")})
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail) == {"step": 1, "loss": 0.5, "gradient_norm": None, "lr": None}
