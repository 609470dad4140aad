"""Packages are ok, optional or broken."""

import sys
from pathlib import Path

import pytest

from shardio import __version__, native
from shardio.diagnosis.software import PACKAGES, Package, look_at, software, version_line


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules, one of which fails to import."""
    (tmp_path / "shardio_test_broken.py").write_text("raise OSError('libGL.so.1: cannot open shared object file')")
    (tmp_path / "shardio_test_half.py").write_text("import shardio_test_of_somebody_else")
    (tmp_path / "shardio_test_whole.py").write_text("__version__ = '1.2'")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("module", "purpose", "state", "value", "advice"),
    [
        ("shardio_test_whole", "tests", "ok", "1.2, more", ""),
        ("shardio_test_absent", "tests", "optional", "not installed", "for tests: pip install it"),
        ("shardio_test_absent.part", "tests", "optional", "not installed", "for tests: pip install it"),
        ("shardio_test_absent", "", "broken", "not installed", "pip install it"),
        ("shardio_test_broken", "tests", "broken", "OSError: libGL.so.1: cannot open", "install it anew"),
        ("shardio_test_half", "tests", "broken", "No module named 'shardio_test_of_somebody_else'", "install it anew"),
    ],
)
def test_a_package(folder: Path, module: str, purpose: str, state: str, value: str, advice: str) -> None:
    """An absent package is optional, and broken only if shardio needs it; one that fails to import is broken."""
    found = look_at(Package("some", module, ("some-distribution-of-tests",), purpose, "it", lambda module: "more"))
    assert (found.state, found.advice) == (state, advice)
    assert value in found.value


def test_all_software() -> None:
    """shardio, Python and the compiled part come first, then every package; what shardio needs is ok here."""
    found = software()
    assert [finding.name for finding in found[:3]] == ["shardio", "Python", "compiled part"]
    assert found[0].value == __version__
    required = {package.name for package in PACKAGES if not package.purpose}
    assert required > {"NumPy", "PyTorch", "h5py", "lmdb"}
    assert {finding.state for finding in found if finding.name in required} == {"ok"}


@pytest.mark.parametrize(
    ("content", "off", "state"), [(None, "", "missing"), (b"no library", "", "broken"), (None, "off", "missing")]
)
def test_the_compiled_part(
    content: bytes | None, off: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiled part is missing if it was not built or is switched off, and broken if it does not load."""
    if content is not None:
        (tmp_path / "_native.so").write_bytes(content)
    monkeypatch.setattr(native, "FILE", tmp_path / "_native.so")
    monkeypatch.setenv("SHARDIO_NATIVE", off)
    (found,) = (finding for finding in software() if finding.name == "compiled part")
    assert found.state == state
    assert "a quarter of the rate" in found.advice


def test_the_version_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the versions of shardio, libjpeg-turbo, Python and torch."""
    monkeypatch.setattr(native, "jpeg_version", lambda: "3.1.3")
    python = ".".join(map(str, sys.version_info[:3]))
    assert version_line().startswith(f"shardio {__version__} (compiled, libjpeg-turbo 3.1.3; Python {python}, torch 2.")
    monkeypatch.setattr(native, "jpeg_version", lambda: None)
    assert version_line().startswith(f"shardio {__version__} (not compiled; Python {python}")
