"""The runs of the large-batch benchmark: equal recipes are one run, and the results become a table and a picture."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import large_batch
from benchmarks.large_batch import BATCHES, EPOCHS, RANKS, RECIPES, Run, plot, recipe_run, table

RATES = {name: {"rate": 0.1} for name in ("sgd", "lars", "larc", "lamb")}


def test_scaling_changes_nothing_at_the_batch_of_the_search() -> None:
    """At the smallest batch three recipes of SGD are two runs; at others each recipe is a run of its own."""
    names = {batch: {recipe_run(recipe, batch, 0, RATES).name for recipe in RECIPES} for batch in BATCHES}
    assert [len(names[batch]) for batch in BATCHES] == [len(RECIPES) - 2, len(RECIPES), len(RECIPES)]


@pytest.mark.parametrize("batch", BATCHES)
def test_local_sgd_has_the_global_batch(batch: int) -> None:
    """Its ranks divide the batch of the other recipes, and begin to average in the middle of the run."""
    run = recipe_run("post-local SGD", batch, 0, RATES)
    assert run.ranks * run.options["batch_size"] == batch
    assert run.ranks == RANKS
    assert run.options["local_sgd_start"] == EPOCHS * -(-60_000 // batch) // 2


def test_results_are_read_and_become_a_picture(tmp_path: Path) -> None:
    """A run with a result is read, not started; every recipe has a row with its mean and spread in percent."""
    run = Run({"lr": 0.1})
    (tmp_path / run.name).mkdir()
    (tmp_path / run.name / "log.jsonl").touch()
    (tmp_path / run.name / "result.json").write_text('{"score": 0.75}')
    runner = large_batch.Runner(tmp_path / "no train", tmp_path / "no val", tmp_path, 1)
    assert runner.accuracies([run, run]) == [0.75, 0.75]
    figures = {"mean": 0.8816, "spread": 0.0042, "rate": 0.2}
    accuracy = {recipe: dict.fromkeys(map(str, BATCHES), figures) for recipe in RECIPES}
    result: dict[str, Any] = {"epochs": EPOCHS, "accuracy": accuracy, "best_at_largest": {"LARS": figures}}
    lines = table(result).splitlines()
    assert lines[2] == "| SGD, rate unscaled | 88.2 ± 0.4 | 88.2 ± 0.4 | 88.2 ± 0.4 |"
    assert lines[-1] == "| LARS, rate searched: 0.2 |  |  | 88.2 ± 0.4 |"
    plot(tmp_path / "plot.png", result | {"noise_scale": [10.0, 300.0, 900.0]})
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
