"""Making clips: the packets that a plan names are read and decoded, and their frames become images."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...containers.extents import Runs
from ...engines.base import rows_of
from ...engines.cpu import Images
from ...engines.jpeg_headers import orientations_of
from ...engines.orientation import OF_ROTATION, Orientations, upright_sizes
from ...engines.video_frames import VideoFrames
from ...errors import BadSample, ShardCorrupt
from ...foreign.video_decoder import decode
from ...format import images
from ...format.fields import length_column
from ...format.packets import BadTable, check_groups, sum_of
from ...views.readable import SelectedSamples
from .clip_plan import ClipPlan, VideoPlan, asked_frames, read_each
from .collate import clip_names
from .make_arrays import place_of
from .rows import Rows


def read_clips(rows: Rows, field: str, plan: ClipPlan, selection: SelectedSamples) -> list[memoryview]:
    """Read the bytes of each video's packets."""
    rows.varying_bytes += plan.bytes.sizes
    return read_each(selection, field, plan.bytes)


def check_clips(rows: Rows, field: str, plan: ClipPlan, data: Sequence[memoryview]) -> None:
    """Compare checksums of the groups of packets that were read; ShardCorrupt for the first that differs."""
    for row, (video, own) in enumerate(zip(plan.videos, data, strict=True)):
        if not isinstance(video, VideoPlan):
            continue
        sums, groups = [sum_of(value) for value in _packets(video, plan.bytes[row : row + 1], own)], video.groups
        table = groups.facts, groups.head, groups.directory, groups.numbers.tolist(), video.blocks
        try:
            check_groups(*table, sums)
        except BadTable as error:
            raise ShardCorrupt(f"{place_of(rows, rows.spec.names.delivered[field][0], row)}: {error}") from error


def make_clips(rows: Rows, field: str, plan: ClipPlan, data: Sequence[memoryview]) -> None:
    """Decode the clips of a field and make their images under all its names.

    Args:
        rows: the rows.
        field: the stored field.
        plan: what to decode.
        data: the bytes of each video in the runs of `plan.bytes`, end to end.
    """
    options, name = rows.spec.options, rows.spec.names.delivered[field][0]
    for first, (video, own) in enumerate(zip(plan.videos, data, strict=True)):
        if isinstance(video, BadSample):
            _fail(rows, name, first, video)
        if not isinstance(video, VideoPlan):
            continue
        try:
            data_of, shows = _packets(video, plan.bytes[first : first + 1], own), video.packets.shown
            runs = [([data_of[packet] for packet in run.tolist()], shows[run].tolist()) for run in video.decoded]
            facts, wanted = video.groups.facts, {each for some in video.frames.values() for each in some.tolist()}
            shown = decode(facts, video.groups.extradata, runs, wanted, options.limits.max_image_pixels)
            turn = OF_ROTATION[facts.rotation] if options.orient else 1
            for (row, name), numbers in video.frames.items():
                frames = VideoFrames([shown[number] for number in numbers.tolist()], options.untagged_matrix)
                orientations = np.full(len(frames), turn, np.uint8)
                sizes = upright_sizes(np.full((len(frames), 2), frames.size, np.int32), orientations)
                _make_images(rows, name, row, frames, sizes, orientations if turn != 1 else None)
                _put_columns(rows, name, row, {"time": video.seconds[row, name], "valid": plan.valid[name][row]})
        except BadSample as error:
            for row, name in video.frames:
                _fail(rows, name, row, error)


def make_image_clips(
    rows: Rows, names: Sequence[str], lists: Sequence[Sequence[bytes] | None], selection: SelectedSamples
) -> None:
    """Make clips of lists of images, which are their frames, under all names of their field; None is a missing list."""
    spec = rows.spec
    for name in names:
        counts = selection.column(length_column(spec.names.stored[name]))
        asked = asked_frames(spec, name, {False: counts}, selection, rows.keys())
        clip, valid = spec.clips[name].clip, asked < counts[:, None]
        for row, listed in enumerate(lists):
            if listed is None:
                continue
            try:
                if not listed or not (valid[row].all() or (clip is not None and clip.short == "pad")):
                    told = f"has {len(listed)} images, too few for {clip or 'the clip'}"
                    raise BadSample(f"{told}: short='pad' repeats the last one")
                files = [listed[frame] for frame in np.minimum(asked[row], len(listed) - 1).tolist()]
                found = [images.probe(file) for file in files]
                sizes = np.array([(each.height, each.width) for each in found], np.int32)
                orientations = orientations_of(files) if spec.options.orient else None
                upright = sizes if orientations is None else upright_sizes(sizes, orientations)
                if (upright != upright[0]).any():
                    raise BadSample(f"its images differ in size: {np.unique(upright, axis=0).tolist()}")
                _make_images(rows, name, row, files, upright, orientations)
                _put_columns(rows, name, row, {"valid": valid[row]})
            except BadSample as error:
                _fail(rows, name, row, error)


def _fail(rows: Rows, name: str, row: int, error: BadSample) -> None:
    """Leave a row to be made alone, if it is not; raise its error with its place otherwise."""
    if len(rows) == 1:
        raise BadSample(f"{place_of(rows, name, row)}: {error}") from error
    rows.failed.add(row)


def _put_columns(rows: Rows, name: str, row: int, values: Mapping[str, NDArray[Any]]) -> None:
    for what, column in clip_names(name).items():
        if column in rows.arrays:
            rows.arrays[column][row] = values[what]


def _packets(video: VideoPlan, runs: Runs, data: memoryview) -> list[memoryview]:
    """Return the bytes of each of a video's packets among the runs that were read; of others, any bytes."""
    targets = np.cumsum(runs.ends - runs.begins) - runs.ends
    begins = video.packets.offsets + targets[np.searchsorted(runs.begins, video.packets.offsets, "right") - 1]
    return [data[at : at + size] for at, size in zip(begins.tolist(), video.packets.sizes.tolist(), strict=True)]


def _make_images(
    rows: Rows, name: str, row: int, stored: Images, sizes: NDArray[np.int32], orientations: Orientations | None
) -> None:
    """Make the images of a clip, whose frames have one size, by one set of draws."""
    clip = rows.spec.clips[name]
    steps = clip.recipe.steps(sizes[:1], rows.field_keys(name)[np.array([row])])
    of_all = [rows_of(step, np.zeros(len(sizes), np.intp)) for step in steps]
    out = rows.arrays[name][row] if name in rows.arrays else None
    made = clip.cpu_engine(stored, sizes, of_all, out, orientations)
    if out is None:
        rows.lists[name][row] = np.stack(made or [])
