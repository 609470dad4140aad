"""Where a sample is stored."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Location:
    """Where a sample is stored.

    Attributes:
        shard: the name of its shard.
        row: its row there.
        index: its number in the dataset.
        key: its field `key`, if it has one that can be read.
    """

    shard: str
    row: int
    index: int
    key: str | None

    def __str__(self) -> str:
        key = "" if self.key is None else f", key {self.key}"
        return f"{self.shard}, row {self.row} (sample {self.index}{key})"
