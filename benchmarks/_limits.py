"""The physical limit of each workload: a small program in `limits/`, measured in the same rounds as the peers."""

import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks._peers import HERE
from benchmarks._processes import run
from benchmarks._workloads import Workload, photos

LIMIT = "limit"
SECONDS = 1.5
LABELS = {
    "exact": "libjpeg-turbo in C, threads: interpolated chroma, only the crop is decoded, no resize, no flip",
    "fast": "libjpeg-turbo in C, threads: repeated chroma, only the crop is decoded, no resize, no flip",
    "tensors": "memcpy in C, threads: random blocks of a mapped file into batch buffers that are used again",
    "fashion": "NumPy take from a memory map, threads: the bytes into buffers that are used again, no flip, no floats",
    "cifar": "NumPy take from a memory map, threads: the bytes into buffers that are used again, no flip, no floats",
    "records": "NumPy take from a memory map, threads: whole batches into buffers that are used again",
}
LIBRARIES = {
    "jpeg_crop": ["-ljpeg", "-lpthread", "-lm"],
    "memcpy": ["-lpthread"],
    "link": ["-lpthread"],
    "slow_fs": ["-lpthread"],
    "decompress": ["-shared", "-fPIC", "-lpthread"],
}


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that is ready to be measured: a command that prints one line of JSON."""

    command: tuple[str, ...]

    def measure(self) -> dict[str, float]:
        """Return `samples_per_s` and `cpu_s_per_1000` of one run. Raises PeerFailed."""
        printed: dict[str, float] = json.loads(run(list(self.command)))
        rate = printed.get("samples_per_s", printed.get("images_per_s", 0.0))
        return {"samples_per_s": rate, "cpu_s_per_1000": printed["cpu_s_per_1000"]}


def prepare_limit(workload: Workload, source: Path, work: Path) -> Limit:
    """Build the program and write its input. Raises PeerFailed, for example without a compiler or libjpeg's headers."""
    threads, seconds = str(workload.threads), str(SECONDS)
    if workload.data in ("records", "small"):
        return Limit(
            (sys.executable, str(HERE / "limits/take.py"), str(source), str(workload.batch_size), threads, seconds)
        )
    if workload.name == "tensors":
        sizes = str(workload.sample_bytes), str(workload.batch_size)
        return Limit((str(compile_limit("memcpy", work)), str(source), *sizes, threads, seconds))
    names = work / "data" / f"photos-{workload.count}.txt"
    names.parent.mkdir(parents=True, exist_ok=True)
    names.write_text("".join(f"{path.absolute()}\n" for path, _ in photos(source, workload.count)))
    return Limit((str(compile_limit("jpeg_crop", work)), str(names), threads, seconds, workload.name, "random"))


def compile_limit(name: str, work: Path) -> Path:
    """Compile a program of `limits/` below `work`. Raises PeerFailed."""
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        made = Path(folder, name)
        run(["cc", "-O3", "-o", str(made), str(HERE / "limits" / f"{name}.c"), *LIBRARIES[name]])
        return Path(shutil.move(made, work / name))
