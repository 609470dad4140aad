"""The place where a sample is stored, for records and messages."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Location:
    """The place of a sample: its shard, and its row in the shard.

    Attributes:
        shard: the name of the shard.
        row: the row in the shard.
        index: the number of the sample in the dataset.
        key: the value of the sample's field `key`; None if there is no such field, or it cannot be read.
    """

    shard: str
    row: int
    index: int
    key: str | None

    def __str__(self) -> str:
        key = "" if self.key is None else f", key {self.key}"
        return f"{self.shard}, row {self.row} (sample {self.index}{key})"
