"""Type aliases that all folders share."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes."""

Sample: TypeAlias = Mapping[str, Any]
"""One record in Python values, by field name: `{"image": b"...", "label": 3}`."""

Stored: TypeAlias = Mapping[str, Buffer]
"""One record in stored bytes, by field name."""

Rows: TypeAlias = NDArray[np.int64]
"""Row numbers within one shard, in any order, repeats allowed."""

Indices: TypeAlias = NDArray[np.int64]
"""Sample indices within a dataset, 0 to N-1, in any order, repeats allowed."""

Column: TypeAlias = NDArray[Any] | list[bytes]
"""One field of n samples: an array `[n, *shape]` if all have the same size, else the bytes of each."""
