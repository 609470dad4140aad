"""One thing that was looked at."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "missing", "broken"]
"""ok: as it should be; note: it works, and `advice` makes it better; missing: not there, and not needed by everyone;
broken: it is there, or has to be, and does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what it is.
        state: how it is.
        value: what was found, such as a version.
        advice: what to do about it, one line; empty if there is nothing to do.
    """

    name: str
    state: State
    value: str
    advice: str = ""
