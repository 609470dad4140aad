"""Batches brought to their device."""

from collections import deque
from typing import Any, final

import torch

from .job import Batch
from .slots import each


@final
class Transfer:
    """Copies batches to a device without waiting for the copies.

    The batch's page-locked memory must not be used again before its copy has ended, so each source is held until the
    event that was recorded behind its copy says so.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: deque[tuple[Any, Batch]] = deque()

    def __call__(self, batch: Batch) -> Batch:
        """The batch on the device; itself where that is the host."""
        if self._device.type == "cpu":
            return batch
        while self._held and self._held[0][0].query():
            self._held.popleft()
        moved: Batch = each(batch, torch.Tensor, lambda tensor: tensor.to(self._device, non_blocking=True))
        if self._device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._device))
            self._held.append((event, batch))
        return moved
