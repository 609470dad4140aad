"""Frames of stored videos, as a Loader delivers them: only what shows them is read and decoded."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..format.fields import Field
from ..format.limits import Limits
from ..loader.batch.make_rows import make_rows
from ..loader.batch.rows import Rows
from ..loader.batch.spec import BatchOptions, DeviceOptions, batch_spec
from ..order.plan import Plan, PlanSlice
from ..system.timing import StageClock
from ..transforms import UniformFrames
from ..views.readable import ReadableDataset
from .values import MOST_PIXELS


def frames_of(dataset: ReadableDataset, name: str, index: int, count: int) -> NDArray[np.uint8]:
    """Return frames of a sample's video, or of its clip, each from the middle of one of `count` equal parts of it.

    Args:
        dataset: the dataset.
        name: the field of the video, which the sample has.
        index: the number of the sample.
        count: the number of frames.

    Returns:
        RGB, uint8 [count, height, width, 3].

    Raises what reading raises, BadSample for a video that is damaged or whose packets or frames are too large.
    """
    chosen = few_frames({name: dataset.fields[name]}, count)
    options = BatchOptions(fields=[name], transforms=chosen, limits=Limits(MOST_PIXELS, MOST_PIXELS))
    number, nothing = np.array([index]), np.zeros(1, np.int64)
    planned = PlanSlice(number, nothing, np.ones(1, np.bool_), nothing)
    rows = Rows(batch_spec(dataset, options, DeviceOptions()), Plan(1), planned, {}, pads=False, clock=StageClock())
    make_rows(rows)
    frames: NDArray[np.uint8] = np.asarray(rows.lists[name][0])  # all of a clip, which a view has chosen
    return frames[(2 * np.arange(count) + 1) * len(frames) // (2 * count)]


def few_frames(fields: Mapping[str, Field], count: int) -> dict[str, list[Any]]:
    """Return transforms for videos that nobody gave any, by field: so many frames of all of the video.

    A view that makes clips has chosen their frames: it gets none.
    """
    return {
        name: [UniformFrames(count)] for name, field in fields.items() if field.kind == "video" and not field.window
    }
