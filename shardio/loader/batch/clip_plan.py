"""Plans of clips: which frames a batch has of videos, and which bytes show them, before any of these are read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...containers.extents import Extent, Runs
from ...errors import BadSample
from ...format.fields import facts_column, length_column, packets_column
from ...format.packets import BadTable, Directory, Packets, VideoFacts, packets_of, runs_to_decode
from ...transforms.clips import Frames, chosen
from ...transforms.random_generator import RandomKeys
from ...views.readable import SelectedSamples
from .spec import BatchSpec

T = TypeVar("T")
Place: TypeAlias = Callable[[str, int], str]
"""Names the place of a row's value under a name, for messages."""

_NEAR = 16 << 10
"""Bytes between two packets up to which one read takes both."""


@dataclass(frozen=True, slots=True, eq=False)
class ClipPlan:
    """What is read and decoded of some videos for all names of a field.

    Attributes:
        facts: what is known of each video.
        frames: by name, the numbers of the frames to deliver, [n, T]; of those beyond the end, the last one.
        valid: by name, which of them are within their video, bool [n, T].
        heads: that of each video's table.
        directories: that of each table.
        groups: the groups of each video that its frames are in.
        blocks: the blocks of these groups.
        packets: those of each video that its frames may need.
        decoded: for each video the runs to decode, as places in its packets.
        bytes: the runs of bytes that these are in.
        tables: the runs of bytes of the tables that say so.
    """

    facts: Sequence[VideoFacts]
    frames: Mapping[str, Frames]
    valid: Mapping[str, NDArray[np.bool_]]
    heads: Sequence[memoryview]
    directories: Sequence[Directory]
    groups: Sequence[Sequence[int]]
    blocks: Sequence[memoryview]
    packets: Sequence[Packets]
    decoded: Sequence[Sequence[NDArray[np.int64]]]
    bytes: Runs
    tables: Runs


def plan_clips(spec: BatchSpec, field: str, selection: SelectedSamples, keys: RandomKeys, place: Place) -> ClipPlan:
    """Choose the frames of videos, and look up what shows them. Raises BadSample for a table that is damaged."""
    names = spec.names.delivered[field]
    facts = [VideoFacts(*row) for row in selection.column(facts_column(field)).tolist()]
    sizes = selection.column(length_column(field)).tolist()

    def of_each(function: Callable[..., T], *columns: Iterable[Any]) -> list[T]:
        found = list[T]()
        for row, values in enumerate(zip(*columns, strict=True)):
            try:
                found.append(function(*values))
            except BadTable as error:
                raise BadSample(f"{place(names[0], row)}: {error}") from error
        return found

    of_each(VideoFacts.check, facts, selection.column(length_column(packets_column(field))).tolist())
    counts = np.array([each.frames for each in facts], np.int64)
    frames, valid = dict[str, Frames](), dict[str, NDArray[np.bool_]]()
    for name in names:
        found = chosen(spec.clip_of(name), counts, keys.draws(spec.names.draws[name]))
        frames[name], valid[name] = np.minimum(found, counts[:, None] - 1), found < counts[:, None]
    wanted = [np.unique(np.concatenate([frames[name][row] for name in names])) for row in range(len(facts))]

    heads = Runs(np.zeros(len(facts), np.int64), np.array([each.head for each in facts], np.int64))
    head = read_each(selection, packets_column(field), heads)
    directories = of_each(Directory.of, facts, head, sizes)
    groups = [each.touched(frames) for each, frames in zip(directories, wanted, strict=True)]
    table = _joined([(each.blocks[own], each.blocks[own + 1]) for each, own in zip(directories, groups, strict=True)])
    blocks = read_each(selection, packets_column(field), table)
    numbers = [own.tolist() for own in groups]
    packets = of_each(packets_of, facts, directories, numbers, blocks, sizes)
    decoded = of_each(runs_to_decode, packets, wanted)
    # What is verified is read whole: the checksums are of groups.
    read = [np.arange(len(each)) for each in packets] if spec.options.verify else map(np.concatenate, decoded)
    return ClipPlan(
        facts=facts,
        frames=frames,
        valid=valid,
        heads=head,
        directories=directories,
        groups=numbers,
        blocks=blocks,
        packets=packets,
        decoded=decoded,
        bytes=_joined([_runs_of(*each) for each in zip(packets, read, strict=True)]),
        tables=_joined(
            [
                (np.insert(directory.blocks[own], 0, 0), np.insert(directory.blocks[own + 1], 0, each.head))
                for each, directory, own in zip(facts, directories, groups, strict=True)
            ]
        ),
    )


def read_each(selection: SelectedSamples, name: str, runs: Runs) -> list[memoryview]:
    """Read the runs of each value, end to end."""
    data, stops = selection.parts(name, runs).data, np.cumsum(runs.sizes)
    return [data[begin:end] for begin, end in zip((stops - runs.sizes).tolist(), stops.tolist(), strict=True)]


def _joined(parts: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> Runs:
    begins, ends = zip(*parts, strict=True)
    return Runs(np.concatenate(begins), np.concatenate(ends), np.array([len(each) for each in begins], np.int64))


def _runs_of(packets: Packets, taken: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where runs of bytes begin and end that hold some packets; small gaps between them are read, too."""
    order = np.argsort(packets.offsets[taken], kind="stable")
    begins = packets.offsets[taken][order]
    ends = np.maximum.accumulate(begins + packets.sizes[taken][order])
    apart = np.flatnonzero(begins[1:] - ends[:-1] > _NEAR) + 1
    return begins[np.concatenate([[0], apart])], ends[np.concatenate([apart - 1, [len(ends) - 1]])]


def clip_extents(field: str, plan: ClipPlan) -> dict[str, Extent]:
    """Return what is read of a video field and of its tables."""
    return {field: plan.bytes, packets_column(field): plan.tables}
