"""`shardio bench`: measure input throughput per rank."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from ..system.units import format_size
from ._options import threads_option
from ._output import write_text
from ._progress import progress

if TYPE_CHECKING:
    from ..bench import BenchResult

# The words that a Loader takes; its own types would load torch.
Engine: TypeAlias = Literal["auto", "cpu", "dali", "nvimgcodec"]
OnBadSample: TypeAlias = Literal["raise", "replace", "mask"]


def bench(
    dataset: Annotated[Path, typer.Argument(help="The dataset's directory.", metavar="DATASET")],
    batch_size: Annotated[int, typer.Option(help="Samples per rank and step.")] = 256,
    epochs: Annotated[int, typer.Option(help="Epochs to measure; the result is their median.")] = 3,
    ranks: Annotated[int, typer.Option(help="Number of processes, each with its own loader.")] = 1,
    image_size: Annotated[
        int | None, typer.Option(help="Crop images at random to squares of this many pixels, and flip them at random.")
    ] = None,
    floats: Annotated[bool, typer.Option("--floats", help="Deliver float32 NCHW instead of uint8 NHWC.")] = False,
    threads: Annotated[
        str, typer.Option(help="Worker threads per rank; auto divides the cores among the ranks.")
    ] = "auto",
    step_time: Annotated[float, typer.Option(help="Seconds of computation to simulate per step.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the order and the crops.")] = 0,
    engine: Annotated[Engine, typer.Option(help="What decodes and transforms images.")] = "auto",
    device: Annotated[str | None, typer.Option(help="Device to deliver batches on, such as cuda.")] = None,
    hw_decoder_load: Annotated[
        float | None, typer.Option(help="Share of the images that the GPU's JPEG decoder gets, 0 to 1.")
    ] = None,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="Try several values of --hw-decoder-load for one epoch each, and keep the best."),
    ] = False,
    on_bad_sample: Annotated[
        OnBadSample, typer.Option(help="raise ends the run at a bad sample; replace and mask continue and count them.")
    ] = "raise",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures as JSON to this file.")] = None,
) -> None:
    """Measure input throughput per rank, and name what limits it.

    Examples:

      shardio bench data/photos --batch-size 256 --image-size 224

      shardio bench data/photos --batch-size 256 --image-size 224 --ranks 4 --step-time 0.1 --json bench.json

      shardio bench data/photos --image-size 224 --device cuda --engine dali --tune

      shardio bench data/photos --image-size 224 --on-bad-sample replace
    """
    from ..bench import BenchConfig, measure, tune_decoder  # imported here because it loads torch

    config = BenchConfig(
        dataset=str(dataset),
        batch_size=batch_size,
        epochs=epochs,
        ranks=ranks,
        image_size=image_size,
        floats=floats,
        threads=threads_option(threads),
        step_time=step_time,
        seed=seed,
        engine=engine,
        device=device,
        hw_decoder_load=hw_decoder_load,
        on_bad_sample=on_bad_sample,
    )
    if tune:
        best = tune_decoder(
            config, lambda load, result: print(f"{load:4.2f}  {result.samples_per_second:,.0f} samples/s")
        )
        config = replace(config, hw_decoder_load=best.config.hw_decoder_load)
    with progress("steps") as show:
        result = measure(config, lambda done, total: show("measuring", done, total))
    print(summary(result))
    if tune:
        print(f"best for this GPU   engine_options={{'hw_decoder_load': {config.hw_decoder_load}}}")
    if json_file is not None:
        write_text(json_file, json.dumps(result.to_json(), indent=1) + "\n")


def summary(result: "BenchResult") -> str:
    """Return the figures as text."""
    stages = ", ".join(f"{name} {share:.0%}" for name, share in result.stages.items())
    machine = result.machine
    lines = (
        f"samples/s per rank  {result.samples_per_second:,.0f} (median of {result.config.epochs} epochs, slowest rank)",
        f"read per rank       {format_size(result.bytes_per_second)}/s",
        f"starved             {result.starved:.0%} of the time",
        f"workers' time       {stages}; {result.threads} active threads",
        f"limited by          {result.limit}",
        *([f"bad samples         {result.bad}"] if result.bad else []),
        f"measured on         {machine['cores']} cores of {machine['processor']}, Python {machine['python']}, "
        f"{'with' if machine['compiled'] else 'without'} the compiled part",
    )
    return "\n".join(lines)
