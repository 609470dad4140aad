"""Memory that maps a file ends the process if that is cut short, so every place that maps one is known."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAPS = re.compile("mmap|memmap|memory_map")
PLACES = {  # and why each may
    "shardio/format/file_table.py": "files of others: only guarded compiled code reads the map",
    "shardio/system/shared_memory.py": "an anonymous file, which nobody else can open",
    "shardio/loader/workers/shared_buffers.py": "an anonymous file, which nobody else can open",
    "shardio/bench/storage.py": "memory of no file",
    "shardio/system/direct_file.py": "memory of no file",
    "shardio/cache/node_cache.py": "the cache's own state, which its processes write: see docs/guarantees-tests.md",
    "shardio/cache/cached_object.py": "the cache's own tables, which its processes write: see docs/guarantees-tests.md",
    "converters/shardio_converters/_array_formats.py": "options of nibabel and astropy that say not to map",
}


def sources() -> list[Path]:
    """The modules of shardio and of its converters."""
    return sorted(path for folder in ("shardio", "converters") for path in (ROOT / folder).rglob("*.py"))


def code(path: Path) -> str:
    """A module without its docstrings and comments."""
    return re.sub(r'"""[\s\S]*?"""|#.*', "", path.read_text())


def test_every_place_that_maps_files_is_known() -> None:
    """No module maps files but those of the list; another one takes tables from `format/file_table.py`."""
    assert {f"{path.relative_to(ROOT)}" for path in sources() if MAPS.search(code(path))} == PLACES.keys()


def test_libraries_map_nothing() -> None:
    """Libraries that could map the files of sources are told not to."""
    text = code(ROOT / "converters/shardio_converters/_array_formats.py")
    assert MAPS.search(re.sub(r"\b(mmap|memmap)=False\b", "", text)) is None


@pytest.mark.parametrize(
    ("function", "guarded"),
    [("shardio_gather", "rows.c"), ("shardio_copy", "rows.c"), ("shardio_read", "rows.c"),
     ("shardio_lmdb_find", "lmdb.c"), ("shardio_set_bits", "permute.c")],
)  # fmt: skip
def test_compiled_functions_that_read_maps_are_guarded(function: str, guarded: str) -> None:
    """Each function of the compiled part that gets the address of a mapped file catches the fault."""
    text = (ROOT / "shardio/native" / guarded).read_text()
    (body,) = re.findall(rf"^\w+ {function}\([^)]*\) {{\n(.*?)^}}", text, re.MULTILINE | re.DOTALL)
    assert "GUARDED(" in body
