"""`shardio index`: make a dataset of files that other programs wrote, in place."""

from pathlib import Path
from typing import Annotated

import typer

from ..conversion.indexing import Format
from ..conversion.indexing import index as adopt_files
from ..conversion.pack import OnError
from ..foreign.files import Sort
from ..format.fields import listed_names
from ..order.world import World
from ..stores.url import Url
from ._packing import advising, print_dataset, print_note, print_rotated, print_skipped
from ._progress import progress
from ._store_options import StoreOption, parse_store_options


def index(
    paths: Annotated[
        list[str],
        typer.Argument(
            help="Files, directories of files, or patterns, all of one format, whatever their names; or URLs of such "
            "objects.",
            metavar="PATH...",
        ),
    ],
    output: Annotated[
        str,
        typer.Option("--output", "-o", help="The dataset's directory; the URL that objects are in.", metavar="OUT"),
    ],
    fields: Annotated[
        str | None, typer.Option(help="The fields to take, and what to call them: image=jpg,label=cls.")
    ] = None,
    optional: Annotated[
        str | None, typer.Option(help="Fields that samples of tars and TFRecords may lack: caption,score.")
    ] = None,
    mask: Annotated[
        str | None, typer.Option(help="Keep the numbers of these fields of images, which are masks.")
    ] = None,
    key: Annotated[
        bool | None,
        typer.Option(
            help="Take the keys of samples in tars as the field key. By default only those that name folders."
        ),
    ] = None,
    kind: Annotated[
        Format | None,
        typer.Option("--format", help="The files' format; by default their content decides."),
    ] = None,
    decode_cf: Annotated[
        bool,
        typer.Option(
            "--decode-cf",
            help="Of HDF5 files: apply the attributes of netCDF that each has (scale_factor, add_offset, fill values, "
            "valid ranges, units of time) whenever rows are read; 'shardio convert hdf5 --help' says how.",
        ),
    ] = False,
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
    sort: Annotated[
        Sort, typer.Option(help="natural: sort all files by the numbers in their names, s_2 before s_10.")
    ] = "name",
    store_option: StoreOption = None,
) -> None:
    """Adopt tars, TFRecords, LMDBs or HDF5 files in place: write an index and a manifest, copy nothing.

    All samples are read once, for their checksums. If OUT is the files' own directory, the index is written beside
    them; otherwise OUT holds links to them. The files must not be changed afterwards. Tars and TFRecords in a store
    are streamed once each; OUT is the URL that they are in, and the index is written there.

    Examples:

      shardio index shards/*.tar -o data/photos

      shardio index shards -o shards --fields image=jpg,label=cls

      shardio index train.h5 -o data/train --fields image=data/images,label=data/labels

      shardio index months -o data/months --fields t2m,time --decode-cf

      shardio index records -o data/records --strict

      shardio index 's3://bucket/photos/*.tar' -o s3://bucket/photos --store-option region=eu-west-1 --resume
    """
    world = World.detect()
    with advising(report, world, resumed=resume), progress("samples", quiet=world.rank > 0) as report_progress:
        made = adopt_files(
            paths,
            output,
            fields=fields,
            optional=listed_names(optional),
            mask=listed_names(mask),
            key=key,
            format=kind,
            decode_cf=decode_cf,
            workers=workers,
            dask=dask,
            world=world,
            on_error=on_error,
            max_bad=max_bad,
            report=report,
            strict=strict,
            resume=resume,
            overwrite=overwrite,
            progress=report_progress,
            tell=lambda note: None if world.rank else print_note(note),
            store_options=parse_store_options(store_option),
            sort=sort,
        )
    if not world.rank:
        (dataset,) = made.datasets.values()
        print_skipped(made.skipped, report)
        print_dataset(dataset.path if isinstance(dataset.path, Url) else Path(output), dataset)
        print_rotated([dataset])
