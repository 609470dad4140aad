"""Bad samples: which errors say that a sample is bad, and the record of one.

A sample is bad if its stored bytes can't be read, differ from what was stored (`verify=True`), don't decode, or if your
`map` function for single samples fails on it.
"""

import errno
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ...dataset.location import Location
from ...errors import DatasetError, MapError

OnBadSample: TypeAlias = Literal["raise", "replace", "mask"]

_RESOURCE_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


@dataclass(frozen=True, slots=True)
class BadSampleRecord:
    """One sample that could not be delivered.

    Attributes:
        epoch: the epoch that it belongs to.
        location: its shard, its row there, its number in the dataset, and its `key` if it has one.
        reason: what went wrong.
        replaced_by: the index of the sample that was delivered instead; None if the sample was masked.
    """

    epoch: int
    location: Location
    reason: str
    replaced_by: int | None

    def __str__(self) -> str:
        place = str(self.location)
        return self.reason if place in self.reason else f"{place}: {self.reason}"


def is_bad_sample(error: BaseException) -> bool:
    """Whether an error says that a sample is bad, rather than that the process or the program is in trouble."""
    if isinstance(error, OSError) and not isinstance(error, DatasetError):
        return error.errno not in _RESOURCE_ERRORS
    return isinstance(error, (DatasetError, MapError))
