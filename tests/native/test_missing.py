"""A Loader without the compiled part says so, once, unless somebody has chosen that."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from _datasets import tensors

import shardio
from shardio import World, native

EIGHT = tensors(8)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """What a process remembers of the compiled part is forgotten before and after each test."""
    for remembered in (native.library, native.warn_if_missing):
        remembered.cache_clear()
    yield
    for remembered in (native.library, native.warn_if_missing):
        remembered.cache_clear()


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "it was not built"), (b"of another machine", "it cannot be loaded: ")]
)
def test_the_first_loader_warns(
    content: bytes | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning says why, what it costs and how to get it, where the Loader is made; the second Loader is silent."""
    file = tmp_path / "_native.so"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setattr(native, "FILE", file)
    with pytest.warns(shardio.NativeWarning, match="a quarter of the rate. To get it, install a wheel") as told:
        shardio.Loader(EIGHT, 2)
    (warning,) = told
    assert f"shardio's compiled part is missing ({reason}" in str(warning.message)
    assert warning.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(shardio.Loader(EIGHT, 2))) == 4


def test_a_choice_is_not_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """SHARDIO_NATIVE=off leaves the compiled part out without a word."""
    monkeypatch.setenv("SHARDIO_NATIVE", "off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(shardio.Loader(EIGHT, 2))) == 4
    assert native.library() is None


def test_one_rank_of_a_node_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the ranks of a node, only the first warns."""
    monkeypatch.setattr(native, "FILE", tmp_path / "none")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shardio.Loader(EIGHT, 2, world=World(3, 4, 1, 2))
    with pytest.warns(shardio.NativeWarning):
        shardio.Loader(EIGHT, 2, world=World(2, 4, 0, 2))
