"""`shardio index`: files that others wrote become a dataset as they lie."""

import inspect
import os
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from ..conversion import source as sources
from ..conversion.adopt import adopt
from ..conversion.pack import OnError
from ..conversion.skipped import write_report
from ..errors import ConfigError
from ..foreign.formats import format_of
from ..order.world import World
from ._packing import print_dataset, print_skipped
from ._progress import progress


def index(
    paths: Annotated[
        list[str],
        typer.Argument(help="Files, directories of files, or patterns, all of one format.", metavar="PATH..."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The dataset's directory.", metavar="OUT")],
    fields: Annotated[
        str | None, typer.Option(help="Which fields to take, and what to call them: image=jpg,label=cls.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--format", help="webdataset, tfrecord, lmdb or hdf5; found by the content without it."),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; without it one per core.")] = None,
    dask: Annotated[str | None, typer.Option(help="A Dask scheduler whose workers do the work, or local.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what is left of this command.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the dataset at OUT.")] = False,
    on_error: Annotated[str, typer.Option(help="raise, or skip: leave bad samples out and say which.")] = "raise",
    max_bad: Annotated[float, typer.Option(help="With skip: how many may be bad, a count or a share.")] = 0.01,
    report: Annotated[Path | None, typer.Option(help="Write skipped samples to this file, a JSON line each.")] = None,
) -> None:
    """Adopt tars, TFRecords, LMDBs or HDF5 files in place: an index and a manifest are written, nothing is copied.

    All samples are read once, for their checksums. With OUT the files' own directory the index is written beside them;
    elsewhere OUT holds links to them. The files must not be changed afterwards.

    Examples:

      shardio index shards/*.tar -o data/photos

      shardio index shards -o shards --fields image=jpg,label=cls

      shardio index train.h5 -o data/train --fields image=data/images,label=data/labels
    """
    source = _source(kind or format_of(paths), paths, fields)
    world = World.detect()
    with progress("samples", quiet=world.rank > 0) as show:
        made = adopt(
            source,
            output,
            workers=workers or max(1, len(os.sched_getaffinity(0)) // world.local_size),
            dask=dask,
            world=world,
            on_error=cast(OnError, on_error),  # checked there
            max_bad=max_bad,
            resume=resume,
            overwrite=overwrite,
            progress=show,
        )
    if not world.rank:
        if report is not None:
            write_report(report, [("", sample) for sample in made.skipped])
        print_skipped(made.skipped, report)
        print_dataset(output, made)


def _source(kind: str, paths: list[str], fields: str | None) -> Any:
    if kind not in ("webdataset", "tfrecord", "lmdb", "hdf5"):
        raise ConfigError(f"format must be webdataset, tfrecord, lmdb or hdf5, got {kind!r}")
    converter = sources.find(kind)
    known = inspect.signature(converter).parameters
    # A key is no part of a file's values, so it cannot be read where it lies.
    options = {"fields": fields, "key": False}
    wanted = {name: value for name, value in options.items() if value is not None and name in known}
    if fields is not None and "fields" not in known:
        raise ConfigError(f"the fields of {kind} cannot be chosen, got {fields!r}")
    if kind == "lmdb" and len(paths) > 1:
        raise ConfigError(f"one LMDB is indexed at a time, got {len(paths)} paths")
    return converter(paths[0] if len(paths) == 1 else paths, **wanted)
