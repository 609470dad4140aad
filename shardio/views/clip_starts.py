"""Where clips start: each sample is some frames of a video, or of a list of images, and a video has several clips."""

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..format.fields import CLIPS, describe, facts_column, length_column
from ..system.rules import Range, check_fields
from ..system.types import Indices
from .choice import Choice
from .columns import in_parts
from .readable import ReadableDataset

_Frames: TypeAlias = Annotated[int, Range(1, 1 << 31)]  # whose products fit in 64 bits


@final
@dataclass(frozen=True, slots=True, eq=False)
class ClipMap:
    """The clips of videos, in stored order.

    Attributes:
        before: the number of clips before each video, and of all; int64 [videos + 1].
        every: the frames from the start of a clip to the start of the next one.
    """

    before: NDArray[np.int64]
    every: int

    def __len__(self) -> int:
        return int(self.before[-1])

    def __call__(self, clips: Indices) -> Indices:
        """Return the videos that clips are of, int64 [n]."""
        return np.asarray(np.searchsorted(self.before, clips, "right") - 1, np.int64)

    def starts(self, clips: Indices) -> Indices:
        """Return the first frame of clips, int64 [n]."""
        return np.asarray((clips - self.before[self(clips)]) * self.every, np.int64)


@final
class ClipStarts(Choice, frozen=True, rename={"field": "clips"}):
    """The choice of the frames of each clip.

    Attributes:
        field: the field of videos, or of lists of images.
        frames: the frames of a clip.
        step: the frames from one frame of a clip to the next one.
        every: the frames from the start of a clip to the start of the next one.
    """

    field: str
    frames: _Frames
    step: _Frames
    every: _Frames

    def __post_init__(self) -> None:
        check_fields(self)

    def made(self, base: ReadableDataset) -> ClipMap:
        field = base.field(self.field)
        if field.kind not in CLIPS or field.window:
            raise ConfigError(f"clips are made of videos or lists of images, {self.field!r} is {describe(field)}")
        column = facts_column(self.field) if field.kind == "video" else length_column(self.field)

        def counts(numbers: Indices) -> NDArray[np.int64]:
            selection = base.selection(numbers)
            with selection.fetch([column]):
                found = selection.column(column)
            room = (found[:, 0] if field.kind == "video" else found) - ((self.frames - 1) * self.step + 1)
            return np.asarray(np.maximum(room // self.every + 1, 0), np.int64)

        found = in_parts(counts, len(base))
        return ClipMap(np.cumsum(np.concatenate([np.zeros(1, np.int64), *found])), self.every)

    def in_earlier(self, made: Any, samples: int) -> int | None:
        return int(made.before[samples])
