"""Views made again of their descriptions (`views/saved.py`): each kind of description, and what it stands for."""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol, TypeAlias

import msgspec

from ..errors import ConfigError, ManifestError
from ..format.file_table import Table, parts
from .choice import Part, Select, Slice, Where
from .classes import Classes
from .concat import Concat
from .mixture import Mixture
from .readable import ReadableDataset
from .saved import DatasetNode, SavedView
from .sequence_rows import RowChoice
from .split import parse_split
from .view import BaseDataset, SequenceRows, View, Weighted, Windows
from .weighing import Balance, Weights
from .windows import Starts

_Arrays: TypeAlias = Callable[[str, str, int], Table]
"""Returns an array by its checksum, dtype and length; see `SavedView.array`."""
_Bound: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)] | None
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]
_Number: TypeAlias = int | float  # float alone lets SystemError through with msgspec before 0.22, for 10**400


class _Node(msgspec.Struct, forbid_unknown_fields=True):
    """What a description says beside `of`."""


class _Slice(_Node):
    slice: tuple[_Bound, _Bound, _Bound]

    def of(self, base: ReadableDataset, arrays: _Arrays) -> BaseDataset:
        return View(base, Slice(*self.slice))


class _Select(_Node):
    select: str
    count: _Count

    def of(self, base: ReadableDataset, arrays: _Arrays) -> BaseDataset:
        numbers = arrays(self.select, "<i8", self.count)
        if any(part.min() < 0 or part.max() >= len(base) for part in parts(numbers)):
            raise ManifestError(f"select must have numbers in [0, {len(base)})")
        return View(base, Select(numbers))


class _Where(_Node):
    where: str

    def of(self, base: ReadableDataset, arrays: _Arrays) -> BaseDataset:
        return View(base, Where(self.where))


class _Part(_Node):
    split: dict[str, _Number]
    part: str
    by: str | None
    group: str | None
    seed: int

    def of(self, base: ReadableDataset, arrays: _Arrays) -> BaseDataset:
        if self.part not in (shares := parse_split(self.split)):
            raise ManifestError(f"part must be one of {', '.join(shares)}, got {self.part!r}")
        return View(base, Part(shares, self.part, self.by, self.group, self.seed))


class _Weights(_Node):
    weighted: str | tuple[str, str]
    samples: _Count | None
    replacement: bool

    def of(self, base: ReadableDataset, arrays: _Arrays) -> BaseDataset:
        field = self.weighted if isinstance(self.weighted, str) else None
        given = None if isinstance(self.weighted, str) else arrays(*self.weighted, len(base))
        return Weighted(base, Weights(field, given, self.samples, self.replacement))


class _Balance(_Node):
    balanced: str
    samples: _Count | None
    replacement: bool

    def of(self, base: ReadableDataset, arrays: _Arrays) -> BaseDataset:
        return Weighted(base, Balance(self.balanced, self.samples, self.replacement))


class _Windows(_Node):
    windows: tuple[_Count, _Count, _Count]
    within: str
    contiguous: tuple[str, _Number] | None

    def of(self, base: ReadableDataset, arrays: _Arrays) -> BaseDataset:
        contiguous = None if self.contiguous is None else (self.contiguous[0], float(self.contiguous[1]))
        if contiguous is not None and not math.isfinite(contiguous[1]):
            raise ManifestError(f"contiguous must have a finite step, got {contiguous[1]}")
        return Windows(base, Starts(*self.windows, self.within, contiguous))


class _Cut(_Node):
    cut: str
    length: _Count
    positions: bool
    documents: bool
    cu_seqlens: bool

    def of(self, base: ReadableDataset, arrays: _Arrays) -> BaseDataset:
        columns = (self.positions, self.documents, self.cu_seqlens)
        return SequenceRows(base, RowChoice(self.cut, self.length, False, 0, *columns))


class _Packed(_Node):
    packed: str
    value: _Number
    length: _Count
    positions: bool
    documents: bool
    cu_seqlens: bool

    def of(self, base: ReadableDataset, arrays: _Arrays) -> BaseDataset:
        columns = (self.positions, self.documents, self.cu_seqlens)
        return SequenceRows(base, RowChoice(self.packed, self.length, True, self.value, *columns))


class _Concat(_Node):
    concat: dict[str, Any]
    classes: Classes | None

    def joined(self, sources: Mapping[str, ReadableDataset]) -> BaseDataset:
        return Concat(sources, self.classes)


class _Mixture(_Node):
    mix: dict[str, Any]
    weights: dict[str, int] | list[tuple[int, dict[str, int]]]
    samples: _Count
    classes: Classes | None

    def joined(self, sources: Mapping[str, ReadableDataset]) -> BaseDataset:
        return Mixture(sources, self.weights, self.samples, self.classes)


class _Choice(Protocol):
    def of(self, base: ReadableDataset, arrays: _Arrays) -> BaseDataset:
        """Return the view that this choice makes of a dataset."""


class _Joined(Protocol):
    def joined(self, sources: Mapping[str, ReadableDataset]) -> BaseDataset:
        """Return the sources as one dataset."""


_CHOICES: Mapping[str, type[_Choice]] = {
    "slice": _Slice,
    "select": _Select,
    "where": _Where,
    "split": _Part,
    "weighted": _Weights,
    "balanced": _Balance,
    "windows": _Windows,
    "cut": _Cut,
    "packed": _Packed,
}
"""The kinds of choices, by the first key of their descriptions."""
_JOINED: Mapping[str, type[_Joined]] = {"concat": _Concat, "mix": _Mixture}


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
        view = _made(saved, saved.node, "", opened)
    except (ConfigError, ManifestError, msgspec.ValidationError, IndexError, OverflowError) as error:
        raise ManifestError(f"{saved.path}: {error}") from error
    if (view.digest, len(view)) != (saved.digest, saved.samples):
        raise ManifestError(
            f"{saved.path}: it describes a view of {len(view)} samples with digest {view.digest}, not of "
            f"{saved.samples} with {saved.digest}, as it says: names of classes count, too"
        )
    return view


def _made(saved: SavedView, node: Mapping[str, Any], name: str, opened: Mapping[str, BaseDataset]) -> BaseDataset:
    if "dataset" in node:
        return opened[name]
    if "of" not in node:  # in the order in which `saved` looks for datasets
        key = "concat" if "concat" in node else "mix"
        sources = {
            source: _made(saved, inner, f"{name}/{source}" if name else source, opened)
            for source, inner in node[key].items()
        }
        return msgspec.convert(node, _JOINED[key]).joined(sources)
    key = next(iter(node))
    if (choice := _CHOICES.get(key)) is None:
        raise ManifestError(f"{key!r} is no choice that this release of shardio knows")
    base = _made(saved, node["of"], name, opened)
    if base.orders_itself:
        raise ManifestError(f"{key!r} chooses from stored samples, not from what draws them by weight")
    rest = {key: value for key, value in node.items() if key != "of"}
    return msgspec.convert(rest, choice).of(base, saved.array)


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
