"""A data set whose conversion cannot end before Slurm has queued its job again."""

import multiprocessing
import os
import time
from collections.abc import Sequence

from _builders import png


class Images(Sequence[tuple[bytes, int]]):
    """PNG images and their numbers, of which workers cannot read the last ones in the first run of a job."""

    COUNT, THERE = 60, 40

    def __len__(self) -> int:
        return self.COUNT

    def __getitem__(self, number: int) -> tuple[bytes, int]:  # type: ignore[override]  # no slices
        # Only in workers: the first process of a conversion reads some samples to know the source again.
        in_worker = multiprocessing.parent_process() is not None
        while in_worker and number >= self.THERE and "SLURM_RESTART_COUNT" not in os.environ:
            time.sleep(0.05)
        return png(seed=number), number
