"""Best fit decreasing, many equal pieces at a time: what a loop over the pieces gives."""

from itertools import pairwise

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from shardio.views.packing import best_fit


def rooms_one_by_one(sizes: list[int], length: int) -> list[int]:
    """The room left in each row by best fit decreasing, piece by piece, sorted."""
    rooms: list[int] = []
    for size in sorted(filter(None, sizes), reverse=True):
        fitting = [row for row, room in enumerate(rooms) if room >= size]
        if not fitting:
            rooms.append(length)
            fitting = [len(rooms) - 1]
        rooms[min(fitting, key=lambda row: rooms[row])] -= size
    return sorted(rooms)


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n), max_size=200))))
def test_rows_are_those_of_best_fit_decreasing(given: tuple[int, list[int]]) -> None:
    """Each piece is in one row, none of length 0 in any, rows have the rooms that a plain loop leaves."""
    length, sizes = given
    pieces, firsts = best_fit(np.array(sizes, np.int64), length)
    assert sorted(pieces.tolist()) == [piece for piece, size in enumerate(sizes) if size]
    rows = [pieces[a:b].tolist() for a, b in pairwise(firsts)]
    assert all(rows)
    assert sorted(length - sum(sizes[piece] for piece in row) for row in rows) == rooms_one_by_one(sizes, length)
    for row in rows:
        assert [(-sizes[piece], piece) for piece in row] == sorted((-sizes[piece], piece) for piece in row)


def test_of_equal_pieces_the_first_comes_first() -> None:
    """Pieces of one length go into rows in their order, so that rows hold neighbours where they can."""
    pieces, firsts = best_fit(np.full(1000, 3), 10)
    assert pieces.tolist() == list(range(1000))
    assert np.diff(firsts).tolist() == [3] * 333 + [1]


@pytest.mark.parametrize("length", [512, 2048, 70_000])
@pytest.mark.parametrize("mean", [4.0, 6.0])
def test_rows_have_hardly_any_padding(length: int, mean: float) -> None:
    """Lengths as those of web pages fill rows to more than 99 %."""
    sizes = np.random.default_rng(0).lognormal(mean, 1, 200_000).astype(np.int64) % length
    rows = len(best_fit(sizes, length)[1]) - 1
    assert rows <= 1.01 * -(-int(sizes.sum()) // length)


def test_a_recorded_table() -> None:
    """The rows of recorded lengths stay what they are: a state names a row by its number."""
    sizes = np.array([5, 3, 8, 0, 1, 2, 9, 4, 4, 7, 6, 3, 10, 1, 2])
    pieces, firsts = best_fit(sizes, 10)
    rows = [row.tolist() for row in np.split(pieces, firsts[1:-1])]
    assert rows == [[12], [6, 13], [2, 5], [9, 1], [10, 7], [0, 8, 4], [11, 14]]
    lengths = np.random.default_rng(3).lognormal(4, 1, 20_000).astype(np.int64) % 512
    pieces, firsts = best_fit(lengths, 512)
    found = np.concatenate([pieces, firsts])
    assert xxhash.xxh3_64_hexdigest(found.astype("<i8").tobytes()) == "71d708946b97f7a8"
