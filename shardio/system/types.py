"""The types that every layer shares."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes."""

Sample: TypeAlias = Mapping[str, Any]
"""One record: field names to values, as a person writes them (`{"image": b"...", "label": 3}`)."""

Stored: TypeAlias = Mapping[str, Buffer]
"""One record as a shard keeps it: field names to bytes."""

Rows: TypeAlias = NDArray[np.int64]
"""Sample numbers within one shard, in any order, repeats allowed."""

Indices: TypeAlias = NDArray[np.int64]
"""Sample numbers within a dataset, 0 to N-1."""

Column: TypeAlias = NDArray[Any] | list[bytes]
"""One field of many samples: an array `[n, *shape]` when every sample has the same size, else the bytes of each."""
