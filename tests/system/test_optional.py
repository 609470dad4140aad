"""A failed import is an error that says what to do: install a package, or put a module on the path."""

from pathlib import Path

import pytest

from shardio.errors import ConfigError, MissingDependency
from shardio.system.named import load_named
from shardio.system.optional import load


@pytest.mark.parametrize(
    ("extra", "distribution", "command"),
    [
        ("tfrecord", "shardio-data", r"pip install 'google-crc32c>=[\d.]+'"),
        (
            "cuda13",
            "shardio-data",
            r"pip install 'nvidia-dali-cuda130>=[\d.]+' 'nvidia-nvimgcodec-cu13\[all\]>=[\d.]+'",
        ),
        ("nothing", "shardio-data", r"pip install 'shardio-data\[nothing\]'"),
    ],
)
def test_the_command_names_the_packages_of_the_extra(extra: str, distribution: str, command: str) -> None:
    """The packages of an extra are named, as its distribution may be a wheel or a checkout that no index has."""
    with pytest.raises(MissingDependency, match=f"^a test needs shardio_test_absent: {command}$"):
        load("shardio_test_absent", purpose="a test", extra=extra, distribution=distribution)


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
