"""The choices that a view can make of a dataset: a slice, samples by number, those for which a condition holds.

Modules of their own have the other kinds: `weighing.py` weights, `window_starts.py` windows, `row_choice.py` rows of
documents.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Self, TypeAlias, final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, ManifestError
from ..format.fields import CLIPS
from ..format.file_table import Table, checksum_of, parts
from ..system.types import Indices
from .columns import AT_ONCE, categories, in_parts, stored_numbers
from .expression import Condition, Expression
from .index_map import IndexMap, NumberMap, RangeMap, of_mask
from .key_table import find, is_indexed
from .readable import ReadableDataset
from .split import parse_split, split_by

_FAR = 1 << 62
_Bound: TypeAlias = Annotated[int, msgspec.Meta(ge=-_FAR, le=_FAR)] | None
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]
Number: TypeAlias = int | float  # float alone lets SystemError through with msgspec before 0.22, for 10**400
Arrays: TypeAlias = Callable[[str, str, int], Table]
"""Returns a saved array by its checksum, dtype and length; see `SavedView.array`."""
_TEXTS_AT_ONCE = 1 << 14  # samples whose texts one thread reads together


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A choice that a view makes of its dataset: a value that chooses the same samples anywhere.

    Its description is JSON values by name, whose first name says which kind of choice it is.
    """

    def made(self, base: ReadableDataset) -> Any:
        """Return what the choice makes of a dataset; the view looks up its samples there."""
        raise NotImplementedError  # each kind makes its own; a struct can't have an abstract base

    def description(self) -> dict[str, Any]:
        """Return the choice as JSON values; an array is given by its checksum."""
        described: dict[str, Any] = msgspec.to_builtins(self)
        return described

    @property
    def arrays(self) -> Sequence[Table]:
        """The arrays that the description gives by their checksums."""
        return ()

    @classmethod
    def restored(cls, described: Mapping[str, Any], base: ReadableDataset, arrays: Arrays) -> Self:
        """Return the choice from a dataset that a description says; ValidationError if it says none."""
        return msgspec.convert(described, cls)

    def depends_on(self, base: ReadableDataset) -> dict[str, Any]:
        """Return what the choice depends on besides the dataset's digest, as JSON values."""
        return {}

    def in_earlier(self, made: Any, samples: int) -> int | None:
        """Return how many samples the same choice makes of the first `samples` of the dataset.

        None unless these come first in the view, which looks its samples up in `made`.
        """
        return None


@final
class Slice(Choice, frozen=True, rename={"bounds": "slice"}):
    """`dataset[start:stop:step]`."""

    bounds: tuple[_Bound, _Bound, _Bound]

    @classmethod
    def of(cls, given: slice) -> "Slice":
        """Return a slice in Python's integers, no farther out than any dataset reaches; ConfigError for others."""
        try:
            start, stop, step = (
                None if bound is None else max(-_FAR, min(operator.index(bound), _FAR))
                for bound in (given.start, given.stop, given.step)
            )
        except TypeError as error:
            raise ConfigError(f"not a slice of samples: {given}: {error}") from error
        return cls((start, stop, step))

    def made(self, base: ReadableDataset) -> IndexMap:
        try:
            return RangeMap(range(len(base))[slice(*self.bounds)])
        except ValueError as error:
            told = ":".join(map(str, self.bounds))
            raise ConfigError(f"not a slice of samples: [{told}]: {error}") from error

    def in_earlier(self, made: IndexMap, samples: int) -> int | None:
        before = range(samples)[slice(*self.bounds)]
        first = made(np.arange(min(1, len(made))))
        begins_alike = not len(before) or (len(before) <= len(made) and before.start == first[0])
        return len(before) if begins_alike and before.step == (self.bounds[2] or 1) else None


class _SelectNode(msgspec.Struct, forbid_unknown_fields=True):
    select: str
    count: Count


@final
class Select(Choice, frozen=True, eq=False):
    """Samples by their numbers, int64 [n], in any order."""

    numbers: Table

    def made(self, base: ReadableDataset) -> IndexMap:
        return NumberMap(self.numbers)

    def description(self) -> dict[str, Any]:
        return {"select": checksum_of(self.numbers), "count": len(self.numbers)}

    @property
    def arrays(self) -> Sequence[Table]:
        return (self.numbers,)

    @classmethod
    def restored(cls, described: Mapping[str, Any], base: ReadableDataset, arrays: Arrays) -> Self:
        node = msgspec.convert(described, _SelectNode)
        numbers = arrays(node.select, "<i8", node.count)
        if any(part.min() < 0 or part.max() >= len(base) for part in parts(numbers)):
            raise ManifestError(f"select must have numbers in [0, {len(base)})")
        return cls(numbers)

    def in_earlier(self, made: IndexMap, samples: int) -> int | None:
        return len(self.numbers) if made.leading(samples) == len(self.numbers) else None


@final
class Where(Choice, frozen=True, rename={"condition": "where"}):
    """The samples for which a condition holds, in their order."""

    condition: str

    def bound(self, base: ReadableDataset) -> Condition:
        """Return the condition as one on the fields of a dataset."""
        expression = Expression(self.condition)
        for name in sorted(expression.names | expression.tested):
            base.field(name)  # says why it is not there
        return expression.bind(base.fields, base.metadata)

    def masks(self, base: ReadableDataset, first: int = 0) -> Iterator[NDArray[np.bool_]]:
        """Return whether the condition holds for each sample from `first` on, bool [n], in consecutive parts."""
        condition = self.bound(base)

        def holds(numbers: Indices) -> NDArray[np.bool_]:
            return condition.of(base.selection(numbers), len(numbers))

        return in_parts(holds, len(base), _TEXTS_AT_ONCE if condition.texts else AT_ONCE, first)

    def made(self, base: ReadableDataset) -> IndexMap:
        members = Expression(self.condition).members
        if members and base.field(members[0]).kind == "text" and is_indexed(base, members[0]):
            mask, found = np.zeros(len(base), np.bool_), find(base, members[1], members[0])
            mask[found[found >= 0]] = True
            return of_mask([mask])
        return of_mask(self.masks(base))

    def depends_on(self, base: ReadableDataset) -> dict[str, Any]:
        names = self.bound(base).class_numbers
        return {"classes": names} if names else {}

    def in_earlier(self, made: IndexMap, samples: int) -> int | None:
        return made.leading(samples)


@final
class Part(Choice, frozen=True, rename={"shares": "split"}):
    """One part of a split: see `BaseDataset.split`."""

    shares: dict[str, Number]
    part: str
    by: str | None
    group: str | None
    seed: int

    def __post_init__(self) -> None:
        shares = parse_split(self.shares)
        if self.part not in shares:
            raise ConfigError(f"part must be one of {', '.join(shares)}, got {self.part!r}")
        msgspec.structs.force_setattr(self, "shares", shares)

    def made(self, base: ReadableDataset) -> IndexMap:
        return self.index_maps(base)[self.part]

    def index_maps(self, base: ReadableDataset) -> dict[str, IndexMap]:
        """Return the samples of every part; ConfigError if one has none."""
        classes, groups = (None if name is None else categories(base, name)[0] for name in (self.by, self.group))
        if groups is None and any(field.window and field.kind in CLIPS for field in base.fields.values()):
            groups = np.unique(stored_numbers(base, np.arange(len(base))), return_inverse=True)[1]
        maps = {}
        for name, numbers in split_by(len(base), self.shares, self.seed, classes, groups).items():
            if not len(numbers):
                raise ConfigError(
                    f"{base.path}: the {len(base)} samples cannot fill all parts: none is left for {name!r}"
                )
            mask = np.zeros(len(base), np.bool_)
            mask[numbers] = True
            maps[name] = of_mask([mask])
        return maps
