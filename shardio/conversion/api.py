"""`shardio.convert`: the Python interface of conversion, which the command line calls as well."""

from __future__ import annotations

import errno
import inspect
import os
import shutil
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from .. import containers
from ..dataset.opening import Place
from ..dataset.writer import DEFAULT_SHARD_SIZE, on_disk
from ..errors import ConfigError, Message, NotADataset, SourceWarning, TooManyBad
from ..format.fields import Field, listed_names, listed_ragged
from ..format.limits import MAX_IMAGE_PIXELS
from ..format.manifest import Manifest
from ..order.world import World
from ..output import Output, open_output
from ..output.records import Skipped
from ..stores.url import Url, as_url
from ..system import cpus
from ..system.did_you_mean import did_you_mean
from ..system.types import Indices
from ..system.units import counted, format_size, parse_size
from ..views.classes import Classes
from ..views.view import BaseDataset
from . import source as sources
from .container_choice import choose_container, kept_container
from .dataset_source import DatasetSource
from .growing import Growing
from .image_counts import box_notes, deep_notes, pair_remarks, rotated_notes, total
from .notes import check_strict, hints, remarks_of, unwritten_chunks
from .pack import OnError, PackOptions, WrittenDataset, pack
from .reencode import DAMAGED, FRAMES, FROM, OTHER_CODING, Recompress
from .reencode_video import VideoCodec, VideoOptions
from .restart_hint import restart_hint
from .runners import Progress, silent
from .shard_tasks import Estimate, ShardTask, TaskContext, plan
from .skipped import open_report, write_report
from .source import Converter, Source
from .stacks import Stacks, listed_stacks, stacked, with_variables
from .subset import SampleChoice, choose
from .transformed_source import TransformedSource, image_options
from .video_notes import video_notes

PathLike: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of a conversion.

    Attributes:
        datasets: the dataset of each split by its name; without `split` there is one, named `""`. Empty after
            `dry_run`.
        estimates: after `dry_run`, what would be written for each split, named in the same way.
        fields: the stored fields.
        notes: data that the source or the splits left out or that the source renamed, options that its fields may need,
            a container that fits better, by how much `dtype` has rounded numbers, how many JPEGs `jpeg_restarts` left
            as they were, and how many images an EXIF tag rotates.
    """

    datasets: Mapping[str, WrittenDataset]
    fields: Mapping[str, Field]
    notes: tuple[str, ...] = ()
    estimates: Mapping[str, Estimate] = field(default_factory=dict)

    def __repr__(self) -> str:
        parts = {name: (made.manifest.samples, len(made.manifest.shards)) for name, made in self.datasets.items()}
        parts = parts or {name: (made.samples, made.shards) for name, made in self.estimates.items()}
        words = "; ".join(
            f"{name + ': ' if name else ''}{counted(samples, 'sample')} in {counted(shards, 'shard')}"
            for name, (samples, shards) in parts.items()
        )
        written = "" if self.datasets else "nothing written, estimated: "
        return f"<Conversion: {written}{words}; fields {', '.join(self.fields)}; {counted(len(self.notes), 'note')}>"

    @property
    def path(self) -> Path | Url:
        """The dataset's directory, or its URL. Raises ConfigError unless exactly one dataset was written."""
        return self._only_dataset().path

    @property
    def manifest(self) -> Manifest:
        """The dataset's manifest. Raises ConfigError unless exactly one dataset was written."""
        return self._only_dataset().manifest

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """The bad samples that were left out of all datasets; on the first rank only."""
        return tuple(sample for dataset in self.datasets.values() for sample in dataset.skipped)

    def _only_dataset(self) -> WrittenDataset:
        if len(self.datasets) != 1:
            names = ", ".join(self.datasets) or "none, as dry_run writes nothing"
            raise ConfigError(f"this conversion did not write exactly one dataset: see its `datasets` ({names})")
        (dataset,) = self.datasets.values()
        return dataset


def convert(
    source: Any,
    out: PathLike,
    *,
    converter: str | Converter | None = None,
    converter_options: Mapping[str, Any] | None = None,
    classes: Classes | None = None,
    container: str | None = None,
    shard_size: int | str | None = None,
    numbers: Sequence[int] | Indices | None = None,
    where: str | None = None,
    shuffle: int | None = None,
    limit: int | None = None,
    split: Mapping[str, float] | str | None = None,
    resize_shorter: int | None = None,
    max_pixels: int | None = None,
    quality: int | None = None,
    recompress: Recompress = "never",
    orient: bool = False,
    jpeg_restarts: bool = False,
    strip: bool = False,
    keyframes: int | None = None,
    fps: float | None = None,
    codec: VideoCodec | None = None,
    crf: int | None = None,
    keep_audio: bool = False,
    store_pixels: bool = False,
    keep_alpha: bool = False,
    resize: tuple[int, int] | None = None,
    max_image_pixels: int = MAX_IMAGE_PIXELS,
    dtype: str | Mapping[str, str] | None = None,
    as_image: str | Collection[str] = (),
    squeeze: str | Collection[str] = (),
    optional: str | Collection[str] = (),
    decode_cf: bool = False,
    stack: str | Stacks | None = None,
    mask: str | Collection[str] = (),
    allow_rounding: bool = False,
    ragged: str | Collection[str] = (),
    workers: int | None = 1,
    dask: str | None = None,
    world: World | None = None,
    on_error: OnError = "raise",
    max_bad: float = 0.01,
    report: PathLike | None = None,
    strict: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    append: bool = False,
    dry_run: bool = False,
    store_options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    tell: Callable[[str], None] | None = None,
    **container_options: Any,
) -> Conversion:
    """Pack samples into a dataset at `out`, or into several.

    The same source and options give the same bytes, whatever `workers`, `dask` and `world` are.

    Examples:
        >>> import shardio
        >>> shardio.convert("photos", "data/photos", converter="imagefolder", container="hdf5", resize_shorter=256)
        <Conversion: 40 samples in 1 shard; fields image, label, key...>
        >>> shardio.convert("data/photos", "data/cats", where="label == 'cat'")
        <Conversion: 20 samples in 1 shard; fields image, label, key...>

    Args:
        source: one of

            - a path, URL or object that `converter` reads, such as a folder or a `torch.utils.data.Dataset`;
            - without `converter`, a shardio dataset or a view of one, or its path, to rewrite its samples in other
              shards, or a list of such, to merge datasets that have the same fields;
            - a `shardio.source.Source`.
        out: the dataset's directory: empty or nonexistent; or its URL, such as `s3://bucket/photos`: each shard is
            uploaded once it is finished. With `split` it holds a directory for each split.
        converter: the name of an installed converter, such as `"imagefolder"` (`shardio.source.names()` lists them),
            or a converter itself: `(source, **options) -> Source`.
        container: the container of the shards: tar, hdf5 or lmdb. By default, that of the datasets, else tar; of arrays
            and numbers from numpy, hdf5, and of small strings, lmdb.
        shard_size: the estimated size at which a shard ends: 64MB, 1GiB. The default is 64MB.
        where: take only samples that match this condition on scalar and text fields: 'label < 10 and not hidden',
            'label == "cat" or "val/" in key'.
        shuffle: store the samples in a random order with this seed.
        split: write several datasets of random shares, each in its own directory: train=0.9,val=0.1. The seed is that
            of `shuffle`, or 0.
        resize_shorter: shrink images and videos whose shorter side has more pixels than this.
        workers: the number of processes; 1 works in this process, None starts one per core of this process's share of
            the machine.
        on_error: what to do at a bad sample. raise: stop. skip: leave it out, and name it.
        resume: continue this conversion where it was interrupted, if it was. Finished shards are checked and kept; so
            is a finished dataset. You can always pass `resume`.

    Args: Source
        converter_options: the converter's own options, as `shardio convert NAME --help` documents them.
        classes: what labels mean where merged datasets name different classes. `"union"`: number classes by name; those
            of the first dataset keep their numbers, the others follow. `"ignore"`: take labels as they are, and the
            first dataset's names. By default, such datasets raise ConfigError.
        decode_cf: with the converters `"hdf5"` and `"zarr"`, apply the attributes of netCDF that each file has, such as
            `scale_factor`, and turn times into seconds since 1970: an option of these converters, which say how.

    Args: Choice of samples
        numbers: the numbers of the samples to take, [n], in this order; None takes all. `where`, `shuffle`, `limit`
            and `split` choose among these samples.
        limit: take at most this many samples: the first ones, in their order.

    Args: Images
        max_pixels: shrink images that have more pixels than this, and videos whose frames have.
        quality: the quality of re-encoded JPEGs, 1 to 100. The default is 92.
        recompress: the images to re-encode. never: only those that shrink. foreign: also those of formats that aren't
            stored, GIF, TIFF, PPM and AVIF: the first frame, as a JPEG if the format is lossy, else as a PNG.
            if-needed: these, and JPEGs that hardware decoders can't decode (progressive, CMYK). always: all.
        orient: re-encode images that an EXIF tag rotates or flips, upright. Without it all keep their tags.
        jpeg_restarts: transcode JPEGs to baseline files with restart markers, so that random crops decode only a part
            of the file. No pixel changes, and metadata stays. What can't be transcoded stays as it is (damaged, CMYK,
            arithmetic codes, progressive with bits unsent), and a note counts it.
        strip: with `jpeg_restarts`: drop the metadata of JPEGs (EXIF, ICC profiles, comments), unless an EXIF tag
            rotates or flips them.
        store_pixels: store images as pixels, uint8 [H, W, C], which load without a decoder: for small images of one
            size. Excludes the options that change image files, except `orient`.
        keep_alpha: with `store_pixels`: store red, green, blue and alpha as arrays, uint8 [4, H, W], not as images.
            Images without transparency get an alpha of 255.
        resize: with `store_pixels`: resize all images to this height and width, such as 64,64.
        mask: fields of images that are masks, whose numbers stay: palette indices, or grey levels of up to 16 bits. A
            JPEG, or a PNG of RGB colours, is a bad sample.
        max_image_pixels: re-encoding holds at most this many pixels of an image at once; an image that claims more is a
            bad sample.

    Args: Videos
        keyframes: encode videos anew, with a key frame every so many frames, from which clips are decoded. The default
            is 12 for videos that other options encode anew: with this option, `fps`, `codec` or `crf` all are, with
            `resize_shorter` and `max_pixels` those that shrink. The result is 8 bits, 4:2:0, upright, of even sides.
        fps: frames per second. Frame k is the one shown k / fps seconds after the first: others are dropped, those
            shown for longer doubled, and a note counts both. By default all frames keep their times.
        codec: the codec of these videos: h264, hevc, vp9 or av1. The default is h264.
        crf: the quality of these videos, the encoder's constant rate factor, larger for smaller files, from 0 to 51 for
            h264 and hevc, to 63 for vp9 and av1. The default is 23 for h264, 28 for hevc, 31 for vp9, 35 for av1.
        keep_audio: keep the sound of these videos as it is. Otherwise it is left out.

    Args: Arrays
        dtype: cast all arrays to this dtype, or single fields: float16, or image=float16,mask=uint8. Floats are
            rounded. A number that overflows makes a bad sample, and so does an integer that would change.
        as_image: store these fields of uint8 arrays, [h, w], [h, w, 1 or 3] or [1 or 3, h, w], as images.
        squeeze: store these fields of arrays of one element, [n, 1], as numbers without a shape.
        allow_rounding: let `dtype` round integers to what a float holds, as float16 makes 2048 of 2049.
        ragged: store these fields of arrays with any length along the first axis, where the first samples share one:
            tokens; or, as in scans=all, with any shape.
        stack: fields that are several variables of one shape and dtype, as in x=t2m,u10,v10: arrays [3, ...]. These
            variables are then no fields of their own, unless the converter's option `fields` names them.

    Args: Bad samples
        optional: fields that samples may lack, such as caption,score: a value that is missing or null is then None.
        max_bad: with `on_error="skip"`: how many samples may be bad, a count, or below 1 a share of all.
        report: with `on_error="skip"`: write the bad samples to this file, a JSON object per line.
        strict: fail at what would be a remark: data that is left out, a column that is renamed, images and masks that
            differ in size or orientation.

    Args: Output
        overwrite: replace the dataset at the output once the new one is complete.
        append: add the samples to the dataset at the output, in new shards. Its container, `shard_size` and options
            that re-encode images hold; its fields and classes must be those of the source. `resume` then continues
            this append, or leaves the dataset alone if this was the last one; `overwrite` starts an unfinished one
            over. `split` does not go with it.
        dry_run: write nothing; estimate the number of samples, shards and bytes.
        container_options: options of the container: `hdf5` has `compression="gzip"`, `"lzf"` or `"zstd"`.
        store_options: for a URL: options of its store, see `shardio.open`.

    Args: Parallelism
        dask: a Dask scheduler whose workers do the work instead: tcp://HOST:8786; or local, for `workers` Dask
            processes on this machine.
        world: this process's rank among several that call this function with the same arguments and write a part each,
            such as `World.detect()`; without it, this process works alone.

    Args: Messages
        progress: called from time to time with a word for the work, the number of samples done, and the total.
        tell: called with each note (see `Conversion`) before anything is written. Without it, notes on data that is
            left out or renamed, and on images that an EXIF tag rotates, are warnings (SourceWarning), on the first
            rank. The notes on these images, on what `dtype` has rounded and `jpeg_restarts` left come at the end.

    Returns:
        The datasets with their manifests and the samples that were left out, or the estimates of a dry run. Only
        the first rank knows the samples that were left out.

    Raises:
        ConfigError: an argument breaks a rule, or another conversion is running at `out`.
        SourceError: the source cannot be read, or holds no samples; with `strict`, data would be left out.
        BadSample: a sample is bad, with `on_error="raise"`.
        TooManyBad: more samples are bad than `max_bad` allows.
        OSError: the output cannot be written; StoreError if it is in a store.
        NotADataset: with `append`, there is no dataset.
        ObjectChanged: another process has made a dataset at the same URL meanwhile, which stays; with `append`, also in
            a folder.

    An interrupted conversion never passes for a dataset: `out` has no `shardio.json` until all shards are finished.
    """
    for broken, rule in (
        (report is not None and on_error == "raise", "{report} goes with {on_error:skip}"),
        (allow_rounding and not dtype, "{allow_rounding} goes with {dtype}"),
        (append and split is not None, "{split} makes several datasets: append to the directory of each"),
    ):
        if broken:
            raise ConfigError(Message(rule))
    _check_options(container_options, converter)
    images, raw = image_options(
        resize_shorter=resize_shorter,
        max_pixels=max_pixels,
        quality=quality,
        recompress=recompress,
        orient=orient,
        jpeg_restarts=jpeg_restarts,
        strip=strip,
        store_pixels=store_pixels,
        keep_alpha=keep_alpha,
        resize=resize,
        max_image_pixels=max_image_pixels,
    )
    videos = VideoOptions(
        resize_shorter=resize_shorter,
        max_pixels=max_pixels,
        keyframes=keyframes,
        fps=fps,
        codec=codec,
        crf=crf,
        keep_audio=keep_audio,
        max_image_pixels=max_image_pixels,
    )
    choice = SampleChoice(numbers, where, shuffle, limit, split)
    stacks = listed_stacks(stack)
    own_options = _converter_options(converter, converter_options, stacks, decode_cf=decode_cf)
    place, world = open_output(out, store_options, also_read=_may_be_remote(source)), world or World()
    grows = None
    if append:
        place, described = place.growing()
        grows = Growing(place, described)
    job = PackOptions(
        workers=cpus.share(world.local_size) if workers is None else workers,
        dask=dask,
        world=world,
        on_error=on_error,
        max_bad=max_bad,
        resume=resume,
        overwrite=overwrite,
        strict=strict,
        progress=progress or silent,
    )
    shard_bytes = parse_size(DEFAULT_SHARD_SIZE if shard_size is None else shard_size, "shard_size")
    if container is not None:
        on_disk(container)
    if grows is not None:
        container, container_options = grows.container_options(container, container_options)
        shard_bytes = grows.shard_bytes(None if shard_size is None else shard_bytes, shard_bytes)
        images, videos = grows.images(images), grows.videos(videos)

    # The source, and the changes to its fields.
    optional_fields, masks, ragged_fields = listed_names(optional), listed_names(mask), listed_ragged(ragged)
    shared = {"on_error": on_error, "optional": optional_fields, "ragged": listed_names(ragged)}
    samples = stacked(_source(source, converter, own_options, shared, classes), stacks)
    image_fields, squeezed_fields = listed_names(as_image), listed_names(squeeze)
    lacking, sparse = unwritten_chunks(samples.unwritten(tables=True), samples.missing_chunks)
    remarks = remarks_of(samples, lacking, strict=strict)
    found_notes = (*remarks, *sparse, *hints(samples, image_fields, squeezed_fields))
    follows = samples.plain_values
    wanted_container = container or kept_container(samples)
    changes = (dtype, image_fields, squeezed_fields, raw, optional_fields, masks, ragged_fields)
    if any(changes) or not (images.idle and videos.idle):
        samples = TransformedSource(
            samples, images, _dtypes(dtype), image_fields, squeezed_fields, raw, optional_fields, masks,
            ragged_fields, videos=videos, allow_rounding=allow_rounding,
        )  # fmt: skip
    if grows is not None:
        grows.check(samples)
        container = grows.manifest.container
    else:
        container, container_note = choose_container(samples, wanted_container, follows=follows)
        found_notes += () if container_note is None else (container_note,)
    announce(found_notes, (*remarks, *sparse), tell, world)
    bad_samples = None if report is None or world.rank or dry_run else Path(report)
    if bad_samples is not None:
        open_report(bad_samples, place.path).close()  # fails now rather than after the work

    # The samples of each dataset, and its shards.
    parts, left_out = choose(samples, choice, job.runner(), job.progress)
    check_strict(left_out, strict=strict)
    announce(left_out, left_out, tell, world)
    found_notes += (*left_out,)
    if grows is None and raw is None and not images.jpeg_restarts:  # else nobody could take the advice
        hint = restart_hint(samples, next(iter(parts.values())))
        announce(hint, (), tell, world)
        found_notes += (*hint,)
    onto = None if grows is None else grows.manifest
    plans = {
        name: plan(samples, chosen, container, shard_bytes, container_options, onto) for name, chosen in parts.items()
    }
    if dry_run:
        return Conversion({}, samples.fields, found_notes, {name: estimate for name, (estimate, _, _) in plans.items()})
    context = TaskContext(samples, container, container_options, skip=on_error == "skip")
    datasets = _packed(place, plans, context, job, grows, bad_samples)
    counts = total(made.counts for made in datasets.values())
    advice, pixels = Message("{orient:True} stores them upright, "), raw is not None
    turned = rotated_notes(counts, samples.metadata.get("source", ""), advice, pixels=pixels)
    of_images = [*pair_remarks(counts), *box_notes(counts), *turned]
    last_notes = [*_last_notes(datasets.values(), samples.fields), *deep_notes(counts), *of_images]
    last_notes += video_notes(counts, videos)
    announce(last_notes, of_images, tell, world)
    return Conversion(datasets, samples.fields, (*found_notes, *last_notes))


def _packed(
    place: Output,
    plans: Mapping[str, tuple[Estimate, Sequence[ShardTask], Mapping[str, Any]]],
    context: TaskContext,
    job: PackOptions,
    grows: Growing | None,
    report: Path | None,
) -> dict[str, WrittenDataset]:
    """Write the dataset of each split, and the report of bad samples; say how much room a full disk lacks."""
    folder, datasets = place.path, dict[str, WrittenDataset]()
    try:
        for name, (_, tasks, written_plan) in plans.items():
            of_split = replace(job, progress=_named(job.progress, name))
            datasets[name] = pack(place.part(name), context, tasks, written_plan, of_split, grows=grows)
    except TooManyBad as error:
        if report is not None:
            write_report(report, folder, [("", sample) for sample in error.skipped])
        raise
    except OSError as error:
        if error.errno != errno.ENOSPC or not isinstance(folder, Path):
            raise
        needed = format_size(sum(estimate.bytes for estimate, _, _ in plans.values()))
        there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
        free = format_size(shutil.disk_usage(there).free)
        told = f"{error.strerror}: all shards take about {needed}, and {free} are free"
        raise OSError(error.errno, told, error.filename) from error
    if report is not None:
        write_report(report, folder, [(name, sample) for name, made in datasets.items() for sample in made.skipped])
    return datasets


def _last_notes(datasets: Collection[WrittenDataset], fields: Mapping[str, Field]) -> list[str]:
    """Return a note for each field whose numbers were rounded, and one on JPEGs that were not transcoded."""
    changes = {name: max(made.rounded.get(name, 0) for made in datasets) for name in fields}
    notes: list[str] = [
        Message("{dtype}: {} rounds numbers of field {!r}, by up to {:.3g}", fields[name].dtype, name, change)
        for name, change in changes.items()
        if change
    ]
    counts = total(made.counts for made in datasets)
    if stayed := {reason: counts[reason] for reason in (DAMAGED, OTHER_CODING) if counts[reason]}:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(stayed.items()))
        told = "{jpeg_restarts} copied {} byte for byte: {}"
        notes.append(Message(told, counted(sum(stayed.values()), "JPEG"), reasons))
    if foreign := {name.removeprefix(FROM): count for name, count in counts.items() if name.startswith(FROM)}:
        told = "{recompress}: re-encoded {}{}"
        frames = f", of {counts[FRAMES]} the first of several frames" if counts[FRAMES] else ""
        made = ", ".join(f"{counted(count, 'image')} of {name}" for name, count in sorted(foreign.items()))
        notes.append(Message(told, made, frames))
    return notes


def announce(notes: Sequence[str], remarks: Sequence[str], tell: Callable[[str], None] | None, world: World) -> None:
    """Report all notes to `tell`; without it, warn of the remarks among them, on the first rank."""
    if tell is not None:
        for note in notes:
            tell(note)
    elif not world.rank:
        for remark in remarks:
            warnings.warn(remark, SourceWarning, stacklevel=3)  # where `convert` is called


def _may_be_remote(source: Any) -> bool:
    """Return whether a source may be datasets in stores."""
    places = source if isinstance(source, list | tuple) else [source]
    return isinstance(source, DatasetSource) or any(
        isinstance(place, BaseDataset) or (isinstance(place, str | os.PathLike) and as_url(place) is not None)
        for place in places
    )


def _named(progress: Progress, split: str) -> Progress:
    """Return a progress that names the split."""
    return (lambda what, done, total: progress(f"{what} {split}", done, total)) if split else progress


def _source(
    source: Any,
    converter: str | Converter | None,
    options: Mapping[str, Any],
    shared: Mapping[str, Any],
    classes: Classes | None,
) -> Source:
    """Return the `Source` that the first arguments of `convert` describe."""
    if classes is not None and (converter is not None or not isinstance(source, list | tuple)):
        raise ConfigError(
            Message("{classes} goes with a list of datasets; a converter's own option goes in converter_options")
        )
    if converter is not None:
        return _converted(source, converter, options, shared)
    if options:
        raise ConfigError(f"converter_options go with a converter, got {dict(options)}")
    if isinstance(source, (str, os.PathLike, BaseDataset)):
        return _datasets([source])
    if isinstance(source, (list, tuple)):
        return _datasets(source, classes)
    if (known := sources.as_source(source)) is None:
        raise ConfigError(
            "source must be a dataset, a path, a list of these or a shardio.source.Source, or go with converter=NAME; "
            f"got {type(source).__name__}{_advice(source)}"
        )
    return known


def _converter_options(
    converter: str | Converter | None, given: Mapping[str, Any] | None, stacks: Stacks, *, decode_cf: bool
) -> dict[str, Any]:
    """Return the converter's own options, with those that other arguments of `convert` mean for it."""
    if decode_cf and converter is None:
        raise ConfigError(
            Message("{decode_cf} goes with converter, 'hdf5' or 'zarr': a dataset has its values already")
        )
    options = {**(given or {}), **({"decode_cf": True} if decode_cf else {})}
    if converter is not None and options.get("fields") is not None:
        options["fields"] = with_variables(options["fields"], stacks)
    return options


def _advice(samples: Any) -> str:
    """Say which converter takes an object that is no source, if it has samples by number."""
    if not (hasattr(samples, "__getitem__") and hasattr(samples, "__len__")) or isinstance(samples, Mapping):
        return ""
    converter = "huggingface" if type(samples).__module__.startswith("datasets.") else "torch"
    return f", which converter={converter!r} takes"


def _datasets(places: Sequence[Place], classes: Classes | None = None) -> Source:
    if not places:
        raise ConfigError("source must name at least one dataset, got an empty list")
    try:
        return DatasetSource(places, classes=classes)
    except NotADataset as error:
        raise NotADataset(f"{error} (for other data name its converter, such as converter='imagefolder')") from error


def _converted(
    source: Any, converter: str | Converter, options: Mapping[str, Any], shared: Mapping[str, Any]
) -> Source:
    function = sources.find(converter) if isinstance(converter, str) else converter
    parameters = inspect.signature(function).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    unknown = [name for name in options if name not in known]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        name = converter if isinstance(converter, str) else getattr(converter, "__name__", type(converter).__name__)
        has = f"the options {', '.join(known)}" if known else "no options"
        raise ConfigError(f"converter {name!r} has {has}, got {', '.join(unknown)}")
    made = function(source, **{**{name: value for name, value in shared.items() if name in known}, **options})
    if (found := sources.as_source(made)) is None:
        raise ConfigError(f"a converter must return a shardio.source.Source, got {type(made).__name__}")
    return found


def _check_options(given: Mapping[str, Any], converter: str | Converter | None) -> None:
    """Raise ConfigError for what is an option of no container, and say where it belongs."""
    for name, value in given.items():
        if containers.with_option(name):
            continue
        function = sources.find(converter) if isinstance(converter, str) else converter
        if function is not None and name in inspect.signature(function).parameters:
            advice = f"; the converter's own options go in converter_options={{{name!r}: {value!r}}}"
        else:
            known = [*inspect.signature(convert).parameters][2:-1]
            near = did_you_mean(name, "argument of convert", [*known, "compression"])
            advice = f"; did you mean {near}=?" if near else ""
        raise ConfigError(f"convert has no option {name!r}{advice}")


def _dtypes(dtype: str | Mapping[str, str] | None) -> Mapping[str, str]:
    """Return the dtypes by field, for text as `float16` or `image=float16,mask=uint8`; `""` is every other array."""
    if not isinstance(dtype, str):
        return dtype or {}
    pairs = (part.strip().rpartition("=") for part in dtype.split(",") if part.strip())
    return {name: value for name, _, value in pairs}
