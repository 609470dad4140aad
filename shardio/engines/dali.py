"""The DALI engine: whole batches through a graph of NVIDIA DALI's operators, on a GPU or, without one, on the CPU.

The files are shardio's, read by its own threads, and so are all random choices: DALI only carries them out. Results
come through DLPack, without a copy, and belong to whoever gets them.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from ..system.optional import load
from ..system.types import Buffer
from ..transforms.recipe import Recipe
from ..transforms.steps import Sizes, Step
from . import tensors
from .base import Home, decoder_share, rows_of

DEPTH = 3
"""Batches that DALI works on at once: with two, its threads wait for one another at the end of each."""

HW_DECODER_LOAD = 0.65
"""Share of the images that a GPU's JPEG engine decodes, where there is one: DALI's own choice."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """A batch that DALI works on, with what its buffers must outlive."""

    encoded: list[NDArray[np.uint8]]
    arrays: dict[str, NDArray[Any]]
    last: Sequence[Step]


@final
class DaliEngine:
    """Decodes and transforms the images of one field, a batch at a time.

    A file that DALI refuses ends its pipeline. Then that batch is given back as failed, a new pipeline is built, and
    the batches behind it begin again.

    Args:
        recipe: the field's transforms; all its results must be of one size.
        channels: 3 for RGB, 1 for grey.
        batch_size: images of a batch at most.
        device: a GPU, or the CPU.
        threads: DALI's own.
        channels_last: floats by pixel, not by channel.
        options: `hw_decoder_load`, the share of images for a GPU's JPEG engine, 0 to 1.
    """

    ahead = DEPTH - 1

    def __init__(
        self,
        recipe: Recipe,
        *,
        channels: int,
        batch_size: int,
        device: torch.device,
        threads: int,
        channels_last: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        load("nvidia.dali", purpose="the engine 'dali'", extra="cuda13")
        from . import dali_graph  # imports DALI, which takes a while

        self._graph = dali_graph
        share = decoder_share(options or {}, "dali")
        self._load = HW_DECODER_LOAD if share is None else share
        # DALI knows no bfloat16: its bytes become numbers behind it.
        self._graphed = recipe.bytes() if recipe.dtype == "bfloat16" else recipe
        self._recipe, self._channels, self._batch_size = recipe, channels, batch_size
        self._device, self._threads, self._channels_last = device, threads, channels_last
        self._structure: Sequence[Step] = ()
        self._pipeline: Any = None
        self._home = Home("dali")
        self.reason = ""
        self._idle = 0  # outputs to come that are of no use
        self._begun: deque[_Begun] = deque()

    def begin(self, encoded: Sequence[Buffer], sizes: Sizes, steps: Sequence[Step]) -> None:
        """Starts on a batch, and returns before it is made."""
        graphed = steps[: len(steps) - self._recipe.erasings + self._graphed.erasings]
        self._home.enter()
        self._structure = self._structure or [rows_of(step, slice(0, 1)) for step in graphed]
        files = [np.frombuffer(data, np.uint8) for data in encoded]
        inputs = self._graph.inputs(graphed, sizes, self._channels)
        self._begun.append(_Begun(files, inputs, steps[len(graphed) :]))
        if self._pipeline is None:
            self._start()
        else:
            self._feed(self._begun[-1])
            self._pipeline.schedule_run()

    def end(self) -> tuple[torch.Tensor, Sequence[int]]:
        """The oldest batch begun: `[n, ...]`, on the device, and the places of images that could not be made: all of
        them, if any."""
        if self._home.left:
            return torch.empty(0), ()
        begun = self._begun.popleft()
        try:
            while self._idle:
                self._pipeline.outputs()
                self._idle -= 1
            # Bound to the consumer's stream: that waits for it, and its memory is used again behind what is done there.
            gpu = self._device.type == "cuda"
            stream = torch.cuda.current_stream(self._device) if gpu else None
            (output,) = self._pipeline.outputs(cuda_stream=stream)
            made: torch.Tensor = torch.utils.dlpack.from_dlpack(output.as_tensor())
        except RuntimeError as error:  # the pipeline is of no use any more
            self.reason = f"DALI: {error}"
            self._start()
            return torch.empty(0), range(len(begun.encoded))
        return self._delivered(made, begun.last), ()

    def _delivered(self, made: torch.Tensor, last: Sequence[Step]) -> torch.Tensor:
        """What comes out of the graph, as it is delivered."""
        if self._graphed is self._recipe:
            by_pixel = self._channels_last and self._recipe.affine is not None
            return made.permute(0, 3, 1, 2) if by_pixel else made
        return tensors.delivered(made, self._recipe, last, channels_last=self._channels_last)

    def close(self) -> None:
        """Lets go of threads and memory."""
        if self._home.left:  # they are the parent's
            return
        self._begun.clear()
        self._pipeline = None

    def _start(self) -> None:
        """A new pipeline, with the batches that have begun."""
        self._pipeline = None
        if not self._begun:
            return
        self._pipeline = self._graph.build(
            self._graphed,
            self._structure,
            channels=self._channels,
            channels_last=self._channels_last,
            batch_size=self._batch_size,
            threads=self._threads,
            device_id=None if self._device.type == "cpu" else self._device.index or 0,
            hw_decoder_load=self._load,
            depth=DEPTH,
        )
        # The first call runs as many batches as DALI works on at once: short ones come before the first.
        self._idle = DEPTH - 1
        for _ in range(self._idle):
            self._feed(self._begun[0], 1)
        for begun in self._begun:
            self._feed(begun)
            self._pipeline.schedule_run()

    def _feed(self, begun: _Begun, count: int | None = None) -> None:
        self._pipeline.feed_input(self._graph.FILES, begun.encoded[:count])
        for name, array in begun.arrays.items():
            self._pipeline.feed_input(name, array[:count])
