"""Objects named as `module:name`: what cannot be imported is named, with what to do."""

from pathlib import Path

import pytest

from shardio.errors import ConfigError
from shardio.system.named import load_named


def test_a_module_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that lies in the current folder, which is not on Python's path, is told with the way to find it."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"--map 'no_toks:f': there is no module 'no_toks' on the Python path$"):
        load_named("no_toks:f", "--map")
    (tmp_path / "no_toks.py").write_text("def f(sample): return sample")
    with pytest.raises(ConfigError, match=r"it is in the current folder, which PYTHONPATH=\. before the command adds$"):
        load_named("no_toks:f", "--map")
    monkeypatch.syspath_prepend(".")
    assert callable(load_named("no_toks:f", "--map"))
