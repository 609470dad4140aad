"""Run a script; write the rows of tokens that its Loaders deliver, and their places, to a file per step: seen-*.npz."""

import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import shardio


class Seen(shardio.Loader):
    """A Loader that writes what it delivers."""

    def __iter__(self) -> Iterator[dict[str, Any]]:  # type: ignore[override]
        for step, batch in enumerate(super().__iter__()):
            name = f"seen-{os.getpid()}-{step:04}.npz"
            np.savez(Path(name), places=batch["index"].numpy(), rows=batch["tokens"].numpy())
            yield batch


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    shardio.Loader = Seen  # type: ignore[misc]
    runpy.run_path(sys.argv[0], run_name="__main__")
