"""Converters, built-in ones and plug-ins, import the same small public surface of shardio."""

import ast
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import shardio
import shardio_converters
from shardio.source import find, names
from shardio.testing import check_source

CONVERTERS = sorted(Path(shardio_converters.__file__).parent.glob("*.py"))
DOCUMENTATION = Path(shardio.__file__).parents[1] / "docs" / "converting.md"

PUBLIC = {"shardio.source", "shardio.errors", "shardio.testing"}
ROOMS = ("containers", "foreign", "format", "native", "system")
"""Modules that the built-in converters may import beside `shardio.source`, all of rooms below `dataset/`."""

PLUGIN = '''
"""A converter as somebody else would write it: one text file, a line each with a label and a caption."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from shardio.errors import BadSample, SourceError
from shardio.source import Field, Sample, check_index, encode_png, label_as_int64, load_optional, probe_image


def captions(src, *, side: int = 4) -> "Captions":
    path = Path(src).absolute()
    if not path.is_file():
        raise SourceError(f"{path} is not a file")
    return Captions(path.read_text().splitlines(), side)


class Captions:
    threads = True
    metadata = {"source": "captions"}
    fields = {
        "image": Field("image"),
        "caption": Field("text"),
        "label": label_as_int64("label", Field("scalar", dtype="uint8")),
    }

    def __init__(self, lines, side):
        self.lines, self.side = lines, side

    def sizes(self):
        return np.array([100 + len(line) for line in self.lines], np.int64)

    def __getitem__(self, index: int) -> Sample:
        check_index(index, len(self.lines))
        label, _, caption = self.lines[index].partition(" ")
        if not label.isdecimal():
            raise BadSample(f"line {index}: expected a label, got {label!r}")
        image = encode_png(np.full((self.side, self.side, 3), int(label), np.uint8), f"line {index}")
        assert probe_image(image).height == self.side
        return {"image": image, "caption": caption, "label": int(label)}
'''


def imported(source: str) -> set[str]:
    """The full names of modules that a file imports, and `module.name` for each name imported from one."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def outside(source: str, *, built_in: bool) -> set[str]:
    """The imports of a file from shardio that lie outside the surface and the rooms; private names always do."""
    wrong = set()
    for name in imported(source):
        if name.partition(".")[0] != "shardio":
            continue
        room = name.split(".")[1]
        allowed = not PUBLIC.isdisjoint((name, name.rpartition(".")[0])) or (built_in and room in ROOMS)
        if not allowed or any(part.startswith("_") for part in name.split(".")):
            wrong.add(name)
    return wrong


@pytest.mark.parametrize("path", CONVERTERS, ids=lambda path: path.stem)
def test_built_in_converters_import_nothing_above_the_rooms_below_datasets(path: Path) -> None:
    """Built-in converters import the surface and the rooms below datasets, and nothing private."""
    assert outside(path.read_text(), built_in=True) == set()


def test_all_names_exist_and_are_documented() -> None:
    """`shardio.source.__all__` is sorted, its names exist, and docs/converting.md documents each."""
    source = import_module("shardio.source")
    section = DOCUMENTATION.read_text().partition("## Writing a converter")[2].partition("\n## ")[0]
    assert source.__all__ == sorted(source.__all__)
    for name in source.__all__:
        assert hasattr(source, name)
        assert f"`{name}`" in section or f"`{name}(" in section, f"{name} is not told in docs/converting.md"


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution with the converter `captions`, and a file for it."""
    (tmp_path / "somebodys_captions.py").write_text(PLUGIN)
    info = tmp_path / "somebodys_captions-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys-captions\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[shardio.converters]\ncaptions = somebodys_captions:captions\nant = somebodys_captions:missing\n"
        "[console_scripts]\nwasp = somebodys_captions:captions\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "list.txt").write_text("3 a cat\n0 a dog\n1 \n")
    return tmp_path / "list.txt"


def test_a_plug_in_needs_no_more_than_the_surface(plugin: Path, tmp_path: Path) -> None:
    """A converter that imports `shardio.source` and `shardio.errors` only is found and passes the contract."""
    assert outside(PLUGIN, built_in=False) == set()
    source = find("captions")(plugin, side=2)
    expected = [dict(source[number]) for number in range(3)]
    assert [(sample["caption"], sample["label"]) for sample in expected] == [("a cat", 3), ("a dog", 0), ("", 1)]
    check_source(source, expected, tmp_path / "out", label="int64")


@pytest.mark.usefixtures("plugin")
def test_converters_are_listed() -> None:
    """Only entry points of the converters' group are listed, sorted, broken ones too; an unknown name lists them."""
    assert {"ant", "captions"} <= set(names())
    assert "wasp" not in names()
    assert list(names()) == sorted(set(names()))
    with pytest.raises(shardio.ConfigError, match=r"is called 'caption'; installed: .*ant.*; did you mean 'captions'"):
        find("caption")


def test_a_missing_package_names_the_plug_ins_own_distribution() -> None:
    """`load_optional` names the plug-in's distribution and extra that install a missing package."""
    load = import_module("shardio.source").load_optional
    assert load("numpy", purpose="numbers", extra="x") is np
    with pytest.raises(shardio.MissingDependency, match=r"reading x needs no_such: pip install 'somebodys\[x\]'"):
        load("no_such", purpose="reading x", extra="x", distribution="somebodys")
