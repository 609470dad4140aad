"""Measure whether a conversion's memory grows with its source: the same command on 1 GiB and on 10 GiB.

    python benchmarks/convert_memory.py --work /tmp/shardio-memory --json memory.json

Two kinds of source: a `.npy` file of arrays of 2 MiB, and JPEG files of 48 KB (the folder of photos, linked over and
over). What counts is the memory that the command and its workers have for themselves (RssAnon, all processes together),
looked at every 10 ms; pages of files that are mapped or cached are the system's to take back. Workers are processes
from the start here: those of a job that is over within two seconds are threads, which take less.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks._results import finish, options

SIZES = {"1 GiB": 1 << 30, "10 GiB": 10 << 30}
CONTAINERS = ("tar", "hdf5", "lmdb")
LOOK_EVERY = 0.01
COMMAND = "import shardio.cli, shardio.conversion.runners as r; r.THREADS_SECONDS = 0.0; shardio.cli.main()"


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__, photos=True)
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("/tmp/shardio-memory"),
        help="folder for sources and output, removed at the end",
    )
    args = parser.parse_args()
    work: Path = args.work.absolute()
    found: dict[str, dict[str, dict[str, float]]] = {}
    for kind, make in (("numpy", _arrays), ("imagefolder", _folder)):
        for size, wanted in SIZES.items():
            source = make(work / "source", wanted, args.photos.absolute())
            for container in CONTAINERS if kind == "numpy" else ("tar",):
                peaks = [_peak(kind, source, work / "out", container) for _ in range(1 if wanted > 1 << 30 else 3)]
                row = found.setdefault(f"{kind} to {container}", {})
                row[size] = {"peak_mib": round(max(peaks) / 2**20, 1), "bytes": wanted}
                print(f"{kind} to {container}, {size}: {row[size]}", file=sys.stderr)
            shutil.rmtree(work)
    for row in found.values():
        row["growth"] = {"ratio": round(row["10 GiB"]["peak_mib"] / row["1 GiB"]["peak_mib"], 3)}
    finish({"task": "memory of conversions, 2 workers, shards of 64 MB", "sources": found}, args.json)


def _arrays(folder: Path, size: int, photos: Path) -> Path:
    """A file of 2 MiB arrays, sparse because their values do not matter here."""
    folder.mkdir(parents=True)
    shape = (size >> 21, 16, 256, 256)
    array = np.lib.format.open_memmap(folder / "arrays.npy", "w+", np.uint16, shape)
    array[:, 0, 0, 0] = np.arange(shape[0])
    return folder / "arrays.npy"


def _folder(folder: Path, size: int, photos: Path) -> Path:
    """A tree of links to all photos, in as many class folders as needed."""
    files = sorted(photos.rglob("*.jpg"))
    once = sum(file.stat().st_size for file in files)
    for copy in range(-(-size // once)):
        (folder / f"{copy:04d}").mkdir(parents=True)
        for number, file in enumerate(files):
            os.link(file, folder / f"{copy:04d}" / f"{number:06d}.jpg")
    return folder


def _peak(kind: str, source: Path, out: Path, container: str) -> int:
    """The peak memory of one conversion in bytes."""
    command = [sys.executable, "-c", COMMAND, "convert", kind, str(source), str(out), "--to", container]
    with subprocess.Popen(
        [*command, "--workers", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        most = 0
        while process.poll() is None:
            most = max(most, _private(process.pid))
            time.sleep(LOOK_EVERY)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    shutil.rmtree(out)
    return most


def _private(process: int) -> int:
    """RssAnon of a process and its descendants in bytes."""
    folder = Path(f"/proc/{process}")
    try:
        total = sum(int(kib) << 10 for kib in re.findall(r"RssAnon:\s*(\d+)", (folder / "status").read_text()))
        children = [child for path in folder.glob("task/*/children") for child in path.read_text().split()]
    except OSError:  # it has ended in the meantime
        return 0
    return total + sum(_private(int(child)) for child in children)


if __name__ == "__main__":
    main()
