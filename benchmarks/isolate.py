"""Run a Python function that holds the GIL for each sample: on threads, in processes, and in torch's DataLoader.

    python benchmarks/isolate.py --json isolate.json

The samples are records of 3 KB; the function takes about a millisecond of pure Python for each, and adds a number.
Two workers everywhere. Processes and DataLoader workers run before the clock starts.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

import shardio
from benchmarks._results import finish, in_turns, options, rate

RECORDS, BATCH, WORKERS = 4096, 64, 2


def heavy(sample: dict[str, Any]) -> dict[str, Any]:
    """Run about a millisecond in the interpreter."""
    total = 0
    for number in range(15_000):
        total += number ^ 5
    return {**sample, "total": total}


class Records(torch.utils.data.Dataset[dict[str, Any]]):
    """The same samples as a torch dataset."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: Any = None

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._file is None:
            self._file = h5py.File(self._path)
        return heavy({"x": torch.from_numpy(self._file["x"][index]), "index": index})


def main() -> None:
    """Run from the command line."""
    args = options(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "records")
        chance = np.random.default_rng(0)
        with shardio.create(path, container="hdf5", fields={"x": ("uint8", (3072,))}, shard_size="1GB") as writer:
            for _ in range(RECORDS):
                writer.append({"x": chance.integers(0, 256, 3072, dtype=np.uint8)})
        common: dict[str, Any] = {"map": heavy, "map_by": "sample", "world": shardio.World()}
        torch_loader: Any = torch.utils.data.DataLoader(
            Records(str(path / "shard-000000.h5")), BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True
        )
        runs = {
            "one thread": shardio.Loader(path, BATCH, threads=1, **common),
            "threads": shardio.Loader(path, BATCH, threads=WORKERS, **common),
            "isolate": shardio.Loader(path, BATCH, threads=WORKERS, isolate=True, **common),
            "torch DataLoader": torch_loader,
        }
        for batches in runs.values():
            rate(batches)
        rates = in_turns({name: partial(rate, batches) for name, batches in runs.items()}, args.rounds)
    over = {f"isolate over {name}": rates["isolate"] / value for name, value in rates.items() if name != "isolate"}
    finish({"samples_per_s": rates, **over}, args.json)


if __name__ == "__main__":
    main()
