"""`shardio derive`: run a function on every sample, and write what it returns as a dataset."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any

import typer

from ..conversion.pack import WrittenDataset
from ..derivation.api import derive as derive_dataset
from ..errors import ConfigError
from ..format.fields import describe, listed_names
from ..loader.stats import LoaderStats
from ..order.world import World
from ..stores.url import as_url
from ..transforms import CenterCrop, Resize
from ._conversion import OUTPUT, ContainerName, advising, print_dataset, print_note
from ._options import Shown, count_or_auto, options_of, with_options
from ._output import JsonFile, check_place, write_json
from ._progress import progress
from ._store_options import with_store_options
from ._view_options import DATASET, ViewChoice, with_view_options

OPTIONS = options_of(
    derive_dataset,
    {
        "": "version batch_size fields decode engine orient device threads check",
        "Shards": "container shard_samples resume if_missing overwrite",
        "Bad samples": "nan max_bad",
    },
    {"container": Shown("--to", kind=ContainerName), "fields": Shown(metavar="FIELD,...")},
)


@with_store_options
@with_view_options
@with_options("options", OPTIONS)
def derive(
    dataset: Annotated[str, typer.Argument(help=DATASET, metavar="DATASET")],
    out: Annotated[Path, typer.Argument(help=OUTPUT, metavar="OUT")],
    call: Annotated[str, typer.Option(help="The function, in this folder or on Python's path.", metavar="MODULE:NAME")],
    stores: dict[str, Any],
    choice: ViewChoice,
    options: dict[str, Any],
    resize: Annotated[
        int | None,
        typer.Option(help="Resize the shorter side of images to this many pixels, and take the central square."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Run a function on every sample, exactly once, on any number of ranks, and write what it returns as a dataset.

    The function gets a batch, a dict of tensors such as image, uint8 [B, H, W, 3], and returns a dict of tensors
    [B, ...] or lists of B values. Sample i of OUT is computed from sample i of DATASET. If ranks are killed, --resume
    continues with the shards that are not finished, on any number of ranks.

    Examples:

      shardio derive data/photos data/colors --call colors:mean --version 1 --batch-size 16 --resize 64 --check 2

      shardio derive data/photos data/few --call colors:mean --version 1 --batch-size 16 --resize 64 --where "label < 5"

      srun shardio derive data/photos data/two --call colors:mean --version 1 --batch-size 16 --resize 64 --resume

      shardio derive data/photos data/bad --call colors:mean --version 1 --batch-size 16 --resize 64 --max-bad 0.01
    """
    check_place(json_file, "--json")
    world = World.detect()
    options |= {"fields": listed_names(options["fields"]) or None, "threads": count_or_auto(options["threads"])}
    if resize is not None:
        options["transforms"] = [Resize(resize), CenterCrop(resize)]

    def report(written: WrittenDataset, stats: LoaderStats) -> None:
        manifest, seconds = written.manifest, written.seconds
        result = {
            "path": f"{written.path}",
            "samples": manifest.samples,
            "shards": len(manifest.shards),
            "digest": manifest.digest,
            "fields": {name: describe(field) for name, field in manifest.fields.items()},
            "without_values": len(written.skipped),
            "seconds": seconds,
            "waiting": stats.starved,
        }
        if not world.rank and not write_json(json_file, result):
            print_dataset(written.path, written)
            if seconds:
                rate = manifest.samples / seconds
                print(f"  {rate:,.0f} samples/s; this rank waited for input {stats.starved:.0%} of the time")

    resumed = options["resume"] or options["if_missing"]
    with advising(None, world, resumed=resumed, skips=False), progress("samples", quiet=world.rank > 0) as show:
        derive_dataset(
            choice.opened(dataset, stores, out),
            _function(call),
            f"{as_url(out) or out}",
            world=world,
            progress=show,
            tell=print_note,
            report=report,
            store_options=stores["store_options"],
            **options,
        )


def _function(call: str) -> Any:
    """Return the function that `--call` names; ConfigError if there is none."""
    sys.path.insert(0, "")  # the current folder
    try:
        found = EntryPoint("", call, "").load()
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError("{call} must be MODULE:FUNCTION, got {!r}: {}", call, error) from error
    if not callable(found):
        raise ConfigError("{call} must name a function, and {!r} is {}", call, type(found).__name__)
    return found
