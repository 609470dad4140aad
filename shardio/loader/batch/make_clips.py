"""Making clips: the packets that a plan names are read and decoded, and their frames become images."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...engines.base import rows_of
from ...engines.orientation import OF_ROTATION, upright_sizes
from ...engines.video_frames import VideoFrames
from ...errors import BadSample, ShardCorrupt
from ...foreign.video_decoder import decode
from ...format.packets import BadTable, check_groups, sum_of
from ...views.readable import SelectedSamples
from .clip_plan import ClipPlan, read_each
from .make_arrays import place_of
from .rows import Rows


def read_clips(rows: Rows, field: str, plan: ClipPlan, selection: SelectedSamples) -> list[memoryview]:
    """Read the bytes of each video's packets. Raises BadSample for a video that is too short."""
    for name in rows.spec.names.delivered[field]:
        clip = rows.spec.clip_of(name)
        if getattr(clip, "short", "pad") == "raise":
            for row in np.flatnonzero(~plan.valid[name].all(axis=1))[:1].tolist():
                told = (
                    f"has {plan.facts[row].frames} frames, {clip!r} needs {clip.span}: short='pad' repeats the last one"
                )
                raise BadSample(f"{place_of(rows, name, row)}: {told}")
    rows.varying_bytes += plan.bytes.sizes
    return read_each(selection, field, plan.bytes)


def check_clips(rows: Rows, field: str, plan: ClipPlan, data: Sequence[memoryview]) -> None:
    """Compare checksums of the groups of packets that were read; ShardCorrupt for the first that differs."""
    for row, own in enumerate(data):
        sums = [sum_of(value) for value in _packets(plan, row, own)]
        table = plan.facts[row], plan.heads[row], plan.directories[row], plan.groups[row], plan.blocks[row]
        try:
            check_groups(*table, sums)
        except BadTable as error:
            raise ShardCorrupt(f"{place_of(rows, rows.spec.names.delivered[field][0], row)}: {error}") from error


def _packets(plan: ClipPlan, row: int, data: memoryview) -> list[memoryview]:
    """Return the bytes of each of a video's packets among the runs that were read; of others, any bytes."""
    runs, packets = plan.bytes[row : row + 1], plan.packets[row]
    targets = np.cumsum(runs.ends - runs.begins) - runs.ends
    begins = packets.offsets + targets[np.searchsorted(runs.begins, packets.offsets, "right") - 1]
    return [data[at : at + size] for at, size in zip(begins.tolist(), packets.sizes.tolist(), strict=True)]


def make_clips(rows: Rows, field: str, plan: ClipPlan, data: Sequence[memoryview]) -> None:
    """Decode the clips of a field and make their images under all its names.

    Args:
        rows: the rows.
        field: the stored field.
        plan: what to decode.
        data: the bytes of each video in the runs of `plan.bytes`, end to end.
    """
    names, most = rows.spec.names.delivered[field], rows.spec.options.limits.max_image_pixels
    for row, (facts, own) in enumerate(zip(plan.facts, data, strict=True)):
        values, packets = _packets(plan, row, own), plan.packets[row]
        extradata = bytes(plan.heads[row][facts.head - facts.extradata :])
        wanted = {frame for name in names for frame in plan.frames[name][row].tolist()}
        shown: dict[int, Any] = {}
        try:
            for part in plan.decoded[row]:
                numbers = packets.shown[part].tolist()
                taken = [values[number] for number in part.tolist()]
                shown |= decode(facts, extradata, taken, numbers, wanted.intersection(numbers), most)
            for name in names:
                frames = [shown[frame] for frame in plan.frames[name][row].tolist()]
                made = VideoFrames(frames, rows.spec.options.untagged_matrix)
                _make_images(rows, name, row, made, facts.rotation if rows.spec.options.orient else 0)
        except BadSample as error:
            raise BadSample(f"{place_of(rows, names[0], row)}: {error}") from error


def _make_images(rows: Rows, name: str, row: int, frames: VideoFrames, rotation: int) -> None:
    clip, orientations = rows.spec.clips[name], None
    sizes = np.full((len(frames), 2), frames.size, np.int32)
    if rotation:
        orientations = np.full(len(frames), OF_ROTATION[rotation], np.uint8)
        sizes = upright_sizes(sizes, orientations)
    keys = rows.field_keys(name)[np.array([row])]
    steps = [rows_of(step, np.zeros(len(frames), np.intp)) for step in clip.recipe.steps(sizes[:1], keys)]
    out = rows.arrays[name][row] if name in rows.arrays else None
    made = clip.cpu_engine(frames, sizes, steps, out, orientations)
    if out is None:
        rows.lists[name][row] = np.stack(made or [])
