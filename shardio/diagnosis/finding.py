"""One thing that was looked at."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "none", "optional", "missing", "broken"]
"""ok: as it should be; note: it works, `advice` makes it better; none: the machine has
no such thing, and nobody has to have it; optional: a package that is not there, for what not
everyone does; missing: something else that is not there, nor needed by everyone; broken: it is there, or has to
be, and does not work.
"""


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
