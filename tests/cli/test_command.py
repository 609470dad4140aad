"""Help and errors in the words of the command line."""

import copy
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from _builders import jpeg
from _cli import here, run

import shardio
from shardio import containers
from shardio.cli._conversion import ContainerName
from shardio.errors import BadSample, ConfigError, Message, Option, TooManyBad


def test_options_are_values_of_messages() -> None:
    """Python spells options as keywords, a command as people type them; data that looks like one stays."""
    reason = BadSample("2049 is no float16{}", Message("; {allow_rounding:True} rounds it"))
    error = TooManyBad("{} are bad, {} allows {}; one: {}", 3, Option("max_bad", 0.01), 1, reason)
    assert str(error) == "3 are bad, max_bad=0.01 allows 1; one: 2049 is no float16; allow_rounding=True rounds it"
    assert [part for part in error.wording.parts if isinstance(part, Option)] == [
        Option("max_bad", 0.01),
        Option("allow_rounding", True),
    ]
    assert copy.copy(error).wording.parts == error.wording.parts  # as processes send it
    assert error.wording.spelled(lambda option: f"<{option.name}>") == (
        "3 are bad, <max_bad> allows 1; one: 2049 is no float16; <allow_rounding> rounds it"
    )
    assert str(Message("pass {key:False}")) == "pass key=False"
    assert str(ConfigError("{limit} is data")) == "{limit} is data"
    assert str(ConfigError("{limit} must be 1, got {!r}", "{max_bad}")) == "limit must be 1, got '{max_bad}'"


def test_errors_name_options_as_typed(tmp_path: Path) -> None:
    """What the Python interface calls `overwrite` is `--overwrite` here."""
    (tmp_path / "a").mkdir()
    for number in range(3):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(b"no image" if number else jpeg())
    convert = ("convert", "imagefolder", tmp_path / "a", tmp_path / "out")
    assert "shardio: --limit must be at least 1, got 0" in run(*convert, "--limit", 0, code=2)
    assert "2 of 3 samples are bad, --max-bad 0.01 allows 1" in run(*convert, "--on-error", "skip", code=1)
    assert "--resume continues the unfinished conversion in it, --overwrite starts over" in run(*convert, code=2)


def test_reasons_name_options_as_typed(tmp_path: Path) -> None:
    """So do the samples that are left out, on the screen and in the report, also of a conversion that is resumed."""
    for number in range(12):
        (tmp_path / "a").mkdir(exist_ok=True)
        np.save(tmp_path / "a" / f"{number:02}.npy", np.full(3, 2049 if number == 5 else 1))
    given = ("--dtype", "float16", "--on-error", "skip", "--max-bad", 3)
    words = ("convert", "arrayfolder", tmp_path / "a", tmp_path / "out", *given)
    for more in ((), ("--overwrite", "--workers", 2)):
        told = run(*words, "--report", tmp_path / "bad.jsonl", *more)
        for text in (told, (tmp_path / "bad.jsonl").read_text()):
            assert "--allow-rounding" in text
    result = shardio.convert(
        tmp_path / "a", tmp_path / "o", converter="arrayfolder", dtype="float16", on_error="skip", max_bad=3,
        report=tmp_path / "bad",
    )  # fmt: skip
    for text in (result.skipped[0].reason, (tmp_path / "bad").read_text()):
        assert "allow_rounding=True" in text


def help_of(command: str) -> str:
    """The help of a command as one line, without spaces around line breaks."""
    return re.sub(r"\s+", " ", here(command, "--help"))


def test_choices_and_defaults_are_shown() -> None:
    """An option of few values names them all, and its default; options stand in groups."""
    told = help_of("train")
    choices = r"--{} [<\[]{}[>\]]"  # brackets before typer 0.27
    assert re.search(choices.format("optimizer", r"sgd\|adam\|adamw\|lars\|larc\|lamb"), told)
    assert "[default: cosine]" in told
    to_container = choices.format("to", r"tar\|hdf5\|lmdb") + " The container of the shards: tar, hdf5 or lmdb."
    assert re.search(to_container, help_of("reshard"))
    assert re.search(choices.format("engine", r"auto\|cpu\|dali\|nvimgcodec"), help_of("bench"))
    headings = (
        "Options:",
        "Recipe: --accumulate",
        "Computation and communication: --precision",
        "Checkpoints: --resume",
    )
    places = [told.index(heading) for heading in headings]
    assert places == sorted(places)


def test_containers_are_those_of_the_python_interface() -> None:
    """The command line repeats the names of the containers, which are found at run time."""
    assert set(get_args(ContainerName)) == set(containers.names())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("shardio con", {"convert"}),
        ("shardio convert i", {"idx", "imagefolder"}),
        ("shardio convert idx --cl", {"--classes"}),
        ("shardio train --optimizer la", {"lars", "larc", "lamb"}),
    ],
)
def test_completion(line: str, expected: set[str]) -> None:
    """A shell that completes gets commands, sources, options and choices."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "_SHARDIO_COMPLETE": "complete_bash"}
    assert set(run(**words).split()) == expected


@pytest.mark.parametrize("module", ["shardio", "shardio.cli"])
def test_an_interrupt_during_an_import(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends the command as later: in one line, with the exit code that shells report."""

    class Importing:
        def find_spec(self, name: str, *_: object) -> None:
            if name == module:
                raise KeyboardInterrupt

    for name in [name for name in sys.modules if f"{name}.".startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Importing(), *sys.meta_path])
    (command,) = entry_points(group="console_scripts", name="shardio")
    with pytest.raises(SystemExit) as ended:
        command.load()()
    assert (ended.value.code, capsys.readouterr().err) == (130, "shardio: interrupted\n")


def test_the_end_of_a_command_collects_nothing() -> None:
    """The end of a command collects no garbage: that would take a rank with torch a second."""
    code = """
import gc, sys
class Cycle:
    def __init__(self): self.itself = self
    def __del__(self): print("collected")
gc.disable()
Cycle()
if sys.argv.pop(1) == "shardio":
    from shardio.cli import main
    main()
"""
    printed = [
        subprocess.run([sys.executable, "-c", code, name, "--version"], capture_output=True, text=True).stdout
        for name in ("python", "shardio")
    ]
    assert printed[0] == "collected\n"
    assert printed[1].startswith("shardio ")
    assert "collected" not in printed[1]
