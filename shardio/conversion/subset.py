"""The subset of a source that is converted, and its order: sample numbers, chosen before anything is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample, ConfigError, DatasetError
from ..format.fields import is_missing
from ..order.permutation import Permutation, derive
from ..system.types import Indices
from ..system.units import counted
from ..views.expression import Condition, Expression
from ..views.split import parse_split, split
from .runners import Advance, Progress, Runner, silent
from .shard_tasks import BLOCK_SAMPLES
from .source import Source

_SHUFFLE = 1  # so that one seed gives this order and an unrelated one of splits
_ROWS_AT_ONCE = 1 << 20  # values of columns that a condition looks at together
_FIELDS_AT_ONCE = 1 << 13  # samples of which one task reads the fields that a condition names


@final
@dataclass(frozen=True, slots=True, eq=False)
class SampleChoice:
    """The options that choose samples; `shardio.convert` explains each and their order.

    Raises ConfigError for an option that breaks a rule.
    """

    numbers: Sequence[int] | Indices | None
    where: str | None
    shuffle: int | None
    limit: int | None
    split: Mapping[str, float] | str | None

    def __post_init__(self) -> None:
        array = np.asarray(() if self.numbers is None else self.numbers)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ConfigError(f"numbers must be a list of integers, got {self.numbers!r}")
        if self.limit is not None and self.limit < 1:
            raise ConfigError("{limit} must be at least 1, got {}", self.limit)
        if self.split is not None:
            parse_split(self.split)


def choose(
    source: Source, by: SampleChoice, runner: Runner, progress: Progress = silent
) -> tuple[dict[str, Indices | None], list[str]]:
    """Choose the samples of each split, in their order.

    Returns:
        The sample numbers of each split by its name (`""` without splits), None for the whole source; and a remark if
        the splits leave samples out.

    Raises ConfigError for a condition that does not fit the fields, and if a split comes out empty.
    """
    if all(value is None for value in (by.numbers, by.where, by.shuffle, by.limit, by.split)):
        return {"": None}, []
    numbers = None if by.numbers is None else np.asarray(by.numbers).astype(np.int64)
    if by.where is not None:
        found = matching(source, by.where, runner, progress)
        numbers = found if numbers is None else numbers[np.isin(numbers, found)]
    elif numbers is None:
        numbers = np.arange(len(source.sizes()))
    if by.shuffle is not None:
        numbers = shuffled(numbers, by.shuffle)
    numbers = numbers[: by.limit]
    if by.split is None:
        return {"": numbers}, []
    shares = parse_split(by.split)
    parts = {name: numbers[chosen] for name, chosen in split(len(numbers), shares, by.shuffle or 0).items()}
    if empty := [name for name, part in parts.items() if not len(part)]:
        raise ConfigError(
            "{split}: {} cannot fill all parts: none is left for {}", counted(len(numbers), "sample"), ", ".join(empty)
        )
    left = len(numbers) - sum(map(len, parts.values()))
    remarks = [f"the splits leave out {left} of {counted(len(numbers), 'sample')}"] if left else []
    return {**parts}, remarks


def shuffled(numbers: Indices, seed: int) -> Indices:
    """Return `numbers` in a random order, a pure function of their count and the seed."""
    if not len(numbers):
        return numbers
    return numbers[Permutation(len(numbers), derive(seed, _SHUFFLE))(np.arange(len(numbers)))]


def matching(source: Source, where: str, runner: Runner, progress: Progress = silent) -> Indices:
    """Return the numbers of the samples that match a condition, ascending, int64 [n].

    Whole columns answer it where the source has them, or the fields that it names; otherwise the runner reads every
    sample. A bad sample counts as one that matches: it is reported when it is written.

    Args:
        source: the samples.
        where: see `Expression`; on fields of scalars and text, and on lengths.
        runner: reads the samples where the source has no columns.
        progress: see `runners.Progress`.

    Raises ConfigError for text that is no condition, and where it does not fit the fields.
    """
    condition = Expression(where).bind(source.fields, source.metadata)
    count, names = len(source.sizes()), condition.scalars | condition.texts
    if condition.optional <= names and not condition.counted:
        columns = {name: source.column(name) for name in names}
        if all(column is not None for column in columns.values()):
            holds = np.zeros(count, np.bool_)
            for start in range(0, count, _ROWS_AT_ONCE):
                rows = range(start, min(start + _ROWS_AT_ONCE, count))
                holds[rows.start : rows.stop] = condition(
                    len(rows), {name: _stored(column, rows) for name, column in columns.items()}
                )
            return np.flatnonzero(holds)
    whole = source.holds(condition, np.empty(0, np.int64)) is None
    size = BLOCK_SAMPLES if whole else _FIELDS_AT_ONCE
    blocks = [range(start, min(start + size, count)) for start in range(0, count, size)]
    found: list[NDArray[np.int64]] = []
    runner(
        partial(_match_block, source, condition), blocks, lambda done: progress("choosing", done, count), found.append
    )
    return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)


def _stored(column: Any, rows: range) -> Any:
    part = column[rows.start : rows.stop]
    return part if isinstance(part, np.ndarray) else [text.encode("utf-8", "surrogatepass") for text in part]


def _match_block(source: Source, condition: Condition, numbers: range, advance: Advance) -> NDArray[np.int64]:
    rows = np.arange(numbers.start, numbers.stop)
    try:
        held = source.holds(condition, rows)
    except DatasetError:  # samples that are read one by one tell which are bad
        held = None
    if held is not None:
        advance(len(rows))
        return rows[held]
    names = condition.scalars | condition.texts | condition.counted
    readable, bad = list[int](), list[int]()
    values: dict[str, list[Any]] = {name: [] for name in names}
    present: dict[str, list[bool]] = {name: [] for name in condition.optional}
    for number in numbers:
        try:
            sample = source[number]
            lacking = {name for name in present if is_missing(sample.get(name))}
            stored = {
                name: source.fields[name].blank if name in lacking else bytes(source.fields[name].encode(sample[name]))
                for name in values
            }
        except BadSample:
            bad.append(number)
        else:
            readable.append(number)
            for name, column in values.items():
                counts = name in condition.counted
                column.append(source.fields[name].length_of(stored[name]) if counts else stored[name])
            for name, has in present.items():
                has.append(name not in lacking)
        advance(1)
    columns: dict[str, Any] = {
        name: np.frombuffer(b"".join(stored), source.fields[name].row_dtype) if name in condition.scalars else stored
        for name, stored in values.items()
    }
    columns |= {name: np.array(values[name], np.int64) for name in condition.counted}
    holds = condition(len(readable), columns, {name: np.array(has, np.bool_) for name, has in present.items()})
    return np.array([*np.array(readable, np.int64)[holds].tolist(), *bad], np.int64)
