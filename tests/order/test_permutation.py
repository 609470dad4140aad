"""The keyed permutation is a bijection for every n, uses constant memory, and spreads its numbers evenly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardio import native
from shardio.order.permutation import Permutation, derive


@given(n=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_every_number_comes_once(n: int, key: int) -> None:
    """The positions 0..n-1 map to 0..n-1, each exactly once."""
    found = Permutation(n, key)(np.arange(n))
    assert sorted(found.tolist()) == list(range(n))


@given(n=st.integers(1, 2**62), key=st.integers(0, 2**64 - 1), data=st.data())
def test_huge_domains_stay_in_range_and_apart(n: int, key: int, data: st.DataObject) -> None:
    """For any n, different positions give different numbers below n, and the same ones every time."""
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=50, unique=True)))
    permutation = Permutation(n, key)
    found = permutation(positions)
    assert found.min() >= 0
    assert found.max() < n
    assert len(set(found.tolist())) == len(positions)
    assert np.array_equal(found[::-1], permutation(positions[::-1]))


def test_the_order_never_changes_between_releases() -> None:
    """The order equals recorded numbers, so that a new release resumes the checkpoints of an old one."""
    assert Permutation(10, 7)(np.arange(10)).tolist() == [3, 6, 2, 8, 5, 0, 1, 4, 9, 7]
    assert Permutation(10**12, 7)(np.array([0, 1, 10**12 - 1])).tolist() == [485280754982, 111451613910, 292364311098]


def test_first_positions_are_uniform() -> None:
    """Over many keys, the number at position 0 of a small epoch is uniform (chi-squared, 9 degrees of freedom)."""
    counts = np.bincount([int(Permutation(10, key)(np.zeros(1, np.int64))[0]) for key in range(4000)], minlength=10)
    assert ((counts - 400) ** 2 / 400).sum() < 33.7  # a uniform distribution exceeds it once in 10,000


def test_neighbours_are_spread() -> None:
    """The mean distance of consecutive positions' numbers is that of random numbers, n/3."""
    n = 1 << 20
    found = Permutation(n, 3)(np.arange(20_000))
    assert np.abs(np.diff(found)).mean() / n == pytest.approx(1 / 3, abs=0.01)


@pytest.mark.parametrize("n", [0, -1, 2**62 + 1])
def test_sizes_out_of_range_are_refused(n: int) -> None:
    """There is no permutation of 0 numbers, or of more than 64-bit positions can count."""
    with pytest.raises(ValueError, match="n must be in"):
        Permutation(n, 0)


def test_keys_depend_on_every_part_and_their_order() -> None:
    """Seed 1 epoch 2 is not seed 2 epoch 1."""
    assert len({derive(1, 2), derive(2, 1), derive(1, 2, 0), derive(1), derive(-1)}) == 5


@given(n=st.integers(1, 2**62), key=st.integers(0, 2**64 - 1), data=st.data())
def test_compiled_and_plain_give_the_same(n: int, key: int, data: st.DataObject) -> None:
    """The compiled permutation equals the one in Python."""
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)))
    fast = Permutation(n, key)(positions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: None)
        assert np.array_equal(Permutation(n, key)(positions), fast)
