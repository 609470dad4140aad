"""`shardio view`: keep samples that are chosen from a dataset as a file, without writing them again."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError, Message
from ._store_options import with_store_options
from ._view_options import DATASET, ViewChoice, with_view_options


@with_store_options
@with_view_options
def view(
    stores: dict[str, Any],
    choice: ViewChoice,
    dataset: Annotated[str, typer.Argument(help=DATASET, metavar="DATASET")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File of the view, such as rare.json.")],
    balanced: Annotated[
        str | None,
        typer.Option(help="A field whose classes come equally often in every epoch.", metavar="FIELD"),
    ] = None,
    weighted: Annotated[
        str | None, typer.Option(help="A field that holds each sample's weight: how often it comes.", metavar="FIELD")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(help="Samples per epoch, with --balanced or --weighted; by default as many as are chosen."),
    ] = None,
) -> None:
    """Keep chosen samples as a view: a small file that every command and shardio.open take instead of a dataset.

    The file holds the choice and the dataset's digest. It also says where the dataset is, if that is below the file's
    own folder. Otherwise, name the dataset with --of wherever you use the view, in Python with of=.

    Examples:

      shardio view data/photos --where "label in (0, 3)" -o data/rare.json

      shardio view data/photos --split train=0.9,val=0.1 --split-by label --part val -o data/val.json

      shardio view data/photos --where "label != 1" --balanced label --samples 100 -o data/even.json

      shardio info data/rare.json
    """
    chosen = choice.opened(dataset, stores)
    if not len(chosen):
        raise ConfigError(f"no samples are chosen of {dataset}")
    if balanced is not None and weighted is not None:
        raise ConfigError(Message("{balanced} and {weighted} exclude each other"))
    if samples is not None and balanced is None and weighted is None:
        raise ConfigError(Message("{samples} goes with {balanced} or {weighted}"))
    if balanced is not None:
        chosen = chosen.balanced(balanced, samples)
    elif weighted is not None:
        chosen = chosen.weighted(weighted, samples)
    chosen.save(output)
    print(f"{output}: a view of {len(chosen):,} samples of {dataset}, digest {chosen.digest}")
