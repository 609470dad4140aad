"""A StringArray returns its strings unchanged, whatever they hold, and is small when pickled."""

import pickle

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
