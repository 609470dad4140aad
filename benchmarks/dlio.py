"""Accelerator utilisation by `shardio bench` against DLIO's, the program behind the MLPerf Storage benchmark.

DLIO writes its data set, and measures it with its own PyTorch loader, and with a shardio Loader in that loader's place.
`shardio bench` measures the same samples with the same batch and step. All take turns. DLIO's own loader reads each
sample, drops it, and delivers a constant array: of the sample's size here, and once more of 2 MiB, as MLPerf Storage
has it for unet3d. A Loader delivers what it read. DLIO goes into an environment of
its own, with shardio and without the packages that measure nothing here:

    apt-get install openmpi-bin libopenmpi-dev
    python -m venv dlio
    dlio/bin/pip install torch==2.13.0
    dlio/bin/pip install -e . mpi4py hydra-core==1.3.2 omegaconf pandas psutil pydftracer pillow
    dlio/bin/pip install --no-deps git+https://github.com/argonne-lcf/dlio_benchmark
    python -m benchmarks.dlio --python dlio/bin/python --json dlio.json
"""

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._processes import run
from benchmarks._results import finish, options, turns
from shardio.bench.accelerators import ACCELERATORS
from shardio.bench.config import BenchConfig
from shardio.bench.measurement import measure

EPOCHS = 5
WARMUP_EPOCHS = 3  # as in the bench, with epochs of fewer than 15 steps
UNET3D_DELIVERS = 2 << 20  # bytes per sample
STEPS = (1.0, 1.5, 2.5)  # of the time that a batch takes with shardio when nothing else waits


@dataclass(frozen=True, slots=True)
class Shape:
    """A data set that DLIO writes.

    Attributes:
        format: DLIO's name of the format; each file holds one sample.
        source: the shardio source that converts it.
        files: the number of files.
        sample_bytes: bytes of a sample in memory.
        batch_size: samples per rank and step.
        accelerator_step: the seconds of a step on an H100, by MLPerf Storage's figures: unet3d (v2.0), and resnet50
            (v3.0, what-if).
        threads: threads per rank. With one, a batch of the volumes takes long enough for the oversleeping of a step,
            which DLIO counts as computing, to be a small part of it.
    """

    format: str
    source: str
    files: int
    sample_bytes: int
    batch_size: int
    accelerator_step: float
    threads: int


UNET3D, RESNET50 = ACCELERATORS["unet3d-h100"], ACCELERATORS["resnet50-h100"]
SHAPES = {
    "volumes": Shape("npz", "numpy", 84, 24 << 20, 7, UNET3D.step_seconds, 1),
    "photos": Shape("jpeg", "imagefolder", 960, 640 * 640, 64, 64 / RESNET50.samples_per_second, 2),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a data set lies: as DLIO wrote it, and converted."""

    shape: Shape
    written: Path
    converted: Path


class Dlio:
    """Runs DLIO in its environment, with Open MPI."""

    def __init__(self, python: Path, work: Path) -> None:
        self._python, self._work = python.absolute(), work

    def write(self, shape: Shape, folder: Path) -> None:
        """Let DLIO write its data set."""
        self._run(1, shape, folder, ["++workload.workflow.generate_data=True", "++workload.workflow.train=False"])

    def utilisation(
        self, place: Place, ranks: int, step_seconds: float, *, with_shardio: bool = False, delivered: int | None = None
    ) -> dict[str, float]:
        """Train, and return DLIO's figures: accelerator utilisation between 0 and 1, samples/s of all ranks.

        Args:
            place: the data.
            ranks: the number of processes.
            step_seconds: the time that each step sleeps.
            with_shardio: whether a Loader takes the place of DLIO's own.
            delivered: the bytes per sample that DLIO's own loader delivers; None for those of the sample.
        """
        plugged = [
            "++workload.reader.data_loader_classname=benchmarks._dlio_plugin.ShardioDataLoader",
            "++workload.reader.data_loader_sampler=iterative",
        ]
        settings = [
            f"++workload.dataset.record_length_bytes_resize={delivered or place.shape.sample_bytes}",
            "++workload.workflow.generate_data=False",
            "++workload.workflow.train=True",
            f"++workload.train.computation_time={step_seconds}",
            f"++workload.train.epochs={WARMUP_EPOCHS + EPOCHS}",
            f"++workload.reader.read_threads={place.shape.threads}",
            *(plugged if with_shardio else []),
        ]
        environment = {"SHARDIO_DLIO_DATASET": str(place.converted), "SHARDIO_DLIO_THREADS": str(place.shape.threads)}
        figures = self._run(ranks, place.shape, place.written, settings, environment)["metric"]
        return {
            "utilisation": median(figures["train_au_percentage"][WARMUP_EPOCHS:]) / 100,
            "samples_per_second": median(figures["train_throughput_samples_per_second"][WARMUP_EPOCHS:]),
        }

    def _run(
        self, ranks: int, shape: Shape, folder: Path, settings: list[str], environment: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Run DLIO and return its summary."""
        output = Path(tempfile.mkdtemp(dir=self._work))
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
        command = [
            *mpirun,
            *[str(self._python), "-m", "dlio_benchmark.main", "workload=unet3d_h100", f"hydra.run.dir={output}"],
            "++workload.framework=pytorch",
            "++workload.workflow.checkpoint=False",
            f"++workload.dataset.data_folder={folder}",
            f"++workload.dataset.format={shape.format}",
            f"++workload.dataset.num_files_train={shape.files}",
            f"++workload.dataset.record_length_bytes={shape.sample_bytes}",
            "++workload.dataset.record_length_bytes_stdev=0",
            f"++workload.reader.batch_size={shape.batch_size}",
            "++workload.reader.data_loader=pytorch",
            *settings,
        ]
        own = {"PYTHONPATH": str(Path(__file__).parent.parent), "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
        run(command, {**os.environ, **own, **(environment or {})})
        summary = output / "summary.json"
        found: dict[str, Any] = json.loads(summary.read_text()) if summary.is_file() else {}
        shutil.rmtree(output)
        return found


def prepare(name: str, dlio: Dlio, work: Path) -> Place:
    """Write a data set with DLIO and convert it, unless that was done."""
    shape = SHAPES[name]
    place = Place(shape, work / name / "dlio", work / name / "shardio")
    if not place.converted.exists():
        dlio.write(shape, place.written)
        raw = ["--to", "hdf5"] if shape.format == "npz" else []
        run(["shardio", "convert", shape.source, str(place.written / "train"), str(place.converted), *raw])
    return place


def bench(place: Place, ranks: int, step_seconds: float) -> dict[str, float]:
    """Measure with `shardio bench`: utilisation between 0 and 1, samples/s of all ranks."""
    result = measure(
        BenchConfig(
            str(place.converted),
            batch_size=place.shape.batch_size,
            epochs=EPOCHS,
            ranks=ranks,
            threads=place.shape.threads,
            step_time=step_seconds,
        )
    )
    made = {"samples_per_second": result.samples_per_second_in_all.median}
    return made if result.utilisation is None else made | {"utilisation": result.utilisation}


def compare(place: Place, dlio: Dlio, ranks: int, rounds: int) -> list[dict[str, Any]]:
    """Measure with steps of several lengths, in turns."""
    rate = bench(place, ranks, 0.0)["samples_per_second"] / ranks
    rows = []
    shares = [share * place.shape.batch_size / rate for share in STEPS]
    for step in [round(step, 4) for step in (*shares, place.shape.accelerator_step)]:
        ways = {
            "bench": lambda step=step: bench(place, ranks, step),
            "dlio, shardio": lambda step=step: dlio.utilisation(place, ranks, step, with_shardio=True),
            "dlio, its own": lambda step=step: dlio.utilisation(place, ranks, step),
        }
        if place.shape.sample_bytes > UNET3D_DELIVERS:
            ways["dlio, its own, of 2 MiB"] = lambda step=step: dlio.utilisation(
                place, ranks, step, delivered=UNET3D_DELIVERS
            )
        found = turns(ways, rounds)
        pairs = zip(found["bench"], found["dlio, shardio"], strict=True)
        row: dict[str, Any] = {
            "ranks": ranks,
            "step_seconds": step,
            "points_apart": 100 * median(ours["utilisation"] - theirs["utilisation"] for ours, theirs in pairs),
        }
        for name in ways:
            row[name] = {key: median(one[key] for one in found[name]) for key in found[name][0]}
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def main() -> None:
    """Compare on each data set, with one rank and with two."""
    parser = options(__doc__, rounds=3)
    parser.add_argument("--python", type=Path, required=True, help="the interpreter that has DLIO")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "shardio-dlio"))
    parser.add_argument("--shapes", default=",".join(SHAPES))
    arguments = parser.parse_args()
    work = arguments.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    dlio = Dlio(arguments.python, work)
    result: dict[str, Any] = {"epochs": EPOCHS, "rounds": arguments.rounds}
    for name in arguments.shapes.split(","):
        place = prepare(name, dlio, work)
        result[name] = [row for ranks in (1, 2) for row in compare(place, dlio, ranks, arguments.rounds)]
    finish(result, arguments.json)


if __name__ == "__main__":
    main()
