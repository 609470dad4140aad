"""The subset of a source that is converted, and its order: sample numbers, chosen before anything is written."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample, ConfigError, Message
from ..format.fields import is_missing
from ..order.permutation import Permutation, derive
from ..system.types import Indices
from ..system.units import counted
from .expression import Expression
from .runners import Progress, Runner, RunnerCallbacks, silent
from .source import HasColumns, Source
from .tasks import BLOCK_SAMPLES, Advance

_SHUFFLE, _SPLIT = 1, 2  # so that one seed gives two unrelated orders


@dataclass(frozen=True, slots=True)
class SubsetOptions:
    """The choice and order of the samples to convert. `conversion.convert` explains each option.

    Raises ConfigError for a limit below 1, and for splits whose names or shares break a rule.
    """

    numbers: Indices | None = None
    where: str | None = None
    shuffle: int | None = None
    limit: int | None = None
    split: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ConfigError("{limit} must be at least 1, got {}", self.limit)
        if self.split is not None:
            _check_shares(self.split)


@dataclass(frozen=True, slots=True)
class Choice:
    """The samples to convert.

    Attributes:
        parts: the sample numbers of each split by its name (`""` without splits); None means the whole source.
        remarks: what the splits leave out.
    """

    parts: Mapping[str, Indices | None]
    remarks: tuple[str, ...] = ()


def choose(source: Source, options: SubsetOptions, runner: Runner, progress: Progress = silent) -> Choice:
    """Choose the samples of each split.

    `where` comes first, then `shuffle`, `limit` and `split`.

    Args:
        source: the samples.
        options: the choice.
        runner: reads the samples where `where` needs that.
        progress: see `runners.Progress`.

    Raises ConfigError for a condition that does not fit the fields, and if a split comes out empty.
    """
    numbers = options.numbers
    if all(value is None for value in (numbers, options.where, options.shuffle, options.limit, options.split)):
        return Choice({"": None})
    if options.where is not None:
        found = matching(source, options.where, runner, progress)
        numbers = found if numbers is None else numbers[np.isin(numbers, found)]
    elif numbers is None:
        numbers = np.arange(len(source.sizes()))
    if options.shuffle is not None:
        numbers = shuffled(numbers, options.shuffle)
    numbers = numbers[: options.limit]
    if options.split is None:
        return Choice({"": numbers})
    parts = split(numbers, options.split, options.shuffle or 0)
    if empty := [name for name, part in parts.items() if not len(part)]:
        raise ConfigError(
            "{split}: {} cannot fill all parts: none is left for {}", counted(len(numbers), "sample"), ", ".join(empty)
        )
    left = len(numbers) - sum(map(len, parts.values()))
    return Choice(parts, (f"the splits leave out {left} of {counted(len(numbers), 'sample')}",) if left else ())


def shuffled(numbers: Indices, seed: int) -> Indices:
    """Return `numbers` in a random order, a pure function of their count and the seed."""
    if not len(numbers):
        return numbers
    return numbers[Permutation(len(numbers), derive(seed, _SHUFFLE))(np.arange(len(numbers)))]


def parse_split(text: str) -> dict[str, float]:
    """Return the shares in text such as `train=0.9,val=0.1`; raise ConfigError if it is not of this form."""
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, equals, share = (piece.strip() for piece in part.partition("="))
        try:
            value = float(share)
        except ValueError:
            value = math.nan
        if not equals or not name or math.isnan(value) or name in shares:
            raise ConfigError("{split} must be names and shares such as train=0.9,val=0.1, got {!r}", text)
        shares[name] = value
    return shares


def split(numbers: Indices, shares: Mapping[str, float], seed: int) -> dict[str, Indices]:
    """Return a random share of `numbers` for each split, in their order; shares that add up to 1 take all of them.

    Raises ConfigError for shares that are not in (0, 1] or add up to more than 1.
    """
    _check_shares(shares)
    count = len(numbers)
    # A sample's turn in a random order decides its split, so that the splits' sizes are exact.
    turns = Permutation(count, derive(seed, _SPLIT))(np.arange(count)) if count else np.arange(0)
    ends = [round(min(1.0, end) * count) for end in np.cumsum(list(shares.values()))]
    starts = [0, *ends[:-1]]
    return {
        name: numbers[(turns >= start) & (turns < end)] for name, start, end in zip(shares, starts, ends, strict=True)
    }


def _check_shares(shares: Mapping[str, float]) -> None:
    if not shares:
        raise ConfigError(
            Message("{split} must name at least one dataset and its share, such as {{'train': 0.9, 'val': 0.1}}")
        )
    for name, share in shares.items():
        if not re.fullmatch(r"(?=.*[A-Za-z0-9])[A-Za-z0-9_-]{1,200}", name):
            raise ConfigError(f"a split's name is at most 200 letters, digits, '-' and '_', got {name!r}")
        if not 0 < share <= 1:
            raise ConfigError(f"a split's share must be above 0 and at most 1, got {name}={share:g}")
    total = math.fsum(shares.values())
    if total > 1 + 1e-9:
        raise ConfigError(f"the splits' shares must add up to at most 1, they add up to {total:g}")


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
    if isinstance(source, HasColumns) and not expression.tested:
        columns = {name: source.column(name) for name in expression.names}
        if all(column is not None for column in columns.values()):
            return np.flatnonzero(expression({name: np.asarray(column) for name, column in columns.items()}))
    count = len(source.sizes())
    blocks = [range(start, min(start + BLOCK_SAMPLES, count)) for start in range(0, count, BLOCK_SAMPLES)]
    found: list[NDArray[np.int64]] = []
    callbacks = RunnerCallbacks(lambda done: progress("choosing", done, count), found.append)
    runner(_match_block, (source, expression), blocks, callbacks)
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
    numbered = np.array(readable, np.int64)
    return np.array([*numbered[expression(columns, numbered, there)].tolist(), *bad], np.int64)
