"""`shardio index`: make a dataset of files that other programs wrote, in place."""

import inspect
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..conversion import source as sources
from ..conversion.adopt import adopt
from ..conversion.notes import remarks_of, shards_among
from ..conversion.pack import OnError
from ..conversion.skipped import write_report
from ..errors import ConfigError
from ..foreign.formats import FoundFiles, find_by_content
from ..order.world import World
from ._packing import advising, print_dataset, print_note, print_rotated, print_skipped
from ._progress import progress


def index(
    paths: Annotated[
        list[str],
        typer.Argument(
            help="Files, directories of files, or patterns, all of one format, whatever their names.", metavar="PATH..."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The dataset's directory.", metavar="OUT")],
    fields: Annotated[
        str | None, typer.Option(help="The fields to take, and what to call them: image=jpg,label=cls.")
    ] = None,
    kind: Annotated[
        Literal["webdataset", "tfrecord", "lmdb", "hdf5"] | None,
        typer.Option("--format", help="The files' format; by default their content decides."),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="The number of processes; by default one per core.")] = None,
    dask: Annotated[
        str | None, typer.Option(help="A Dask scheduler whose workers do the work instead, or local.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue this command where it was interrupted, if it was.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the dataset at OUT.")] = False,
    on_error: Annotated[
        OnError, typer.Option(help="raise: stop at the first bad sample; skip: leave bad samples out and name them.")
    ] = "raise",
    max_bad: Annotated[
        float, typer.Option(help="With skip: how many samples may be bad, a count, or below 1 a share of all.")
    ] = 0.01,
    report: Annotated[
        Path | None, typer.Option(help="Write the bad samples to this file, a JSON object per line.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail if anything would be left out or renamed, instead of telling it.")
    ] = False,
) -> None:
    """Adopt tars, TFRecords, LMDBs or HDF5 files in place: write an index and a manifest, copy nothing.

    All samples are read once, for their checksums. If OUT is the files' own directory, the index is written beside
    them; otherwise OUT holds links to them. The files must not be changed afterwards.

    Examples:

      shardio index shards/*.tar -o data/photos

      shardio index shards -o shards --fields image=jpg,label=cls

      shardio index train.h5 -o data/train --fields image=data/images,label=data/labels

      shardio index records -o data/records --strict
    """
    files = find_by_content(paths, kind, on_error)
    source = _source(files, fields, on_error)
    world = World.detect()
    remarks = remarks_of(source, files.remarks, strict=strict)
    if not world.rank:
        for remark in [*remarks, *shards_among(source)]:
            print_note(remark)
    with advising(report, world), progress("samples", quiet=world.rank > 0) as report_progress:
        dataset = adopt(
            source,
            output,
            workers=workers or max(1, len(os.sched_getaffinity(0)) // world.local_size),
            dask=dask,
            world=world,
            on_error=on_error,
            max_bad=max_bad,
            strict=strict,
            resume=resume,
            overwrite=overwrite,
            progress=report_progress,
        )
    if not world.rank:
        if report is not None:
            write_report(report, output, [("", sample) for sample in dataset.skipped])
        print_skipped(dataset.skipped, report)
        print_dataset(output, dataset)
        print_rotated([dataset])


def _source(files: FoundFiles, fields: str | None, on_error: str) -> Any:
    kind, paths = files.kind, files.paths
    converter = sources.find(kind)
    parameters = inspect.signature(converter).parameters
    # A key is a name, not a value in the file, so it cannot be read in place.
    options = {"fields": fields, "key": False, "on_error": on_error}
    supported = {name: value for name, value in options.items() if value is not None and name in parameters}
    if fields is not None and "fields" not in parameters:
        raise ConfigError(f"the fields of {kind} cannot be chosen, got {fields!r}")
    if kind == "lmdb" and len(paths) > 1:
        raise ConfigError(f"index takes one LMDB at a time, got {len(paths)} paths")
    return converter(paths[0] if len(paths) == 1 else list(paths), **supported)
