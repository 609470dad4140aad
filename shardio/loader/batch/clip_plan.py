"""Plans of clips: which frames a batch has of videos, and which bytes show them, before any of these are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...containers.extents import Runs
from ...errors import BadSample
from ...format.fields import facts_column, frames_column, length_column, packets_column
from ...format.packets import BadTable, Directory, Packets, VideoFacts, packets_of, runs_to_decode
from ...system.types import Indices
from ...transforms.clips import chosen
from ...transforms.random_generator import RandomKeys
from ...views.columns import stored_numbers
from ...views.readable import SelectedSamples
from .clip_lengths import video_lengths
from .spec import BatchSpec

_NEAR = 16 << 10
"""Bytes between two packets up to which one read takes both."""
_ROUNDING = 1e-4
"""Ticks by which a time in seconds may be before the frame that it means."""
RowName: TypeAlias = tuple[int, str]
_NO_RUNS = np.empty(0, np.int64), np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class VideoPlan:
    """The packets to decode of one video, for all names of its field and all rows that have clips of it.

    Attributes:
        groups: the groups of packets that the frames may need.
        blocks: the blocks of their table, end to end.
        packets: the packets of these groups.
        decoded: the runs to decode, as places in `packets`.
        frames: by row and name, the numbers of the frames to deliver, int64 [T]; of those beyond the end, the last one.
        seconds: by row and name, when these are shown, float64 [T].
    """

    groups: "Groups"
    blocks: memoryview
    packets: Packets
    decoded: Sequence[NDArray[np.int64]]
    frames: Mapping[RowName, NDArray[np.int64]]
    seconds: Mapping[RowName, NDArray[np.float64]]


@dataclass(frozen=True, slots=True, eq=False)
class ClipPlan:
    """The bytes to read and the packets to decode of the videos of some rows, for all names of a field.

    Attributes:
        videos: by row; the error of a video that has no such clips, and None where there is no video, or an earlier
            row has the same one.
        valid: by name, which frames are within their video, bool [n, T].
        bytes: the runs of bytes that the packets are in.
        tables: the runs of bytes of the tables that say so.
    """

    videos: Sequence[VideoPlan | BadSample | None]
    valid: Mapping[str, NDArray[np.bool_]]
    bytes: Runs
    tables: Runs


def asked_frames(
    spec: BatchSpec, name: str, lengths: Mapping[bool, NDArray[Any]], selection: SelectedSamples, keys: RandomKeys
) -> NDArray[Any]:
    """Return the frames that clips have of some values, [n, T], or the times in seconds of clips that are `in_seconds`.

    Args:
        spec: the batches.
        name: the name that the clips are delivered under.
        lengths: the lengths of the values in seconds under True, and in frames under False, [n] each.
        selection: the samples.
        keys: their random keys.
    """
    clip = spec.clips[name].clip
    if clip is None:  # a view has chosen them
        return selection.column(frames_column(spec.names.stored[name]))
    return chosen(clip, lengths[clip.in_seconds], keys.draws(spec.names.draws[name]))


def plan_clips(
    spec: BatchSpec, field: str, selection: SelectedSamples, keys: RandomKeys, indices: Indices | None = None
) -> ClipPlan:
    """Choose the frames of videos, and look up what shows them.

    Args:
        spec: the batches.
        field: the stored field.
        selection: the samples.
        keys: their random keys.
        indices: their numbers, by which clips of one video are decoded together; None where that makes no difference.
    """
    column = selection.column(facts_column(field))
    facts, sizes = [VideoFacts(*row) for row in column.tolist()], selection.column(length_column(field)).tolist()
    lengths = video_lengths(column)
    asked, valid = dict[str, NDArray[Any]](), dict[str, NDArray[np.bool_]]()
    bad: list[BadSample | None] = [None if each.frames else BadSample("no frame of it is shown") for each in facts]
    for name in spec.names.delivered[field]:
        clip = spec.clips[name].clip
        asked[name] = asked_frames(spec, name, lengths, selection, keys)
        valid[name] = asked[name] < lengths[clip is not None and clip.in_seconds][:, None]
        for row in np.flatnonzero(~valid[name].all(axis=1)).tolist() if clip is None or clip.short != "pad" else ():
            told = f"has {facts[row].frames} frames in {lengths[True][row]:g} s, too few for"
            bad[row] = bad[row] or BadSample(f"{told} {clip or 'the clip'}: short='pad' repeats the last one")

    tables = selection.column(length_column(packets_column(field))).tolist()
    ends = [each.head if 0 <= each.head <= table else 0 for each, table in zip(facts, tables, strict=True)]
    head = read_each(selection, packets_column(field), Runs(np.zeros(len(ends), np.int64), np.array(ends, np.int64)))
    wanted: list[dict[RowName, NDArray[Any]]] = [{} for _ in facts]
    first_of = dict[int, int]()
    same = np.arange(len(facts)) if indices is None else stored_numbers(spec.dataset, indices)
    for row, number in enumerate(same.tolist()):
        if bad[row] is None:
            wanted[first_of.setdefault(number, row)] |= {(row, name): frames[row] for name, frames in asked.items()}
    found: list[Groups | BadSample | None] = []
    for error, own, *known in zip(bad, wanted, facts, head, sizes, tables, strict=True):
        there = known[0].codec or known[2]
        found.append(_groups(spec, own, *known) if own else error if there else None)
    runs = [each.runs if isinstance(each, Groups) else _NO_RUNS for each in found]
    blocks = read_each(selection, packets_column(field), _joined(runs))
    videos = [
        _video(each, block) if isinstance(each, Groups) else each for each, block in zip(found, blocks, strict=True)
    ]
    return ClipPlan(
        videos=videos,
        valid=valid,
        bytes=_joined([_runs_of(spec, each) if isinstance(each, VideoPlan) else _NO_RUNS for each in videos]),
        tables=_joined([(np.insert(b, 0, 0), np.insert(e, 0, end)) for (b, e), end in zip(runs, ends, strict=True)]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The groups of packets of one video that clips touch.

    Attributes:
        facts, size: what is known of the video, and the bytes of its file.
        head: the head of its table.
        directory: all groups.
        numbers: those that are touched, int64, ascending.
        ticks: by row and name, the times to show, int64 [T]; or
        frames: the numbers of the frames, int64 [T]; of those beyond the end, the last one.
    """

    facts: VideoFacts
    size: int
    head: memoryview
    directory: Directory
    numbers: NDArray[np.int64]
    ticks: Mapping[RowName, NDArray[np.int64]]
    frames: Mapping[RowName, NDArray[np.int64]]

    @property
    def extradata(self) -> bytes:
        """The decoder's extradata."""
        return bytes(self.head[self.facts.head - self.facts.extradata :])

    @property
    def runs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where their blocks begin and end in the table."""
        return self.directory.blocks[self.numbers], self.directory.blocks[self.numbers + 1]


def _groups(
    spec: BatchSpec, asked: Mapping[RowName, NDArray[Any]], facts: VideoFacts, head: memoryview, size: int, table: int
) -> Groups | BadSample:
    """Return the groups that show what is asked for, or what is wrong with a video's table."""
    try:
        facts.check(table)
        directory = Directory.of(facts, head, size)
    except BadTable as error:
        return _damaged(error)
    ticks, frames, touched = dict[RowName, NDArray[np.int64]](), dict[RowName, NDArray[np.int64]](), []
    for key, each in asked.items():
        clip = spec.clips[key[1]].clip
        if clip is not None and clip.in_seconds:
            ticks[key] = facts.start + np.floor(each * (facts.per / facts.ticks) + _ROUNDING).astype(np.int64)
            touched.append(directory.touched_at(facts, ticks[key]))
        else:
            frames[key] = np.minimum(each, facts.frames - 1)
            touched.append(directory.touched(frames[key]))
    return Groups(facts, size, head, directory, np.unique(np.concatenate(touched)), ticks, frames)


def _video(groups: Groups, blocks: memoryview) -> VideoPlan | BadSample:
    """Return what is decoded of a video, or what is wrong with its table, from the blocks of its groups."""
    facts = groups.facts
    try:
        packets = packets_of(facts, groups.directory, groups.numbers.tolist(), blocks, groups.size)
        order = np.argsort(packets.shown, kind="stable")[(packets.shown < 0).sum() :]
        numbers, times = packets.shown[order], packets.times[order]
        places = {key: np.searchsorted(numbers, each) for key, each in groups.frames.items()}
        places |= {key: np.maximum(np.searchsorted(times, each, "right") - 1, 0) for key, each in groups.ticks.items()}
        frames = {key: numbers[each] for key, each in places.items()}
        decoded = runs_to_decode(packets, np.unique(np.concatenate([*frames.values()])))
    except BadTable as error:
        return _damaged(error)
    tick = facts.ticks / facts.per
    seconds = {key: ((times[each] - facts.start) * tick).astype(np.float64) for key, each in places.items()}
    return VideoPlan(groups, blocks, packets, decoded, frames, seconds)


def _damaged(error: BadTable) -> BadSample:
    return BadSample(f"its table of packets is damaged: {error}")


def read_each(selection: SelectedSamples, name: str, runs: Runs) -> list[memoryview]:
    """Read the runs of each value, end to end."""
    data, stops = selection.parts(name, runs).data, np.cumsum(runs.sizes)
    return [data[begin:end] for begin, end in zip((stops - runs.sizes).tolist(), stops.tolist(), strict=True)]


def _joined(parts: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> Runs:
    begins, ends = zip(*parts, strict=True)
    return Runs(np.concatenate(begins), np.concatenate(ends), np.array([len(each) for each in begins], np.int64))


def _runs_of(spec: BatchSpec, video: VideoPlan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where runs of bytes begin and end that hold the packets to decode; small gaps are read, too.

    What is verified is read whole: the checksums are of groups.
    """
    packets = video.packets
    taken = np.arange(len(packets)) if spec.options.verify else np.concatenate([*video.decoded])
    order = np.argsort(packets.offsets[taken], kind="stable")
    begins = packets.offsets[taken][order]
    ends = np.maximum.accumulate(begins + packets.sizes[taken][order])
    apart = np.flatnonzero(begins[1:] - ends[:-1] > _NEAR) + 1
    return begins[np.concatenate([[0], apart])], ends[np.concatenate([apart - 1, [len(ends) - 1]])]
