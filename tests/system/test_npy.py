"""`.npy` files: what NumPy wrote is read bit by bit, usual headers without its parser, and damage is a ValueError."""

import ast
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from shardio.format.fields import Field
from shardio.system import npy

DTYPES = st.sampled_from(["|b1", "|u1", "<i2", ">i4", "<f2", ">f8", "<c16", "<U3", [("a", "<f4"), ("b", ">u2", (2,))]])
SHAPES = hnp.array_shapes(min_dims=0, min_side=0, max_side=4)
VALUES = [np.arange(24, dtype="<f4").reshape(shape) for shape in ((24,), (4, 6), (2, 3, 4), (24, 1))]


def stored(array: NDArray[Any], version: tuple[int, int] = (1, 0)) -> bytes:
    """The `.npy` of an array, as NumPy writes it."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version)
    return stream.getvalue()


def in_one_memory(values: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """The values end to end, with their offsets and sizes."""
    sizes = np.array([len(value) for value in values])
    return np.frombuffer(bytearray(b"".join(values)), np.uint8), np.cumsum(sizes) - sizes, sizes


@given(DTYPES, SHAPES, st.sampled_from([(1, 0), (2, 0), (3, 0)]), st.booleans())
def test_what_numpy_writes(dtype: Any, shape: tuple[int, ...], version: tuple[int, int], fortran: bool) -> None:
    """Arrays of any dtype, shape, order and version of the format are read as NumPy reads them, and are writable."""
    numbers = np.random.default_rng(0).bytes(4096)
    array = np.ndarray(shape, dtype, bytearray(4096) if np.dtype(dtype).kind in "US" else numbers)
    data = stored(np.asfortranarray(array) if fortran and array.ndim else array, version)
    expected = np.load(io.BytesIO(data), allow_pickle=False)
    for read in (npy.read_array(data), next(npy.read_arrays(*in_one_memory([data]), expected.dtype))):
        assert (read.dtype, read.shape, read.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
        assert read.flags.c_contiguous == expected.flags.c_contiguous
        assert read.flags.writeable
        assert read.flags.aligned


@given(st.data())
def test_damage(data: st.DataObject) -> None:
    """Whatever bytes are changed or cut out, the array is the one that NumPy reads, or there is a ValueError."""
    damaged = bytearray(stored(data.draw(st.sampled_from(VALUES))))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, 80))
        damaged[place : place + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b"0", b"9", b"-", b"(", b",", b"'", b">", b"O", b"True", b"\0", b"\xff"])
        )
    try:
        read = npy.read_array(bytes(damaged))
    except ValueError:
        return
    expected = np.load(io.BytesIO(damaged), allow_pickle=False)
    assert (read.dtype, read.shape, read.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


@pytest.mark.parametrize(
    ("shape", "descr"),
    [
        (b"(99999999999999999,)", b"<f4"),  # more than there is
        (b"(0, 9999999999999999999)", b"<f4"),  # nothing, but no array has such a shape
        (b"(-1, -24)", b"<f4"),
        (b"(024,)", b"<f4"),  # no number in Python
        (b"(24)", b"<f4"),  # no tuple
        (b"(True, 24)", b"<f4"),
        (b"(24,)", b"<f3"),
        (b"(24,)", b"|O8"),  # would need pickle
        (b"(24,)", b"<f8"),  # another dtype than the field's
    ],
)
def test_hostile_headers(shape: bytes, descr: bytes) -> None:
    """A header that lies is a ValueError of the field, alone and among others."""
    header, numbers = (data := stored(VALUES[0]))[:128], data[128:]
    header = header.replace(b"(24,)", shape).replace(b"<f4", descr)
    header = header[:127].ljust(127) + b"\n" if len(header) < 128 else header[:127].rstrip(b" \n").ljust(127) + b"\n"
    field = Field("array", dtype="float32")
    with pytest.raises(ValueError, match=r"."):
        field.decode(header + numbers)
    arrays = npy.read_arrays(*in_one_memory([data, header + numbers, data]), field.row_dtype)
    np.testing.assert_array_equal(next(arrays), VALUES[0])
    with pytest.raises(ValueError, match=r"."):
        next(arrays)


def test_a_value_does_not_reach_into_the_next() -> None:
    """A value that is cut off within its header or its numbers is damaged, whatever lies behind it in memory."""
    data = stored(VALUES[0])
    for end in (0, 8, 100, 128, len(data) - 1):
        with pytest.raises(ValueError, match=r"."):
            list(npy.read_arrays(*in_one_memory([data[:end], data[end:]]), np.dtype("<f4")))


def test_usual_headers_are_not_parsed_as_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields write NumPy's own bytes, and read them without `ast`, which takes longer than the rest of a batch."""
    monkeypatch.setattr(ast, "literal_eval", None)
    field = Field("array", dtype="float32")
    for array in VALUES:
        assert field.encode(array) == stored(array)
        np.testing.assert_array_equal(field.decode(stored(array)), array)
