"""Findings of `shardio doctor`."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "none", "optional", "missing", "broken"]
"""ok: works; note: works, and `advice` makes it better; none: this machine has none and needs none; optional: a package
that is not installed and that few people need; missing: anything else that is absent and not required; broken: absent
and required, or present and not working.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `shardio doctor`: a part of the environment and its state.

    Attributes:
        name: what it is.
        state: whether it works.
        value: what was found, such as a version.
        advice: what to do about it, one line; empty if there is nothing to do.
    """

    name: str
    state: State
    value: str
    advice: str = ""
