"""The structure: imports go down only, every module is listed, public names are explicit."""

import ast
from pathlib import Path

import pytest

import shardio

ROOT = Path(shardio.__file__).parent

# From the ground up; a module may import from its own row and from rows above it in this list, never from below.
LAYERS = [
    [
        "errors",
        "npy",
        "types",
        "shared",
        "units",
        "timing",
        "processes",
        "durable",
        "_optional",
        "native",
        "cpus",
        "threads",
    ],  # L0
    [
        "images",
        "fields",
        "world",
        "permutation",
        "blocks",
        "plan",
        "interleave",
        "augment",
        "recipe",
        "tuning",
        "fuse",
        "checksums",
        "shards",
        "manifest",
        "source",
    ],  # L1 decide
    ["containers"],  # L2 files and bytes
    [
        "foreign",
        "shard",
        "place",
        "writer",
        "readers",
        "selection",
        "dataset",
        "mixture",
        "pipeline",
        "buffers",
        "rework",
        "slots",
        "engines",
    ],  # L3
    [
        "arguments",
        "gpudirect",
        "mapping",
        "mixing",
        "quarantine",
        "making",
        "canvas",
        "job",
        "batches",
        "producing",
        "isolation",
        "workers",
        "stats",
        "state",
        "lanes",
        "transfer",
        "epoch",
        "loader",
        "torch_dataset",
        "convert",
        "examine",
        "repair",
        "verify",
        "contents",
        "sheet",
        "testing",
    ],  # L4
    ["train", "bench"],  # L5
    ["cli", "__main__"],  # L6
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def modules() -> list[Path]:
    """Every module of the package but its own `__init__`."""
    return [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


def imported(path: Path) -> set[str]:
    """The top-level names below `shardio` that a module imports, wherever in the file it does so."""
    package = ("shardio", *path.relative_to(ROOT).parts[:-1])
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            parts = (*base, *(node.module or "").split("."))
            full = [part for part in parts if part]
            names = [full[1]] if len(full) > 1 else [a.name for a in node.names if not a.name.startswith("__")]
            found |= set(names) if full[:1] == ["shardio"] else set()
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("shardio.")}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down_only(path: Path) -> None:
    """A module imports from its own layer or lower ones, and never the converters."""
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert own in LEVEL, f"{own} stands in no layer: add it to LAYERS"
    for name in imported(path):
        assert name in LEVEL, f"{path}: imports {name}, which stands in no layer"
        assert LEVEL[name] <= LEVEL[own], f"{path}: imports {name} from a higher layer"
    assert "shardio_converters" not in path.read_text()


def test_no_two_modules_of_a_layer_import_each_other() -> None:
    """Within a layer, too, imports go one way."""
    edges = {}
    for path in modules():
        own = path.relative_to(ROOT).parts[0].removesuffix(".py")
        edges.setdefault(own, set()).update(imported(path) - {own})
    for start in edges:
        reached, waiting = set(), list(edges[start])
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += edges.get(name, ())
        assert start not in reached, f"{start} imports itself by way of others"


def test_public_names_are_listed_and_sorted() -> None:
    """`__all__` holds what `shardio` offers: every name that stands in its `__init__`, sorted."""
    tree = ast.parse((ROOT / "__init__.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    names = {alias.asname for node in imports for alias in node.names if alias.asname}
    assert shardio.__all__ == sorted(shardio.__all__)
    assert set(shardio.__all__) == names
    for name in shardio.__all__:
        assert getattr(shardio, name).__doc__


def test_importing_does_nothing() -> None:
    """`import shardio` loads no torch, no container library, no decoder and no command line, and prints nothing."""
    import subprocess
    import sys

    names = ("torch", "h5py", "lmdb", "nvidia.nvimgcodec", "typer")
    code = f"import shardio, sys; print([m for m in {names} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("[]\n", "")
