"""Attributes of NetCDF, as files hold them; `format.cf` says what they mean."""

import math
from typing import Any

import numpy as np

from ..format.cf import ATTRIBUTES as ATTRIBUTES
from ..format.cf import Decoding as Decoding
from ..format.cf import changes as changes
from ..format.cf import decoding as decoding
from ..format.cf import difference as difference
from ..format.cf import inherit_units as inherit_units
from ..format.cf import stated as stated
from ..format.cf import to_json as to_json
from ..format.cf import told as told
from ..format.cf import with_units_of as with_units_of

_MOST_NUMBERS = 1024
_MOST_BYTES = 1 << 16


def of_hdf5(dataset: Any) -> dict[str, Any]:
    """Return those attributes of an h5py dataset that say what its numbers mean, and `bounds`, by name.

    They are text, NumPy's numbers and arrays [n] of them; for anything else, a description of it, which is no number.
    """
    found: dict[str, Any] = {}
    for name in (*ATTRIBUTES, "bounds"):
        if name not in dataset.attrs:
            continue
        try:
            value = _value(dataset.attrs, name)
        except TypeError as error:
            value = f"of a type that NumPy lacks ({error})"
        if value is not None:
            found[name] = value
    return found


def _value(attributes: Any, name: str) -> Any:
    """Return one attribute of an h5py dataset; None for one without a value. TypeError if NumPy lacks its type."""
    stored = attributes.get_id(name)
    size = math.prod(stored.shape or ()) if stored.shape is not None else 0
    if not size:
        return None
    if size > _MOST_NUMBERS or size * stored.dtype.itemsize > _MOST_BYTES:
        return f"{list(stored.shape)} of {stored.dtype}"
    value = np.ravel(np.asarray(attributes[name]))
    if value.dtype.kind in "biuf" and value.dtype.char != "g":
        native = value.astype(value.dtype.newbyteorder("="))
        return native[0] if size == 1 else native
    return _text(value[0] if size == 1 else value.tolist())


def _text(value: Any) -> str:
    """Return text in the characters of UTF-8; of anything else a description."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text.encode(errors="replace").decode()[:_MOST_BYTES].rstrip("\0")
