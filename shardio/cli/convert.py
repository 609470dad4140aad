"""`shardio convert`: pack a source of samples into shards."""

import inspect
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from .. import source as sources
from ..convert import OnBad, Skipped
from ..convert import convert as run
from ..errors import ConfigError
from ..units import format_size
from ..writer import DEFAULT_SHARD_SIZE
from ._progress import progress

SHOWN = 5  # skipped samples named on the screen


def _list(value: bool) -> None:
    if value:
        for name in sources.names():
            summary = (sources.find(name).__doc__ or "").strip().partition("\n")[0]
            print(f"{name:12} {summary}")
        raise typer.Exit


def convert(
    source: Annotated[str, typer.Argument(help="The kind of source; --list names them.", metavar="SOURCE")],
    src: Annotated[Path, typer.Argument(help="Where the source is.", metavar="SRC")],
    out: Annotated[Path, typer.Argument(help="The dataset's directory: empty, or not there yet.", metavar="OUT")],
    to: Annotated[str, typer.Option(help="The container: tar, hdf5 or lmdb.")] = "tar",
    shard_size: Annotated[
        str, typer.Option(help="Size of a shard, with a unit: 64MB, 1GiB. One sample may exceed it.")
    ] = DEFAULT_SHARD_SIZE,
    workers: Annotated[int | None, typer.Option(help="Worker processes; without it one per core.")] = None,
    on_bad: Annotated[
        str, typer.Option(help="raise: end at the first bad file; skip: leave bad files out and say which.")
    ] = "raise",
    report: Annotated[Path | None, typer.Option(help="Write skipped samples to this file, a JSON line each.")] = None,
    compression: Annotated[
        str | None, typer.Option(help="hdf5 only: gzip, lzf or zstd for arrays of one shape.")
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, the source's own; may be repeated.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the dataset at OUT once the new one is whole.")
    ] = False,
    list_sources: Annotated[
        bool, typer.Option("--list", help="List the kinds of sources and end.", callback=_list, is_eager=True)
    ] = False,
) -> None:
    """Pack a source of samples into shards.

    The same source and settings give the same bytes, with any number of workers.

    Examples:

      shardio convert imagefolder photos/ data/photos --to tar --shard-size 256MB

      shardio convert idx examples/fashion-mnist/train data/train --to hdf5

      shardio convert idx /usr/share/datasets/fashion-mnist data/test --option split=t10k

      shardio convert imagefolder photos/ data/photos --on-bad skip --report bad.jsonl
    """
    converter = sources.find(source)
    options = _options(converter, source, option or [])
    made = converter(src, **options)
    if report is not None:
        report.write_text("")  # a path that cannot be written to shows now, and not after the work
    policy: OnBad = on_bad  # type: ignore[assignment]  # checked where it is used
    with progress("samples") as show:
        result = run(
            made,
            out,
            container=to,
            shard_size=shard_size,
            workers=workers if workers is not None else len(os.sched_getaffinity(0)),
            on_bad=policy,
            overwrite=overwrite,
            progress=show,
            **({} if compression is None else {"compression": compression}),
        )
    _tell_skipped(result.skipped, report)
    shards = result.manifest.shards
    size = format_size(int(shards.bytes.sum()))
    count = f"{result.manifest.samples} samples in {len(shards)} {to} shards"
    print(f"{out}: {count}, {size}, digest {result.manifest.digest}")


def _options(converter: sources.Converter, source: str, given: list[str]) -> dict[str, str]:
    known = [name for name, p in inspect.signature(converter).parameters.items() if p.kind is p.KEYWORD_ONLY]
    options = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            raise ConfigError(f"--option takes NAME=VALUE; {source} has the options {', '.join(known)}; got {text!r}")
        options[name] = value
    return options


def _tell_skipped(skipped: tuple[Skipped, ...], report: Path | None) -> None:
    if report is not None:
        report.write_text("".join(json.dumps({"number": s.number, "reason": s.reason}) + "\n" for s in skipped))
    if skipped:
        print(f"skipped {len(skipped)} bad samples:")
        for bad in skipped[:SHOWN]:
            print(f"  {bad.reason}")
        if len(skipped) > SHOWN:
            print(f"  and {len(skipped) - SHOWN} more" + ("" if report else "; --report FILE names them all"))
