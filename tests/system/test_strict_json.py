"""JSON is read in one way only, and what may be understood in two is refused in words."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardio.system import strict_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(VALUES)
@settings(max_examples=30)
def test_json_is_read(value: Any) -> None:
    """What Python writes as JSON is read as it was."""
    assert strict_json.parse(json.dumps(value)) == value
    assert strict_json.parse(json.dumps(value).encode(), foreign=True, nan=True) == value
    assert strict_json.parse_stored(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": 1, "a": 1}', "the key 'a' occurs twice in one object"),
        (rb'{"a": 1, "\u0061": 2}', "the key 'a' occurs twice in one object"),
        ('{"a": 1}'.encode("utf-16"), "it looks like UTF-16"),
        ('{"a": 1}'.encode("utf-16-be"), "it looks like UTF-16"),
        ('{"a": 1}'.encode("utf-32"), "it looks like UTF-16 or UTF-32"),
        (b'{"a": "\xe9"}', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": 1', "Expecting"),
        (b"{} {}", "Extra data"),
        (b"", "Expecting value"),
        (b"1" + b"0" * 5000, "Exceeds the limit"),  # of digits that Python reads
    ],
)
@pytest.mark.parametrize("foreign", [True, False])
def test_what_is_not_json_is_refused(text: bytes, message: str, foreign: bool) -> None:
    """Duplicate keys, other encodings, nesting without end and damage are refused, each in its own words."""
    with pytest.raises(ValueError, match=message):
        strict_json.parse(text, foreign=foreign)


@pytest.mark.parametrize(
    ("text", "message", "value"),
    [
        (b"\xef\xbb\xbf[1]", "it begins with a byte order mark", [1]),
        (b"[Infinity]", "Infinity is not JSON", [math.inf]),
        (b"[-Infinity]", "-Infinity is not JSON", [-math.inf]),
        (b"[1e999]", "the number 1e999 is too large", [math.inf]),
    ],
)
def test_what_other_programs_write_is_accepted_from_them(text: bytes, message: str, value: Any) -> None:
    """A byte order mark, infinities and NaN are accepted on request alone."""
    with pytest.raises(ValueError, match=message):
        strict_json.parse(text)
    assert strict_json.parse(text, foreign=True, nan=True) == value
    for foreign in (True, False):
        with pytest.raises(ValueError, match="NaN is not JSON"):
            strict_json.parse(b"[NaN]", foreign=foreign)
    assert math.isnan(strict_json.parse(b"[NaN]", nan=True)[0])


@pytest.mark.parametrize("text", [b"[NaN]", b'{"a": -Infinity}', b"[" * 100_000, b"{", b"\xff"])
def test_stored_json_is_strict_as_well(text: bytes) -> None:
    """What is loaded from a shard is JSON without NaN, infinities, damage and nesting without end."""
    with pytest.raises(ValueError):
        strict_json.parse_stored(text)


def test_a_file_without_end_is_refused(tmp_path: Path) -> None:
    """A file of more than 256 MiB is refused before it is read."""
    path = tmp_path / "a.json"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="at most 268435456 bytes, it has 1099511627776"):
        strict_json.read_bytes(path)
