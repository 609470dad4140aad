"""Samples by key: which number each key has, through a table of sorted hashes, made once and kept in a file.

The table has 12 bytes per sample: the XXH3-64 of its key, and its number (16 bytes from 2^32 samples on). A hash that
matches is followed by comparing the key itself, so that equal hashes of different keys do no harm.

Among 10^8 samples, a million keys are looked up in about a second, and then as many keys are read and compared.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, TypeAlias, final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..containers.packed_values import Scratch
from ..errors import ConfigError
from ..format.fields import Field, describe, describe_fields, present_column
from ..format.file_table import Table, parts
from ..format.keys import KEY, NO_KEYS, hashes_of, is_key
from ..format.manifest import Manifest
from ..output.own_files import index_of_keys
from ..stores.url import Url
from ..system.types import Indices
from .columns import in_parts
from .kept_table import FEW, KeptTable, Stored
from .readable import ReadableDataset, decoded

Keys: TypeAlias = Sequence[str] | Sequence[int] | NDArray[Any]
"""Keys to look for: strings, or integers."""

_AT_ONCE = 1 << 14  # samples whose keys one thread reads together
_WORD = (1 << 64) - 1


@final
@dataclass(frozen=True, slots=True, eq=False)
class KeyTable:
    """The samples of a dataset that have a key, sorted by its hash.

    Args:
        hashes: their hashes, ascending, uint64 [n].
        numbers: their numbers, unsigned [n].
    """

    hashes: Table
    numbers: Table

    def __len__(self) -> int:
        return len(self.hashes)

    def places(self, wanted: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return how many hashes are below each of some, which are ascending; int64 [n]."""
        found = np.empty(len(wanted), np.int64)
        for begin in range(0, len(wanted), _AT_ONCE):  # neighbours share pages and the processor's caches
            part = slice(begin, begin + _AT_ONCE)
            found[part] = self.hashes.searchsorted(wanted[part])
        return found

    def samples(self, places: NDArray[np.int64], hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], Indices]:
        """Return which of some places are in the table and have these hashes, and the numbers of the samples there."""
        inside = np.flatnonzero(places < len(self))
        inside = inside[self.hashes.take(places[inside]) == hashes[inside]]
        return inside, self.numbers.take(places[inside]).astype(np.int64)


def find(dataset: ReadableDataset, keys: Keys, on: str) -> Indices:
    """Return the numbers of the samples that have some keys, -1 for none, int64 [n]; see `BaseDataset.find`."""
    wanted, hashes = _as_keys(keys, _key_field(dataset, on), on)
    found = np.full(len(wanted), -1, np.int64)
    if not len(wanted):
        return found
    table, left = key_table(dataset, on), np.argsort(hashes)
    places = table.places(hashes[left])
    while len(left):  # samples with equal hashes are next to each other
        there, numbers = table.samples(places, hashes[left])
        left, places = left[there], places[there]
        same = _have(dataset, on, numbers, [wanted[number] for number in left.tolist()])
        found[left[same]] = numbers[same]
        left, places = left[~same], places[~same] + 1
    return found


def key_table(dataset: ReadableDataset, on: str, *, always: bool = False) -> KeyTable:
    """Return the table of a dataset, from its file if there is one; `always` keeps it, however few samples there are.

    Raises ConfigError for a field of another kind, and for repeated keys.
    """
    tables = _tables.setdefault(dataset, {})
    if on not in tables or always:
        doing = f"making the index of {dataset.numbers:,} samples by {on!r}"
        form = kept(dataset.digest, on, dataset.numbers)
        tables[on] = form.get(dataset, lambda: made(dataset, on), doing, always=always)
    return tables[on]


def is_indexed(dataset: ReadableDataset, on: str) -> bool:
    """Return whether the table of a dataset is there already: opened, or in a file beside its shards."""
    tables = _tables.setdefault(dataset, {})
    if on not in tables and (table := kept(dataset.digest, on, dataset.numbers).beside(dataset)) is not None:
        tables[on] = table
    return on in tables


_tables: WeakKeyDictionary[ReadableDataset, dict[str, KeyTable]] = WeakKeyDictionary()
"""The tables that this process has opened, by dataset and field."""


def kept(digest: str, on: str, samples: int) -> KeptTable[KeyTable]:
    """Return the form in a file of the table of a dataset with this digest."""
    return KeptTable("keys", index_of_keys(digest, on, samples), ("hashes", "numbers"), _stored, _restored)


def _stored(table: KeyTable) -> Stored:
    return {}, (table.hashes, table.numbers)


def _restored(head: Mapping[str, Any], arrays: Mapping[str, Table]) -> KeyTable:
    """Return the table in a file; ValueError if that is not what it must be."""
    table = KeyTable(**arrays)
    shapes = {table.hashes.shape, table.numbers.shape}
    if table.hashes.dtype != np.uint64 or table.numbers.dtype.kind != "u" or shapes != {(len(table),)}:
        raise ValueError("no hashes with a number each")
    if any(part.max() >= head["samples"] for part in parts(table.numbers)):
        raise ValueError("samples that there are not")
    return table


def sorted_table(hashes: NDArray[np.uint64], numbers: Indices, samples: int) -> KeyTable:
    """Return the table of the keys that have some hashes, [n], of samples with some numbers, ascending, int64 [n]."""
    order = np.argsort(hashes, kind="stable")
    return KeyTable(hashes[order], numbers[order].astype(np.uint32 if samples <= 1 << 32 else np.uint64))


def write_index(place: Path | Url, described: Manifest, hashes: Sequence[NDArray[np.uint64]]) -> None:
    """Write the index of a dataset in a folder by its field `key`, unless its keys are unknown or repeated.

    It takes the place of the index of what the dataset was before.

    Args:
        place: the dataset's place.
        described: its manifest.
        hashes: the hashes of the keys in the shards that were added last, uint64 [samples] each. The index of the
            dataset before has the others.
    """
    samples, added = described.samples, np.concatenate([NO_KEYS, *hashes])
    if samples < FEW or not len(added) or not isinstance(place, Path):
        return
    first = samples - len(added)
    digest = next((one for one, count in described.grew_from.items() if count == first), "")
    old, index = kept(digest, KEY, first), kept(described.digest, KEY, samples)
    before = old.read(place / old.name) if first else KeyTable(NO_KEYS, NO_KEYS)
    if before is None:
        return
    hashes_of_all = np.concatenate([np.asarray(before.hashes), added])
    numbers = np.concatenate([np.asarray(before.numbers, np.int64), np.arange(first, samples)])
    table = sorted_table(hashes_of_all, numbers, samples)
    if (table.hashes[1:] != table.hashes[:-1]).all():
        with suppress(OSError, ConfigError):  # keys are found without an index
            index.write(place / index.name, table)
            (place / old.name).unlink(missing_ok=True)


def made(dataset: ReadableDataset, on: str) -> KeyTable:
    """Make the table of a dataset by reading its keys; ConfigError if two samples have the same one."""
    is_optional = _key_field(dataset, on).optional
    hashes, present = np.empty(dataset.numbers, np.uint64), np.ones(dataset.numbers, np.bool_)

    def read(numbers: Indices) -> None:
        part, selection = slice(numbers[0], numbers[-1] + 1), dataset.selection(numbers)
        hashes[part] = hashes_of(selection.stored(on, scratch=Scratch()))
        if is_optional:
            present[part] = selection.column(present_column(on))

    for _ in in_parts(read, dataset.numbers, _AT_ONCE):
        pass
    numbers = np.flatnonzero(present)
    table = sorted_table(hashes[numbers], numbers, dataset.numbers)
    _check_unique(dataset, on, table)
    return table


def _check_unique(dataset: ReadableDataset, on: str, table: KeyTable) -> None:
    """Raise ConfigError if samples have the same key."""
    equal = np.flatnonzero(table.hashes[1:] == table.hashes[:-1])
    numbers = np.sort(table.numbers.take(np.union1d(equal, equal + 1))).astype(np.int64)
    known, repeats, first = dict[Any, int](), 0, (0, 0)
    for begin in range(0, len(numbers), _AT_ONCE):
        some = numbers[begin : begin + _AT_ONCE]
        for key, number in zip(_read(dataset, on, some), some.tolist(), strict=True):
            if (before := known.setdefault(key, number)) != number:
                repeats, first = repeats + 1, first if repeats else (before, number)
    if repeats:
        key, (at_first, at_second) = _read(dataset, on, np.array(first[:1]))[0], map(dataset.locate, first)
        raise ConfigError(
            f"{dataset.path}: keys must be unique to be found, and {repeats:,} samples repeat the {on!r} of an earlier "
            f"one, first {key!r}: at {at_first}, and at {at_second}"
        )


def _read(dataset: ReadableDataset, on: str, numbers: Indices) -> list[Any]:
    selection = dataset.selection(numbers)
    if dataset.field(on).kind == "text":
        return decoded(dataset, on, selection.values(on, Scratch()), numbers)
    return list(selection.column(on).tolist())


def _have(dataset: ReadableDataset, on: str, numbers: Indices, keys: Sequence[Any]) -> NDArray[np.bool_]:
    """Return which samples have these keys, bool [n]. They are read in stored order."""
    same, order = np.empty(len(numbers), np.bool_), np.argsort(numbers)

    def compare(part: Indices) -> None:
        rows = order[part]
        read = _read(dataset, on, numbers[rows])
        same[rows] = [key == keys[row] for key, row in zip(read, rows.tolist(), strict=True)]

    for _ in in_parts(compare, len(numbers), _AT_ONCE):
        pass
    return same


def _key_field(dataset: ReadableDataset, on: str) -> Field:
    """Return the field of keys; ConfigError if it is none, and where samples are made of several stored ones."""
    if any(field.window for field in dataset.fields.values()):
        raise ConfigError(
            f"find is for stored samples, and {dataset!r} makes its samples of these: find the keys in the dataset "
            "before windows, clips or rows of documents are chosen"
        )
    field = dataset.field(on)
    if not is_key(field):
        raise ConfigError(
            f"{dataset.path}: keys are texts or integers, {on!r} is {describe(field)}; there are "
            f"{describe_fields(dataset.fields)}"
        )
    return field


def _as_keys(keys: Keys, field: Field, on: str) -> tuple[list[Any], NDArray[np.uint64]]:
    """Return keys and their hashes; ConfigError if a field has no such keys."""
    is_text = field.kind == "text"
    given = keys.tolist() if isinstance(keys, np.ndarray) else keys
    if isinstance(given, Iterable) and not isinstance(given, str):
        listed, kind = list[Any](given), str if is_text else Integral
        if all(isinstance(key, kind) for key in listed):
            if is_text:  # half of a surrogate pair is in no stored text
                return listed, hashes_of([key.encode(errors="surrogatepass") for key in listed])
            return listed, hashes_of([(int(key) & _WORD).to_bytes(8, "little") for key in listed])
    kind_and_example = "strings, as in ['a', 'b']" if is_text else "integers, as in [3, 5]"
    raise ConfigError(f"{on!r} is {describe(field)}, so find takes a list of {kind_and_example}, got {keys!r:.100}")
