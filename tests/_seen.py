"""Run a script; write tokens or clips that its Loaders deliver, with their places, to a file per step: seen-*.npz."""

import itertools
import os
import runpy
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from shardio.loader.epoch import EpochIterator

deliver, steps = EpochIterator.__next__, itertools.count()


def seen(loop: EpochIterator) -> dict[str, Any]:
    """Deliver a batch, and write it down."""
    batch = deliver(loop)
    name = f"seen-{os.getpid()}-{next(steps):04}.npz"
    rows = batch["tokens"] if "tokens" in batch else batch["video"]
    np.savez(Path(name), places=batch["index"].numpy(), rows=rows.numpy())
    return batch


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    with mock.patch.object(EpochIterator, "__next__", seen):
        runpy.run_path(sys.argv[0], run_name="__main__")
