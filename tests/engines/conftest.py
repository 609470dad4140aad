"""Fixtures of the tests of engines."""

import pytest

from shardio import native


@pytest.fixture(params=["compiled", "Python"])
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the compiled part is there: Pillow and NumPy make what it makes."""
    if request.param == "Python":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("not compiled here")
    return request.param
