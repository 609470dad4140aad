"""Views of very many samples: seconds to make them, memory per process, and time per lookup.

    python -m benchmarks.scale --json scale.json

The samples are simulated: their scalars are computed from their numbers, so that seconds are those of choosing, not of
a disk; `columns` says how long computing the values takes by itself. Each view is made in a process of its own, and
pickled as for a worker process (`shared` bytes are mapped by all processes of a Loader). Lookups are of 256 random
positions of an epoch, down to the numbers of stored samples: what a rank needs for a batch.

    where       10^9 samples, `where("score < 1 / 3")` keeps a third
    everything  10^9 samples, `where("score >= 0")` keeps all
    weighted    10^8 samples by a float32 weight
    balanced    10^8 samples of 1,000 classes
    split       10^8 samples of 5 million groups into 90 and 10 %, by group
"""

import multiprocessing
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._results import finish, options
from shardio.format.fields import Field
from shardio.order.permutation import splitmix64
from shardio.system.shared_memory import Shared
from shardio.views.columns import in_parts
from shardio.views.readable import Location
from shardio.views.view import BaseDataset

BATCH, LOOKUPS = 256, 300


class Simulated(BaseDataset):
    """Scalars computed from the numbers of samples, as a dataset."""

    fields = {"score": Field("scalar", "float32"), "label": Field("scalar", "int32"), "group": Field("scalar", "int32")}
    metadata: Mapping[str, Any] = {}
    earlier: Mapping[str, int] = {}
    id_columns: Mapping[str, tuple[str, ...]] = {"index": ()}
    path = Path("simulated")

    def __init__(self, samples: int) -> None:
        self._samples = samples

    @property
    def digest(self) -> str:
        return f"simulated:{self._samples}"

    def __len__(self) -> int:
        return self._samples

    def field(self, name: str) -> Field:
        return self.fields[name]

    def selection(self, indices: NDArray[np.int64], max_value_bytes: int = 0) -> Any:
        return _Computed(indices)

    def locate(self, index: int) -> Location:
        return Location("simulated", index, index, None)


class _Computed:
    """The scalars of some samples."""

    def __init__(self, indices: NDArray[np.int64]) -> None:
        self._indices = indices

    def fetch(self, names: Sequence[str]) -> Any:
        return _Nothing()

    def stored(self, name: str, **_: Any) -> NDArray[Any]:
        return self.column(name)

    def column(self, name: str, out: NDArray[Any] | None = None) -> NDArray[Any]:
        random = splitmix64(self._indices.astype(np.uint64))
        match name:
            case "score":
                values: NDArray[Any] = (random >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)
            case "label":
                values = (random % np.uint64(1000)).astype(np.int32)
            case _:
                values = (random % np.uint64(5_000_000)).astype(np.int32)
        if out is None:
            return values
        out[:] = values
        return out


class _Nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


VIEWS: dict[str, tuple[int, str, Any]] = {
    "where": (10**9, "score", lambda data: data.where("score < 0.3333333")),
    "everything": (10**9, "score", lambda data: data.where("score >= 0")),
    "weighted": (10**8, "score", lambda data: data.weighted("score")),
    "balanced": (10**8, "label", lambda data: data.balanced("label")),
    "split": (10**8, "group", lambda data: data.split({"train": 0.9, "val": 0.1}, group="group")["train"]),
}


def measure(name: str, samples: int, pipe: Any) -> None:
    """Make a view, and send its figures."""
    _, column, make = VIEWS[name]
    simulated: Any = Simulated  # which lacks what only Loaders need
    data = simulated(samples)
    begun = time.perf_counter()
    for _ in in_parts(lambda numbers: data.selection(numbers).column(column), samples):
        pass
    computed = time.perf_counter()
    view = make(data)
    made = time.perf_counter()
    shared = Shared(view)
    order, random = view.plan(0, "global", 64, 16), np.random.default_rng(0)
    positions = [random.integers(0, order.n, BATCH) for _ in range(LOOKUPS)]
    looked = time.perf_counter()
    for chosen in positions:
        view.origin(order.lookup(chosen)[0])
    seconds = time.perf_counter() - looked
    plain = time.perf_counter()
    own = data.plan(0, "global", 64, 16)
    for chosen in positions:
        own.lookup(chosen)
    pipe.send(
        {
            "samples": samples,
            "chosen": len(view),
            "seconds": made - computed,
            "columns_seconds": computed - begun,
            "shared_bytes": shared._end_of_arrays,
            "most_bytes_while_made": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "microseconds_per_256": seconds / LOOKUPS * 1e6,
            "microseconds_per_256_of_the_dataset": (time.perf_counter() - plain) / LOOKUPS * 1e6,
        }
    )


def measured(names: Sequence[str], share: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the figures of each view, from a process of its own."""
    context = multiprocessing.get_context("spawn")
    for name in names:
        here, there = context.Pipe()
        process = context.Process(target=measure, args=(name, max(1, int(VIEWS[name][0] * share)), there))
        process.start()
        there.close()
        yield name, here.recv()
        process.join()


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", choices=VIEWS, default=list(VIEWS), metavar="NAME")
    parser.add_argument("--share", type=float, default=1.0, help="of the samples, for a quick look")
    args = parser.parse_args()
    result: dict[str, Any] = {}
    for name, figures in measured(args.only, args.share):
        result[name] = figures
        print(name, figures, flush=True)
    finish(result, args.json)


if __name__ == "__main__":
    main()
