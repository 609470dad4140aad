"""Measure what each part of the large-batch recipe is worth: accuracy after equal epochs, for three global batches.

    python benchmarks/large_batch.py TRAIN VAL --work DIR [--jobs 2] [--json FILE] [--plot FILE]

TRAIN and VAL are datasets of Fashion-MNIST's size (see docs/large-batch.md). Every run has its own folder in DIR. A run
that is finished is not repeated, and one that was killed goes on: start the same command again. A run takes one core.

The learning rates are found first: for each optimizer by a search with a seed of its own, SGD's at the smallest batch,
from which rules scale it, the others' at the middle one.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from statistics import mean, stdev
from typing import Any

from benchmarks._results import finish
from shardio.train.model import ResNet

BATCHES = (128, 1024, 8192)
SEEDS = (0, 1, 2)
EPOCHS, SEARCH_SEED, RANKS = 8, 100, 4

SGD: dict[str, Any] = {"lr_reference_batch": BATCHES[0], "warmup_epochs": 0}
WARM: dict[str, Any] = SGD | {"warmup_epochs": 1}
MIDDLE: dict[str, Any] = {"lr_reference_batch": BATCHES[1], "warmup_epochs": 1}
POST_LOCAL: dict[str, Any] = WARM | {"lr_scaling": "linear", "local_sgd_period": 8}
SEARCHES: dict[str, tuple[int, dict[str, Any], Sequence[float]]] = {  # batch, options, rates
    "sgd": (BATCHES[0], WARM, (0.05, 0.1, 0.2, 0.4, 0.8)),
    "lars": (BATCHES[1], MIDDLE | {"optimizer": "lars", "lr_schedule": "polynomial"}, (2.0, 4.0, 8.0, 16.0, 32.0)),
    "larc": (BATCHES[1], MIDDLE | {"optimizer": "larc", "trust_coefficient": 0.02}, (0.1, 0.2, 0.4, 0.8, 1.6)),
    "lamb": (BATCHES[1], MIDDLE | {"optimizer": "lamb", "lr_schedule": "polynomial"}, (0.005, 0.01, 0.02, 0.04, 0.08)),
}
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {  # the search that its rate comes from, and options
    "SGD, rate unscaled": ("sgd", SGD | {"lr_scaling": "none"}),
    "linear scaling": ("sgd", SGD | {"lr_scaling": "linear"}),
    "linear scaling, warm-up": ("sgd", WARM | {"lr_scaling": "linear"}),
    "square-root scaling, warm-up": ("sgd", WARM | {"lr_scaling": "sqrt"}),
    "LARS": ("lars", {"lr_scaling": "sqrt"}),
    "LARC": ("larc", {"lr_scaling": "linear"}),
    "LAMB": ("lamb", {"lr_scaling": "sqrt"}),
    "post-local SGD": ("sgd", POST_LOCAL),
    "post-local SGD, outer steps": ("sgd", POST_LOCAL | {"outer_optimizer": "nesterov"}),
    "post-local SGD, overlapped": ("sgd", POST_LOCAL | {"local_sgd_overlap": 4}),
    "linear scaling, warm-up, lag": ("sgd", WARM | {"lr_scaling": "linear", "gradient_lag": 1}),
    "square-root scaling, warm-up, lag": ("sgd", WARM | {"lr_scaling": "sqrt", "gradient_lag": 1}),
}
AT_LARGEST: dict[str, tuple[dict[str, Any], Sequence[float]]] = {  # options, rates
    "SGD, warm-up": (SEARCHES["sgd"][1], (0.1, 0.2, 0.4, 0.8, 1.6)),
    "LARS": (SEARCHES["lars"][1], (2.0, 4.0, 8.0, 16.0, 32.0)),
    "LARC": (SEARCHES["larc"][1], (0.8, 1.6, 3.2, 6.4, 12.8)),
    "LAMB": (SEARCHES["lamb"][1], (0.01, 0.02, 0.04, 0.08, 0.16)),
}


def model(num_classes: int, channels: int) -> ResNet:
    """The model of all runs: the trainer's own with a quarter of its width."""
    return ResNet(num_classes, channels, 28, width=8)


@dataclass(frozen=True)
class Run:
    """A run of `shardio train`.

    Attributes:
        options: what differs from its defaults.
        ranks: the number of its processes.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    ranks: int = 1

    @property
    def name(self) -> str:
        """The name of its folder, the same for the same options."""
        parts = (f"{key}={value}" for key, value in sorted(self.options.items()))
        return ",".join((f"ranks={self.ranks}", *parts))


class Runner:
    """Does runs, several at a time, each on a core of its own; those that are done already are only read.

    Args:
        train: the training set.
        val: the validation set.
        work: the folder of all runs.
        jobs: how many runs at a time.
    """

    def __init__(self, train: Path, val: Path, work: Path, jobs: int) -> None:
        self._data, self._work, self._pool = (train, val), work, ThreadPoolExecutor(jobs)
        self._cores: SimpleQueue[int] = SimpleQueue()
        for core in sorted(os.sched_getaffinity(0), reverse=True)[:jobs]:
            self._cores.put(core)
        self._lock = threading.Lock()

    def accuracies(self, runs: Iterable[Run]) -> list[float]:
        """Return the final accuracy of each run."""
        return list(self._pool.map(self._accuracy, runs))

    def _accuracy(self, run: Run) -> float:
        self.do(run)
        return float(json.loads((self._work / run.name / "result.json").read_text())["score"])

    def do(self, run: Run) -> list[dict[str, Any]]:
        """Return the records of a run's epochs."""
        output = self._work / run.name
        if not (output / "result.json").exists():
            core = self._cores.get()
            try:
                self._start(run, output, core)
            finally:
                self._cores.put(core)
        return [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]

    def _start(self, run: Run, output: Path, core: int) -> None:
        train, val = self._data
        options: dict[str, Any] = {
            "val": val,
            "output": output,
            "epochs": EPOCHS,
            "model": "benchmarks.large_batch:model",
            "threads": 1,
        }
        options |= {"device": "cpu", "resume": "auto", "metrics_every": 10**6, "keep_checkpoints": 1, **run.options}
        arguments = [f"--{key.replace('_', '-')}={value}" for key, value in options.items() if value is not True]
        arguments += [f"--{key.replace('_', '-')}" for key, value in options.items() if value is True]
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={run.ranks}"] * (run.ranks > 1)
        command = [sys.executable, *launcher, "-m", "shardio", "train", str(train), *arguments]
        paths = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            ["taskset", "-c", str(core), *command],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        if done.returncode and "the loss must stay finite" in done.stderr:  # a result: this recipe diverges
            output.mkdir(parents=True, exist_ok=True)
            (output / "log.jsonl").touch()
            (output / "result.json").write_text('{"score": 0.1}\n')
        elif done.returncode:
            raise SystemExit(f"{run.name}: {done.stderr[-2000:]}")
        with self._lock:
            accuracy = json.loads((output / "result.json").read_text())["score"]
            print(f"{accuracy:.4f}  {run.name}", file=sys.stderr, flush=True)


def search(runner: Runner) -> dict[str, dict[str, Any]]:
    """Return the best rate of each optimizer, and the accuracy of each that was tried."""
    found = {}
    for name, (batch, options, rates) in SEARCHES.items():
        runs = [Run(options | {"batch_size": batch, "lr": rate, "seed": SEARCH_SEED}) for rate in rates]
        accuracies = dict(zip(rates, runner.accuracies(runs), strict=True))
        best = max(accuracies, key=lambda rate: accuracies[rate])
        found[name] = {"batch": batch, "rate": best, "tried": accuracies}
    return found


def recipe_run(recipe: str, batch: int, seed: int, rates: Mapping[str, Mapping[str, Any]]) -> Run:
    """Return the run of a recipe."""
    name, options = RECIPES[recipe]
    options = SEARCHES[name][1] | options | {"batch_size": batch, "lr": rates[name]["rate"], "seed": seed}
    if batch == options["lr_reference_batch"]:
        options |= {"lr_scaling": "none"}  # all rules are the same there
    if "local_sgd_period" not in options:
        return Run(options)
    steps = EPOCHS * -(-60_000 // batch)
    return Run(options | {"batch_size": batch // RANKS, "local_sgd_start": steps // 2}, RANKS)


def search_at_largest(runner: Runner) -> dict[str, dict[str, Any]]:
    """Return what each optimizer reaches with the largest batch, with the best rate for that."""

    def run(options: dict[str, Any], rate: float, seed: int) -> Run:
        return Run(options | {"batch_size": BATCHES[-1], "lr": rate, "lr_scaling": "none", "seed": seed})

    found = {}
    for name, (options, rates) in AT_LARGEST.items():
        tried = dict(zip(rates, runner.accuracies(run(options, rate, SEARCH_SEED) for rate in rates), strict=True))
        best = max(tried, key=lambda rate: tried[rate])
        values = runner.accuracies(run(options, best, seed) for seed in SEEDS)
        found[name] = {"rate": best, "tried": tried, "mean": mean(values), "spread": stdev(values), "runs": values}
    return found


def noise_scales(runner: Runner, rates: Mapping[str, Mapping[str, Any]]) -> list[float]:
    """Return the noise scale at the end of each epoch, of the linear recipe at the smallest batch on two ranks."""
    batch = BATCHES[0]
    options = WARM | {"batch_size": batch // 2, "lr": rates["sgd"]["rate"], "seed": 0, "measure_noise_scale": True}
    return [record["noise_scale"] for record in runner.do(Run(options, 2))]


def plot(path: Path, result: Mapping[str, Any]) -> None:
    """Draw the accuracies over the batch, and where the noise scale puts the critical batch."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(11, 5))
    first, last = result["noise_scale"][1], result["noise_scale"][-1]
    for axes in panels:
        for number, (recipe, by_batch) in enumerate(result["accuracy"].items()):
            means = [100 * figures["mean"] for figures in by_batch.values()]
            spread = [100 * figures["spread"] for figures in by_batch.values()]
            batches = [int(batch) * 1.04 ** (number - len(result["accuracy"]) / 2) for batch in by_batch]
            axes.errorbar(batches, means, spread, marker="o", capsize=3, label=recipe)
        axes.axvspan(min(first, last), max(first, last), color="grey", alpha=0.2, label="noise scale, epochs 2 to last")
        axes.set_xscale("log", base=2)
        axes.set_xticks(BATCHES, [f"{batch:,}" for batch in BATCHES])
        axes.set_xlabel("global batch (samples)")
        axes.grid(alpha=0.3)
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel(f"accuracy after {result['epochs']} epochs (%)")
    panels[0].legend(fontsize=8, loc="lower left")
    panels[1].set_ylim(85, 91)
    panels[1].set_xlim(100, 1400)
    panels[1].set_title("the same, 85 to 91 %", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def table(result: Mapping[str, Any]) -> str:
    """Return the accuracies as a table of Markdown."""
    rows = [["recipe", *(f"{batch:,}" for batch in BATCHES)], ["---"] * (1 + len(BATCHES))]
    for recipe, by_batch in result["accuracy"].items():
        cells = [f"{100 * figures['mean']:.1f} ± {100 * figures['spread']:.1f}" for figures in by_batch.values()]
        rows.append([recipe, *cells])
    for name, figures in result["best_at_largest"].items():
        cell = f"{100 * figures['mean']:.1f} ± {100 * figures['spread']:.1f}"
        rows.append([f"{name}, rate searched: {figures['rate']:g}", *[""] * (len(BATCHES) - 1), cell])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Run all that is not done yet, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("val", type=Path)
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="the folder of the runs")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    given = parser.parse_args()
    runner = Runner(given.train.resolve(), given.val.resolve(), given.work.resolve(), given.jobs)
    rates = search(runner)
    keys = [(recipe, batch) for batch in reversed(BATCHES) for recipe in RECIPES]
    runs = {key: [recipe_run(*key, seed, rates) for seed in SEEDS] for key in keys}
    runner.accuracies(_unique(run for three in runs.values() for run in three))  # several recipes are one run at 128
    accuracy: dict[str, dict[str, Any]] = {recipe: {} for recipe in RECIPES}
    for batch in BATCHES:
        for recipe in RECIPES:
            values = runner.accuracies(runs[recipe, batch])
            accuracy[recipe][str(batch)] = {"mean": mean(values), "spread": stdev(values), "runs": values}
    result = {
        "epochs": EPOCHS,
        "seeds": SEEDS,
        "rates": rates,
        "accuracy": accuracy,
        "noise_scale": noise_scales(runner, rates),
        "best_at_largest": search_at_largest(runner),
    }
    print(table(result), file=sys.stderr)
    if given.plot:
        plot(given.plot, result)
    finish(result, given.json)


def _unique(runs: Iterable[Run]) -> list[Run]:
    return list({run.name: run for run in runs}.values())


if __name__ == "__main__":
    main()
