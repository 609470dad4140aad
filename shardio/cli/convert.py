"""`shardio convert` and `shardio append`, in which each installed converter is a command of its own."""

import inspect
import shlex
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from ..conversion import source as sources
from ..conversion.stacks import listed_stacks, with_variables
from ..errors import ConfigError
from ._command import Command, Group
from ._conversion import OPTIONS, OUTPUT, with_append_options, with_conversion_options
from ._conversion import convert as convert_and_print
from ._options import Shown, options_of, parameter, read
from ._store_options import DATASET, with_store_option

SHARED_EXAMPLES = (
    "--dry-run",
    "--to hdf5 --shard-size 1GB --overwrite",
    "--shuffle 1 --limit 5000 --split train=0.9,val=0.1",
    "--on-error skip --max-bad 0.001 --report skipped.jsonl",
    "--workers 8 --resume",
)
"""Examples of options that suit every source; they follow the first example of the source's own."""

APPEND_EXAMPLES = ("--dry-run", "--shuffle 1 --limit 5000", *SHARED_EXAMPLES[3:])
"""The same for `shardio append`, where they follow a first example without options."""

app, append_app = typer.Typer(), typer.Typer()


def _list(value: bool) -> None:
    if value:
        for name in sources.names():
            print(f"{name:12} {read(_converter(name)).summary}")
        raise typer.Exit


def _converter(name: str) -> sources.Converter:
    """Return the converter called `name`; one that cannot be loaded raises its error when it is called, not before."""
    if name not in sources.names():
        if Path(name).exists():
            raise ConfigError(
                f"no converter is called {name!r}, but there is such a path: the kind of source comes first, as in "
                f"'imagefolder {shlex.quote(name)}'; --list shows the kinds"
            )
        return sources.find(name)  # raises an error that lists the names
    try:
        return sources.find(name)
    except ConfigError as error:
        load_error = error

    def broken(src: str) -> Any:
        raise load_error

    broken.__doc__ = str(load_error)
    return broken


class SourceCommands(Group):
    """A command for each installed converter, made when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(sources.names())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of one converter; raise ConfigError if none has this name."""
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cmd_name, cls=Command)(_command(cmd_name, _converter(cmd_name), appends=self.name == "append"))
        return typer.main.get_command(single)


ListSources: TypeAlias = Annotated[
    bool, typer.Option("--list", help="List the kinds of sources and exit.", callback=_list, is_eager=True)
]


@app.callback(cls=SourceCommands, subcommand_metavar="SOURCE SRC OUT [OPTIONS]")
def convert(list_sources: ListSources = False) -> None:
    """Pack a source of samples into shards: `shardio convert SOURCE --help` shows each one's options.

    The same source and options give the same bytes for any number of workers, ranks or Dask workers.

    Examples:

      shardio convert --list

      shardio convert imagefolder photos/ data/photos --to tar --shard-size 256MB

      shardio convert imagefolder photos/ data/small --resize-shorter 256 --quality 92 --split train=0.9,val=0.1

      shardio convert idx examples/fashion-mnist/train data/train --to hdf5 --where "label < 5" --shuffle 1

      shardio convert imagefolder photos/ data/photos --on-error skip --report bad.jsonl

      shardio convert imagefolder photos/ data/photos --dask tcp://scheduler:8786

      shardio convert imagefolder photos/ s3://bucket/photos --store-option region=eu-west-1

      srun --ntasks 64 shardio convert imagefolder photos/ data/photos --resume
    """


@append_app.callback(cls=SourceCommands, subcommand_metavar="SOURCE SRC DATASET [OPTIONS]")
def append(list_sources: ListSources = False) -> None:
    """Add a source's samples to a dataset, in new shards next to its own: `shardio append SOURCE --help` shows options.

    The dataset keeps its container, the size of its shards and the options that re-encode images; the source must have
    its fields and name its classes. Loaders that read the dataset go on, and see the new samples when they open it
    anew. An append that is killed leaves the dataset as it was, and --resume continues it.

    Examples:

      shardio append imagefolder new/ data/photos --resume

      shardio append imagefolder new/ data/photos --where "label < 5" --on-error skip

      shardio append imagefolder new/ data/split/train --limit 5000 --shuffle 1

      shardio append imagefolder new/ s3://bucket/photos --resume --store-option region=eu-west-1
    """


def _command(name: str, converter: sources.Converter, *, appends: bool) -> Any:
    """Return the command of one converter: SRC, OUT, its own options, and the shared ones, which it may have too."""
    docstring = read(converter)
    keywords = [p.name for p in inspect.signature(converter).parameters.values() if p.kind is p.KEYWORD_ONLY]
    shared = {option.name for option in OPTIONS}
    both = [name for name in keywords if name in shared]

    def command(src: str, out: Path, stores: dict[str, Any], conversion: dict[str, Any], **options: Any) -> None:
        options |= {name: conversion[name] for name in both}
        if "fields" in options:
            options["fields"] = with_variables(options["fields"], listed_stacks(conversion["stack"]))
        source = converter(src, **{k: v for k, v in options.items() if v is not None})
        convert_and_print(source, out, conversion, stores["store_options"], append=appends)

    about = docstring.arguments.get("src", "The source's path.")
    place, kind = (DATASET, "DATASET") if appends else (OUTPUT, "OUT")
    own_names = " ".join(name for name in keywords if name not in shared)
    arguments = [
        parameter("src", Annotated[str, typer.Argument(help=about, metavar="SRC")]),
        parameter("out", Annotated[Path, typer.Argument(help=place, metavar=kind)]),
        *options_of(converter, {"": own_names}, {name: Shown() for name in both}),
        parameter("stores", dict[str, Any]),
        parameter("conversion", dict[str, Any]),
    ]
    described: Any = command
    described.__signature__ = inspect.Signature(arguments)
    described.__name__ = name
    own = docstring.examples
    first = own[0] if own else f"shardio convert {name} SRC OUT"
    if appends:
        first = first.replace("shardio convert", "shardio append", 1)
        own = (first,)
    following = APPEND_EXAMPLES if appends else SHARED_EXAMPLES
    examples = (f"  {line}" for line in (*own, *(f"{first} {options}" for options in following)))
    described.__doc__ = "\n\n".join(filter(None, (docstring.summary, docstring.text, "Examples:", *examples)))
    with_options = with_append_options if appends else with_conversion_options
    return with_options(with_store_option(described))
