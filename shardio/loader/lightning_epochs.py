"""The attributes that Lightning looks for in a DataLoader, to name each epoch that it begins."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import final

from ..errors import StateWarning
from .state import LoaderState


@final
class BatchSampler:
    """A Loader's place for the calls that Lightning makes to the samplers of a DataLoader.

    Lightning numbers its epochs, and at the beginning of each calls `set_epoch` of `batch_sampler.sampler`. It does so
    after it has asked the Loader for an iterator.

    Args:
        state: where the Loader stands.
        batch_size: samples per rank and step.
        set_epoch: has the Loader deliver an epoch.

    Attributes:
        batch_size: samples per rank and step, which DeepSpeed's strategy asks for.
    """

    def __init__(self, state: LoaderState, batch_size: int, set_epoch: Callable[[int], None]) -> None:
        self.batch_size = batch_size
        self._state, self._set_epoch = state, set_epoch

    @property
    def sampler(self) -> BatchSampler:
        """The object with `set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Have the Loader deliver Lightning's next epoch; a state just loaded stays, if of that epoch or a later one.

        Warns if the state was saved by a loader with other steps in the middle of an epoch, whose steps Lightning goes
        on to count, unless `counted` was called.
        """
        place, schedule = self._state.place, self._state.schedule
        if (other_steps := self._state.other_steps) is not None:
            warnings.warn(
                f"the checkpoint was saved in the middle of epoch {place.epoch}, with {other_steps} "
                f"{'samples' if schedule.unit == 'sample' else 'batches'} per step of all ranks, and this loader has "
                f"{schedule.global_batch}: Lightning counts the old steps, and so ends the epoch early or without its "
                "validation; give the Trainer the callback shardio.lightning.ResumeElastically()",
                StateWarning,
                stacklevel=2,
            )
            self.counted()
        # The state is of a later epoch if the saved one was over, or if Lightning repeats the shorter of two loaders.
        if not place.resumed or place.epoch < epoch:
            self._set_epoch(epoch)

    def counted(self) -> None:
        """Say that Lightning counts the steps that are left of a resumed epoch as the Loader does."""
        self._state.count_own_steps()
