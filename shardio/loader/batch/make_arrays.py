"""Making arrays: those of one shape, of several shapes or of several lengths, and the tokens of strings."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ...containers.extents import Runs
from ...containers.packed_values import PackedValues
from ...engines.array_transforms import delivered_dtype, first_overflow, transform_arrays, transform_each
from ...errors import BadSample, ConfigError
from ...format.fields import length_column
from ...transforms import Collation, MultiHot, PadTo, RandomItem
from ...transforms.arrays import ArrayWindow, Move
from ...views.readable import SelectedSamples
from .collate import cut, pad
from .extents import blocks_of
from .other_draws import chosen_items
from .pairs import note_array_sizes
from .rows import Rows


@dataclass(slots=True)
class RaggedRead:
    """The stored values of a ragged field, end to end: whole ones, or only windows of them.

    Attributes:
        lengths: the entries of each whole value, int64 [n].
        whole: the whole values, `[sum, *entry_shape]`, if any name needs them.
        windows: by name of the others, the moves drawn for its values, and what was read: the window that the first
            move gives.
    """

    lengths: NDArray[np.int64]
    whole: NDArray[Any] | None = None
    windows: dict[str, tuple[Sequence[Move], NDArray[Any]]] = field(default_factory=dict)

    def stored(self) -> PackedValues:
        """The whole values, which must have been read, as stored bytes."""
        assert self.whole is not None
        data = self.whole.reshape(-1).view(np.uint8)
        sizes = self.lengths * (data.size // max(1, int(self.lengths.sum())))
        return PackedValues(data, np.cumsum(sizes) - sizes, sizes)


def read_ragged(rows: Rows, stored: str, selection: SelectedSamples) -> RaggedRead:
    """Read a ragged field for all names that deliver it: only windows for names that `reads_windows` tells."""
    spec, names = rows.spec, rows.spec.names.delivered[stored]
    unit = spec.dataset.fields[stored].entry_bytes
    lengths = selection.column(length_column(stored))
    read = RaggedRead(lengths)
    for name in names:
        if spec.reads_windows(name):
            there = _present(rows, name)
            moves = _moves(rows, name, there, _shapes(rows, name, lengths[there]))
            begins, ends = np.zeros_like(lengths), np.zeros_like(lengths)
            begins[there], ends[there] = _window(moves)
            read.windows[name] = moves, _read_parts(rows, stored, selection, begins, ends)
            rows.varying_bytes += (ends - begins) * unit
    if len(read.windows) < len(names):
        read.whole = _read_parts(rows, stored, selection, np.zeros_like(lengths), lengths)
        rows.varying_bytes += lengths * unit
    return read


def _read_parts(
    rows: Rows, stored: str, selection: SelectedSamples, begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[Any]:
    scratch = rows.spec.scratch.take()
    data = selection.parts(stored, Runs(begins, ends), scratch=scratch)
    rows.spec.scratch.give_back_when_gone(data.base, [scratch])  # which each view of it refers to
    return data


def read_whole(rows: Rows, stored: str, selection: SelectedSamples) -> RaggedRead:
    """Read a ragged field whole, also one that no name delivers."""
    lengths = selection.column(length_column(stored))
    return RaggedRead(lengths, _read_parts(rows, stored, selection, np.zeros_like(lengths), lengths))


def make_ragged(rows: Rows, name: str, read: RaggedRead, *, owned: bool = False) -> None:
    """Make the values of a ragged field under one of its names, which alone has them if they are `owned`."""
    there = _present(rows, name)
    if name in read.windows:
        moves, data = read.windows[name]
        begins, ends = _window(moves)
        _deliver(rows, name, there, _split(data, ends - begins), moves[1:], data, ends - begins)
    elif read.whole is not None:
        moves = _moves(rows, name, there, _shapes(rows, name, read.lengths[there]))
        first = not rows.spec.names.draws[name]  # the name of the stored field that has the values themselves
        data = read.whole if first or owned else read.whole.copy()
        values = _split(data, read.lengths)
        if len(there) < len(values):
            values = [values[row] for row in there.tolist()]
        _deliver(rows, name, there, values, moves, data, read.lengths[there])


def make_listed(rows: Rows, name: str, arrays: Sequence[NDArray[Any] | None]) -> None:
    """Make the arrays of a field that have several shapes; None stands for a missing one."""
    copy = rows.spec.names.draws[name] > 0  # the first name of the stored field has the arrays themselves
    found = {row: array.copy() if copy else array for row, array in enumerate(arrays) if array is not None}
    for axes in sorted({array.ndim for array in found.values()}):
        there = np.array([row for row, array in found.items() if array.ndim == axes], np.int64)
        values = [found[row] for row in there.tolist()]
        shapes = np.array([value.shape for value in values], np.int64).reshape(len(values), axes)
        _deliver(rows, name, there, values, _moves(rows, name, there, shapes))


def make_tokens(rows: Rows, name: str, texts: Sequence[Any]) -> None:
    """Make the tokens of a field of strings, or of one string of each JSON list; None stands for a missing one."""
    encoder = rows.spec.arrays[name].encoder
    assert encoder is not None
    draws = chosen_items(rows.field_keys(name)) if rows.spec.fields[name].kind == "json" else []
    tokens: list[NDArray[Any] | None] = [None] * len(texts)
    for row in _present(rows, name).tolist():
        try:
            text = RandomItem().choose(texts[row], draws[row]) if draws else texts[row]
            tokens[row] = encoder.encode(text).astype(np.int64)
        except BadSample as error:
            raise BadSample(f"{place_of(rows, name, row)}: {error}") from error
    make_listed(rows, name, tokens)


def read_block(
    rows: Rows, name: str, selection: SelectedSamples, lent: ExitStack
) -> tuple[NDArray[Any], Sequence[Move]]:
    """Read the blocks that the first move of a field leaves of its values; return them, and the other moves.

    They are in the batch's memory if that is all there is to do, else in scratch that `lent` gives back.
    """
    spec, kind = rows.spec, rows.spec.fields[name]
    first, *rest = _draw(rows, name)
    blocks = blocks_of(first, spec.arrays[name].recipe)
    shape = (len(rows), *blocks.shape(kind.row_shape))
    if spec.delivers_blocks(name):
        out = rows.arrays[name].reshape(shape)
    else:
        memory = lent.enter_context(spec.scratch.lend()).take(math.prod(shape) * kind.row_dtype.itemsize)
        out = memory.view(kind.row_dtype).reshape(shape)
    return selection.blocks(spec.names.stored[name], blocks, out), rest


def make_fixed(rows: Rows, name: str, values: NDArray[Any], moves: Sequence[Move] | None = None) -> None:
    """Make the arrays, or numbers, of one shape of a field that has transforms.

    If blocks of the stored values were read, `moves` are the moves that remain for them.
    """
    array = rows.spec.arrays[name]
    if moves is not None and rows.spec.delivers_blocks(name):
        return
    moves = _draw(rows, name) if moves is None else moves
    if (lost := first_overflow(values, array.recipe, moves)) is not None:
        _raise_overflow(rows, name, *lost)
    if not array.on_device:
        marks = rows.arrays.get(rows.spec.marks.get(name, ""))
        transform_arrays(values, array.recipe, moves, rows.arrays[name], marks)


def _deliver(
    rows: Rows,
    name: str,
    there: NDArray[np.int64],
    values: Sequence[NDArray[Any]],
    moves: Sequence[Move],
    data: NDArray[Any] | None = None,
    lengths: NDArray[np.int64] | None = None,
) -> None:
    """Carry out the transforms of the values of some rows, and put them into the batch's array or the list.

    Args:
        there: the rows, int64 [k].
        values: their values; so are the moves.
        data: the memory that has all values end to end, if there is one.
        lengths: their lengths, int64 [k], if known.
    """
    array = rows.spec.arrays[name]
    recipe, dtype = array.recipe, delivered_dtype(array.recipe, array.stored)
    together = None if moves or data is None else data
    if lengths is None:
        lengths = np.array([len(value) if value.ndim else 1 for value in values], np.int64)
    if (lost := first_overflow(values if together is None else together, recipe, moves)) is not None:
        row = lost[0] if together is None else int(np.searchsorted(np.cumsum(lengths), lost[0], "right"))
        _raise_overflow(rows, name, int(there[row]), lost[1])
    if array.vocabulary is not None and (data is None or not _in_vocabulary(data, array.vocabulary)):
        _check_vocabulary(rows, name, there, values, array.vocabulary)
    mark = rows.spec.marks.get(name)
    if recipe.out_size is not None:
        outs = [[rows.arrays[each][row, ...] for row in there.tolist()] for each in rows.spec.with_mark(name)]
        transform_each(values, recipe, moves, *outs)
        return
    if together is None:
        results, filled = transform_each(values, recipe, moves)
    elif recipe.conversion is None and recipe.filling is None:
        results = list(values)
    else:
        made, marked = np.empty(together.shape, dtype), np.empty(together.shape, np.bool_)
        transform_arrays(together, recipe, (), made, None if mark is None else marked)
        results, filled = _split(made, lengths), _split(marked, lengths)
    _put(rows, name, there, results, recipe.collation, array.fill)
    if mark is not None:
        _put(rows, mark, there, filled, recipe.collation, False, of=name)


def _put(
    rows: Rows,
    name: str,
    there: NDArray[np.int64],
    results: Sequence[NDArray[Any]],
    rule: Collation | None,
    fill: Any,
    of: str | None = None,
) -> None:
    """Put the results of some rows into the batch's array, padded with `fill`, or into the list.

    `of` is the field whose filled values they mark; None if they are values.
    """
    if isinstance(rule, PadTo) and not rows.mapped:
        if rule.length is not None:
            shown = [*zip(there.tolist(), results, strict=True)]
            results = [fitted(rows, of or name, row, each, rule) for row, each in shown]
        if name in rows.arrays:
            out = rows.arrays[name]
            padded = out if len(there) == len(out) else out[there]
            lengths = np.array([len(each) for each in results], np.int64)
            pad(results, lengths, rule, fill, padded)
            if padded is not out:
                out[there] = padded
            if of is None:
                rows.arrays[rows.spec.added_name(name)][there] = lengths
            return
    if len(there) == len(rows):
        rows.lists[name][:] = results
        return
    for row, result in zip(there.tolist(), results, strict=True):
        rows.lists[name][row] = result


def fitted(rows: Rows, name: str, row: int, value: NDArray[Any], rule: PadTo) -> NDArray[Any]:
    """Return a row's value, cut off as PadTo says; BadSample if it is too long for it."""
    if (fitting := cut(value, rule)) is None:
        told = f"has {len(value)} entries, PadTo takes {rule.length}: cut='end' or 'start' cuts off the rest"
        raise BadSample(f"{place_of(rows, name, row)}: {told}")
    return fitting


def _in_vocabulary(tokens: NDArray[Any], vocabulary: int) -> bool:
    return not tokens.size or bool(0 <= tokens.min() <= tokens.max() < vocabulary)


def _check_vocabulary(
    rows: Rows, name: str, there: NDArray[np.int64], values: Sequence[NDArray[Any]], vocabulary: int
) -> None:
    """Raise BadSample for a token that is not in a vocabulary of so many."""
    for row, value in zip(there.tolist(), values, strict=True):
        if not _in_vocabulary(value, vocabulary):
            token = value[(value < 0) | (value >= vocabulary)].flat[0]
            labels = any(isinstance(each, MultiHot) for each in rows.spec.arrays[name].recipe.transforms)
            told = f"token {token} is not in the vocabulary, which has {vocabulary} tokens"
            told = f"label {token} is not in [0, {vocabulary}), as MultiHot takes" if labels else told
            raise BadSample(f"{place_of(rows, name, row)}: {told}")


def _moves(rows: Rows, name: str, there: NDArray[np.int64], shapes: NDArray[np.int64]) -> Sequence[Move]:
    """Draw the moves of the arrays of some rows, of these shapes, int64 [k, axes]; BadSample if one is not taken."""
    recipe = rows.spec.arrays[name].recipe
    if not recipe.transforms and recipe.shape == rows.spec.fields[name].shape:
        return ()
    for row, shape in zip(there.tolist(), shapes.tolist(), strict=True):
        try:
            recipe.result(tuple(shape))
        except ConfigError as error:
            raise BadSample(f"{place_of(rows, name, row)}: {error}") from error
    note_array_sizes(rows, name, shapes, there)
    return _draw(rows, name, there, shapes)


def _draw(
    rows: Rows,
    name: str,
    there: NDArray[np.int64] | slice = slice(None),
    shapes: NDArray[np.int64] | None = None,
) -> Sequence[Move]:
    """Draw the moves of the arrays of some rows, and note where they begin if the batch has that."""
    recipe = rows.spec.arrays[name].recipe
    moves = rows.decided.drawn[name] if shapes is None else recipe.moves(rows.field_keys(name)[there], shapes)
    if (column := rows.spec.offsets.get(name)) is not None:
        rows.arrays[column][there] = recipe.offsets(moves)
    return moves


def _window(moves: Sequence[Move]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the begins and ends of the windows that the first moves of a list keep, int64 [k] each."""
    (window,) = (move for move in moves[:1] if isinstance(move, ArrayWindow))
    return window.begins, window.ends


def _shapes(rows: Rows, name: str, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the shapes of values of a ragged field that have these lengths, int64 [k, axes]."""
    entry = rows.spec.fields[name].entry_shape
    return np.column_stack([lengths, np.broadcast_to(np.array(entry, np.int64), (len(lengths), len(entry)))])


def _split(data: NDArray[Any], lengths: NDArray[np.int64]) -> list[NDArray[Any]]:
    ends = np.cumsum(lengths)
    return [data[start:end] for start, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True)]


def _present(rows: Rows, name: str) -> NDArray[np.int64]:
    """Return the rows that have a value of a field, int64 [k]."""
    return np.flatnonzero(rows.present[name]) if name in rows.present else np.arange(len(rows))


def place_of(rows: Rows, name: str, row: int) -> str:
    """Name a row's sample and the stored field of a delivered one, for messages."""
    return rows.spec.place_of(rows.indices[row], rows.spec.names.stored[name])


def _raise_overflow(rows: Rows, name: str, row: int, number: Any) -> NoReturn:
    conversion = rows.spec.arrays[name].recipe.conversion
    dtype = "int64" if conversion is None else conversion.dtype
    raise BadSample(f"{place_of(rows, name, row)}: {dtype} cannot hold what the transforms make of {number}")
