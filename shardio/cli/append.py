"""`shardio append`: add the samples of a source to a dataset. Each installed converter is a command of its own."""

import typer

from .convert import ListSources, SourceCommands

app = typer.Typer()


@app.callback(cls=SourceCommands, subcommand_metavar="SOURCE SRC DATASET [OPTIONS]")
def append(list_sources: ListSources = False) -> None:
    """Add a source's samples to a dataset, in new shards beside its own: `shardio append SOURCE --help` shows options.

    The dataset keeps its container, the size of its shards and the options that re-encode images; the source must have
    its fields and name its classes. Loaders that read the dataset go on, and see the new samples when they open it
    anew. An append that is killed leaves the dataset as it was, and --resume continues it.

    Examples:

      shardio append imagefolder new/ data/photos --resume

      shardio append imagefolder new/ data/photos --where "label < 5" --on-error skip

      shardio append imagefolder new/ data/split/train --limit 5000 --shuffle 1

      shardio append imagefolder new/ s3://bucket/photos --resume --store-option region=eu-west-1
    """
