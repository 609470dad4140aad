"""Prepared data that is kept between runs, and what kind of storage it lies on."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path


def kept(folder: Path, stamp: str, make: Callable[[Path], None]) -> Path:
    """`folder`, made by `make(folder)` unless it was made before with the same stamp. What fails leaves nothing."""
    mark = folder.with_name(f"{folder.name}.stamp")
    if folder.is_dir() and mark.is_file() and mark.read_text() == stamp:
        return folder
    mark.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        make(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    mark.write_text(stamp)
    return folder


def storage(path: Path) -> dict[str, str]:
    """The file system that `path` lies on, and whether its device turns, as far as the kernel tells."""
    device = os.stat(path).st_dev
    numbers = f"{os.major(device)}:{os.minor(device)}"
    found = {"file_system": "unknown", "device": "unknown"}
    for line in _lines(Path("/proc/self/mountinfo")):
        before, _, after = line.partition(" - ")
        if before.split()[2] == numbers:
            found = {"file_system": after.split()[0], "device": after.split()[1]}
            break
    block = Path("/sys/dev/block", numbers)
    for place in (block, block.resolve().parent):  # a partition's queue is that of its disk
        turns = place / "queue" / "rotational"
        if turns.is_file():
            found["rotational"] = "yes" if turns.read_text().strip() == "1" else "no"  # virtual disks may say either
            break
    return found


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.is_file() else []
