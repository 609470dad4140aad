"""Pieces of objects, as pure functions of numbers."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardio.format.pieces import PIECE, pieces_of, runs, widened_up_to

SPANS = st.lists(st.tuples(st.integers(0, 20 * PIECE), st.integers(0, 3 * PIECE)), max_size=20)
NUMBERS = st.sets(st.integers(0, 300), max_size=60).map(lambda found: np.array(sorted(found), np.int64))


@given(SPANS)
def test_pieces_of_spans(spans: list[tuple[int, int]]) -> None:
    """The pieces of spans are those that hold any of their bytes."""
    offsets, sizes = (np.array([span[i] for span in spans], np.int64) for i in (0, 1))
    expected = {byte // PIECE for start, size in spans if size for byte in (*range(start, start + size, PIECE),)}
    expected |= {(start + size - 1) // PIECE for start, size in spans if size}
    assert pieces_of(offsets, sizes).tolist() == sorted(expected)


@given(NUMBERS, st.integers(1, 50))
def test_runs_are_the_pieces_again(pieces: np.ndarray, longest: int) -> None:
    """Runs hold each piece once, in order, and none is longer than asked for or could be joined with the next."""
    found = runs(pieces, longest)
    assert [number for first, stop in found for number in range(first, stop)] == pieces.tolist()
    assert all(0 < stop - first <= longest for first, stop in found)
    assert all(a[1] < b[0] or a[1] - a[0] == longest for a, b in pairwise(found))


@given(NUMBERS, st.floats(1, 4))
def test_pieces_widen_within_a_factor(pieces: np.ndarray, factor: float) -> None:
    """Wider pieces are the whole units of the largest size that makes not more than so many times as many of them."""
    for unit in (16, 8, 4, 2, 1):
        whole = {n for p in pieces.tolist() for n in range(p // unit * unit, p // unit * unit + unit) if n < 301}
        if len(whole) <= factor * len(pieces):
            break
    assert widened_up_to(pieces, 16, 301, factor).tolist() == sorted(whole)
