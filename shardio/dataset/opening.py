"""Datasets and views opened: one at a path or URL, and several joined or mixed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping

from ..errors import ConfigError, StateWarning
from ..order.interleave import Stages, Weights, rounded_shares, whole_stages
from ..views.classes import Classes
from ..views.concat import Concat
from ..views.mixture import Mixture
from ..views.readable import ReadableDataset
from ..views.view import BaseDataset
from .dataset import open as open_dataset
from .store_access import StoreAccess


def concat(
    sources: Mapping[str, ReadableDataset | str | os.PathLike[str]],
    *,
    classes: Classes | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = None,
    store_options: Mapping[str, str] | None = None,
) -> Concat:
    """Join several datasets: a view that holds every sample of all sources once, in their order.

    Args:
        sources: datasets and views, or paths and URLs, by name. They must have at least one field in common; the view
            leaves out the fields that a source lacks.
        classes: see `mix`.
        cache, cache_size, store_options: for sources given as URLs, see `shardio.open`.

    Raises what `mix` raises.
    """
    return Concat(_opened(sources, StoreAccess(cache, cache_size, store_options)), classes)


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
        classes: what labels mean where sources name different classes; None refuses such sources. `"union"` numbers
            classes by name: those of the first source keep their numbers, and classes that it lacks follow. `"ignore"`
            takes labels as they are, whatever their names.
        cache, cache_size, store_options: for sources given as URLs, see `shardio.open`.

    Raises ConfigError for weights that do not fit the sources, no field in common, a field that sources have in
    different kinds, dtypes or shapes; for different classes, with the first that differs; and whatever `shardio.open`
    raises. Warns (StateWarning) of a source whose share of the turns, which are whole numbers, is more than a quarter
    off the one that its weight asks for.
    """
    opened = _opened(sources, StoreAccess(cache, cache_size, store_options))
    if weights is None:
        if samples is not None:
            raise ConfigError("samples= needs weights=: without weights an epoch holds every sample once")
        return Concat(opened, classes)
    mixture = Mixture(opened, weights, samples, classes)
    for (_, asked), (_, given) in zip(whole_stages(weights, mixture.sources), mixture.stages, strict=True):
        for told in rounded_shares(asked, given):
            warnings.warn(told, StateWarning, stacklevel=2)
    return mixture


def _opened(
    sources: Mapping[str, ReadableDataset | str | os.PathLike[str]], access: StoreAccess
) -> dict[str, ReadableDataset]:
    if not isinstance(sources, Mapping):
        raise ConfigError(
            "sources must be a dict of datasets or paths by name, as in {'a': ..., 'b': ...}, got "
            f"{type(sources).__name__}"
        )
    for name, source in sources.items():
        if not isinstance(source, (BaseDataset, str, os.PathLike)):
            raise ConfigError(f"source {name!r} must be a path or a dataset, got {source!r}")
    access.check_needed(*sources.values())
    return {
        name: open_dataset(source, **access.keywords_for(source)) if isinstance(source, (str, os.PathLike)) else source
        for name, source in sources.items()
    }
