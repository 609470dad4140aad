"""The DALI engine: whole batches through a graph of NVIDIA DALI's operators, on a GPU or on the CPU.

shardio's own threads read the files, and shardio makes all random choices: DALI only carries them out. Results arrive
through DLPack, on the CPU without a copy; the caller owns them.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from numpy.typing import NDArray

from ..system.optional import load
from ..system.types import Buffer
from ..transforms.recipe import Recipe
from ..transforms.steps import Sizes, Step
from . import torch_steps
from .base import BatchEngine, parse_hw_decoder_load, rows_of
from .fused_images import Decode

DEPTH = 3
"""The number of batches that DALI works on at once. With two, its threads would wait for one another after each
batch."""

HW_DECODER_LOAD = 0.65
"""The fraction of images that a GPU's hardware JPEG decoder takes, where there is one: DALI's default."""


@dataclass(frozen=True, slots=True)
class _PendingBatch:
    """A batch that DALI works on. DALI reads `files` without a copy, so they must stay alive until the batch is done.

    Attributes:
        files: the image files, as DALI's tensors.
        arrays: the graph's other inputs, by name.
        later_steps: the steps that are carried out after the graph.
    """

    files: list[Any]
    arrays: dict[str, NDArray[Any]]
    later_steps: Sequence[Step]


@final
class DaliEngine(BatchEngine):
    """Decodes and transforms the images of one field, a batch at a time.

    A file that DALI rejects ends its pipeline. The engine then reports all images of that batch as failed, builds a new
    pipeline and starts the later batches again.

    Args:
        recipe: the field's transforms; all results must have one size.
        channels: 3 for RGB, 1 for grey.
        batch_size: the largest number of images in a batch.
        device: a GPU or the CPU.
        threads: the number of DALI's threads.
        decode: `"exact"` asks DALI's decoders for interpolated chroma and the accurate transform.
        channels_last: whether floats are stored as HWC rather than CHW.
        options: `hw_decoder_load`, the fraction of images for a GPU's hardware JPEG decoder, in [0, 1].
    """

    name = "dali"
    ahead = DEPTH - 1

    def __init__(
        self,
        recipe: Recipe,
        *,
        channels: int,
        batch_size: int,
        device: torch.device,
        threads: int,
        decode: Decode = "exact",
        channels_last: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        load("nvidia.dali", purpose="the engine 'dali'", extra="cuda13")
        from . import dali_graph  # imports DALI, which takes a while

        self._graph, self._decode = dali_graph, decode
        dali_graph.check(recipe)
        load_option = parse_hw_decoder_load(options or {}, "dali")
        self._hw_decoder_load = HW_DECODER_LOAD if load_option is None else load_option
        # DALI has no bfloat16: for that, the graph produces uint8, and torch converts it.
        self._graph_recipe = recipe.uint8_part() if recipe.dtype == "bfloat16" else recipe
        self._recipe, self._channels, self._batch_size = recipe, channels, batch_size
        self._device, self._threads, self._channels_last = device, threads, channels_last
        self._structure: Sequence[Step] = ()
        self._pipeline: Any = None
        self._outputs_to_discard = 0
        self._pending: deque[_PendingBatch] = deque()

    def begin(self, encoded: Sequence[Buffer], sizes: Sizes, steps: Sequence[Step]) -> None:
        graph_steps = steps[: len(steps) - self._recipe.erasings + self._graph_recipe.erasings]
        self.enter()
        self._structure = self._structure or [rows_of(step, slice(0, 1)) for step in graph_steps]
        files = self._graph.tensors(encoded)
        inputs = self._graph.inputs(graph_steps, sizes, self._channels)
        self._pending.append(_PendingBatch(files, inputs, steps[len(graph_steps) :]))
        if self._pipeline is None:
            self._start()
        else:
            self._feed(self._pending[-1])
            self._pipeline.schedule_run()

    def end(self) -> tuple[torch.Tensor, Sequence[int]]:
        """Return the oldest batch begun, `[n, ...]` on the device, and the rows of images that could not be made.

        Those are either none or all.
        """
        if self.forked:
            return torch.empty(0), ()
        batch = self._pending.popleft()
        try:
            while self._outputs_to_discard:
                self._pipeline.outputs()
                self._outputs_to_discard -= 1
            # On this thread's stream, which waits for the output; DALI reuses its memory behind the work queued there.
            gpu = self._device.type == "cuda"
            stream = torch.cuda.current_stream(self._device) if gpu else None
            (output,) = self._pipeline.outputs(cuda_stream=stream)
            images: torch.Tensor = torch.utils.dlpack.from_dlpack(output.as_tensor())
        except RuntimeError as error:  # the pipeline is unusable from now on
            self.reason = f"DALI: {error}"
            self._start()
            return torch.empty(0), range(len(batch.files))
        return self._delivered(images, batch.later_steps), ()

    def _delivered(self, images: torch.Tensor, later_steps: Sequence[Step]) -> torch.Tensor:
        """Convert the graph's output to what is delivered."""
        if self._graph_recipe is self._recipe:
            if images.is_cuda:  # DALI would reuse its memory before work is done that other streams queue
                images = images.clone()
            by_pixel = self._channels_last and self._recipe.normalization is not None
            return images.permute(0, 3, 1, 2) if by_pixel else images
        return torch_steps.convert_and_erase(images, self._recipe, later_steps, channels_last=self._channels_last)

    def close(self) -> None:
        if self.forked:  # they are the parent's
            return
        self._pending.clear()
        self._pipeline = None

    def _start(self) -> None:
        """Build a new pipeline and start the pending batches in it."""
        self._pipeline = None
        if not self._pending:
            return
        self._pipeline = self._graph.build(
            self._graph_recipe,
            self._structure,
            channels=self._channels,
            channels_last=self._channels_last,
            batch_size=self._batch_size,
            threads=self._threads,
            decode=self._decode,
            device_id=None if self._device.type == "cpu" else self._device.index or 0,
            hw_decoder_load=self._hw_decoder_load,
            depth=DEPTH,
        )
        # The first call runs DEPTH batches at once: batches of one image, to be discarded, precede the first.
        self._outputs_to_discard = DEPTH - 1
        for _ in range(self._outputs_to_discard):
            self._feed(self._pending[0], 1)
        for batch in self._pending:
            self._feed(batch)
            self._pipeline.schedule_run()

    def _feed(self, batch: _PendingBatch, count: int | None = None) -> None:
        self._pipeline.feed_input(self._graph.FILES, batch.files[:count])
        for name, array in batch.arrays.items():
            self._pipeline.feed_input(name, array[:count])
