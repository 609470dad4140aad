"""Functions for tests of derive, which also run in processes of their own."""

import time
from typing import Any

Batch = dict[str, Any]


def doubled(batch: Batch) -> Batch:
    """The number of each sample twice, its squares as texts, and a ragged array as long as the number modulo 3."""
    numbers = batch["label"]
    return {
        "twice": numbers * 2,
        "sums": batch["array"].float().cumsum(1),
        "square": [f"{number * number}" for number in numbers.tolist()],
        "few": [row[: number % 3] for row, number in zip(batch["array"], numbers.tolist(), strict=True)],
    }


def slowly(batch: Batch) -> Batch:
    """The same, after a while."""
    time.sleep(0.03)
    return doubled(batch)
