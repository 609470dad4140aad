"""How the compiled part gets into a wheel: the build hook's rules, and what the packaging names."""

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import shardio
from shardio import native

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONDA, SPACK = "recipes/conda-forge/recipe.yaml", "recipes/spack/spack_repo/shardio/packages/py_shardio_data/package.py"


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
    for name in ("SHARDIO_NATIVE", "SHARDIO_JPEG_ROOT", "CFLAGS", "LDFLAGS"):
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


def test_no_build_for_users_sleeps() -> None:
    """The decoder that sleeps in place of decoding is in the build of its benchmark alone."""
    builders = (
        ROOT / "hatch_build.py",
        ROOT / "pyproject.toml",
        *filter(Path.is_file, (ROOT / "scripts").iterdir()),
        *(ROOT / ".github").rglob("*.yml"),
    )
    assert [path for path in builders if "SHARDIO_SLEEP_US" in path.read_text()] == []
    if native.FILE.is_file():  # tests/benchmarks/test_many_cores.py finds the symbol in the other build
        assert b"clock_nanosleep" not in native.FILE.read_bytes()


def test_what_the_release_names_exists() -> None:
    """The scripts and tests that cibuildwheel runs are there."""
    settings = PROJECT["tool"]["cibuildwheel"]
    before = settings["before-all"], settings["linux"]["before-all"]
    for word in shlex.split(" ".join([settings["test-command"], *before, *settings["test-sources"]])):
        if "/" in word or word == "pyproject.toml":
            assert (ROOT / word).exists(), word


@pytest.mark.parametrize("name", ["mkdocs.yml", "CITATION.cff", CONDA, SPACK])
def test_every_file_names_the_same_home(name: str) -> None:
    """Whoever publishes the repository changes pyproject.toml, and this names what else has its address."""
    homes = {url.removesuffix("latest/") for url in PROJECT["project"]["urls"].values()}
    text = (ROOT / name).read_text()
    named = re.findall(r"https://[\w./-]*shardio/shardio\b[\w./-]*|https://shardio\.[\w./-]*", text)
    assert named
    assert {url.removesuffix("latest/") for url in named} <= homes


@pytest.mark.parametrize("name", ["CITATION.cff", CONDA, SPACK])
def test_every_file_names_the_same_version(name: str) -> None:
    """The citation and the recipes are of the version that the package has; scripts/release refuses others."""
    text = (ROOT / name).read_text().partition("\n")[2]  # the first line names the format's
    assert re.findall(r"""(?<!_)version(?:: |\()"?(\d[\w.]*)""", text) == [shardio.__version__]


def test_recipes_ask_for_what_the_package_requires() -> None:
    """conda-forge's and Spack's recipes have every dependency, under their names, with the same floors."""
    conda = yaml.safe_load((ROOT / CONDA).read_text())["requirements"]["run"]
    spack = re.findall(r'depends_on\("([^"]+)"', (ROOT / SPACK).read_text())
    names = {  # where they are not the name on PyPI, or on PyPI behind `py-`
        "docstring-parser": ("docstring_parser", "py-docstring-parser"),
        "lmdb": ("python-lmdb", "py-lmdb"),
        "torch": ("pytorch", "py-torch"),
        "xxhash": ("python-xxhash", "py-xxhash"),
    }
    for requirement in PROJECT["project"]["dependencies"]:
        name, floor = requirement.split(">=")
        in_conda, in_spack = names.get(name, (name, f"py-{name}"))
        assert f"{in_conda} >={floor}" in conda
        assert f"{in_spack}@{floor}:" in {part.split(" ")[0] for part in spack}
    assert len(conda) == 1 + len(PROJECT["project"]["dependencies"])  # Python itself
    assert f"python {PROJECT['project']['requires-python']}" in conda
    assert f"python@{PROJECT['project']['requires-python'][2:]}:" in spack
    (hatchling,) = PROJECT["build-system"]["requires"]
    assert f"py-hatchling@{hatchling.split('>=')[1]}:" in spack
