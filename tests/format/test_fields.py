"""Fields: values survive encoding and decoding exactly, and values that do not fit are refused."""

import io
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from _builders import bmp, jpeg
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from shardio.errors import BadSample, ConfigError
from shardio.format.fields import (
    CHECKSUM,
    Field,
    FieldLike,
    as_field,
    as_fields,
    fields_to_json,
    infer_fields,
    shape_column,
    with_hidden,
)

DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="="),
    hnp.unsigned_integer_dtypes(endianness="="),
    hnp.floating_dtypes(endianness="=", sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(endianness="=", sizes=(64, 128)),
)
ARRAYS = DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)))
WORDS = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


def same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether dtype, shape and all bits agree, those of NaN included."""
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


class TestRoundTrips:
    @given(ARRAYS)
    def test_fixed_arrays(self, array: NDArray[Any]) -> None:
        """A fixed array is stored as its bytes alone and survives bit by bit."""
        field = Field("array", dtype=array.dtype.name, shape=array.shape)
        stored = bytes(field.encode(array))
        assert stored == array.tobytes()
        assert len(stored) == field.row_bytes
        found = field.decode(stored)
        assert same(found, array)
        found[...] = 0  # it is a copy
        assert bytes(stored) == array.tobytes()

    @given(ARRAYS)
    def test_arrays_of_any_shape(self, array: NDArray[Any]) -> None:
        """An array without a fixed shape is stored as a .npy file that NumPy reads."""
        field = Field("array", dtype=array.dtype.name)
        stored = bytes(field.encode(array))
        assert same(field.decode(stored), array)
        assert same(np.load(io.BytesIO(stored), allow_pickle=False), array)

    @given(DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, ())))
    def test_scalars(self, array: NDArray[Any]) -> None:
        """A NumPy scalar is decoded as the Python number of equal value."""
        field = Field("scalar", dtype=array.dtype.name)
        stored = field.encode(array[()])
        value = field.decode(stored)
        assert len(stored) == field.row_bytes == array.dtype.itemsize
        assert type(value) in (bool, int, float, complex)
        np.testing.assert_array_equal(np.array(value, array.dtype), array)

    @given(WORDS)
    def test_text(self, text: str) -> None:
        """Text is stored as UTF-8."""
        assert Field("text").encode(text) == text.encode("utf-8")
        assert Field("text").decode(text.encode("utf-8")) == text

    @given(JSON)
    def test_json(self, value: Any) -> None:
        """JSON survives, and any JSON parser reads the stored bytes."""
        stored = Field("json").encode(value)
        assert Field("json").decode(stored) == value
        assert json.loads(bytes(stored)) == value

    @pytest.mark.parametrize("kind", ["bytes", "image"])
    @pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
    def test_bytes_and_images(self, kind: Any, buffer: type) -> None:
        """Bytes and encoded images are stored unchanged."""
        data = bytes(range(256))
        assert bytes(Field(kind).encode(buffer(data))) == data
        assert Field(kind).decode(buffer(data)) == data


class TestStoredBytes:
    @pytest.mark.parametrize(
        "other",
        [
            lambda array: np.asfortranarray(array),
            lambda array: np.ascontiguousarray(array[:, ::-1])[:, ::-1],  # negative strides
            lambda array: array.astype(">i4"),  # big-endian, like many scientific files
            lambda array: np.asfortranarray(array.astype(np.int64)),  # from another layout and dtype
            lambda array: array.tolist(),
        ],
    )
    @pytest.mark.parametrize("shape", [(3, 2), None])
    def test_arrays_in_any_layout(self, other: Any, shape: tuple[int, ...] | None) -> None:
        """Order, strides and byte order of an array do not affect the stored bytes."""
        array = np.arange(6, dtype=np.int32).reshape(3, 2)
        field = Field("array", dtype="int32", shape=shape)
        assert bytes(field.encode(other(array))) == bytes(field.encode(array))

    def test_numbers_are_little_endian(self) -> None:
        """Scalars and fixed arrays are stored little-endian on any machine and for any dtype."""
        assert Field("scalar", dtype="int32").encode(1) == b"\1\0\0\0"
        assert Field("scalar", dtype=">i4").encode(np.array(1, ">i4")) == b"\1\0\0\0"
        assert bytes(Field("array", dtype="uint16", shape=(2,)).encode([1, 256])) == b"\1\0\0\1"

    def test_json_is_canonical(self) -> None:
        """JSON is stored with sorted keys, without spaces and with readable text."""
        assert Field("json").encode({"b": [1, None], "a": "ü"}) == '{"a":"ü","b":[1,null]}'.encode()


class TestWhatFits:
    @pytest.mark.parametrize(
        ("dtype", "value", "expected"),
        [
            ("float32", 0.1, float(np.float32(0.1))),  # a Python float has no dtype and is rounded to the field's
            ("float32", 3, 3.0),
            ("float32", math.inf, math.inf),  # infinite already, so nothing is lost
            ("float64", True, 1.0),
            ("complex64", 0.5, 0.5 + 0j),
            ("int64", True, 1),
            ("int64", 3.0, 3),  # an integer, so nothing is lost
            ("uint8", 255, 255),
            ("uint64", 2**64 - 1, 2**64 - 1),
            ("bool", 1, True),
            ("float32", math.nan, math.nan),  # a missing value
        ],
    )
    def test_numbers_that_lose_nothing_are_taken(self, dtype: str, value: Any, expected: Any) -> None:
        """A number of another type is accepted if the field's dtype holds its value."""
        field = Field("scalar", dtype=dtype)
        np.testing.assert_equal(field.decode(field.encode(value)), expected)

    @pytest.mark.parametrize(
        ("field", "value", "reason"),
        [
            (Field("scalar", dtype="uint8"), 256, "uint8 cannot hold 256"),
            (Field("scalar", dtype="uint64"), -1, "uint64 cannot hold -1"),  # as int64 it would be -1 again
            (Field("scalar", dtype="int64"), 2**64 - 1, "int64 cannot hold"),
            (Field("scalar", dtype="int64"), 2**80, "expected int64, got object"),
            (Field("scalar", dtype="int64"), 0.5, "int64 cannot hold 0.5"),
            (Field("scalar", dtype="bool"), 2, "bool cannot hold 2"),
            (Field("scalar", dtype="float16"), 1e6, "float16 cannot hold 1000000.0"),  # would become infinite
            (Field("scalar", dtype="float64"), 1 + 2j, "float64 cannot hold"),
            (Field("scalar", dtype="int64"), "3", "expected int64, got <U1"),
            (Field("scalar", dtype="int64"), None, "expected int64, got object"),
            (Field("scalar", dtype="int64"), [3], r"expected shape \(\), got \(1,\)"),
            (Field("array", dtype="int64", shape=(2,)), [1, 2, 3], r"expected shape \(2,\), got \(3,\)"),
            (Field("array", dtype="int64", shape=(2,)), [1, [2, 3]], "not an array"),  # ragged
            (Field("array", dtype="uint8"), [1, 300], r"^uint8 cannot hold 300 \(int64\)$"),
            (Field("array", dtype="int16"), np.full((2, 3), 1.5), r"cannot hold 1.5 \(float64\)$"),
            (Field("array", dtype="float32"), np.array([0.1]), "float32 cannot hold"),  # its own dtype is wider
            (Field("array", dtype="float64"), [2**53 + 1], "float64 cannot hold"),  # NumPy compares the two as equal
            (Field("text"), b"bytes", "expected str, got bytes"),
            (Field("text"), "\ud800", "not text"),  # half a surrogate pair has no UTF-8
            (Field("image"), np.zeros((2, 2, 3)), "expected bytes, got ndarray"),
            (Field("json"), {"a": {1, 2}}, "not JSON"),
            (Field("json"), [math.nan], "not JSON"),  # Python writes NaN, which is not valid JSON
            (Field("json"), {"a": 1, 2: 3}, "not JSON"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, field: Field, value: Any, reason: str) -> None:
        """A value that would not survive is a bad sample, and the message says why."""
        with pytest.raises(BadSample, match=reason):
            field.encode(value)


class TestField:
    def test_fixed_fields(self) -> None:
        """A field is fixed if all its values take the same number of bytes: images of one size differ in theirs."""
        fields = as_fields({"a": "int64", "b": ("float32", (0, 3)), "c": Field("image", shape=(28, 28)), "d": "text"})
        assert [field.fixed for field in fields.values()] == [True, True, False, False]
        assert (fields["a"].row_bytes, fields["b"].row_bytes) == (8, 0)

    def test_values_are_normalised(self) -> None:
        """Equal fields have one normal form, so that manifests compare equal."""
        assert Field("array", dtype="<f4", shape=[2, np.int64(3)]) == Field("array", dtype="float32", shape=(2, 3))  # type: ignore[arg-type]
        assert Field("scalar", dtype=">i8") == Field("scalar", dtype="int64")
        assert Field("image") == Field("image", channels=3)

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"kind": "sound"}, "kind must be one of image, images, pixels, array.*got 'sound'"),
            ({"kind": "scalar"}, "got None"),  # a scalar needs a dtype
            ({"kind": "scalar", "dtype": "object"}, "got 'object'"),  # would need pickle
            ({"kind": "scalar", "dtype": "longdouble"}, "got 'longdouble'"),  # differs from machine to machine
            ({"kind": "scalar", "dtype": "int64", "shape": (2,)}, "takes no shape"),
            ({"kind": "text", "dtype": "int64"}, "takes no dtype"),
            ({"kind": "image", "shape": (28, 28, 3)}, "not a shape"),  # height and width only
            ({"kind": "array", "dtype": "int64", "shape": (-1, 2)}, "not a shape"),
            ({"kind": "array", "dtype": "int64", "shape": (2.5,)}, "integers"),
            ({"kind": "array", "dtype": "int64", "shape": 3}, r"a tuple of integers, such as \(3,\), got 3"),
            ({"kind": "image", "channels": 4}, "channels must be 1 or 3.*got 4"),
            ({"kind": "text", "channels": 3}, "channels must be"),
            (
                {"kind": "image", "role": "label"},
                "role must be 'mask', 'segments', 'boxes', 'points' or None, got 'label'",
            ),
            ({"kind": "text", "role": "mask"}, "role='mask' is for images, got a field of kind 'text'"),
            ({"kind": "image", "role": "mask", "channels": 3}, "a mask has 1 channel, got channels=3"),
            ({"kind": "text", "optional": "yes"}, "optional must be True or False, got 'yes'"),
            (
                {"kind": "scalar", "dtype": "int64", "window": True},
                "window must be False, or True for arrays of one shape or clips",
            ),
            ({"kind": "video", "shape": (4,)}, "a field of kind 'video' takes no shape"),
            ({"kind": "video", "window": True}, "window must be False, or True for arrays of one shape or clips"),
            ({"kind": "text", "attributes": {"units": "K"}}, "for an array or a scalar, got {'units': 'K'}"),
            ({"kind": "scalar", "dtype": "int8", "attributes": "K"}, "attributes must be a dict"),
            ({"kind": "scalar", "dtype": "int8", "attributes": {"fill": math.nan}}, "attributes must be JSON"),
        ],
    )
    def test_fields_that_make_no_sense_are_refused(self, options: Mapping[str, Any], reason: str) -> None:
        """An invalid field is refused when it is constructed."""
        with pytest.raises(ConfigError, match=reason):
            Field(**options)


class TestShortForms:
    @pytest.mark.parametrize(
        ("short", "expected"),
        [
            (Field("text"), Field("text")),
            ("image", Field("image")),
            ("int64", Field("scalar", dtype="int64")),  # a dtype stands for a scalar
            (np.dtype("f4"), Field("scalar", dtype="float32")),
            (("float32", (2, 3)), Field("array", dtype="float32", shape=(2, 3))),
            ({"kind": "image", "channels": 1}, Field("image", channels=1)),
            ({"kind": "array", "dtype": "int8", "shape": [4]}, Field("array", dtype="int8", shape=(4,))),  # from JSON
            ({"kind": "array", "dtype": "int8", "shape": None}, Field("array", dtype="int8")),
            ({"kind": "image", "role": "mask"}, Field("image", channels=1, role="mask")),
            ({"kind": "scalar", "dtype": "int8", "attributes": {}}, Field("scalar", dtype="int8")),  # states nothing
        ],
    )
    def test_short_forms(self, short: FieldLike, expected: Field) -> None:
        """Each short form gives one field."""
        assert as_field(short) == expected

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            (
                "sound",
                r"a field must be a kind \(image, images, text, bytes, json, video\), a dtype such .*got 'sound'$",
            ),
            ("imgae", r"got 'imgae'; did you mean the kind 'image'\?"),
            (np.ndarray, r"got <class 'numpy.ndarray'>; did you mean the kind 'array'\?"),
            (
                {"kind": "ndarray"},
                r"kind must be one of .*got 'ndarray'; did you mean the kind 'array'\?",
            ),
            (np.dtype("U4"), "a dtype must be one of"),
            (np.longdouble, "a dtype cannot be a long double, .*: give 'float64'"),
            (("float32", 4), r"such as \(4,\), got 4"),
            (("float32",), "a field must be"),
            (3, "or a Field, got 3$"),
            ({"dtype": "int64"}, "a field needs a kind"),
            ({"kind": "text", "size": 3}, "got size"),
        ],
    )
    def test_what_is_no_field(self, value: Any, reason: str) -> None:
        """Any other value is refused."""
        with pytest.raises(ConfigError, match=reason):
            as_field(value)

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"a": "text", "b": "string"}, "^field 'b': a field must be a kind"),  # the wrong one is named
            (["v"], r"fields must be a dict by name, as in {'label': 'int64'}, got \['v'\]"),
            ({}, "at least one"),
            # Names hold plain characters only; a leading underscore is reserved for hidden columns.
            *(
                ({name: "text"}, "a field's name must be letters")
                for name in ("", "_hidden", "a/b", "a b", ".hidden", "ü", 3, "a\n")
            ),
        ],
    )
    def test_what_are_no_fields(self, fields: Any, reason: str) -> None:
        """The fields of a dataset are a dict of at least one, by plain names."""
        with pytest.raises(ConfigError, match=reason):
            as_fields(fields)

    @pytest.mark.parametrize(
        ("name", "given", "reason"),
        [
            ("labels", {"per": "points"}, "per='points', which must be boxes, or points without per="),
            ("points", {"per": "points"}, "per='points', which must be boxes, or points without per="),
            ("labels", {"per": "image"}, "per='image', which must be boxes, or points without per="),
            ("labels", {"per": ["boxes"]}, r"on= and per= take the name of a field, got \['boxes'\]"),
            ("boxes", {"on": {}}, "on= and per= take the name of a field, got {}"),
            ("boxes", {"on": "photo"}, "lies on 'photo', which must be an image among the fields"),
            ("points", {"attributes": {"flip_pairs": [[0, 3]]}}, "pairs of different numbers of points below 3"),
            ("labels", {"attributes": {"flip_pairs": [[0, 1]]}}, "pairs of different numbers of points below 0"),
        ],
    )
    def test_what_is_per_nothing_or_on_nothing(self, name: str, given: dict[str, Any], reason: str) -> None:
        """A field per box names the boxes themselves, which name an image; only points have pairs."""
        fields: dict[str, Any] = {
            "image": {"kind": "image"},
            "boxes": {"kind": "array", "dtype": "float32", "shape": [None, 4], "role": "boxes", "on": "image"},
            "points": {"kind": "array", "dtype": "float32", "shape": [None, 3, 2], "role": "points", "on": "image"},
            "labels": {"kind": "array", "dtype": "int64", "shape": [None], "per": "boxes"},
        }
        fields["points"]["per"] = "boxes"
        as_fields(fields)
        fields[name] |= given
        with pytest.raises(ConfigError, match=f"^field '{name}'.*{reason}"):
            as_fields(fields)

    def test_json_keeps_all_parts(self) -> None:
        """Fields survive as JSON in their order, with only the parts that say something."""
        fields = {
            "mask": Field("image", role="mask", optional=True),
            "a-1.x_y": Field("scalar", dtype="float64", attributes={"units": "hours since 2000-01-01"}),
        }
        stored = json.loads(json.dumps(fields_to_json(fields)))
        assert list(as_fields(stored).items()) == list(fields.items())
        assert stored["mask"] == {"kind": "image", "channels": 1, "role": "mask", "optional": True}


class TestInference:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (jpeg(), Field("image")),
            (memoryview(bmp()), Field("image")),
            (b"plain bytes", Field("bytes")),
            ("words", Field("text")),
            (3, Field("scalar", dtype="int64")),
            (True, Field("scalar", dtype="bool")),
            (np.float32(0.5), Field("scalar", dtype="float32")),
            (np.zeros((2, 3), np.uint8), Field("array", dtype="uint8", shape=(2, 3))),
            (np.zeros(2, ">f4"), Field("array", dtype="float32", shape=(2,))),
            ({"a": 1}, Field("json")),
            (None, Field("json")),
        ],
    )
    def test_the_field_of_a_value(self, value: Any, expected: Field) -> None:
        """The field inferred from a value has the expected kind and can store the value."""
        fields = infer_fields({"value": value})
        assert fields == {"value": expected}
        fields["value"].encode(value)

    @pytest.mark.parametrize("value", [object(), {1, 2}, 2**80, np.array(["words"]), np.datetime64("2020-01-01")])
    def test_what_no_field_holds(self, value: Any) -> None:
        """A value that no kind of field holds is refused."""
        with pytest.raises(ConfigError):
            infer_fields({"value": value})


def test_hidden_columns() -> None:
    """Every shard has a hidden checksum column, and the height and width of each image."""
    fields = as_fields({"image": "image", "mask": "image", "label": "int64"})
    assert with_hidden(fields) == {
        **fields,
        shape_column("image"): Field("array", dtype="int32", shape=(2,)),
        shape_column("mask"): Field("array", dtype="int32", shape=(2,)),
        CHECKSUM: Field("scalar", dtype="uint64"),
    }
