"""Datasets and views opened: one at a path or URL, a saved view, and several concatenated or mixed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from ..errors import ConfigError, Option, StateWarning
from ..order.mixed_plan import Stages, Weights, rounded_shares, whole_stages
from ..stores.url import as_url
from ..views.classes import Classes
from ..views.concat import Concat
from ..views.mixture import Mixture
from ..views.readable import ReadableDataset
from ..views.restored import restored
from ..views.saved import SavedView, holds_view, load
from ..views.view import BaseDataset
from .dataset import Dataset
from .dataset import open as open_dataset
from .store_access import DEFAULTS, StoreAccess
from .tables import is_table, table

Place: TypeAlias = BaseDataset | str | os.PathLike[str]
"""A dataset or a view, or its path or URL."""
_D = TypeVar("_D", bound=ReadableDataset)


def open(
    path: str | os.PathLike[str],
    *,
    of: Place | Mapping[str, Place] | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = None,
    store_options: Mapping[str, str] | None = None,
) -> BaseDataset:
    """Open the dataset at `path`: a directory, or the `shardio.json` in it; or a URL, such as `s3://bucket/photos`.

    Or open a view that `save` has kept in a file, such as `views/rare.json`.

    Args:
        path: the dataset, or the file of a view.
        of: for a view: the dataset that it is of, or its path or URL; for a view of several ones, a dict of these by
            their names as sources (`a/b` for the source `b` of the source `a`). Of a join, these are `"base"` and
            the names of the joined fields; tables must be given. None takes the datasets below the folder of the file.
        cache: the folder that keeps what was fetched, for all processes of this node and for later runs. None takes for
            a URL `$SHARDIO_CACHE`, or else `shardio` in the user's cache directory, and for a path no cache: name a
            folder on a fast disk if the path is on a slow file system. Where others may write to the folder, the cache
            is `shardio-UID` in it.
        cache_size: the most bytes that the folder holds: a number, or text such as `"200GB"`. None takes half of what
            the disk has free.
        store_options: for a URL: options of its store, such as `{"endpoint": "http://10.0.0.1:9000"}`. The
            environment's usual variables give the rest, see docs/remote.md.

    Returns:
        A `Dataset`, or for a file of a view, the view.

    Raises NotADataset if there is no manifest, ManifestError if it cannot be trusted, or if a view's datasets are not
    what it was saved of; ConfigError for a view whose datasets must be given; for a URL or with a cache, StoreError and
    CacheError as well.
    """
    view, places = _places(path, of)
    access = StoreAccess.of(*places.values(), cache=cache, cache_size=cache_size, store_options=store_options)
    return _opened(view, places, access)


def as_dataset(
    place: _D | str | os.PathLike[str], access: StoreAccess, of: Place | Mapping[str, Place] | None = None
) -> _D | BaseDataset:
    """Return a dataset or a view; of a path or a URL, open it. Raises what `shardio.open` raises."""
    return _opened(*_places(place, of), access) if isinstance(place, (str, os.PathLike)) else place


def as_other(given: Any, access: StoreAccess = DEFAULTS) -> BaseDataset:
    """Return what is to be joined, as `BaseDataset.join` takes it: a dataset, or what is at a path, or a table."""
    if isinstance(given, Mapping) or is_table(given):
        return table(given)
    if isinstance(given, BaseDataset | str | os.PathLike):
        return as_dataset(given, access)
    raise ConfigError(
        f"join takes a dataset, a path, or arrays by name, as in {{'score': ...}}, got {type(given).__name__}"
    )


def _places(
    path: str | os.PathLike[str], of: Place | Mapping[str, Place] | None
) -> tuple[SavedView | None, Mapping[str, Place]]:
    """Return the view that is kept at a path and its datasets by name; of the path of a dataset, None and the path."""
    if as_url(path) is not None or not holds_view(path):
        if of is not None:
            raise ConfigError("{} goes with the file of a view, got {!r}", Option("of"), os.fspath(path))
        return None, {"": path}
    saved = load(path)
    names = [*saved.datasets]
    given: Mapping[str, Place] = {}
    if isinstance(of, Mapping):
        if names == [""]:
            raise ConfigError("{of} must be one dataset, as {} is of one, got several by name", saved.path)
        if unknown := of.keys() - names:
            raise ConfigError(
                "{of} must name sources of {} ({}), got {}", saved.path, ", ".join(names), ", ".join(sorted(unknown))
            )
        given = of
    elif of is not None:
        if len({node.digest for node in saved.datasets.values()}) > 1:
            raise ConfigError("{of} must give datasets by name, for {} is of {}", saved.path, ", ".join(names))
        given = dict.fromkeys(names, of)
    return saved, {name: given[name] if name in given else saved.place_of(name) for name in names}


def _opened(view: SavedView | None, places: Mapping[str, Place], access: StoreAccess) -> BaseDataset:
    paths = dict.fromkeys(os.fspath(place) for place in places.values() if not isinstance(place, BaseDataset))
    opened = {
        path: table(path) if view is not None and is_table(path) else open_dataset(path, access) for path in paths
    }
    found = {name: at if isinstance(at, BaseDataset) else opened[os.fspath(at)] for name, at in places.items()}
    return found[""] if view is None else restored(view, found)


def concat(
    sources: Mapping[str, ReadableDataset | str | os.PathLike[str]],
    *,
    classes: Classes | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = None,
    store_options: Mapping[str, str] | None = None,
) -> Concat:
    """Concatenate several datasets: a view that holds every sample of all sources once, in their order.

    Args:
        sources: datasets and views, or paths and URLs, by name. They must have at least one field in common; the view
            leaves out the fields that a source lacks.
        classes: see `mix`.
        cache, cache_size, store_options: for sources given as paths or URLs, see `shardio.open`.

    Raises what `mix` raises.
    """
    return Concat(_sources(sources, cache=cache, cache_size=cache_size, store_options=store_options), classes)


def mix(
    sources: Mapping[str, ReadableDataset | str | os.PathLike[str]],
    weights: Weights | Stages | None = None,
    *,
    samples: int | None = None,
    classes: Classes | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = None,
    store_options: Mapping[str, str] | None = None,
) -> Concat:
    """Combine several datasets into one, for `shardio.Loader`.

    Each source goes through shuffled epochs of its own: a small source with a large weight starts over before the
    others have ended, and a large source continues in the next epoch where it stopped.

    Args:
        sources: datasets, views and mixtures, or paths and URLs, by name. They must have at least one field in common;
            the mixture leaves out the fields that a source lacks.
        weights: the proportions in which to draw from the sources; 0 leaves one out. A list of stages,
            `[(0, {...}), (1_000_000, {...})]`, changes them once so many samples have been taken since epoch 0, with
            the next window; each source goes on where it stood. None takes every sample of all sources once, as
            `concat` does.
        samples: samples per epoch, with `weights`; None takes as many as all sources have together.
        classes: what labels mean where sources name different classes; None raises ConfigError. `"union"` numbers
            classes by name: those of the first source keep their numbers, and classes that it lacks follow. `"ignore"`
            takes labels as they are, whatever their names.
        cache, cache_size, store_options: for sources given as paths or URLs, see `shardio.open`.

    Raises ConfigError for weights that do not fit the sources, no field in common, a field that sources have in
    different kinds, dtypes or shapes; for different classes, with the first that differs; and whatever `shardio.open`
    raises. Warns (StateWarning) of a source whose share of the turns, which are integers, is more than a quarter
    off the one that its weight asks for.
    """
    opened = _sources(sources, cache=cache, cache_size=cache_size, store_options=store_options)
    if weights is None:
        if samples is not None:
            raise ConfigError("samples= needs weights=: without weights an epoch holds every sample once")
        return Concat(opened, classes)
    mixture = Mixture(opened, weights, samples, classes)
    for (_, asked), (_, given) in zip(whole_stages(weights, mixture.sources), mixture.stages, strict=True):
        for told in rounded_shares(asked, given):
            warnings.warn(told, StateWarning, stacklevel=2)
    return mixture


def _sources(
    sources: Mapping[str, ReadableDataset | str | os.PathLike[str]], **options: Any
) -> dict[str, ReadableDataset]:
    if not isinstance(sources, Mapping):
        raise ConfigError(
            "sources must be a dict of datasets or paths by name, as in {'a': ..., 'b': ...}, got "
            f"{type(sources).__name__}"
        )
    for name, source in sources.items():
        if not isinstance(name, str):
            raise ConfigError(f"the name of a source must be text, got {name!r}")
        if not isinstance(source, (BaseDataset, str, os.PathLike)):
            raise ConfigError(f"source {name!r} must be a path or a dataset, got {source!r}")
    access = StoreAccess.of(*sources.values(), **options)
    return {name: as_dataset(source, access) for name, source in sources.items()}


def at_bottom(dataset: ReadableDataset) -> Iterator[Dataset]:
    """Yield the stored datasets that a dataset or a view reads, in the order of its sources."""
    if isinstance(dataset, Dataset):
        yield dataset
    for below in dataset.below:
        yield from at_bottom(below)
