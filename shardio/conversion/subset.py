"""The subset of a source that is converted, and its order: sample numbers, chosen before anything is written."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample, ConfigError
from ..format.fields import is_missing
from ..order.permutation import Permutation, derive
from ..system.types import Indices
from ..system.units import counted
from ..views.expression import Expression
from ..views.split import split
from .runners import Advance, Progress, Runner, silent
from .source import HasColumns, Source
from .tasks import BLOCK_SAMPLES

_SHUFFLE = 1  # so that one seed gives this order and an unrelated one of splits
_ROWS_AT_ONCE = 1 << 20  # values of columns that a condition looks at together


def choose(
    source: Source,
    numbers: Indices | None,
    where: str | None,
    shuffle: int | None,
    limit: int | None,
    shares: Mapping[str, float] | None,
    runner: Runner,
    progress: Progress = silent,
) -> tuple[dict[str, Indices | None], list[str]]:
    """Choose the samples of each split, by the arguments of `shardio.convert`, in their order.

    Returns:
        The sample numbers of each split by its name (`""` without splits), None for the whole source; and a remark if
        the splits leave samples out.

    Raises ConfigError for a limit below 1, a condition that does not fit the fields, and if a split comes out empty.
    """
    if limit is not None and limit < 1:
        raise ConfigError("{limit} must be at least 1, got {}", limit)
    if all(value is None for value in (numbers, where, shuffle, limit, shares)):
        return {"": None}, []
    if where is not None:
        found = matching(source, where, runner, progress)
        numbers = found if numbers is None else numbers[np.isin(numbers, found)]
    elif numbers is None:
        numbers = np.arange(len(source.sizes()))
    if shuffle is not None:
        numbers = shuffled(numbers, shuffle)
    numbers = numbers[:limit]
    if shares is None:
        return {"": numbers}, []
    parts = {name: numbers[chosen] for name, chosen in split(len(numbers), shares, shuffle or 0).items()}
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


def matching(source: Source, condition: str, runner: Runner, progress: Progress = silent) -> Indices:
    """Return the numbers of the samples for which `condition` holds, ascending, int64 [n].

    Whole columns answer it where the source has them; otherwise the runner reads every sample. A bad sample counts as
    one that matches: it is reported when it is written.

    Args:
        source: the samples.
        condition: see `Expression`; on scalar fields.
        runner: reads the samples where the source has no columns.
        progress: see `runners.Progress`.

    Raises ConfigError for text that is no condition, and for names that are no scalar fields.
    """
    expression = Expression(condition)
    fields = source.fields
    for name in sorted(expression.names):
        if name not in fields or fields[name].kind != "scalar":
            scalars = ", ".join(n for n, field in fields.items() if field.kind == "scalar") or "none"
            raise ConfigError(f"a condition is on scalar fields ({scalars}), got {name!r} in {condition!r}")
    if unknown := sorted(expression.tested - fields.keys()):
        raise ConfigError(f"a condition is on fields ({', '.join(fields)}), got {unknown[0]!r} in {condition!r}")
    count = len(source.sizes())
    if isinstance(source, HasColumns) and not expression.tested:
        columns = {name: source.column(name) for name in expression.names}
        if all(column is not None for column in columns.values()):
            holds = np.zeros(count, np.bool_)
            for start in range(0, count, _ROWS_AT_ONCE):
                rows = slice(start, start + _ROWS_AT_ONCE)
                holds[rows] = expression({name: np.asarray(column)[rows] for name, column in columns.items()})
            return np.flatnonzero(holds)
    blocks = [range(start, min(start + BLOCK_SAMPLES, count)) for start in range(0, count, BLOCK_SAMPLES)]
    found: list[NDArray[np.int64]] = []
    runner(_match_block, (source, expression), blocks, lambda done: progress("choosing", done, count), found.append)
    return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)


def _match_block(shared: tuple[Source, Expression], numbers: range, advance: Advance) -> NDArray[np.int64]:
    source, expression = shared
    readable, bad = [], []
    fields = {name: source.fields[name] for name in expression.names | expression.tested}
    values: dict[str, list[bytes]] = {name: [] for name in expression.names}
    present: dict[str, list[bool]] = {name: [] for name, field in fields.items() if field.optional}
    for number in numbers:
        try:
            sample = source[number]
            lacking = {name for name in present if is_missing(sample.get(name))}
            stored = {
                name: fields[name].blank if name in lacking else bytes(fields[name].encode(sample[name]))
                for name in values
            }
        except BadSample:
            bad.append(number)
        else:
            readable.append(number)
            for name, column in values.items():
                column.append(stored[name])
            for name, has in present.items():
                has.append(name not in lacking)
        advance(1)
    if not readable:
        return np.array(bad, np.int64)
    columns = {name: np.frombuffer(b"".join(stored), fields[name].row_dtype) for name, stored in values.items()}
    there = {name: np.array(has, np.bool_) for name, has in present.items()}
    return np.array([*np.array(readable)[expression(columns, there)].tolist(), *bad], np.int64)
