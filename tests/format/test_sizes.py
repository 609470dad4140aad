"""Sizes of an image and of what belongs to it: whether they fit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardio.engines.orientation import upright_sizes
from shardio.format.pairs import DIFFERS, FITS, TURNED, compare_sizes


@pytest.mark.parametrize(
    ("one", "other", "options", "wanted"),
    [
        ((120, 160), (120, 160), {}, FITS),
        ((120, 160), (160, 120), {}, TURNED),
        ((120, 160), (160, 120), {"scaled": True}, TURNED),
        ((120, 160), (120, 161), {}, DIFFERS),
        ((120, 160), (120, 161), {"rounding": 1}, FITS),
        ((120, 160), (120, 162), {"rounding": 1}, DIFFERS),
        ((120, 160), (60, 80), {}, DIFFERS),
        ((120, 160), (60, 80), {"scaled": True}, FITS),
        ((120, 160), (40, 30), {"scaled": True}, TURNED),
        ((120, 160), (60, 60), {"scaled": True}, DIFFERS),
        ((500, 333), (167, 111), {"scaled": True}, FITS),
        ((65535, 65535), (65535, 40000), {"scaled": True}, DIFFERS),  # products beyond int32
        ((4, 5, 6), (4, 5, 6), {}, FITS),
        ((4, 5, 6), (6, 5, 4), {}, TURNED),
    ],
)
def test_sizes_are_compared(one: tuple[int, ...], other: tuple[int, ...], options: dict[str, int], wanted: int) -> None:
    """Either way round, and for many at once as for one."""
    a, b = np.array([one, one], np.int32), np.array([other, one], np.int32)
    assert compare_sizes(a, b, **options).tolist() == [wanted, FITS]
    assert compare_sizes(b, a, **options).tolist() == [wanted, FITS]


@given(st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 40), st.sampled_from([np.floor, np.ceil, np.rint]))
def test_any_way_of_rounding_a_smaller_size_keeps_the_aspect_ratio(
    h: int, w: int, factor: int, rounded: object
) -> None:
    size = np.array([h, w])
    smaller = np.maximum(1, rounded(size / factor)).astype(np.int64)
    assert compare_sizes(size, smaller, scaled=True) == FITS


def test_orientations_swap_sizes() -> None:
    """The four that transpose an image swap its height and width."""
    sizes = np.full((8, 2), (120, 160), np.int32)
    found = upright_sizes(sizes, np.arange(1, 9).astype(np.uint8))
    assert found.tolist() == [[120, 160]] * 4 + [[160, 120]] * 4
