"""Compile the C part of shardio at installation, if a C compiler and libjpeg-turbo's headers are available.

`SHARDIO_NATIVE=require` raises an error if they are not, and `SHARDIO_NATIVE=off` leaves the C part out.
`SHARDIO_JPEG_ROOT` names a folder with `include/jpeglib.h` and `lib/libjpeg.a`, a libjpeg-turbo that the C part then
holds; without it, the C part needs the shared library that it was compiled with. `CC`, `CFLAGS` and `LDFLAGS` are
honoured.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("shardio", "native")
SOURCES = (
    *("jpeg.c", "recode.c", "segments.c", "damage.c", "resample.c", "area.c", "headers.c"),
    *("steps.c", "colors.c", "neighbors.c", "numbers.c", "lookup.c", "planes.c", "png.c"),
    *("permute.c", "shuffle.c", "chunks.c", "rows.c", "lmdb.c", "files.c", "guard.c", "stop.c", "leave.c"),
)
CHOICES = ("auto", "require", "off")


class NativeBuild(BuildHookInterface):  # type: ignore[type-arg, misc]
    """Build `shardio/native/_native.so` and tag the wheel for this platform."""

    PLUGIN_NAME = "native"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before hatchling packs a wheel, an editable one too."""
        choice = os.environ.get("SHARDIO_NATIVE", "auto")
        if choice not in CHOICES:
            raise ValueError(f"SHARDIO_NATIVE must be one of {', '.join(CHOICES)}, got {choice!r}")
        root = os.environ.get("SHARDIO_JPEG_ROOT")
        for name in ("include/jpeglib.h", "lib/libjpeg.a") if root else ():
            if not Path(root or "", name).is_file():
                raise ValueError(f"SHARDIO_JPEG_ROOT must be a folder with {name}, got {root!r}")
        folder = Path(self.root) / FOLDER
        target = folder / "_native.so"
        target.unlink(missing_ok=True)
        if choice == "off":
            return
        problem = compile_library(folder, target, root)
        if problem is None:
            build_data["artifacts"].append(str(FOLDER / target.name))
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        elif choice == "require":
            raise RuntimeError(f"the C part of shardio did not build: {problem}")
        else:
            self.app.display_warning(f"shardio runs without its C part, so that JPEG decoding is slower: {problem}")


def _hidden(library: str) -> list[str]:
    """Link a static library whose functions stay hidden: the process may hold others, of Pillow or OpenCV."""
    return [f"-Wl,-load_hidden,{library}"] if sys.platform == "darwin" else [library, "-Wl,--exclude-libs,ALL"]


def compile_library(folder: Path, target: Path, jpeg_root: str | None = None) -> str | None:
    """Build `target`, with the static libjpeg-turbo in `jpeg_root` if it is given; return None, or what went wrong."""
    compiler, flags = shlex.split(os.environ.get("CC", "cc")), shlex.split(os.environ.get("CFLAGS", ""))
    sources = [str(folder / name) for name in SOURCES]
    command = [
        *compiler,
        "-std=gnu11",
        "-O3",
        "-ffp-contract=off",  # floats are rounded after each operation, as torch rounds them
        *([f"-I{jpeg_root}/include"] if jpeg_root else []),
        *flags,
        "-shared",
        "-fPIC",
        "-o",
        str(target),
        *sources,
        *shlex.split(os.environ.get("LDFLAGS", "")),
        *(_hidden(f"{jpeg_root}/lib/libjpeg.a") if jpeg_root else ["-ljpeg"]),
        "-lm",
        "-pthread",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else f"{shlex.join(command)}\n{done.stderr.strip()}"
