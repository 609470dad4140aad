"""`shardio convert`: pack a source of samples into shards. Each installed converter is a command of its own."""

import inspect
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from ..conversion import source as sources
from ..dataset.store_access import StoreAccess
from ..errors import ConfigError
from ._command import Command, Group
from ._conversion import OPTIONS, OUTPUT, with_conversion_options
from ._conversion import convert as convert_and_print
from ._options import flag_of, kind_of, parameter, read
from ._store_options import with_store_option

SHARED_EXAMPLES = (
    "--dry-run",
    "--to hdf5 --shard-size 1GB --overwrite",
    "--shuffle 1 --limit 5000 --split train=0.9,val=0.1",
    "--on-error skip --max-bad 0.001 --report skipped.jsonl",
    "--workers 8 --resume",
)
"""Examples of options that suit every source; they follow the first example of the source's own."""

app = typer.Typer()


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
                f"'shardio convert imagefolder {shlex.quote(name)} OUT'; 'shardio convert --list' shows the kinds"
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
        single.command(cmd_name, cls=Command)(_command(cmd_name, _converter(cmd_name)))
        return typer.main.get_command(single)


@app.callback(cls=SourceCommands, subcommand_metavar="SOURCE SRC OUT [OPTIONS]")
def convert(
    list_sources: Annotated[
        bool, typer.Option("--list", help="List the kinds of sources and exit.", callback=_list, is_eager=True)
    ] = False,
) -> None:
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


def _command(name: str, converter: sources.Converter) -> Any:
    """Return the command of one converter: SRC, OUT, its own options, and the shared ones, which it may have too."""
    docstring = read(converter)
    signature = inspect.signature(converter, eval_str=True)
    keywords = [p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
    shared = {option.name for option in OPTIONS}
    own = [p for p in keywords if p.name not in shared]
    both = [p.name for p in keywords if p.name in shared]
    flags = {p.name: flag_of(p.name) for p in keywords}

    def command(src: str, out: Path, stores: StoreAccess, conversion: dict[str, Any], **options: Any) -> None:
        options |= {name: conversion[name] for name in both}
        source = converter(src, **{k: v for k, v in options.items() if v is not None})
        convert_and_print(source, out, conversion, stores.store_options)

    arguments = [
        parameter(
            "src",
            Annotated[str, typer.Argument(help=docstring.arguments.get("src", "The source's path."), metavar="SRC")],
        ),
        parameter("out", Annotated[Path, typer.Argument(help=OUTPUT, metavar="OUT")]),
        *(_option(p, docstring.help_for(p.name, flags)) for p in own),
        parameter("stores", StoreAccess),
        parameter("conversion", dict[str, Any]),
    ]
    described: Any = command
    described.__signature__ = inspect.Signature(arguments)
    described.__name__ = name
    text = "\n\n".join(part for part in (docstring.summary, docstring.text) if part)
    described.__doc__ = (
        text + "\n\nExamples:\n\n" + "\n\n".join(f"  {line}" for line in _examples(name, docstring.examples))
    )
    return with_conversion_options(with_store_option(described))


def _examples(name: str, own: tuple[str, ...]) -> tuple[str, ...]:
    """Return the converter's own examples and those of the shared options."""
    first = own[0] if own else f"shardio convert {name} SRC OUT"
    return (*own, *(f"{first} {options}" for options in SHARED_EXAMPLES))


def _option(keyword: inspect.Parameter, text: str) -> inspect.Parameter:
    """Return the option for a converter's keyword: a number, flag or choice if it is annotated as one, else text."""
    kind = kind_of(keyword.annotation)
    if keyword.default is inspect.Parameter.empty:
        return parameter(keyword.name, Annotated[kind, typer.Option(help=text)])
    # None means that the option was not given: the converter then applies its own default.
    default = {None: "", "": "", False: "", True: " On by default."}
    shown = default.get(keyword.default, f" The default is {keyword.default}.")
    return parameter(keyword.name, Annotated[kind | None, typer.Option(help=text + shown)], None)
