"""Converters are found by name among the entry points of installed distributions."""

from pathlib import Path

import pytest

from shardio import source
from shardio.errors import ConfigError


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution with the converters `zebra` and `ant`, as an installer leaves it."""
    (tmp_path / "somebodys_formats.py").write_text("def convert(src, *, scale=1):\n    return ('zebra', src, scale)\n")
    info = tmp_path / "somebodys_formats-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys-formats\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[shardio.converters]\nzebra = somebodys_formats:convert\nant = somebodys_formats:missing\n"
        "[console_scripts]\nwasp = somebodys_formats:convert\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("installed")
def test_a_converter_is_found_by_name() -> None:
    """A name gives the distribution's function with all its options."""
    found: object = source.find("zebra")("photos", scale=2)
    assert found == ("zebra", "photos", 2)


@pytest.mark.usefixtures("installed")
def test_names_are_sorted_and_only_converters() -> None:
    """Only entry points of the converters' group are listed, sorted, those that fail to load included."""
    names = source.names()
    assert {"ant", "zebra"} <= set(names)
    assert "wasp" not in names
    assert list(names) == sorted(set(names))


@pytest.mark.usefixtures("installed")
def test_an_unknown_name_lists_the_known() -> None:
    """An unknown name is refused with the installed ones."""
    with pytest.raises(ConfigError, match=r"no converter is called 'zebr'; installed: .*ant.*; did you mean 'zebra'"):
        source.find("zebr")
