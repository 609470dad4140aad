"""Options that messages name are options that a command has, and the one that prints them where that is known."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import Any

import h5py
import pytest
import typer
from _cli import run

import shardio
import shardio_converters
from shardio import errors
from shardio.cli import app
from shardio.cli.convert import app as convert_app
from shardio.cli.convert import append_app

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
COMMAND = re.compile(r"shardio ([a-z]+)(?: ([a-z0-9]+))?(?= |$)[^`'\n]*")
OF_OTHERS = {
    *("--standalone", "--nproc-per-node", "--ntasks", "--signal", "--dereference", "--hard-dereference", "--sparse"),
    *("--help", "--version", "--list"),
}
"""Options of torchrun, Slurm and tar, and those that every command has, or none."""
OWN = {"index", "repair", "verify", "stats", "show", "bench", "info", "train", "view"}
"""The modules of `shardio/cli` that are a command each, with options of its own."""


def options_of(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


GROUPS: dict[str, Any] = {"convert": typer.main.get_command(convert_app), "append": typer.main.get_command(append_app)}
"""The commands that have one of each source."""


def command_called(name: str, root: Any) -> Any:
    first, _, source = name.partition(" ")
    return GROUPS[first].get_command(None, source) if source else root.commands[first]


@pytest.fixture(scope="module")
def commands() -> dict[str, set[str]]:
    """The options of each command; of a group, those of each source as `convert SOURCE`, and all together."""
    root: Any = typer.main.get_command(app)
    found = {name: options_of(command) for name, command in root.commands.items() if name not in GROUPS}
    for name, group in GROUPS.items():
        sources = {
            f"{name} {source}": options_of(group.get_command(None, source)) for source in group.list_commands(None)
        }
        found |= sources | {name: set().union(*sources.values())}
    return found


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string in a module; what an f-string inserts is left out."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


MODULES = [
    *sorted(Path(shardio.__file__).parent.rglob("*.py")),
    *sorted(Path(shardio_converters.__file__).parent.rglob("*.py")),
]


def test_every_option_is_one_of_its_command(commands: dict[str, set[str]]) -> None:
    """Messages, help and docstrings name options that commands have; in `shardio COMMAND --option`, that command.

    A command's own module names its own options alone.
    """
    known = set().union(*commands.values())
    wrong = []
    for path in MODULES:
        for line, text in texts(path):
            named = [(option, known) for option in OPTION.findall(text)]
            for found in COMMAND.finditer(text):
                name = f"{found[1]} {found[2]}" if f"{found[1]} {found[2]}" in commands else found[1]
                named += [(option, commands.get(name, known)) for option in OPTION.findall(found[0])]
            if path.parent.name == "cli" and path.stem in OWN and not COMMAND.search(text):
                named += [(option, commands[path.stem]) for option in OPTION.findall(text)]
            wrong += [f"{path}:{line}: {option}" for option, allowed in named if option not in allowed | OF_OTHERS]
    assert not wrong


def test_templates_of_messages_fit_their_values(commands: dict[str, set[str]]) -> None:
    """A message has a value for each `{}`, and the options that it names are those of some command."""
    root: Any = typer.main.get_command(app)
    known = {parameter.name for name in commands for parameter in command_called(name, root).params}
    wrong = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(name), args=[ast.Constant(str(template)), *values]) if (
                    name == "Message" or (values and name != "Option" and hasattr(errors, name))
                ):
                    names = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
                    unknown = set(names) - known - {""}
                    if unknown or names.count("") != len(values):
                        wrong.append(f"{path}:{node.lineno}: {template!r}, {len(values)} values, unknown: {unknown}")
    assert not wrong


def test_index_names_the_command_that_reads_other_files(tmp_path: Path) -> None:
    """`shardio index` cannot read data in other files: it names the command that can, and no option of its own."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = h5py.ExternalLink("b.h5", "/x")
        file["y"] = range(3)
    told = run("index", tmp_path / "a.h5", "-o", tmp_path / "out", code=1)
    assert "`shardio convert hdf5 --external-links` (external_links=True) reads them" in told
