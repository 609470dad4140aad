"""The protobuf wire reader agrees with protobuf's own runtime, and refuses invalid messages."""

from contextlib import suppress
from typing import Any

import pytest
from _foreign import Datum, Example, UnpackedExample, example
from hypothesis import given, settings
from hypothesis import strategies as st

from shardio.errors import BadSample
from shardio_converters import _protobuf as protobuf
from shardio_converters import lmdb, tfrecord

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(width=32, allow_nan=False)
FEATURE = st.one_of(
    st.lists(INT64, max_size=5), st.lists(st.binary(max_size=9), max_size=3), st.lists(FLOAT, max_size=5), st.none()
)
FEATURES = st.dictionaries(st.text(max_size=4), FEATURE, max_size=4)


def varint(value: int) -> bytes:
    """`value`, 0 to 2**64 - 1, encoded as a varint."""
    data = b""
    while value > 127:
        data, value = data + bytes([value & 127 | 128]), value >> 7
    return data + bytes([value])


def nested(number: int, data: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def values(data: bytes) -> dict[str, Any]:
    """All features of a record, as lists."""
    return {name: list(feature.values(data)) for name, feature in tfrecord.parse_example(data).items()}


def by_protobuf(data: bytes, message: Any = Example) -> dict[str, Any]:
    """The same features by protobuf's runtime."""
    found = message.FromString(data).features.feature
    kinds = {name: feature.WhichOneof("kind") for name, feature in found.items()}
    return {name: list(getattr(found[name], kind).value) for name, kind in kinds.items() if kind}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        *((data, "cut short") for data in (b"\x80", b"\xff" * 9)),
        *((data, "more than 10 bytes") for data in (b"\x80" * 10 + b"\0", b"\xff" * 11 + b"\1")),
    ],
)
def test_what_is_no_number(data: bytes, told: str) -> None:
    """A varint without its last byte, or of more than ten bytes, is refused."""
    with pytest.raises(ValueError, match=told):
        protobuf.int64s(data)
    with pytest.raises(ValueError, match=f"byte 0: a number .*{told}"):
        protobuf.varint(data, 0, len(data))


class TestMessages:
    @pytest.mark.parametrize(
        ("data", "told"),
        [
            (b"\x0a\x05abc", "byte 0: field 1 ends at byte 7, its message at byte 5"),
            (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "byte 0: field 1 ends at byte 18446744073709551626"),
            (b"\x08\x01\x0a\xff", "byte 3: a number is cut short"),
            (b"\x0d\0\0", "field 1 ends at byte 5"),
            (b"\x02\0", "a field's number is 1 to 536870911, got 0"),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "a field's number is 1 to"),
            (b"\x0b\x0c", "byte 0: field 1 is of the wire type 3, which is not supported"),
            (b"\x0f", "of the wire type 7"),
            (b"\x08" + b"\x80" * 10 + b"\0", "byte 1: a number has more than 10 bytes"),
        ],
    )
    def test_damage(self, data: bytes, told: str) -> None:
        """Lengths beyond the message, truncated numbers, and invalid field numbers and types are refused by offset."""
        with pytest.raises(ValueError, match=told):
            list(protobuf.records(data))

    def test_a_message_within_another_ends_with_it(self) -> None:
        """A length that exceeds the enclosing message is refused, even within the record."""
        inner = b"\x0a\x09" + b"x" * 4
        data = nested(1, nested(1, inner)) + b"\x12\x08" + b"y" * 8
        with pytest.raises(BadSample, match=r"not a tf.train.Example: byte 4: field 1 ends at byte 15, .* at byte 10"):
            tfrecord.parse_example(data)

    @given(data=st.binary(max_size=80))
    @settings(max_examples=1000)
    def test_random_bytes(self, data: bytes) -> None:
        """Any bytes give fields within them or ValueError, and an Example or a Datum or BadSample."""
        with suppress(ValueError):
            for record in protobuf.records(data):
                assert 0 < record.start <= record.end <= len(data)
        with suppress(BadSample):
            for feature in tfrecord.parse_example(data).values():
                feature.values(data)
        with suppress(BadSample):
            lmdb.parse_datum(data).array(data)


class TestExamples:
    @pytest.mark.parametrize("message", [Example, UnpackedExample])
    @given(features=FEATURES)
    def test_as_protobuf_writes_them(self, message: Any, features: dict[str, Any]) -> None:
        """Features are read as protobuf writes them, packed or not."""
        data = example(features, message)
        assert values(data) == {k: v for k, v in features.items() if v is not None} == by_protobuf(data, message)

    @settings(max_examples=300)
    @given(features=FEATURES, damage=st.lists(st.tuples(st.integers(0, 80), st.integers(0, 255)), max_size=3))
    def test_damaged_ones(self, features: Any, damage: list[tuple[int, int]]) -> None:
        """A few wrong bytes in a valid message give features or BadSample."""
        data = bytearray(example(features) + example(features, UnpackedExample))
        for at, value in damage:
            if at < len(data):
                data[at] = value
        with suppress(BadSample):
            values(bytes(data))

    def test_the_last_of_two_features_counts(self) -> None:
        """The last of two features with one name counts, as in concatenated messages."""
        data = example({"a": [1, 2], "b": [1], "d": [1]}) + example({"a": [b"x"], "c": [0.5], "d": None})
        assert values(data) == {"a": [b"x"], "b": [1], "c": [0.5]} == by_protobuf(data)

    def test_the_last_of_two_kinds_counts(self) -> None:
        """The last of two kinds in a feature counts; values of one kind are concatenated."""
        one, two = nested(3, b"\x0a\1\1"), nested(3, b"\x08\2")
        other = nested(1, nested(1, b"x"))
        for feature, expected in [
            (one + two, [1, 2]),
            (one + other, [b"x"]),
            (other + two, [2]),
            (one + other + one, [1]),
        ]:
            data = nested(1, nested(1, nested(1, b"a") + nested(2, feature)))
            assert values(data) == {"a": expected} == by_protobuf(data)

    def test_fields_that_nobody_knows(self) -> None:
        """Unknown fields are skipped, as in protobuf."""
        strange = b"\x98\x06\x05" + nested(100, b"x") + b"\xa5\x06abcd" + b"\xa1\x06abcdefgh"
        feature = strange + nested(3, strange + b"\x08\2" + strange)
        data = strange + nested(1, strange + nested(1, nested(1, b"a") + nested(2, feature)))
        assert values(data) == {"a": [2]} == by_protobuf(data)

    @pytest.mark.parametrize(
        ("feature", "told"),
        [
            (nested(1, b"\xff"), r"not a tf.train.Example: .*utf-8"),
            (nested(1, b"a") + nested(2, nested(2, nested(1, b"abc"))), "floats take 4 bytes each, got 3 bytes"),
        ],
    )
    def test_features_that_are_none(self, feature: bytes, told: str) -> None:
        """A name that is not UTF-8 and a float of three bytes are refused."""
        with pytest.raises(BadSample, match=told):
            values(nested(1, nested(1, feature)))


class TestDatums:
    @given(
        shape=st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 3),
        label=st.integers(-(2**31), 2**31 - 1),
        encoded=st.booleans(),
        data=st.binary(max_size=20),
        floats=st.lists(FLOAT, max_size=4),
    )
    def test_as_protobuf_writes_them(self, shape: Any, label: int, encoded: bool, data: bytes, floats: Any) -> None:
        """Every field of Caffe's Datum is read as protobuf writes it."""
        channels, height, width = shape
        message = Datum(channels=channels, height=height, width=width, data=data, label=label, encoded=encoded)
        message.float_data.extend(floats)
        record = message.SerializeToString()
        found = lmdb.parse_datum(record)
        value = protobuf.joined(record, (found.data,)) if found.data else b""
        assert (found.shape, found.label, found.encoded, value) == (shape, label, encoded, data)
        assert protobuf.floats(protobuf.joined(record, found.floats)).tolist() == floats

    def test_what_is_not_said(self) -> None:
        """Missing fields have their defaults."""
        found = lmdb.parse_datum(b"")
        assert (found.shape, found.label, found.encoded, found.data, found.floats) == ((0, 0, 0), 0, False, None, ())

    @pytest.mark.parametrize(
        ("shape", "size"), [((0, 0, 0), 0), ((3, 2, 2), 11), ((3, 2, 2), 13), ((-1, -1, 4), 4), ((1 << 30,) * 3, 4)]
    )
    def test_shapes_that_are_wrong(self, shape: tuple[int, int, int], size: int) -> None:
        """A Datum whose values are not channels x height x width, all positive, is refused."""
        record = Datum(channels=shape[0], height=shape[1], width=shape[2], data=bytes(size)).SerializeToString()
        with pytest.raises(BadSample, match=f"holds {size} values"):
            lmdb.parse_datum(record).array(record)
