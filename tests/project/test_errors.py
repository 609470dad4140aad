"""Errors say what is wrong, and no more than a reader can take."""

import pickle

import pytest

from shardio import errors

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ShardioError)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_has_an_end(kind: type[Exception]) -> None:
    """What a message quotes from a file cannot flood a log, also after pickling; shorter messages stay as they are."""
    for error in (kind("x.h5: no type " + "q" * 1_000_000), pickle.loads(pickle.dumps(kind("q" * 1_000_000)))):  # noqa: S301
        assert len(str(error)) < 11_000
        assert str(error).endswith(" more characters")
    assert str(kind("x.h5: no such field")) == "x.h5: no such field"
