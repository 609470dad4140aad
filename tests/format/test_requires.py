"""A reader refuses formats that require a feature which it doesn't know."""

import pytest

from shardio.errors import DatasetError, ShardCorrupt
from shardio.format.requires import check_requires


def test_unknown_features_are_refused() -> None:
    """The message names the place and the features; a list without any is fine."""
    check_requires([], "shardio.json")
    with pytest.raises(DatasetError, match=r"^shardio.json: needs 'b', 'zstd', which this version of shardio doesn't"):
        check_requires(["zstd", "b", "zstd"], "shardio.json")
    with pytest.raises(ShardCorrupt, match="needs 'columns', which"):
        check_requires(["columns"], "a.idx", ShardCorrupt)


@pytest.mark.parametrize("requires", [None, "zstd", {"zstd": 1}, [1], [["zstd"]], ["x", None], [{}] * 10**6])
def test_what_is_no_list_of_names(requires: object) -> None:
    """Anything else is an error of the same kind, whose message stays short."""
    with pytest.raises(DatasetError, match="requires must be a list of strings, got") as raised:
        check_requires(requires, "shardio.json")
    assert len(str(raised.value)) < 200
