"""Prepared data that is kept between runs, and the kind of storage that holds it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path


def kept(folder: Path, stamp: str, make: Callable[[Path], None]) -> Path:
    """Return `folder`, after `make(folder)` unless it exists with the same stamp. A failure leaves nothing behind."""
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
    """The file system of `path`, and whether its device rotates, as far as the kernel knows."""
    device = os.stat(path).st_dev
    numbers = f"{os.major(device)}:{os.minor(device)}"
    found = {"file_system": "unknown", "device": "unknown"}
    for line in _lines(Path("/proc/self/mountinfo")):
        before, _, after = line.partition(" - ")
        if before.split()[2] == numbers:
            found = {"file_system": after.split()[0], "device": after.split()[1]}
            break
    block = Path("/sys/dev/block", numbers)
    for place in (block, block.resolve().parent):  # a partition shares the queue of its disk
        turns = place / "queue" / "rotational"
        if turns.is_file():
            found["rotational"] = "yes" if turns.read_text().strip() == "1" else "no"  # virtual disks may report either
            break
    return found


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.is_file() else []
