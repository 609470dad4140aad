"""Samples that a conversion leaves out because they are bad, and the report that names them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that was left out.

    Attributes:
        number: the sample's number in the source.
        reason: why it cannot be stored.
    """

    number: int
    reason: str


def write_report(path: Path, skipped: Sequence[tuple[str, Skipped]]) -> None:
    """Write the skipped samples to `path`, a JSON object per line.

    An empty report does not replace one that an earlier, interrupted run of the same conversion wrote.

    Args:
        path: the file.
        skipped: the name of the split (`""` without splits) and the sample.
    """
    if not skipped and path.exists() and path.stat().st_size:
        return
    lines = [
        {**({"split": split} if split else {}), "number": sample.number, "reason": sample.reason}
        for split, sample in skipped
    ]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
