"""How samples are made: what is the same for all batches of a loader."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray

from ...containers import row_locator
from ...dataset.mixture import Readable
from ...engines.cpu import CpuEngine
from ...format.fields import Field
from ...transforms import ArrayRecipe
from ...transforms.recipe import Recipe
from .bad_samples import OnBadSample
from .map_function import MapFunction
from .mixing import MixingSpec


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """How one image field becomes pixels.

    Attributes:
        recipe: what is to become of it.
        engine: what makes it here, in tasks. Where its recipe is of bytes, the rest is done on the device.
        whole: the engine that makes whole batches of it, if any; then this one makes what that refuses.
    """

    recipe: Recipe
    engine: CpuEngine
    whole: str | None = None


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """How one array field is moved.

    Attributes:
        recipe: what is to become of it.
        later: whether that is done on the device.
    """

    recipe: ArrayRecipe
    later: bool


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """What is the same for all batches of a loader.

    Attributes:
        dataset: where samples come from.
        fields: those to deliver.
        images: how the image fields among them become pixels.
        volumes: how some of the array fields are moved.
        straight: fields that are read from their files to the device.
        batch_size: samples of a batch.
        task_samples: samples that one task makes.
        mapping: the user's own function.
        mixing: what is mixed in each batch.
        on_bad: what is done with a bad sample.
        verify: compare each sample's checksum.
        channels_last: floats of images by pixel, not by channel.
    """

    dataset: Readable
    fields: Mapping[str, Field]
    images: Mapping[str, ImageSpec]
    volumes: Mapping[str, ArraySpec]
    straight: frozenset[str]
    batch_size: int
    task_samples: int
    mapping: MapFunction | None
    mixing: MixingSpec | None
    on_bad: OnBadSample
    verify: bool
    channels_last: bool
    _free: deque[row_locator.Scratch] = field(default_factory=deque, repr=False, compare=False)

    def tensor(self, name: str, array: NDArray[Any]) -> torch.Tensor:
        """Rows of a field as they are delivered."""
        how = self.images.get(name)
        return torch.from_numpy(array) if how is None else how.engine.output_format.tensor(array)

    @contextmanager
    def memory(self) -> Iterator[row_locator.Scratch]:
        """Memory for stored values, this thread's alone for the `with` block. It outlives the threads of an epoch."""
        lent = self.take()
        try:
            yield lent
        finally:
            self.give([lent])

    def take(self) -> row_locator.Scratch:
        """The same, until it is given back."""
        try:
            return self._free.pop()
        except IndexError:
            return row_locator.Scratch()

    def give(self, memories: Sequence[row_locator.Scratch]) -> None:
        """Takes memory back."""
        self._free.extend(memories)
