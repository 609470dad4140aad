"""What Lightning looks for in a DataLoader, to name each epoch that it begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import final


@final
class BatchSampler:
    """A Loader's place for the calls that Lightning makes to the samplers of a DataLoader.

    Lightning numbers its epochs, and at the beginning of each calls `set_epoch` of `batch_sampler.sampler`. It does so
    after it has asked the Loader for an iterator.

    Args:
        batch_size: samples per rank and step, which DeepSpeed's strategy asks for.
        set_epoch: what to call with the number of each epoch.
        counted: what to call once Lightning counts the steps that are left of a resumed epoch as the Loader does.
    """

    def __init__(self, batch_size: int, set_epoch: Callable[[int], None], counted: Callable[[], None]) -> None:
        self.batch_size = batch_size
        self.set_epoch = set_epoch
        self.counted = counted

    @property
    def sampler(self) -> BatchSampler:
        """The object with `set_epoch`."""
        return self
