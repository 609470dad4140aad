"""`shardio bench`: input throughput per rank."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..units import format_size
from ._options import threads_option
from ._progress import progress

if TYPE_CHECKING:
    from ..bench import BenchResult


def bench(
    dataset: Annotated[Path, typer.Argument(help="The dataset's directory.", metavar="DATASET")],
    batch_size: Annotated[int, typer.Option(help="Samples per rank and step.")] = 256,
    epochs: Annotated[int, typer.Option(help="Epochs to measure; the figure is their median.")] = 3,
    ranks: Annotated[int, typer.Option(help="Processes, each with a loader of its own.")] = 1,
    image_size: Annotated[
        int | None, typer.Option(help="Crop images at random to this many pixels square, and flip.")
    ] = None,
    floats: Annotated[bool, typer.Option("--floats", help="Deliver float32 NCHW instead of uint8 NHWC.")] = False,
    threads: Annotated[str, typer.Option(help="Per rank; auto shares the processors.")] = "auto",
    step_time: Annotated[float, typer.Option(help="Seconds that a rank computes per step.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the order and the crops.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
) -> None:
    """Measure input throughput per rank, and name what limits it.

    Examples:

      shardio bench data/photos --batch-size 256 --image-size 224

      shardio bench data/photos --batch-size 256 --image-size 224 --ranks 4 --step-time 0.1 --json bench.json
    """
    from ..bench import BenchConfig, measure  # here and not above, as it loads torch

    config = BenchConfig(
        str(dataset), batch_size, epochs, ranks, image_size, floats, threads_option(threads), step_time, seed
    )
    with progress("steps") as show:
        result = measure(config, lambda done, total: show("measuring", done, total))
    print(summary(result))
    if json_file is not None:
        json_file.write_text(json.dumps(result.to_json(), indent=1) + "\n")


def summary(result: "BenchResult") -> str:
    """The figures for people."""
    stages = ", ".join(f"{name} {share:.0%}" for name, share in result.stages.items())
    machine = result.machine
    lines = (
        f"samples/s per rank  {result.samples_per_second:,.0f} (median of {result.config.epochs} epochs, slowest rank)",
        f"read per rank       {format_size(result.bytes_per_second)}/s",
        f"starved             {result.starved:.0%} of the time",
        f"workers' time       {stages}",
        f"limited by          {result.limit}",
        f"measured on         {machine['cores']} cores of {machine['processor']}, Python {machine['python']}, "
        f"{'with' if machine['compiled'] else 'without'} the compiled part",
    )
    return "\n".join(lines)
