"""The report of the samples that a conversion leaves out because they are bad."""

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from ..errors import worded
from ..output.records import Skipped
from ..stores.url import Url
from ..system.directory import Directory


def open_report(path: Path, out: Path | Url | None) -> TextIO:
    """Open a report to write, and create it if needed; it keeps its content until something is written.

    Its path is the user's own word, and may lead through links, but not below the output `out`, if that is a folder.
    """
    path, root = Path(os.path.abspath(path)), Path(os.path.abspath(out)) if isinstance(out, Path) else None
    if root is not None and root in path.parents:
        folder = Directory(root)
        for name in path.relative_to(root).parts[:-1]:
            folder = folder.directory(name)
        descriptor = folder.open(path.name, os.O_WRONLY | os.O_CREAT)
    else:
        # A pipe that nobody reads is refused by the system, instead of a wait for a reader.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
        os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace")


def write_report(path: Path, out: Path | Url | None, skipped: Sequence[tuple[str, Skipped]]) -> None:
    """Write the skipped samples to `path`, a JSON object per line.

    An empty report does not replace one that an earlier, interrupted run of the same conversion wrote.

    Args:
        path: the file.
        out: the output of the conversion, see `open_report`.
        skipped: the name of the split (`""` without splits) and the sample.
    """
    with open_report(path, out) as file:
        if not skipped and os.fstat(file.fileno()).st_size:
            return
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.truncate(0)
        for split, sample in skipped:
            line = {**({"split": split} if split else {}), "number": sample.number, "reason": worded(sample.reason)}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
