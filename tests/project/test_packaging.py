"""How the compiled part gets into a wheel: the build hook's rules, and what the packaging names."""

import importlib.util
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


class Build:
    """The build hook in a folder of its own, with one C file that includes libjpeg's header."""

    def __init__(self, folder: Path) -> None:
        spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
        self.module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)
        self.folder = folder / "shardio" / "native"
        self.folder.mkdir(parents=True)
        for name in self.module.SOURCES:
            (self.folder / name).write_text("")

    def run(self) -> dict[str, Any]:
        """Run the hook; return what it tells hatchling."""
        data: dict[str, Any] = {"artifacts": []}
        hook = self.module.NativeBuild(str(self.folder.parents[1]), {}, None, None, str(self.folder), "wheel")
        hook.initialize("standard", data)
        return data


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """A build without settings of its own."""
    for name in ("SHARDIO_NATIVE", "SHARDIO_JPEG_ROOT", "CFLAGS"):
        monkeypatch.delenv(name, raising=False)
    return Build(tmp_path)


def test_a_root_without_libjpeg_is_named(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SHARDIO_JPEG_ROOT must hold the header and the static library."""
    monkeypatch.setenv("SHARDIO_JPEG_ROOT", str(tmp_path))
    with pytest.raises(ValueError, match=f"must be a folder with include/jpeglib.h, got '{tmp_path}'"):
        build.run()
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "jpeglib.h").touch()
    with pytest.raises(ValueError, match=r"with lib/libjpeg\.a"):
        build.run()


def test_without_a_compiler(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel is a pure one, unless the compiled part is required."""
    monkeypatch.setenv("CC", "no-such-compiler")
    assert build.run() == {"artifacts": []}
    monkeypatch.setenv("SHARDIO_NATIVE", "require")
    with pytest.raises(RuntimeError, match=r"did not build: .*no-such-compiler"):
        build.run()
    monkeypatch.setenv("SHARDIO_NATIVE", "perhaps")
    with pytest.raises(ValueError, match="must be one of auto, require, off, got 'perhaps'"):
        build.run()


def test_every_c_file_is_compiled() -> None:
    """The hook names all C files of the package, and the licence of what a wheel holds is in it."""
    hook = (ROOT / "hatch_build.py").read_text()
    for path in (ROOT / "shardio" / "native").glob("*.c"):
        assert f'"{path.name}"' in hook
    for pattern in PROJECT["project"]["license-files"]:
        assert list(ROOT.glob(pattern)), pattern


def test_what_the_release_names_exists() -> None:
    """The scripts and tests that cibuildwheel runs are there."""
    settings = PROJECT["tool"]["cibuildwheel"]
    for word in shlex.split(" ".join([settings["test-command"], settings["before-all"], *settings["test-sources"]])):
        if "/" in word or word == "pyproject.toml":
            assert (ROOT / word).exists(), word
