"""Values of several lengths joined to the tensors of a batch, as PadTo and Ragged say."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import ConfigError
from ...system import allocation
from ...transforms import Collation, PadTo, Ragged

_BITS = {torch.bfloat16: torch.uint16}
"""The dtypes that NumPy lacks, with those whose arrays hold their bits."""
_LONG_ROW = 8 << 10
"""Bytes: above this, padding goes row by row; below, the calls for each row would take longer than the bytes."""


def length_name(name: str) -> str:
    """Return the name of the column of a batch that holds the lengths of a padded field."""
    return f"{name}_length"


def offsets_name(name: str) -> str:
    """Return the name of the column of a batch that says where the values of a ragged field begin and end."""
    return f"{name}_offsets"


def missing_name(name: str) -> str:
    """Return the name of the column of a batch that says which values of a field FillMissing filled."""
    return f"{name}_missing"


def kept_name(name: str) -> str:
    """Return the name of the column of a batch that says which of the stored boxes it has."""
    return f"{name}_kept"


def offset_name(name: str) -> str:
    """Return the name of the column of a batch that says where the crops of a field begin in its stored values."""
    return f"{name}_offset"


def geometry_names(name: str) -> tuple[str, str, str]:
    """Return the names of an image's columns of geometry: maps, stored sizes and delivered sizes."""
    return f"{name}_geometry", f"{name}_stored_size", f"{name}_delivered_size"


def clip_names(name: str) -> dict[str, str]:
    """Return the names of the columns of a clip: when its frames are shown, and which are within the video."""
    return {"time": f"{name}_time", "valid": f"{name}_valid"}


def added_name(name: str, collation: Collation) -> str:
    """Return the name of the column that joining a field adds to a batch."""
    return length_name(name) if isinstance(collation, PadTo) else offsets_name(name)


def padding(value: float, dtype: torch.dtype) -> Any:
    """Return a number as an array of this dtype holds it: for bfloat16 its bits."""
    return as_array(torch.full((1,), value, dtype=dtype))[0]


def as_array(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a tensor's values as an array, which shares its memory."""
    found: NDArray[Any] = tensor.detach().view(_BITS.get(tensor.dtype, tensor.dtype)).numpy()
    return found


def unpadded(rule: Collation) -> Collation:
    """Return the rule for the column that says which of the values were filled: none of what padding adds."""
    return replace(rule, value=False) if isinstance(rule, PadTo) else rule


def joined(
    name: str,
    values: Sequence[NDArray[Any]],
    collation: Collation,
    as_tensor: Callable[[NDArray[Any]], torch.Tensor],
    added: str | None = None,
) -> dict[str, Any]:
    """Join a field's values, each `[n, ...]`, to its tensor and the column that this adds. There is at least one value.

    `as_tensor` returns the tensor that an array's memory stands for. `added` names the column, if not as
    usual.
    """
    lengths = np.array([len(value) for value in values], np.int64)
    if isinstance(collation, PadTo):
        length = collation.padded_length or collation.padded(int(lengths.max()))
        out = allocation.empty((len(values), length, *values[0].shape[1:]), values[0].dtype)
        pad(values, lengths, collation, padding(collation.value, as_tensor(out[:0]).dtype), out)
        return {name: as_tensor(out), added or length_name(name): torch.from_numpy(lengths)}
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return {
        name: as_tensor(_end_to_end(values, int(offsets[-1]))),
        added or offsets_name(name): torch.from_numpy(offsets),
    }


def boundaries(lengths: Sequence[NDArray[np.int32]]) -> torch.Tensor:
    """Return the bounds of the segments of concatenated rows, int32 [segments + 1].

    Raises ConfigError if int32, which attention kernels take, does not hold that.
    """
    ends = np.concatenate([[0], *lengths]).cumsum(dtype=np.int64)
    if ends[-1] > np.iinfo(np.int32).max:
        raise ConfigError("cu_seqlens counts up to 2^31 - 1, and a batch has {}; take a smaller {batch_size}", ends[-1])
    return torch.from_numpy(ends.astype(np.int32))


def cut(value: NDArray[Any], rule: PadTo) -> NDArray[Any] | None:
    """Return a value, `[n, ...]`, of at most the rule's length; None if it is longer, and is not to be cut."""
    if rule.length is None or len(value) <= rule.length:
        return value
    if rule.cut is None:
        return None
    return value[: rule.length] if rule.cut == "end" else value[len(value) - rule.length :]


def pad(values: Sequence[NDArray[Any]], lengths: NDArray[np.int64], rule: PadTo, fill: Any, out: NDArray[Any]) -> None:
    """Write each value, `[lengths[i], ...]`, to its row of `out`, C-contiguous `[k, L, ...]`, and fill the rest."""
    begins = out.shape[1] - lengths if rule.side == "left" else np.zeros_like(lengths)
    ends = begins + lengths
    if out[:1].nbytes > _LONG_ROW:
        for row, value, begin, end in zip(out, values, begins.tolist(), ends.tolist(), strict=True):
            row[:begin], row[begin:end], row[end:] = fill, value, fill
    elif out.size:
        places = np.arange(out.shape[1])
        real = (begins[:, None] <= places) & (places < ends[:, None])
        count, width = int(lengths.sum()), out[0, 0].size
        entry = np.dtype((np.void, width * out.itemsize))  # entries of several numbers are copied as blocks of bytes
        entries = out.reshape(*out.shape[:2], width).view(entry)[..., 0]
        entries[real] = _end_to_end(values, count).reshape(count, width).view(entry)[:, 0]
        entries[~real] = np.full(width, fill, out.dtype).view(entry)


def nested(batch: dict[str, Any], names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return a batch with nested tensors for the fields whose offsets it has.

    `names` are all columns, by the field whose offsets they share.
    """
    for name, columns in names.items():
        if name in batch and offsets_name(name) in batch:
            offsets = batch.pop(offsets_name(name))
            for column in (each for each in columns if each in batch):
                batch[column] = torch.nested.nested_tensor_from_jagged(batch[column], offsets)
    return batch


def nested_names(collations: Mapping[str, Collation]) -> tuple[str, ...]:
    """Return the names of the fields that are delivered as nested tensors."""
    return tuple(name for name, rule in collations.items() if isinstance(rule, Ragged) and rule.nested)


def _end_to_end(values: Sequence[NDArray[Any]], count: int) -> NDArray[Any]:
    """Return the `count` entries of all values: a view if they are end to end in one memory, else a copy."""
    memory, first, last = values[0].base, values[0], values[-1]
    if isinstance(memory, np.ndarray) and memory.flags.c_contiguous and all(each.base is memory for each in values):
        start, stop = first.ctypes.data - memory.ctypes.data, last.ctypes.data + last.nbytes - memory.ctypes.data
        # Each follows the one before it, so there are gaps unless their bytes fill the span.
        if stop - start == count * first.itemsize * math.prod(first.shape[1:]):
            found: NDArray[Any] = memory.reshape(-1).view(np.uint8)[start:stop].view(first.dtype)
            return found.reshape(count, *first.shape[1:])
    return np.concatenate(values)
