"""Checks of the arguments of a loader, and of where it runs; what to use for data in the forms of PyTorch."""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, ParamSpec, get_args

import torch
from torch.utils.data import DataLoader, get_worker_info

from ..dataset.opening import as_dataset
from ..dataset.store_access import StoreAccess
from ..errors import ConfigError
from ..format.manifest import FILE_NAME
from ..order.world import World, rank_in_torch_distributed
from ..system.did_you_mean import did_you_mean, for_paths
from ..views.readable import ReadableDataset
from .batch.as_numpy import To

_P = ParamSpec("_P")


def refuses_foreign_keywords(function: Callable[_P, None]) -> Callable[_P, None]:
    """Have `function` raise ConfigError for a keyword that is misspelled, or that of another library's loader.

    The error says what to use instead. For decoration.
    """
    known = inspect.signature(function).parameters

    @wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> None:
        for word in kwargs:
            if word in known:
                continue
            if advice := did_you_mean(word, "argument of Loader"):
                raise ConfigError(f"a Loader has no {word}: {advice}")
            if near := did_you_mean(word, "argument of Loader", known):
                raise ConfigError(f"a Loader has no {word}: did you mean {near}?")
        function(*args, **kwargs)

    return checked


def torch_device(device: torch.device | str | None, to: To) -> torch.device:
    """Return the device for batches of tensors or arrays; the host for None.

    Raises ConfigError if torch does not know the device, or finds no GPU, and for arrays on another one than the host.
    """
    if to not in get_args(To):
        raise ConfigError("to must be 'torch' or 'numpy', got {!r}", to)
    try:
        chosen = torch.device("cpu" if device is None else device)
    except RuntimeError as error:
        raise ConfigError("{device}: {}", str(error).splitlines()[0]) from error
    if to == "numpy" and chosen.type != "cpu":
        raise ConfigError(
            "to='numpy' delivers arrays in host memory: leave out {device}, which is {!r}, and let the framework that "
            "takes the arrays move them",
            str(chosen),
        )
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("{device} is {!r}, but torch finds no GPU", str(chosen))
    if chosen.type == "cuda" and chosen.index is None:  # engines must use the GPU that torch uses
        return torch.device("cuda", torch.cuda.current_device())
    return chosen


def rank_and_size(world: World | None) -> World:
    """Return `world`, or what `World.detect()` finds for None; raise ConfigError for anything else."""
    if world is None:
        return World.detect()
    if not isinstance(world, World):
        how = f", as in shardio.World{world}" if isinstance(world, tuple) and 1 < len(world) <= 4 else ""
        raise ConfigError(f"world must be a shardio.World(rank, size){how}, got {world!r}")
    return world


def check_world_is_current(world: World) -> None:
    """Raise ConfigError if torch.distributed was initialised after `world` was detected, and differs from it."""
    now = rank_in_torch_distributed()
    if now is not None and now != (world.rank, world.size):
        raise ConfigError(
            f"the Loader was made as rank {world.rank} of {world.size}, but torch.distributed now has "
            f"{now[1]} ranks, and this is rank {now[0]}: make the Loader after torch.distributed is initialised "
            "(for Lightning, inside train_dataloader), or give it world=shardio.World(rank, size)"
        )


def check_not_in_a_dataloader() -> None:
    """Raise ConfigError in a worker of torch's DataLoader, where every worker would deliver all samples."""
    if get_worker_info() is not None:
        raise ConfigError(
            "a Loader cannot run in a worker of torch's DataLoader: every worker would deliver all samples, in the "
            "same order in each epoch. Loop over the Loader itself, which has workers of its own (threads=), or give "
            "the DataLoader num_workers=0 and batch_size=None; a DataLoader with workers can read shardio.TorchDataset"
        )


def readable(dataset: ReadableDataset | str | os.PathLike[str], **options: Any) -> ReadableDataset:
    """Open a path or URL with the options of `shardio.open`; return a dataset or a mixture unchanged.

    Raises ConfigError for anything else, which says what to use for it, and whatever `shardio.open` raises.
    """
    found = as_dataset(dataset, StoreAccess.of(dataset, **options))
    if not isinstance(found, ReadableDataset):
        given = repr(dataset) if dataset is None or isinstance(dataset, (int, float)) else type(dataset).__name__
        advice = _advice(dataset)
        raise ConfigError(f"dataset must be a path, a dataset or a view, got {given}{advice and f': {advice}'}")
    return found


def _advice(dataset: Any) -> str:
    """Say what to do with an object that is no dataset of shardio; "" for one that holds no samples."""
    if isinstance(dataset, DataLoader):
        return "a Loader takes the place of a DataLoader, so give it the DataLoader's dataset"
    if isinstance(dataset, list | tuple | Mapping):
        parts = list(dataset.values() if isinstance(dataset, Mapping) else dataset)
        are_paths = all(isinstance(part, str | os.PathLike) for part in parts)
        if are_paths and (advice := for_paths(parts, FILE_NAME)):
            return advice
        if parts and all(isinstance(part, str | os.PathLike | ReadableDataset) for part in parts):
            return "shardio.mix({'a': ..., 'b': ...}) makes one dataset of several"
    if isinstance(getattr(dataset, "dataset", None), ReadableDataset):  # a Loader, a TorchDataset
        return f"give the dataset that the {type(dataset).__name__} reads, its attribute `dataset`"
    if hasattr(dataset, "__getitem__") or isinstance(dataset, Iterable):
        return (
            "shardio.convert(samples, OUT, converter='torch') writes any object with a length and samples by number, "
            "such as a Dataset of PyTorch, to files that a Loader reads; shardio.create(OUT) writes dicts that come "
            "one by one, and shardio.from_samples(samples) keeps a few of them in memory"
        )
    return ""
