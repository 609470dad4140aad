"""The `dataset` argument of Loader and TorchDataset, and what to use for data in the forms that PyTorch users have."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch.utils.data import ConcatDataset, DataLoader, Subset

from ..dataset.dataset import open as open_dataset
from ..dataset.readable import ReadableDataset
from ..dataset.store_access import StoreAccess
from ..errors import ConfigError
from ..format.manifest import FILE_NAME
from ..system import did_you_mean


def readable(dataset: ReadableDataset | str | os.PathLike[str], access: StoreAccess) -> ReadableDataset:
    """Open a path or URL; return a dataset or a mixture unchanged.

    Raises ConfigError for anything else, which says what to use for it, and whatever `shardio.open` raises.
    """
    access.check_needed(dataset)
    if isinstance(dataset, (str, os.PathLike)):
        return open_dataset(dataset, **access.keywords_for(dataset))
    if not _is_readable(dataset):
        given = repr(dataset) if dataset is None or isinstance(dataset, (int, float)) else type(dataset).__name__
        advice = _advice(dataset)
        raise ConfigError(f"dataset must be a path, a Dataset or a Mixture, got {given}{advice and f': {advice}'}")
    return dataset


def _is_readable(dataset: Any) -> bool:
    return hasattr(dataset, "sample_ids")


def _advice(dataset: Any) -> str:
    """Say what to do with an object that is no dataset of shardio; "" for one that holds no samples."""
    if isinstance(dataset, DataLoader):
        return "a Loader takes the place of a DataLoader, so give it the DataLoader's dataset"
    if isinstance(dataset, Subset) and _is_readable(getattr(dataset.dataset, "dataset", dataset.dataset)):
        return (
            "shardio.convert(PATH, OUT, numbers=subset.indices) writes the chosen samples of a dataset as one of their "
            "own; or read them with a TorchDataset and torch's SubsetRandomSampler(subset.indices)"
        )
    if _are_paths(dataset) and (advice := did_you_mean.for_paths(dataset, FILE_NAME)):
        return advice
    if _are_datasets(dataset.datasets if isinstance(dataset, ConcatDataset) else dataset):
        return "shardio.mix({'a': ..., 'b': ...}) makes one dataset of several"
    if _is_readable(getattr(dataset, "dataset", None)):  # a Loader, a TorchDataset
        return f"give the dataset that the {type(dataset).__name__} reads, its attribute `dataset`"
    if isinstance(dataset, Sequence) and dataset and isinstance(dataset[0], Mapping):
        return "shardio.from_samples(samples) makes a dataset of a list of dicts"
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and not isinstance(dataset, Mapping):
        return (
            "shardio.convert(samples, OUT, converter='torch') writes any object with a length and samples by number, "
            "such as a Dataset of PyTorch, to files that a Loader reads; or leave it to torch's DataLoader"
        )
    if isinstance(dataset, Iterable) and not isinstance(dataset, Mapping):
        return (
            "shardio.create(OUT) writes dicts that come one by one to files, and shardio.from_samples(samples) keeps "
            "a few of them in memory"
        )
    return ""


def _are_paths(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, (str, os.PathLike)) for value in values)


def _are_datasets(values: Any) -> bool:
    """Whether `values` is a list of datasets or paths, or a dict of them."""
    if not isinstance(values, list | tuple | Mapping):
        return False
    kinds = [
        isinstance(value, (str, os.PathLike)) or _is_readable(value)
        for value in (values.values() if isinstance(values, Mapping) else values)
    ]
    return bool(kinds) and all(kinds)
