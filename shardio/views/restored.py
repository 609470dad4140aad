"""Views made from their descriptions (`views/saved.py`): each kind of description, and the view it stands for."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from ..errors import ConfigError, ManifestError
from .choice import Choice, Count, Part, Select, Slice, Where
from .classes import Classes
from .clip_starts import ClipStarts
from .concat import Concat
from .join import Join
from .mixture import Mixture
from .readable import ReadableDataset
from .row_choice import Cut, Packed
from .saved import DatasetNode, SavedView
from .view import BaseDataset, Clips, Joined, SequenceRows, View, Weighted, Windows
from .weighing import Balance, Weights
from .window_starts import Starts

_Kind: TypeAlias = tuple[type[Choice], Callable[..., BaseDataset]]
_KINDS: Mapping[str, _Kind] = {
    "slice": (Slice, View),
    "select": (Select, View),
    "where": (Where, View),
    "split": (Part, View),
    "weighted": (Weights, Weighted),
    "balanced": (Balance, Weighted),
    "join": (Join, Joined),
    "windows": (Starts, Windows),
    "clips": (ClipStarts, Clips),
    "cut": (Cut, SequenceRows),
    "packed": (Packed, SequenceRows),
}
"""The kinds of choices, by the first key of their descriptions, and the views that they make."""


class _Sources(msgspec.Struct, forbid_unknown_fields=True):
    """Entries of a description of several datasets besides the datasets."""

    classes: Classes | None


class _Mixed(_Sources):
    weights: dict[str, int] | list[tuple[int, dict[str, int]]]
    samples: Count


def restored(saved: SavedView, opened: Mapping[str, BaseDataset]) -> BaseDataset:
    """Return the view that was saved.

    Args:
        saved: the view.
        opened: the datasets that it is of, by their names in `saved.datasets`.

    Raises ManifestError for another dataset than the view was saved of, also if that has only grown; and for a
    description that makes no view, or another one than its file says.
    """
    for name, node in saved.datasets.items():
        _check(saved, name, node, opened[name])
    try:
        view = _made(saved, saved.node, iter([opened[name] for name in saved.datasets]))
    except (ConfigError, ManifestError, msgspec.ValidationError, IndexError, OverflowError) as error:
        raise ManifestError(f"{saved.path}: {error}") from error
    if (view.digest, len(view)) != (saved.digest, saved.samples):
        raise ManifestError(
            f"{saved.path}: it describes a view of {len(view)} samples with digest {view.digest}, not of "
            f"{saved.samples} with {saved.digest}, as it says: names of classes count, too"
        )
    return view


def _made(saved: SavedView, node: Mapping[str, Any], opened: Iterator[BaseDataset]) -> BaseDataset:
    """Return the view of a node, which takes its datasets in the order in which `saved` has found them."""
    if "dataset" in node:
        return next(opened)
    if "of" not in node:
        key = "concat" if "concat" in node else "mix"
        sources = {source: _made(saved, inner, opened) for source, inner in node[key].items()}
        rest = {name: value for name, value in node.items() if name != key}
        if key == "concat":
            return Concat(sources, msgspec.convert(rest, _Sources).classes)
        mixed = msgspec.convert(rest, _Mixed)
        return Mixture(sources, mixed.weights, mixed.samples, mixed.classes)
    key = next(iter(node))
    if key not in _KINDS:
        raise ManifestError(f"{key!r} is no choice that this release of shardio knows")
    parts = ("of", "with") if key == "join" else ("of",)
    below = [_made(saved, node[part], opened) for part in parts]
    if any(dataset.orders_itself for dataset in below):
        raise ManifestError(f"{key!r} chooses from stored samples, not from what draws them by weight")
    choice, view = _KINDS[key]
    rest = {name: value for name, value in node.items() if name not in parts}
    return view(*below, choice.restored(rest, below[0], saved.array))


def _check(saved: SavedView, name: str, node: DatasetNode, dataset: ReadableDataset) -> None:
    if dataset.digest == node.digest:
        return
    which = f"the source {name!r} of this view" if name else "the dataset of this view"
    now = f"{dataset.path} has {len(dataset)} samples with digest {dataset.digest}"
    then = f"the view was saved of {node.samples} with {node.digest}"
    grown = " (it has grown since)" if node.digest in dataset.earlier else ""
    raise ManifestError(
        "{}: {} has changed, or is another one: {}, and {}{}; make the view anew and save that, or give the dataset as "
        "it was with {of:...}", saved.path, which, now, then, grown,
    )  # fmt: skip
