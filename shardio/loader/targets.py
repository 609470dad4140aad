"""Batches of boxes as the lists of dicts that detectors take."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..errors import ConfigError
from .batch.collate import length_name, offsets_name

INSTANCES = ("boxes", "labels", "area", "iscrowd", "keypoints")
"""The names of torchvision's targets."""


def to_torchvision(
    batch: Mapping[str, Any], *, instances: Sequence[str] | Mapping[str, str] = INSTANCES
) -> list[dict[str, torch.Tensor]]:
    """Return the targets of a batch, a dict per image, as torchvision's detection models take them.

    Tensors are views of the batch, on its device. A dict has the instances' values, such as `boxes`, float32 [n, 4],
    and `labels`, int64 [n], and `image_id`, the sample's index.

    Args:
        batch: a Loader's batch, of tensors or NumPy arrays, with boxes as Ragged, PadTo or neither delivers them.
        instances: the fields per instance; those that the batch lacks are left out. A dict {name in the targets: field}
            renames them.

    Raises:
        ConfigError: if the batch has none of them, or `instances` lacks the one that `NAME_offsets` or `NAME_length`
            counts for all.

    Example:
        >>> losses = model(list(batch["image"]), shardio.to_torchvision(batch))
    """
    names = dict(instances) if isinstance(instances, Mapping) else {name: name for name in instances}
    names = {name: field for name, field in names.items() if field in batch}
    if not names:
        raise ConfigError("to_torchvision: the batch has none of the fields {}", ", ".join(map(repr, instances)))
    targets: list[dict[str, torch.Tensor]] = [{"image_id": index} for index in _tensor(batch["index"])]
    by_field = by_sample(batch, names.values())
    for name, field in names.items():
        for target, values in zip(targets, by_field[field], strict=True):
            target[name] = values
    return targets


def by_sample(batch: Mapping[str, Any], group: Iterable[str]) -> dict[str, Sequence[torch.Tensor]]:
    """Return the values of a batch's fields that share an instance axis, each as a tensor per sample."""
    fields = [*group]
    counted = next((field for field in fields if {offsets_name(field), length_name(field)} & batch.keys()), "")
    return {field: _values(batch, field, counted) for field in fields}


def _values(batch: Mapping[str, Any], field: str, counted: str) -> Sequence[torch.Tensor]:
    """Return a field's values of each sample; `counted` is the field whose column counts them if it has none."""
    values = _tensor(batch[field])
    if {offsets_name(field), length_name(field)} & batch.keys():
        counted = field
    if not isinstance(values, torch.Tensor):
        return [_tensor(value) for value in values]
    if values.is_nested:
        return torch.unbind(values)
    if (offsets := batch.get(offsets_name(counted))) is not None:
        return torch.split(values, _tensor(offsets).diff().tolist())
    if (lengths := batch.get(length_name(counted))) is not None:
        return [row[:length] for row, length in zip(values, lengths.tolist(), strict=True)]
    told = f"to_torchvision: no column {field}_offsets or {field}_length counts {field!r}"
    raise ConfigError(f"{told}: instances= must also have the field of its group that one counts, such as 'boxes'")


def _tensor(values: Any) -> Any:
    return torch.from_numpy(values) if isinstance(values, np.ndarray) else values
