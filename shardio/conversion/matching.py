"""Which samples a condition holds for: by whole columns where the source has them, else by reading every sample."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample, ConfigError
from .expression import Expression
from .runners import Runner, Watch
from .source import HasColumns, Source
from .work import BLOCK_SAMPLES, Advance


def matching(source: Source, condition: str, runner: Runner, progress: Any = None) -> NDArray[np.int64]:
    """The numbers of the samples that `condition` holds for, ascending. A bad sample counts: writing tells of it.

    Args:
        source: the samples.
        condition: see `Expression`; on scalar fields.
        runner: who reads the samples, if that has to be.
        progress: see `convert.Progress`.

    Raises ConfigError for what is no condition, or on no scalar field.
    """
    expression = Expression(condition)
    fields = source.fields
    for name in sorted(expression.names):
        if name not in fields or fields[name].kind != "scalar":
            scalars = ", ".join(n for n, field in fields.items() if field.kind == "scalar") or "none"
            raise ConfigError(f"a condition is on scalar fields ({scalars}), got {name!r} in {condition!r}")
    if isinstance(source, HasColumns):
        columns = {name: source.column(name) for name in expression.names}
        if all(column is not None for column in columns.values()):
            return np.flatnonzero(expression({name: np.asarray(column) for name, column in columns.items()}))
    count = len(source.sizes())
    blocks = [range(start, min(start + BLOCK_SAMPLES, count)) for start in range(0, count, BLOCK_SAMPLES)]
    found: list[NDArray[np.int64]] = []
    report = progress or (lambda what, done, total: None)
    runner(_match, (source, expression), blocks, Watch(lambda done: report("choosing", done, count), found.append))
    return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)


def _match(settings: tuple[Source, Expression], numbers: range, advance: Advance) -> NDArray[np.int64]:
    source, expression = settings
    kept, bad = [], []
    values: dict[str, list[Any]] = {name: [] for name in expression.names}
    for number in numbers:
        try:
            sample = source[number]
        except BadSample:
            bad.append(number)
        else:
            kept.append(number)
            for name, column in values.items():
                column.append(sample[name])
        advance(1)
    holds = expression({name: np.array(column) for name, column in values.items()}) if kept else np.empty(0, np.bool_)
    return np.array([*np.array(kept, np.int64)[holds].tolist(), *bad], np.int64)
