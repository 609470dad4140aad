"""Bad samples: which errors say that a sample is bad, and the record of one.

A sample is bad if its stored bytes can't be read, are not what was stored (`verify=True`), don't decode, or if the
user's function for single samples fails on it.
"""

import errno
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ...dataset.dataset import Location
from ...errors import DatasetError, MapError

OnBadSample: TypeAlias = Literal["raise", "replace", "mask"]

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


@dataclass(frozen=True, slots=True)
class BadSampleRecord:
    """One sample that could not be delivered.

    Attributes:
        epoch: in which it should have been.
        location: its shard, its row there, its number in the dataset, and its `key` if it has one.
        reason: what went wrong.
        replaced_by: the index of the sample that was delivered instead; None if it was masked.
    """

    epoch: int
    location: Location
    reason: str
    replaced_by: int | None

    def __str__(self) -> str:
        place = str(self.location)
        return self.reason if place in self.reason else f"{place}: {self.reason}"


def is_bad_sample(error: BaseException) -> bool:
    """Whether an error says that a sample is bad, and not that this process or the program is in trouble."""
    if isinstance(error, OSError) and not isinstance(error, DatasetError):
        return error.errno not in _SHORTAGES
    return isinstance(error, (DatasetError, MapError))
