"""Clips as samples: a video's values, beside the numbers of the frames that a clip has of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..containers.extents import NO_BLOCKS, Extent
from ..containers.out_arrays import check_out
from ..format.fields import Field, frames_column
from ..format.limits import MAX_VALUE_BYTES
from ..system.types import Indices
from .clip_starts import ClipMap, ClipStarts
from .derived import Derived
from .readable import ReadableDataset, SelectedSamples, StoredPart
from .scattered import Delegating


@final
class ClipSelection(Delegating):
    """Clips to read, in a fixed order: their videos, and the numbers of their frames.

    Args:
        videos: the video of each clip.
        field: returns a field or hidden column of clips.
        column: the hidden column of the numbers.
        frames: the numbers, int64 [n, frames].
    """

    def __init__(
        self, videos: SelectedSamples, field: Callable[[str], Field], column: str, frames: NDArray[np.int64]
    ) -> None:
        self._videos, self._field, self._column, self._frames = videos, field, column, frames

    def _of(self, name: str) -> tuple[SelectedSamples, str]:
        return self._videos, name

    def locate(self, names: Iterable[str]) -> None:
        self._videos.locate(self._stored(names))

    def __getitem__(self, part: slice) -> ClipSelection:
        return ClipSelection(self._videos[part], self._field, self._column, self._frames[part])

    def stored_parts(self, names: Iterable[str], blocks: Mapping[str, Extent] = NO_BLOCKS) -> Iterator[StoredPart]:
        return self._videos.stored_parts(self._stored(names), blocks)

    def column(self, name: str, out: NDArray[Any] | None = None) -> NDArray[Any]:
        if name != self._column:
            return super().column(name, out)
        array = check_out(out, len(self._frames), self._field(name))
        array[...] = self._frames
        return array

    def _stored(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name != self._column]


class ClipRows(Derived[ClipMap]):
    """Clips of the videos of a dataset: each sample is some frames of one.

    Attributes:
        base: the dataset that has the videos.
        choice: where clips start, and which frames they have.
        path: the path of the dataset at the bottom.
    """

    choice: ClipStarts

    def __init__(self, base: ReadableDataset, choice: ClipStarts) -> None:
        super().__init__(base, choice)
        # A missing video has no clips.
        clip = replace(base.fields[choice.field], window=True, shape=(choice.frames,), optional=False)
        self._fields = {**base.fields, choice.field: clip}

    def _in_base(self, indices: Indices) -> Indices:
        """Return the videos of clips."""
        return self._decided()(indices)

    def __len__(self) -> int:
        return len(self._decided())

    def __repr__(self) -> str:
        return f"<Clips {self._told()}: {len(self)} of {self.base!r}>"

    @property
    def fields(self) -> Mapping[str, Field]:
        return self._fields

    def field(self, name: str) -> Field:
        if name == frames_column(self.choice.field):
            return Field("array", "int64", (self.choice.frames,))
        return self._fields.get(name) or self.base.field(name)

    def selection(self, indices: Indices, max_value_bytes: int = MAX_VALUE_BYTES) -> SelectedSamples:
        """Locate the videos of clips, as `Dataset.selection` does."""
        clips = self._checked(indices)
        frames = self._decided().starts(clips)[:, None] + self.choice.step * np.arange(self.choice.frames)
        videos = self.base.selection(self._in_base(clips), max_value_bytes)
        return ClipSelection(videos, self.field, frames_column(self.choice.field), frames)
