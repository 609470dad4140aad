"""A StringArray returns its strings unchanged, whatever they hold, and is small when pickled."""

import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardio_converters._string_array import StringArray

ANY_TEXT = st.text(st.characters())  # with lone surrogates


class TestStringArray:
    @given(st.lists(ANY_TEXT))
    def test_texts_come_back(self, texts: list[str]) -> None:
        """Every string of any list comes back by index, in order, and after pickling."""
        packed = StringArray(texts)
        assert len(packed) == len(texts)
        assert list(packed) == texts
        assert [packed[number] for number in range(len(texts))] == texts
        assert list(pickle.loads(pickle.dumps(packed))) == texts  # noqa: S301

    def test_names_that_are_not_utf8(self) -> None:
        """File names that are not UTF-8, which Python represents with surrogates, are unchanged."""
        name = b"caf\xe9/\xff\xc3\xbc.jpg"
        assert os.fsencode(StringArray([os.fsdecode(name)])[0]) == name

    def test_texts_can_be_added(self) -> None:
        """Appending strings leaves the others unchanged."""
        texts = StringArray(["a"])
        texts.append("")
        texts.append("ü")
        assert list(texts) == ["a", "", "ü"]

    @pytest.mark.parametrize("index", [-1, 2])
    def test_an_index_outside_is_an_error(self, index: int) -> None:
        """An index below 0 or past the end is an error."""
        with pytest.raises(IndexError, match=rf"index must be in \[0, 2\), got {index}"):
            StringArray(["a", "b"])[index]

    def test_it_pickles_small(self) -> None:
        """A pickled array holds the UTF-8 and 8 bytes per string."""
        count = 10_000
        assert len(pickle.dumps(StringArray(f"{number:012d}" for number in range(count)))) < count * (12 + 8) + 500
