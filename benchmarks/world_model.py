"""Compare loaders of a world model's rows: 96 x 96 x 3 bytes of pixels and 10 float32, from the page cache.

    python -m benchmarks.world_model --json world-model.json
    python -m benchmarks.world_model --loaders shardio h5py --rounds 1

A batch is 64 rows in random order, as tensors. Loaders take turns; each run is a process with two threads or worker
processes. shardio reads the HDF5 file in place. Figures are rows per second, by the clock and by processor time, and
the ratio of shardio to each within a round: medians over rounds. Before the first round, each loader delivers an epoch,
whose rows must be the file's.
"""

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import h5py
import numpy as np

import shardio
from benchmarks._environments import environment
from benchmarks._processes import START, ask, environ
from benchmarks._results import finish, options, ratio, turns
from benchmarks._store import kept
from benchmarks.row_loaders import BATCH, FILE, LOADERS, SHAPES, checksum

MODULE = ("loaders", "row")  # benchmarks/row_loaders.py says what its environment has


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__)
    parser.add_argument("--work", type=Path, default=Path("/tmp/shardio-world-model"), help="environment and data")
    parser.add_argument("--batches", type=int, default=938, help="of an epoch: 64 rows of 28 KB each")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run")
    parser.add_argument("--loaders", nargs="+", metavar="NAME", help="those whose names begin so (default: all)")
    args = parser.parse_args()
    work = args.work.absolute()
    folder = kept(work / "data", str(args.batches), partial(write, args.batches))
    chosen = [name for name in LOADERS if not args.loaders or name.startswith(tuple(args.loaders))]
    result: dict[str, Any] = {"rounds": args.rounds, "rows": args.batches * BATCH, "seconds": args.seconds}
    peers = Path(sys.executable)
    if set(chosen) - {"shardio"}:
        peers = environment(MODULE[0], work, MODULE[1])
        made = kept(folder / "peers", str(args.batches), partial(prepare, peers, work))
        result["versions"] = json.loads((made / "versions.json").read_text())
    finish(result | {"loaders": measure(folder, peers, work, chosen, args.rounds, args.seconds)}, args.json)


def write(batches: int, folder: Path) -> None:
    """Write rows of noise to a file, index it, and keep the checksum of its rows."""
    folder.mkdir(parents=True)
    random, rows = np.random.default_rng(0), batches * BATCH
    with h5py.File(folder / FILE, "w") as file:
        pixels = file.create_dataset("pixels", (rows, *SHAPES["pixels"]), "uint8")
        values = file.create_dataset("values", (rows, *SHAPES["values"]), "float32")
        for first in range(0, rows, BATCH):
            pixels[first : first + BATCH] = random.integers(0, 256, (BATCH, *SHAPES["pixels"]), np.uint8)
            values[first : first + BATCH] = random.standard_normal((BATCH, *SHAPES["values"]), np.float32)
    shardio.index([folder / FILE], folder / "indexed")


def prepare(peers: Path, work: Path, out: Path) -> None:
    """Write the peers' copy of the data, and their versions. Raises PeerFailed."""
    versions = run(peers, work, {"do": "prepare", "folder": str(out.parent)})
    (out / "versions.json").write_text(json.dumps(versions))


def run(python: Path, work: Path, order: dict[str, Any]) -> dict[str, Any]:
    """Carry out an order in a process of its own. Raises PeerFailed."""
    environment = environ(MODULE[0], work, MODULE[1]) | {"OMP_NUM_THREADS": "1"}
    return ask([str(python), "-c", START, "benchmarks.row_loaders"], order, environment)


def stored(folder: Path) -> str:
    """The checksum of the file's rows."""
    import torch

    with h5py.File(folder / FILE) as file:
        rows = len(file["pixels"])
        parts = (
            [torch.from_numpy(file[name][first : first + BATCH]) for name in SHAPES] for first in range(0, rows, BATCH)
        )
        return checksum((pixels, values) for pixels, values in parts)


def measure(
    folder: Path, peers: Path, work: Path, chosen: Sequence[str], rounds: int, seconds: float
) -> dict[str, Any]:
    """Figures by loader. Raises PeerFailed for a loader that fails, and ValueError for one that delivers other rows."""

    def ordered(name: str, do: str) -> dict[str, Any]:
        python = Path(sys.executable) if name == "shardio" else peers
        return run(python, work, {"do": do, "folder": str(folder), "loader": name, "seconds": seconds})

    def rates(name: str) -> dict[str, float]:
        found = ordered(name, "rate")
        return {
            "rows_per_second": found["samples"] / found["seconds"],
            "per_cpu_second": found["samples"] / found["cpu"],
        }

    wanted = stored(folder)
    for name in chosen:
        if (found := ordered(name, "check")["rows"]) != wanted:
            raise ValueError(f"{name} delivers rows {found}, not {wanted}")
        print(name, found, file=sys.stderr, flush=True)
    made = turns({name: partial(rates, name) for name in chosen}, rounds)
    result: dict[str, Any] = {name: {} for name in chosen}
    for kind in made[chosen[0]][0]:
        by = {name: [one[kind] for one in made[name]] for name in chosen}
        for name, values in by.items():
            compared = {f"{chosen[0]} is": round(ratio(by[chosen[0]], values), 2)}
            result[name][kind] = {"median": round(median(values)), "rounds": [round(one) for one in values], **compared}
    return result


if __name__ == "__main__":
    main()
