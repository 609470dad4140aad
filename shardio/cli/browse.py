"""`shardio browse`: look at a dataset in a browser."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError
from ._batch_options import as_in_training, batch_options
from ._options import with_options
from ._store_options import with_store_options
from ._view_options import DATASET, ViewChoice, with_view_options

_HEADING = "The batch that is shown first"


@with_store_options
@with_view_options
@with_options("options", batch_options(_HEADING))
def browse(
    stores: dict[str, Any],
    dataset: Annotated[str, typer.Argument(help=DATASET, metavar="DATASET")],
    choice: ViewChoice,
    options: dict[str, Any],
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.")] = 0,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the browser of this machine, if there is one.")
    ] = True,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The tokenizer.json of the tokens, which are then shown as text, too.")
    ] = None,
    augment: Annotated[
        bool, typer.Option("--augment", help="Transform images and masks at random, as shardio train does.")
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Seed of the order and of random transforms.", rich_help_panel=_HEADING)
    ] = 0,
    rank: Annotated[int, typer.Option(help="The rank.", rich_help_panel=_HEADING)] = 0,
    step: Annotated[int, typer.Option(help="The step in the epoch, from 0.", rich_help_panel=_HEADING)] = 0,
) -> None:
    """Show a dataset in a browser: samples and their fields, filtered, classes with counts, and the batches of ranks.

    It needs pip install 'shardio-data[browse]'. It prints the address of the pages, which only this machine reaches and
    only with the token in it, and ends with Ctrl-C. Nothing is scanned before you ask for it. From another machine, go
    through ssh -L PORT:127.0.0.1:PORT.

    Examples:

      shardio browse data/photos

      shardio browse data/photos --port 8080 --no-open

      shardio browse data/photos --where "label in (0, 3)"

      shardio browse data/photos --world 64 --batch-size 256 --rank 5 --epoch 2 --step 100 --seed 1 --augment

      shardio browse data/photos --split train=0.9,val=0.1 --part val --shuffle block --tail pad

      shardio browse data/text --tokenizer tokenizer.json

      shardio browse s3://bucket/photos --cache /local/cache --cache-size 200GB --store-option region=eu-west-1
    """
    from ..care.browse.batches import Job  # imported here because they load torch
    from ..care.browse.server import serve
    from ..foreign.tokenizer import TextEncoder

    options["shuffle"] = options["shuffle"] or "none"
    job = Job(**options, seed=seed, rank=rank, step=step, augment=augment)
    opened = choice.opened(dataset, stores)
    can_augment = augment or any(field.is_image for field in opened.fields.values())
    if not 0 <= port < 1 << 16:
        raise ConfigError("{port} must be in [0, 65536), got {}", port)
    serve(
        opened,
        job=job,
        transforms=as_in_training(opened.fields, dataset) if can_augment else {},
        tokenizer=None if tokenizer is None else TextEncoder(tokenizer),
        port=port,
        open_browser=open_browser,
        told=lambda address: print(f"{dataset}: {address}\nCtrl-C ends it.", flush=True),
    )
