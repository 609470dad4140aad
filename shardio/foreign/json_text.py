"""JSON that other programs wrote."""

from typing import Any

from ..system import strict_json
from ..system.strict_json import check_size as check_size
from ..system.strict_json import read_bytes as read_bytes


def parse(text: bytes | str, *, nan: bool = True) -> Any:
    """Return the value of a JSON text, in which a byte order mark may occur, and with `nan` also NaN and infinities.

    Raises ValueError for anything else that is not JSON in UTF-8, for a key that occurs twice in one object, and
    nesting too deep for Python.
    """
    return strict_json.parse(text, foreign=True, nan=nan)
