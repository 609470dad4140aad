"""Look up keys among very many samples, whose index is simulated: the part of `find` that reads no keys.

    python -m benchmarks.find --samples 100000000 --keys 1000000 --json find.json

The index has the hashes of `--samples` keys in random order. Half of the `--keys` hashes that are looked up are in it.
`memory` is an index in memory, `mapped` one in a file in `--work` as a dataset has it, in the page cache. Figures are
seconds of processor time to look up all keys on one core, medians, in turns, and those to open the file, which is
compared with its checksum.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._results import finish, options, turns
from shardio.views.key_table import KeyTable, kept


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__, rounds=5)
    parser.add_argument("--samples", type=int, default=100_000_000, help="samples in the index")
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys that are looked up at once")
    parser.add_argument("--work", type=Path, default=Path("/tmp"), help="folder for the file")
    args = parser.parse_args()
    result = measured(args)
    finish(result, args.json)


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures."""
    random = np.random.default_rng(0)
    hashes = np.sort(random.integers(0, 1 << 64, args.samples, np.uint64))
    table = KeyTable(hashes, random.permutation(args.samples).astype(np.uint32))
    present = random.choice(hashes, args.keys // 2)
    wanted = np.concatenate([present, random.integers(0, 1 << 64, args.keys - len(present), np.uint64)])
    random.shuffle(wanted)
    index, path = kept("simulated", "key", args.samples), args.work / "find.bin"
    index.write(path, table)
    try:
        start = time.process_time()
        mapped = index.read(path)
        opened = time.process_time() - start
        assert mapped is not None
        found = turns({"memory": _seconds(table, wanted), "mapped": _seconds(mapped, wanted)}, args.rounds)
    finally:
        path.unlink()
    result = {name: median(seconds) for name, seconds in found.items()} | {"opened": opened}
    print({name: round(seconds, 3) for name, seconds in result.items()}, flush=True)
    return {"samples": args.samples, "keys": args.keys, "seconds": result}


def _seconds(table: KeyTable, wanted: NDArray[np.uint64]) -> Callable[[], float]:
    def look_up() -> float:
        start = time.process_time()
        order = np.argsort(wanted)
        which, _ = table.samples(table.places(wanted[order]), wanted[order])
        assert len(which) >= len(wanted) // 2
        return time.process_time() - start

    return look_up


if __name__ == "__main__":
    main()
