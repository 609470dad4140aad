"""The loaders of benchmarks/world_model.py: each is a function of a folder that returns batches, epoch by epoch.

A batch is (pixels, values), as tensors: uint8 [64, 96, 96, 3] and float32 [64, 10]. A loader runs in a process of its
library's environment; the functions import what they need.
"""

import hashlib
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._run_peer import Epochs, versions
from benchmarks.patch_loaders import rate

REQUIREMENTS = ("torch==2.13.0", "numpy==2.4.6", "h5py==3.16.0", "lancedb==0.40.0", "pylance==14.0.2")
VERSIONS = ("torch", "numpy", "h5py", "lancedb", "pylance")

SHAPES: Mapping[str, tuple[int, ...]] = MappingProxyType({"pixels": (96, 96, 3), "values": (10,)})
BATCH, THREADS, AHEAD = 64, 2, 4  # AHEAD: batches
FILE, TABLE = "rows.h5", "rows"

Batch = tuple[Any, Any]


def shardio_loader(folder: Path) -> Iterable[Batch]:
    """A Loader of the file as it was indexed, on threads."""
    import shardio

    loader = shardio.Loader(folder / "indexed", BATCH, threads=THREADS)
    return Epochs(lambda: (tuple(batch[name] for name in SHAPES) for batch in loader))


class Rows:
    """A map-style dataset of the file, whose `__getitems__` reads a batch into one array per field."""

    def __init__(self, path: Path) -> None:
        import h5py

        self._path = path
        self._file: Any = None
        with h5py.File(path) as file:
            self._rows = len(file["pixels"])

    def __len__(self) -> int:
        return self._rows

    def __getitems__(self, numbers: list[int]) -> Batch:
        import h5py
        import torch

        if self._file is None:  # each worker opens the file for itself
            self._file = h5py.File(self._path)
        made = []
        for name, shape in SHAPES.items():
            stored, out = self._file[name], np.empty((len(numbers), *shape), self._file[name].dtype)
            for at, number in enumerate(numbers):
                stored.read_direct(out, np.s_[number], np.s_[at])
            made.append(torch.from_numpy(out))
        return made[0], made[1]


def h5py_loader(folder: Path) -> Iterable[Batch]:
    """A DataLoader with two worker processes over h5py."""
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    data: Any = Rows(folder / FILE)
    return DataLoader(
        data, BATCH, shuffle=True, num_workers=THREADS, persistent_workers=True, drop_last=True, collate_fn=_as_made
    )


def _as_made(batch: Any) -> Any:
    return batch


def _tensors(table: Any) -> Batch:
    """The columns of an Arrow table or batch as tensors, without a copy where Arrow has one piece."""
    import pyarrow
    import torch

    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    made = []
    for name, shape in SHAPES.items():
        column = table.column(name)
        whole = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
        made.append(torch.from_numpy(whole.flatten().to_numpy(zero_copy_only=True)).view(len(whole), *shape))
    return made[0], made[1]


def lance_loader(folder: Path) -> Iterable[Batch]:
    """`take` of random rows, on two threads."""
    import lance

    data = lance.dataset(str(folder / "peers" / f"{TABLE}.lance"))
    random = np.random.default_rng(0)

    def made(numbers: NDArray[np.int64]) -> Batch:
        return _tensors(data.take(numbers, columns=list(SHAPES)))

    def epoch() -> Iterator[Batch]:
        rows = data.count_rows()
        batches = iter(random.permutation(rows)[: rows // BATCH * BATCH].reshape(-1, BATCH))
        with ThreadPoolExecutor(THREADS) as pool:
            waiting = deque(pool.submit(made, numbers) for _, numbers in zip(range(AHEAD), batches, strict=False))
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(pool.submit(made, numbers) for _, numbers in zip(range(1), batches, strict=False))

    return Epochs(epoch)


def lancedb_loader(folder: Path) -> Iterable[Batch]:
    """A StreamingDataset per epoch; the transform makes tensors of each record batch, and returns their rows."""
    import lancedb
    import torch
    from lancedb.streaming import StreamingDataset
    from torch.utils.data import DataLoader

    table = lancedb.connect(str(folder / "peers")).open_table(TABLE)
    options: dict[str, Any] = {"num_splits": 1, "rank": 0, "world_size": 1, "shuffle_seed": 0}
    options |= {"columns": list(SHAPES), "transform_parallelism": THREADS}
    options["transform"] = lambda batch: list(zip(*_tensors(batch), strict=True))

    def stacked(rows: list[Batch]) -> Batch:
        pixels, values = zip(*rows, strict=True)
        return torch.stack(pixels), torch.stack(values)

    def epochs() -> Iterator[Iterator[Batch]]:
        for number in count():
            data: Any = StreamingDataset(table, epoch=number, **options)
            yield iter(DataLoader(data, BATCH, drop_last=True, collate_fn=stacked))

    each = epochs()
    return Epochs(lambda: next(each))


LOADERS: Mapping[str, Callable[[Path], Iterable[Batch]]] = MappingProxyType(
    {
        "shardio": shardio_loader,
        "h5py DataLoader": h5py_loader,
        "lance.take": lance_loader,
        "LanceDB": lancedb_loader,
    }
)


def checksum(batches: Iterable[Batch]) -> str:
    """A checksum of the rows of an epoch, whatever their order. Raises ValueError for a batch of another shape."""
    sums = []
    for pixels, values in batches:
        for array, (name, shape) in zip((pixels, values), SHAPES.items(), strict=True):
            if tuple(array.shape) != (BATCH, *shape):
                raise ValueError(f"{name} of shape {tuple(array.shape)}")
        rows = zip(pixels.numpy(), values.numpy(), strict=True)
        sums += [zlib.crc32(row, zlib.crc32(numbers)) for row, numbers in rows]
    return f"{len(sums)} {hashlib.sha256(np.sort(np.array(sums, np.uint32)).tobytes()).hexdigest()[:16]}"


def write_peers(folder: Path) -> None:
    """Write the rows of the file as a table of LanceDB."""
    import h5py
    import lancedb
    import pyarrow

    types = {"pixels": pyarrow.uint8(), "values": pyarrow.float32()}
    schema = pyarrow.schema({name: pyarrow.list_(types[name], int(np.prod(SHAPES[name]))) for name in SHAPES})

    def parts() -> Iterator[Any]:
        with h5py.File(folder / FILE) as file:
            for first in range(0, len(file["pixels"]), 16 * BATCH):
                flat = {name: file[name][first : first + 16 * BATCH].reshape(-1) for name in SHAPES}
                lists = [pyarrow.FixedSizeListArray.from_arrays(flat[one.name], type=one.type) for one in schema]
                yield pyarrow.RecordBatch.from_arrays(lists, schema=schema)

    lancedb.connect(str(folder / "peers")).create_table(TABLE, parts(), schema=schema)


def main(order: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out an order of world_model.py."""
    folder = Path(order["folder"])
    if order["do"] == "prepare":
        write_peers(folder)
        return versions(VERSIONS)
    batches = LOADERS[order["loader"]](folder)
    return {"rows": checksum(batches)} if order["do"] == "check" else rate(batches, order["seconds"])
