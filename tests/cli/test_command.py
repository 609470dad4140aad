"""Help and errors in the words of the command line."""

import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import get_args, get_type_hints

import pytest
from _builders import jpeg
from _cli import run
from typer.testing import CliRunner

from shardio import containers
from shardio.bench import BenchConfig
from shardio.cli import app, bench, train
from shardio.cli._command import as_typed
from shardio.cli._packing import ContainerName
from shardio.train import TrainConfig

OPTIONS = {
    "max_bad": "--max-bad", "on_error": "--on-error", "limit": "--limit", "overwrite": "--overwrite", "to": "--to",
    "compress": "--compress", "resume": "--resume", "output": "--output", "dtype": "--dtype",
}  # fmt: skip


@pytest.mark.parametrize(
    ("message", "typed"),
    [
        ("limit must be at least 1, got 0", "--limit must be at least 1, got 0"),
        ("3 are bad, max_bad=0.01 allows 1", "3 are bad, --max-bad 0.01 allows 1"),
        ("data/x must be empty; overwrite replaces it", "data/x must be empty; --overwrite replaces it"),
        ("give resume='auto' or another output", "give --resume auto or another output"),
        ("report goes with on_error='skip'", "report goes with --on-error skip"),
        ("convert with overwrite=True", "convert with --overwrite"),
        ("container must be one of tar", "--to must be one of tar"),
        ("dtype: there are no arrays", "--dtype: there are no arrays"),
        ("compression must be None", "--compress must be None"),
        ("x is Field(dtype='int16', shape=(4, 8))", "x is Field(dtype='int16', shape=(4, 8))"),
        ("take a smaller limit=1, or tail='pad'", "take a smaller --limit 1"),
        ("take a smaller limit=1, or resume='auto'", "take a smaller --limit 1, or --resume auto"),
        ("no checkpoint to resume from; the limit is 3", "no checkpoint to resume from; the limit is 3"),
        ("max_bad/on_error.h5, field 'max_bad': 'overwrite'", "max_bad/on_error.h5, field 'max_bad': 'overwrite'"),
    ],
)  # fmt: skip
def test_options_as_typed(message: str, typed: str) -> None:
    """Keyword arguments become options; quoted words, paths and other words stay."""
    assert as_typed(message, OPTIONS) == typed


def test_errors_name_options_as_typed(tmp_path: Path) -> None:
    """What the Python interface calls `overwrite` is `--overwrite` here."""
    (tmp_path / "a").mkdir()
    for number in range(3):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(b"no image" if number else jpeg())
    convert = ("convert", "imagefolder", tmp_path / "a", tmp_path / "out")
    assert "shardio: --limit must be at least 1, got 0" in run(*convert, "--limit", 0, code=2)
    assert "2 of 3 samples are bad, --max-bad 0.01 allows 1" in run(*convert, "--on-error", "skip", code=1)
    assert "--resume continues the unfinished conversion in it, --overwrite starts over" in run(*convert, code=2)


def help_of(command: str) -> str:
    """The help of a command as one line, without spaces around line breaks."""
    return re.sub(r"\s+", " ", CliRunner().invoke(app, [command, "--help"], prog_name="shardio").stdout)


def test_choices_and_defaults_are_shown() -> None:
    """An option of few values names them all, and its default."""
    told = help_of("train")
    assert "--optimizer <sgd|adam|adamw|lars|larc|lamb>" in told
    assert "[default: cosine]" in told
    assert "--to <tar|hdf5|lmdb> The shards' container." in help_of("reshard")
    assert "--engine <auto|cpu|dali|nvimgcodec>" in help_of("bench")


def test_groups_of_options() -> None:
    """Options stand in groups, each with all of its options."""
    told = CliRunner().invoke(app, ["train", "--help"], prog_name="shardio").stdout
    sections = re.split(r"^(\w[^\n]*):\n", told, flags=re.MULTILINE)
    groups = dict(zip(sections[1::2], sections[2::2], strict=True))
    assert "--lr " in groups["Recipe"]
    assert "--precision" in groups["Computation and communication"]
    assert "--resume" in groups["Checkpoints"]
    assert "--epochs" in groups["Options"]


def test_choices_are_those_of_the_python_interface() -> None:
    """The command line repeats some lists of words so that help needs no torch; they are the same."""
    assert set(get_args(ContainerName)) == set(containers.names())
    of_train, of_bench = get_type_hints(TrainConfig), get_type_hints(BenchConfig)
    for name, choices in {
        "optimizer": train.Optimizer, "lr_scaling": train.Scaling, "lr_schedule": train.Schedule,
        "precision": train.Precision, "hook": train.Hook, "task": train.Task, "on_bad_sample": train.OnBadSample,
    }.items():  # fmt: skip
        assert get_args(of_train[name]) == get_args(choices), name
    assert get_args(of_bench["engine"]) == get_args(bench.Engine)
    assert get_args(of_bench["on_bad_sample"]) == get_args(bench.OnBadSample)


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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    """Each shell's script asks shardio."""
    assert f"_SHARDIO_COMPLETE=complete_{shell} " in run(_SHARDIO_COMPLETE=f"source_{shell}")


def test_an_interrupt_while_the_command_line_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends the command as later: in one line, with the exit code that shells report."""

    class Importing(ModuleType):
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "shardio.cli", Importing("shardio.cli"))
    with pytest.raises(SystemExit) as ended:
        import_module("shardio.__main__").main()
    assert (ended.value.code, capsys.readouterr().err) == (130, "shardio: interrupted\n")
