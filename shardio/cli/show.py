"""`shardio show`: draw samples, or the batches that ranks get."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError, Option
from ._batch_options import as_in_training, batch_options
from ._options import with_options
from ._store_options import with_store_options
from ._view_options import DATASET, ViewChoice, with_view_options

OPTIONS = batch_options("With --batches")
_OF_BATCHES = {option.name: option.default for option in OPTIONS} | {"step": 0, "steps": 1}


@with_store_options
@with_view_options
@with_options("options", OPTIONS)
def show(
    stores: dict[str, Any],
    dataset: Annotated[str, typer.Argument(help=DATASET, metavar="DATASET")],
    choice: ViewChoice,
    options: dict[str, Any],
    output: Annotated[Path, typer.Option("--output", "-o", help="PNG to write.")] = Path("sheet.png"),
    samples: Annotated[int, typer.Option(help="Number of samples to show, at most.")] = 32,
    columns: Annotated[int, typer.Option(help="Samples per row.")] = 8,
    augment: Annotated[
        bool, typer.Option("--augment", help="Transform images and masks at random, as shardio train does.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the choice or order of samples and of their transforms.")] = 0,
    batches: Annotated[
        bool, typer.Option("--batches", help="Draw the batch of each rank in a step, with all fields.")
    ] = False,
    step: Annotated[
        int, typer.Option(help="The step in the epoch, from 0.", rich_help_panel="With --batches")
    ] = _OF_BATCHES["step"],
    steps: Annotated[int, typer.Option(help="How many steps to draw.", rich_help_panel="With --batches")] = _OF_BATCHES[
        "steps"
    ],
) -> None:
    """Draw samples in one picture: their images with indices and labels, or with --batches what each rank gets.

    Batches come with all that can be drawn: masks in colours next to their images, slices of arrays, classes, sources,
    numbers and texts. A red frame marks repeated samples. `shardio.show` in Python draws the batches of a Loader of
    your own.

    Examples:

      shardio show data/photos -o sheet.png

      shardio show data/photos -o augmented.png --augment --samples 64

      shardio show data/photos -o val.png --split train=0.9,val=0.1 --part val

      shardio show data/photos -o step.png --batches --world 4 --batch-size 8 --augment

      shardio show data/photos -o later.png --batches --world 2 --batch-size 4 --epoch 1 --step 3 --tail pad

      shardio show s3://bucket/photos --cache /local/cache --cache-size 200GB --store-option region=eu-west-1
    """
    from ..care.show import contact_sheet, ranks_at  # imported here because they load torch
    from ..care.show import show as show_batches

    given = {**options, "step": step, "steps": steps}
    for name in () if batches else (name for name, default in _OF_BATCHES.items() if given[name] != default):
        raise ConfigError("{} goes with {}", Option(name), Option("batches", True))
    opened = choice.opened(dataset, stores)
    transforms = as_in_training(opened.fields, dataset) if augment else {}
    if not batches:
        count = contact_sheet(opened, output, samples=samples, columns=columns, transforms=transforms, seed=seed)
        print(f"{output}: {count} samples of {dataset}")
        return
    loaders = ranks_at(opened, step=step, transforms=transforms, seed=seed, **options)
    count = show_batches(loaders, output, steps=steps, samples=samples, columns=columns)
    print(f"{output}: {count} samples of {dataset}, as ranks get them")
