"""A Loader without the compiled part says so, once, unless somebody has chosen that."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from _datasets import tensors

import shardio
from shardio import World, native


@pytest.fixture
def dataset() -> Iterator[shardio.Dataset]:
    """Numbers; what a process remembers of the compiled part is forgotten before and after each test."""
    native.library.cache_clear()
    native.warn_if_missing.cache_clear()
    yield tensors(8)
    native.library.cache_clear()
    native.warn_if_missing.cache_clear()


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "it was not built"), (b"of another machine", "it cannot be loaded: ")]
)
def test_the_first_loader_warns(
    content: bytes | None, reason: str, tmp_path: Path, dataset: shardio.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning says why, what it costs and how to get it, where the Loader is made; the second Loader is silent."""
    file = tmp_path / "_native.so"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setattr(native, "FILE", file)
    with pytest.warns(shardio.NativeWarning, match="a quarter of the rate. To get it, install a wheel") as told:
        shardio.Loader(dataset, 2)
    (warning,) = told
    assert f"shardio's compiled part is missing ({reason}" in str(warning.message)
    assert warning.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(shardio.Loader(dataset, 2))) == 4


def test_who_does_not_warn(tmp_path: Path, dataset: shardio.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of a node but the first are silent; SHARDIO_NATIVE=off leaves the compiled part out without a word."""
    monkeypatch.setattr(native, "FILE", tmp_path / "none")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shardio.Loader(dataset, 2, world=World(3, 4, 1, 2))
    with pytest.warns(shardio.NativeWarning):
        shardio.Loader(dataset, 2, world=World(2, 4, 0, 2))
    monkeypatch.undo()
    native.library.cache_clear()
    native.warn_if_missing.cache_clear()
    monkeypatch.setenv("SHARDIO_NATIVE", "off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(shardio.Loader(dataset, 2))) == 4
    assert native.library() is None
