"""Compare loaders of patches: 64 x 64 from fields of 721 x 1440 float32, in HDF5 and Zarr, whole and in chunks.

    python -m benchmarks.patches --json patches.json

A sample is a random patch of a random row, and a batch has 64 of them, from the page cache. Loaders take turns; each
run is a process with two threads, or with the number of worker processes, of 0, 2 and 4, that was fastest in a trial.

    contiguous  HDF5, not chunked
    rows gzip   HDF5, chunks of 1 x 721 x 1440, shuffle and gzip, as netCDF's tools write them
    tiles zstd  HDF5, chunks of 1 x 90 x 180, shuffle and Zstandard
    zarr zstd   Zarr 3, chunks of 1 x 90 x 180, Zstandard, its default

Figures are medians over rounds: samples per second, the ratio of shardio to each within a round, and `read`, the bytes
read per byte delivered, as the kernel counts read calls. `decompress` is a C loop that decompresses the chunks which
patches touch, and does nothing else (limits/decompress.c). Before the first round each loader's patches are compared
with the array.
"""

import ctypes
import importlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import h5py
import hdf5plugin
import numpy as np
from numpy.typing import NDArray

import shardio
from benchmarks._environments import environment
from benchmarks._limits import compile_limit
from benchmarks._processes import START, PeerFailed, ask, environ
from benchmarks._results import finish, options, ratio, turns
from benchmarks._rounds import last_line
from benchmarks._store import kept
from benchmarks.patch_loaders import LAYOUTS, NAME, PATCH, THREADS, Layout

MODULE = ("loaders", "patch")  # benchmarks/patch_loaders.py says what its environment has
SHAPE = (721, 1440)
LIMIT = "decompress"
SAMPLES = 4096  # of the limit
MODES = 12
STEP = 2.0**-9  # what GRIB's packing leaves of a temperature, in K


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__, rounds=3)
    parser.add_argument("--work", type=Path, default=Path("/tmp/shardio-patches"), help="environment and data, 8 GB")
    parser.add_argument("--rows", type=int, default=512, help="of 4 MB each")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    parser.add_argument("--only", nargs="+", default=list(LAYOUTS), choices=LAYOUTS, metavar="LAYOUT")
    parser.add_argument("--loaders", nargs="+", metavar="NAME", help="those whose names begin so (default: all)")
    parser.add_argument("--quick", action="store_true", help="little data, short runs, and no peers")
    args = parser.parse_args()
    if args.quick:
        args.rows, args.seconds, args.rounds, args.loaders = min(args.rows, 4), 0.05, 1, ["shardio", LIMIT]
    work = args.work.absolute()
    folder = kept(work / "data", f"{args.rows} {SHAPE}", partial(write, args.rows))
    runs = Runs(None if args.quick else environment(MODULE[0], work, MODULE[1]), work, folder, args.seconds)
    result: dict[str, Any] = {"rounds": args.rounds, "rows": args.rows, "seconds": args.seconds}
    if runs.peers is not None:
        peers = kept(folder / "peers", "LitData", runs.prepare)
        result["versions"] = json.loads((peers / "versions.json").read_text())
    for name in args.only:
        chosen = [one for one in names(LAYOUTS[name]) if not args.loaders or one.startswith(tuple(args.loaders))]
        result[name] = runs.measure(name, chosen, args.rounds)
    finish(result, args.json)


def names(layout: Layout) -> list[str]:
    """The loaders of a layout, and the limit where there are chunks."""
    return [*layout.loaders, *([LIMIT] if layout.chunks else [])]


def fields(rows: int, seed: int = 0) -> Iterator[NDArray[np.float32]]:
    """Yield float32 fields of SHAPE one by one: waves that travel, finer ones weaker, and noise, rounded to STEP."""
    random = np.random.default_rng(seed)
    y, x = (np.linspace(0, 2 * np.pi, n, dtype=np.float32) for n in SHAPE)
    waves = np.arange(1, MODES + 1, dtype=np.float32)
    strength = random.normal(0, 12, (MODES, MODES)) / np.add.outer(waves, waves) ** 1.5
    phases = random.uniform(0, 2 * np.pi, (2, MODES))
    for row in range(rows):
        down, across = (
            np.sin(np.multiply.outer(waves, places) + (phase + 0.05 * row)[:, None]).astype(np.float32)
            for places, phase in zip((y, x), phases, strict=True)
        )
        smooth = 250 + 45 * np.sin(y / 2)[:, None] + down.T @ (strength.astype(np.float32) @ across)
        noise = random.standard_normal(SHAPE, np.float32)
        yield (np.round((smooth + 0.05 * noise) / STEP) * STEP).astype(np.float32)


def write(rows: int, folder: Path) -> None:
    """Write the array in each layout, and index it with shardio."""
    import zarr

    folder.mkdir(parents=True)
    shape = (rows, *SHAPE)
    (folder / "shape.json").write_text(json.dumps(shape))
    ways: dict[str, dict[str, Any]] = {"contiguous": {}, "rows gzip": {"compression": "gzip", "shuffle": True}}
    ways["tiles zstd"] = {**hdf5plugin.Zstd(), "shuffle": True}
    stored: list[Any] = []
    for name, given in ways.items():
        file = h5py.File(folder / LAYOUTS[name].file, "w")
        array = file.create_dataset(NAME, shape, "float32", chunks=LAYOUTS[name].chunks, **given)
        for axis, (dimension, size) in enumerate(zip(("time", "lat", "lon"), shape, strict=True)):
            file[dimension] = np.arange(size, dtype=np.float64)
            file[dimension].make_scale(dimension)
            array.dims[axis].attach_scale(file[dimension])
        stored.append(array)
    group = zarr.open_group(folder / LAYOUTS["zarr zstd"].file, mode="w")
    axes = ["time", "lat", "lon"]
    chunks: Any = LAYOUTS["zarr zstd"].chunks
    stored.append(group.create_array(NAME, shape=shape, chunks=chunks, dtype="float32", dimension_names=axes))
    for row, values in enumerate(fields(rows)):
        for array in stored:
            array[row] = values
    for array in stored[:-1]:
        array.file.close()
    for name, layout in LAYOUTS.items():
        shardio.index([folder / layout.file], folder / "indexed" / name, fields={NAME: NAME})


@dataclass(frozen=True, slots=True)
class Runs:
    """Starts the process of a loader.

    Attributes:
        peers: the interpreter of the peers, or None without them.
        work: where caches and compiled programs are.
        folder: where the data is.
        seconds: how long a run is.
    """

    peers: Path | None
    work: Path
    folder: Path
    seconds: float

    def prepare(self, out: Path) -> None:
        """Write the array in the peers' formats, and their versions. Raises PeerFailed."""
        out.mkdir(parents=True)
        (out / "versions.json").write_text(json.dumps(self._ask("", {"do": "prepare", "out": str(out)})))

    def measure(self, layout: str, chosen: list[str], rounds: int) -> dict[str, Any]:
        """The figures of a layout by loader. Raises PeerFailed where a loader gives wrong patches."""
        runs: dict[str, Callable[[], dict[str, float]]] = {}
        found: dict[str, Any] = {name: {} for name in chosen}
        for name in chosen:
            if name == LIMIT:
                runs[name] = self._limit(layout)
                continue
            given: dict[str, Any] = {"layout": layout, "loader": name}
            found[name] = self._ask(name, given | {"do": "check"})
            if name in LAYOUTS[layout].workers:
                tried = LAYOUTS[layout].workers[name]
                trials = {n: self._rate(name, given | {"workers": n})["samples_per_second"] for n in tried}
                given["workers"] = found[name]["workers"] = max(trials, key=lambda n: np.nan_to_num(trials[n]))
            runs[name] = partial(self._rate, name, given)
        rates = turns(runs, rounds)
        for name in chosen:
            figures = {key: median(one[key] for one in rates[name]) for key in rates[name][0]}
            ours, theirs = ([one["samples_per_second"] for one in rates[which]] for which in (chosen[0], name))
            figures[f"{chosen[0]} is"] = ratio(ours, theirs)
            found[name] |= {key: round(value, 3) for key, value in figures.items()}
            print(layout, name, found[name], file=sys.stderr, flush=True)
        return found

    def _rate(self, loader: str, given: Mapping[str, Any]) -> dict[str, float]:
        """Samples per second, and bytes of a sample and read for each of them; NaN if the loader failed."""
        try:
            found = self._ask(loader, {**given, "do": "rate", "seconds": self.seconds})
        except PeerFailed as error:
            print(f"{given['layout']} {loader}: {last_line(str(error))}", file=sys.stderr)
            return dict.fromkeys(("samples_per_second", "sample_bytes", "read"), math.nan)
        return {
            "samples_per_second": found["samples"] / found["seconds"],
            "sample_bytes": found["delivered"] / found["samples"],
            "read": found["read"] / found["delivered"],
        }

    def _ask(self, loader: str, order: Mapping[str, Any]) -> dict[str, Any]:
        python = sys.executable if self.peers is None or loader == "shardio" else str(self.peers)
        environment = environ(MODULE[0], self.work, MODULE[1]) | {"OMP_NUM_THREADS": "1"}
        return ask(
            [python, "-c", START, "benchmarks.patch_loaders"], {"folder": str(self.folder), **order}, environment
        )

    def _limit(self, layout: str) -> Callable[[], dict[str, float]]:
        """Return the run of the program that only decompresses chunks."""
        path = self.folder / LAYOUTS[layout].file
        data, spans, ends = _touched(path, LAYOUTS[layout])
        library = ctypes.CDLL(str(compile_limit("decompress", self.work)))
        library.decompress.restype = ctypes.c_double
        inflate, zstd, contexts = None, None, None
        if "gzip" in layout:
            inflate = ctypes.CDLL(importlib.import_module("h5py").h5z.__file__).uncompress  # of the same libz
        else:
            plugin = ctypes.CDLL(str(Path(hdf5plugin.PLUGIN_PATH) / "libh5zstd.so"))
            plugin.ZSTD_createDCtx.restype = ctypes.c_void_p
            zstd = plugin.ZSTD_decompressDCtx
            contexts = (ctypes.c_void_p * THREADS)(*(plugin.ZSTD_createDCtx() for _ in range(THREADS)))
        size = math.prod(LAYOUTS[layout].chunks or ()) * 4
        sample_bytes = PATCH * PATCH * 4

        def run() -> dict[str, float]:
            addresses = [ctypes.c_void_p(array.ctypes.data) for array in (data, spans, ends)]
            counts = [ctypes.c_int64(len(ends)), ctypes.c_int64(size), int(path.suffix == ".h5"), THREADS]
            rate = library.decompress(inflate, zstd, contexts, *addresses, *counts, ctypes.c_double(self.seconds))
            if rate < 0:
                raise PeerFailed(f"{path}: a chunk could not be decompressed")
            read = float(spans[:, 1].sum() / len(ends) / sample_bytes)
            return {"samples_per_second": rate, "sample_bytes": sample_bytes, "read": read}

        return run


def _touched(path: Path, layout: Layout) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """The compressed bytes, where the chunks of random patches are in them, and where each patch's chunks end."""
    assert layout.chunks is not None
    places: dict[tuple[int, ...], tuple[int, int]] = {}
    if path.suffix == ".h5":
        data = np.fromfile(path, np.uint8)
        with h5py.File(path) as file:
            file[NAME].id.chunk_iter(lambda one: places.update({one.chunk_offset: (one.byte_offset, one.size)}))
            rows = len(file[NAME])
    else:
        files = sorted(one for one in (path / NAME / "c").rglob("*") if one.is_file())
        parts = [np.fromfile(one, np.uint8) for one in files]
        begins = np.cumsum([0, *map(len, parts)]).tolist()
        cells = [tuple(map(int, one.relative_to(path / NAME / "c").parts)) for one in files]
        for cell, begin, part in zip(cells, begins, parts, strict=False):
            places[tuple(n * size for n, size in zip(cell, layout.chunks, strict=True))] = (begin, len(part))
        data = np.concatenate(parts)
        rows = 1 + max(cell[0] for cell in cells)
    random = np.random.default_rng(0)
    spans: list[tuple[int, int]] = []
    ends = []
    for _ in range(SAMPLES):
        row, (top, left) = int(random.integers(rows)), (int(random.integers(n - PATCH + 1)) for n in SHAPE)
        _, height, width = layout.chunks
        for down in range(top // height, (top + PATCH - 1) // height + 1):
            for across in range(left // width, (left + PATCH - 1) // width + 1):
                spans.append(places[row, down * height, across * width])
        ends.append(len(spans))
    return data, np.array(spans, np.int64), np.array(ends, np.int64)


if __name__ == "__main__":
    main()
