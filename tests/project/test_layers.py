"""The structure of the package: imports go one way, every module is listed, and public names are explicit."""

import ast
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from _cli import python

import shardio

ROOT = Path(shardio.__file__).parent

# A module imports from its own folder and from those above it in this list, never from those below.
FOLDERS = [
    "errors",
    "native",
    "system",
    "format",
    "order",
    "stores",
    "cache",
    "containers",
    "foreign",
    "transforms",
    "output",
    "views",
    "dataset",
    "engines",
    "loader/batch",
    "loader/workers",
    "loader/device",
    "loader",
    "monitoring",
    "conversion",
    "derivation",
    "care",
    "plan",
    "source",
    "lightning",
    "__init__",
    "testing",
    "train",
    "bench",
    "diagnosis",
    "cli",
    "__main__",
]


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name without `shardio.`; the package itself is ""."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache
def imported(path: Path) -> set[str]:
    """The modules of `shardio` that a module imports, anywhere in the file."""
    package = path.relative_to(ROOT).parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            absolute = (node.module or "").split(".")
            if not node.level and absolute[0] != "shardio":
                continue
            base = package[: len(package) + 1 - node.level] if node.level else ()
            parts = [part for part in (*base, *(absolute if node.level else absolute[1:])) if part]
            for alias in node.names:
                whole = ".".join((*parts, alias.name))
                found.add(whole if whole in MODULES else ".".join(parts))
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("shardio.") for alias in node.names if alias.name.startswith("shardio.")}
    return found


def folder_of(module: str) -> str:
    """The entry of FOLDERS that a module belongs to: the innermost listed folder."""
    parts = module.split(".") if module else ["__init__"]
    for length in range(len(parts), 0, -1):
        if "/".join(parts[:length]) in FOLDERS:
            return "/".join(parts[:length])
    raise AssertionError(f"{module} stands in no folder of FOLDERS: add it")


def test_imports_go_down_only() -> None:
    """A module imports from its own folder and from folders above it in the list, and never from the converters."""
    for module, path in MODULES.items():
        own = FOLDERS.index(folder_of(module))
        for name in imported(path):
            assert name in MODULES, f"{path}: imports {name}, which is no module"
            assert FOLDERS.index(folder_of(name)) <= own, f"{path}: imports {name} from a higher folder"
        assert "shardio_converters" not in path.read_text(), path


def test_conversion_knows_no_loader() -> None:
    """Conversions and loaders share what stands below both: neither imports the other."""
    rooms = {module: {folder_of(name).partition("/")[0] for name in imported(path)} for module, path in MODULES.items()}
    assert not [module for module in MODULES if module.startswith("conversion") and "loader" in rooms[module]]
    assert not [module for module in MODULES if module.startswith("loader") and "conversion" in rooms[module]]


def test_no_two_modules_import_each_other() -> None:
    """No two modules import each other, within a folder either."""
    edges = {module: imported(path) - {module} for module, path in MODULES.items()}
    for start in edges:
        reached, waiting = set(), list(edges[start])
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += edges.get(name, ())
        assert start not in reached, f"{start} imports itself by way of others"


def test_few_modules_stand_at_the_root() -> None:
    """Only errors and thin public modules are at the root of the package."""
    found = {path.stem for path in ROOT.glob("*.py")}
    assert found == {"__init__", "__main__", "errors", "lightning", "plan", "source"}


def test_one_module_opens_the_files_of_datasets() -> None:
    """Only `containers/files.py` opens files of datasets to read them; the other modules that open some write them."""
    openers = {"open", "File", "memmap", "open_memmap"}
    found = set()
    for path in (ROOT / "containers").glob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = {getattr(call, "attr", getattr(call, "id", "")) for call in calls}
        found |= {path.stem} if names & openers else set()
    writers = {"_writing", "_hdf5_writer", "lmdb"}
    assert found == {"files", *writers}


def test_public_names_are_listed_and_sorted() -> None:
    """`__all__` lists all public names in `shardio/__init__.py`, sorted, and each is documented."""
    tree = ast.parse((ROOT / "__init__.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    names = {alias.asname for node in imports for alias in node.names if alias.asname}
    assert shardio.__all__ == sorted(shardio.__all__)
    assert set(shardio.__all__) == names
    for name in shardio.__all__:
        assert getattr(shardio, name).__doc__


def test_thin_modules_stay() -> None:
    """The modules that scripts and plug-ins import keep their paths and names."""
    for module, names in {
        "plan": {"Plan", "Schedule", "PlanSlice"},
        "source": {"Source", "WrappedSource", "Places", "Field", "Sample"},
        "testing": {"ContainerContract", "ReaderContract", "check_source"},
        "errors": {"ShardioError", "ConfigError"},
        "lightning": {"ResumeElastically"},
    }.items():
        assert names <= set(dir(import_module(f"shardio.{module}"))), module


@pytest.mark.parametrize("module", ["shardio", "shardio.source", "shardio_converters.torch"])
def test_importing_does_nothing(module: str) -> None:
    """Importing shardio, or listing converters, loads no large library and no command line, and prints nothing."""
    names = ("torch", "h5py", "lmdb", "cv2", "pyarrow", "nvidia.nvimgcodec", "typer", "lightning")
    code = f"import {module}, sys; print([m for m in {names} if m in sys.modules])"
    result = python("-c", code)
    assert (result.stdout, result.stderr) == ("[]\n", "")
