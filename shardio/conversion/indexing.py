"""`shardio.index`: a dataset of files that other programs wrote, in place; the command line calls it as well."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ..dataset.store_access import StoreAccess
from ..errors import ConfigError, Message, SourceError
from ..foreign.files import Sort, order_hints, part_remark, within_folder
from ..foreign.formats import WORDS, FoundFiles, find_by_content, named_kind
from ..foreign.names import printable
from ..format.fields import listed_names
from ..format.unwritten import MissingChunks
from ..order.world import World
from ..stores import open_store
from ..stores.url import as_url
from ..system import cpus
from ..system.local_path import local_path
from ..system.replacement import remove_abandoned_folders, temporary_folder
from . import source as sources
from .adopt import adopt
from .adopt_objects import KINDS, MOST_THREADS, TEMPORARY, Listing, ObjectAdoption, check_places
from .adopt_zarr_objects import ZarrAdoption, find_stores
from .api import Conversion, PathLike, announce
from .image_counts import pair_remarks, rotated_notes, total
from .masks import masked
from .notes import find_chunk_hints, remarks_of, unwritten_chunks
from .pack import OnError, PackOptions
from .runners import Progress, silent
from .skipped import write_report
from .stacks import Stacks, listed_stacks, stacked, with_variables
from .video_notes import video_notes

Format: TypeAlias = Literal["webdataset", "tfrecord", "lmdb", "hdf5", "zarr"]


def index(
    paths: PathLike | Sequence[PathLike],
    out: PathLike,
    *,
    fields: str | Mapping[str, str] | None = None,
    optional: str | Collection[str] = (),
    mask: str | Collection[str] = (),
    key: bool | None = None,
    format: Format | None = None,
    axis: str | None = None,
    decode_cf: bool = False,
    stack: str | Stacks | None = None,
    merge: bool = False,
    sample: Literal["file", "group", "row"] | None = None,
    missing_chunks: MissingChunks | None = None,
    checksums: bool = False,
    workers: int | None = 1,
    dask: str | None = None,
    world: World | None = None,
    on_error: OnError = "raise",
    max_bad: float = 0.01,
    report: PathLike | None = None,
    strict: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    tell: Callable[[str], None] | None = None,
    store_options: Mapping[str, str] | None = None,
    sort: Sort = "name",
    files: str | None = None,
) -> Conversion:
    """Adopt tars, TFRecords, LMDBs, HDF5 files or Zarr stores in place: write an index and a manifest, copy nothing.

    Reads all samples once, for their checksums, but those of Zarr stores only with `checksums`. If `out` is the files'
    own directory, the index is written there; otherwise `out` holds symbolic links to the files. The files must not be
    changed afterwards.

    Tars, TFRecords and Zarr stores may be in a bucket: then `out` is the URL of the folder that directly holds them,
    and the index is written there. Each tar is streamed once, through a temporary folder that holds a few tars at a
    time; a Zarr store's objects are listed, and only its metadata read.

    Args:
        paths: files, directories of files, or patterns: one or a list, all of one format, whatever their names; or the
            URLs of such objects.
        out: the dataset's directory, or its URL.
        fields: the fields to take, and what to call them: image=jpg,label=cls. By default, all.
        optional: fields that samples of tars and TFRecords may lack: caption,score.
        mask: fields of images that are masks, whose numbers stay.
        key: for tars: take the keys of samples as the text field key. By default, only if they name folders, as in tars
            of class folders; a note says if they are left out.
        format: the files' format. By default, their content decides.
        axis: for Zarr stores: the axis that the samples are along, by its name, such as time, or its number; `shardio
            convert zarr --help` says more. By default, the first one.
        decode_cf: for HDF5 files and Zarr stores: apply the attributes of netCDF that each has (scale_factor,
            add_offset, fill values, valid ranges, units of time) whenever rows are read; `shardio convert hdf5 --help`
            says how.
        stack: for HDF5 files and Zarr stores: fields that are several variables of one shape and dtype, as in
            x=t2m,u10,v10: arrays [3, ...], each variable read directly into its slice. These variables are then no
            fields of their own, unless `fields` names them.
        merge: for HDF5 files and Zarr stores: merge files of different datasets for the same rows, such as one per
            variable: files that hold the same datasets make a series, and the first file of each is merged with those
            of the others, then the second, and so on. The coordinates that they share must be equal.
        sample: for HDF5 files: what a sample is: a row, all that a file holds, or all in one of its groups; `shardio
            convert hdf5 --help` says more. By default, a row; a note says if the files look otherwise.
        missing_chunks: for HDF5 files and Zarr stores: what to make of chunks that are not there. fill: their values
            are the fill value. refuse: an error. By default fill values, and a note says how many; see `shardio convert
            zarr --help`.
        checksums: for Zarr stores: read all samples, for their checksums. Without it no chunk is read, except the
            coordinates of several stores, to compare them. The dataset's digest then covers metadata and the chunks'
            names, sizes and times; samples are not verified, and a chunk that is lost or rewritten later is a bad
            sample.
        workers, dask, world, on_error, max_bad, report, strict, resume, overwrite, progress, tell: see `convert`.
            For URLs, `workers` are threads, and there is no `dask` or `world`.
        store_options: for URLs: options of their store, see `shardio.open`.
        sort: the order of the files. natural: all files by the numbers in their names, s_2 before s_10. name: those of
            a directory or a pattern by their names; a note says if that is another order.
        files: a pattern for the names of the files or objects to take from a directory, such as "train-*". By default,
            all; a note says if they are several parts of a data set.

    Returns:
        The dataset, with the samples that were left out and the notes.

    Raises:
        ConfigError: an argument breaks a rule.
        SourceError: the files are of no or of several formats, or cannot be read in place; convert those. With
            `strict`, data would be left out.
        BadSample: a sample is bad, with `on_error="raise"`.
        TooManyBad: more samples are bad than `max_bad` allows.
        OSError: the output cannot be written.
    """
    stacks = listed_stacks(stack)
    fields = with_variables(fields, stacks)
    choices = {
        "fields": fields,
        "key": key,
        "optional": listed_names(optional) or None,
        "axis": axis,
        "decode_cf": decode_cf or None,
        "merge": merge or None,
        "sample": sample,
        "missing_chunks": missing_chunks,
    }
    masks = listed_names(mask)
    listed = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    given = [os.fspath(one if as_url(one) else within_folder(one, files)) for one in listed]
    shared: dict[str, Any] = {
        "on_error": on_error,
        "max_bad": max_bad,
        "resume": resume,
        "overwrite": overwrite,
        "progress": progress or silent,
    }
    access = StoreAccess.of(out, *given, store_options=store_options)
    folder, objects = as_url(out), [url for path in given if (url := as_url(path)) is not None]
    if folder is not None and len(objects) == len(given):
        if dask is not None or (world or World.detect()).size > 1:
            raise ConfigError("objects in a store are indexed by one process: leave out dask and other ranks")
        in_folder = files is None and folder in objects
        objects = [folder / files if files is not None and one == folder else one for one in objects]
        check_places(objects, folder)
        store = open_store(folder, access.store_options or {})
        listing = Listing(store, folder)
        are_files = format in KINDS or any(named_kind(url.name) for url in objects)
        zarr = {} if are_files else find_stores(objects, listing)
        if merge or ((stacks or decode_cf) and not zarr):
            rule = "{merge}, and {stack} and {decode_cf} of HDF5 files, are for files that are adopted on a local disk"
            raise ConfigError(Message(rule))
        if zarr and checksums:
            rule = "{checksums:True} reads Zarr stores on a local disk; in a bucket their chunks have ETags"
            raise ConfigError(Message(rule))
        for url in () if zarr else objects:
            if format == "zarr" or url.name.lower().endswith(".zip"):
                raise SourceError(
                    f"{url}: no Zarr store of objects; a zip file of one is adopted on a local disk: copy it there"
                )
        threads = min(MOST_THREADS, cpus.usable()) if workers is None else workers
        options = PackOptions(workers=threads, threads=True, strict=strict, **shared)
        remove_abandoned_folders(TEMPORARY)
        with temporary_folder(TEMPORARY) as temporary:
            made_of: dict[str, Any] = {"temporary": temporary, "overwrite": overwrite or resume, "sort": sort}

            def make_source(found: FoundFiles) -> Any:
                return masked(stacked(_source(found, choices, on_error, sort), stacks), masks)

            adoption: ObjectAdoption | ZarrAdoption
            if zarr:
                adoption = ZarrAdoption(store, zarr, folder, make_source, **made_of)
            else:
                adoption = ObjectAdoption(listing, objects, format, make_source, **made_of)
            lacking, sparse = unwritten_chunks(adoption.source.unwritten(tables=False), missing_chunks)
            told = part_remark(folder, adoption.names) if in_folder else ()
            remarks = remarks_of(adoption.source, (*adoption.remarks, *told, *lacking), strict=strict)
            notes = (*remarks, *sparse, *order_hints(adoption.names, "objects"))
            announce(notes, (*remarks, *sparse), tell, World())
            made = Conversion({"": adoption.run(options)}, adoption.source.fields, notes)
        place = None
    elif folder is not None or objects:
        local = next(path for path in (os.fspath(out), *given) if as_url(path) is None)
        raise ConfigError(
            f"out and all paths must be URLs or all local, got {local} beside a URL: the index of objects in a store "
            "lies beside them"
        )
    else:
        found = find_by_content(given, format, on_error)
        if stacks and found.kind not in ("hdf5", "zarr"):
            rule = "{stack} is for HDF5 files and Zarr stores, {} is {}"
            raise ConfigError(rule, printable(found.paths[0]), WORDS[found.kind])
        source, world, place = _source(found, choices, on_error, sort), world or World(), local_path(out)
        source = stacked(source, stacks)
        lacking, sparse = unwritten_chunks(source.unwritten(tables=checksums), missing_chunks)
        remarks = remarks_of(source, (*found.remarks, *lacking), strict=strict)
        hints = (*sparse, *(() if world.rank else find_chunk_hints(source)))
        notes = (*remarks, *hints, *source.hints)
        announce(notes, (*remarks, *hints), tell, world)
        count = cpus.share(world.local_size) if workers is None else workers
        work = {"workers": count, "dask": dask, "world": world, **shared}
        dataset = adopt(source, place, strict=strict, masks=masks, checksums=checksums, **work)
        made = Conversion({"": dataset}, masked(source, masks).fields, notes)
    if report is not None and not (world or World()).rank:
        write_report(Path(report), place, [("", sample) for sample in made.skipped])
    counts = total(one.counts for one in made.datasets.values())
    of_images = (*pair_remarks(counts), *rotated_notes(counts, ""), *video_notes(counts))
    announce(of_images, of_images, tell, world or World())
    return replace(made, notes=(*made.notes, *of_images))


def _source(files: FoundFiles, choices: Mapping[str, Any], on_error: str, sort: Sort) -> Any:
    """Return the source of some files; ConfigError for a choice that their converter does not have."""
    kind, paths = files.kind, files.paths
    converter = sources.find(kind)
    parameters = inspect.signature(converter).parameters
    made = {name: value for name, value in choices.items() if value is not None}
    if unknown := sorted(made.keys() - parameters.keys()):
        raise ConfigError(
            f"{unknown[0]} is no choice for {printable(paths[0])}, which is {WORDS[kind]}: got {made[unknown[0]]!r}"
        )
    shared = {"on_error": on_error, "sort": sort}
    options = {name: value for name, value in shared.items() if name in parameters} | made
    if kind == "lmdb" and len(paths) > 1:
        raise ConfigError(f"index takes one LMDB at a time, got {len(paths)} paths")
    given = paths[0] if len(paths) == 1 else list(paths)
    source: Any = converter(given, **options)
    return source.in_place(choices["key"]) if kind == "webdataset" else source
