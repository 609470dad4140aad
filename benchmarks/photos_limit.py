"""How near shardio comes to the limit of JPEG decoding: loader and a C program in turns, on the same photos.

    python benchmarks/photos.py /tmp/photos
    python benchmarks/photos_limit.py /tmp/photos --container tar --rounds 7 --json result.json

Each round runs `limits/jpeg_crop.c` (libjpeg-turbo, only the crop decoded, no resize) and then an epoch of the
loader (RandomResizedCrop(224) and flip, uint8), both with the same number of threads and everything in the page cache.
The result is the median of each, and the median of the rounds' ratios. Needs a C compiler and libjpeg's headers
(Debian: libjpeg62-turbo-dev).
"""

import argparse
import json
import resource
import subprocess
import tempfile
import time
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import shardio
from shardio import source
from shardio.bench.machine import describe
from shardio.convert import convert

LIMIT = Path(__file__).parent / "limits" / "jpeg_crop.c"


def compile_limit(directory: Path) -> Path:
    """The C program, built."""
    program = directory / "jpeg_crop"
    subprocess.run(["cc", "-O3", "-o", program, LIMIT, "-ljpeg", "-lpthread", "-lm"], check=True)
    return program


def run_limit(program: Path, names: Path, threads: int, seconds: float) -> dict[str, float]:
    """Images per second, and processor seconds per 1,000 images, of the C program."""
    done = subprocess.run([program, names, str(threads), str(seconds)], check=True, capture_output=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def run_loader(loader: shardio.Loader) -> dict[str, float]:
    """The same of one epoch of the loader, the start and end of its threads included."""
    before, begun, samples = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter(), 0
    for batch in loader:
        samples += len(batch["index"])
    seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"images_per_s": samples / seconds, "cpu_s_per_1000": 1000 * cpu / samples}


def measure(photos: Path, container: str, batch_size: int, threads: int, rounds: int) -> dict[str, Any]:
    """All rounds, with medians and the machine."""
    with tempfile.TemporaryDirectory() as folder:
        program = compile_limit(Path(folder))
        files = sorted(str(path) for path in photos.rglob("*.jpg"))
        names = Path(folder, "names.txt")
        names.write_text("\n".join(files) + "\n")
        convert(source.find("imagefolder")(photos), Path(folder, "data"), container=container, workers=2)
        loader = shardio.Loader(
            Path(folder, "data"),
            batch_size,
            transforms=[shardio.RandomResizedCrop(224), shardio.RandomHorizontalFlip()],
            threads=threads,
            world=shardio.World(),
            fields=["image", "label"],  # what torchvision's ImageFolder gives
        )
        run_loader(loader)  # page cache and buffers
        limit, mine = [], []
        for _ in range(rounds):
            limit.append(run_limit(program, names, threads, 1.5))
            mine.append(run_loader(loader))
    ratios = [m["images_per_s"] / its["images_per_s"] for m, its in zip(mine, limit, strict=True)]
    return {
        "date": date.today().isoformat(),
        "workload": "RandomResizedCrop(224) + flip, uint8 and label, page cache warm",
        "photos": len(files),
        "bytes_per_photo": sum(Path(name).stat().st_size for name in files) // len(files),
        "container": container,
        "batch_size": batch_size,
        "threads": threads,
        "limit_images_per_s": median(r["images_per_s"] for r in limit),
        "loader_images_per_s": median(r["images_per_s"] for r in mine),
        "ratio": median(ratios),
        "ratios": ratios,
        "limit_cpu_s_per_1000": median(r["cpu_s_per_1000"] for r in limit),
        "loader_cpu_s_per_1000": median(r["cpu_s_per_1000"] for r in mine),
        "machine": describe(),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--container", default="tar", choices=("tar", "hdf5", "lmdb"))
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = measure(args.photos, args.container, args.batch_size, args.threads, args.rounds)
    text = json.dumps(result, indent=1)
    if args.json is not None:
        args.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
