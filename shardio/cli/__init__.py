"""The command line, `shardio` or `python -m shardio`, with one module per command."""

import atexit
import gc
import io
import os
import signal
import sys
from importlib import import_module
from typing import Annotated, NoReturn

import typer

from ..diagnosis.software import version_line
from ..errors import ConfigError, ShardioError
from ..system.os_errors import naming, reason
from . import convert
from ._command import Command, Group, Refusal

COMMANDS = (
    *("info", "view", "verify", "stats", "reshard", "merge", "derive", "index", "repair"),
    *("clean", "show", "browse", "bench", "plan", "train", "stage", "doctor"),
)
"""The commands in the order of the help, each a function in the module of its name."""

INTERRUPTED = 130  # the exit code that shells report for a process that SIGINT ended

app = typer.Typer(
    name="shardio",
    cls=Group,
    help="An input pipeline for data-parallel deep learning, on standard containers.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        print(version_line())
        raise typer.Exit


@app.callback()
def _shared(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.add_typer(convert.app, name="convert")
app.add_typer(convert.append_app, name="append")
for command in COMMANDS:
    app.command(cls=Command)(getattr(import_module(f"{__name__}.{command}"), command))


def main() -> NoReturn:
    """Run the command line. An error is one line on stderr; the exit code is 2 for a bad argument, else 1."""
    atexit.register(_leave)  # before all others, so that it is called last
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: the file that is opened next would get its number
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  for the whole process
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path may hold bytes that cannot be encoded
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = app(args=sys.argv[1:] or ["--help"], prog_name="shardio", standalone_mode=False)
        with naming("standard output"):  # at the interpreter's exit it would be too late to report a full disk
            sys.stdout.flush()
    except Refusal as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "shardio"
        message = error.format_message().replace("Value error, ", "")  # whose words say that already
        _fail(f"{message} (see {command} --help)", getattr(error, "exit_code", 1))
    except ShardioError as error:
        _fail(str(error), 2 if isinstance(error, ConfigError) else 1)
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does. Without a new stdout, flushing it at exit would fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _fail(f"{error.filename}: {reason(error)}" if error.filename is not None else reason(error), 1)
    except MemoryError as error:
        _fail(f"not enough memory: {error}", 1)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", INTERRUPTED)
    if code == INTERRUPTED:  # typer turns a Ctrl-C within a command into this code
        _fail("interrupted", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _leave() -> None:
    """Spare the interpreter's own end what takes long or changes the exit code, once everything is closed.

    Its collector would look at all objects of torch, which takes each rank 1 s of processor time. And it would give the
    signals that a stopped run still handles their default action.
    """
    gc.freeze()
    for number in signal.valid_signals():
        if callable(handler := signal.getsignal(number)) and handler is not signal.default_int_handler:
            signal.signal(number, signal.SIG_IGN)


def _fail(message: str, code: int) -> NoReturn:
    print(f"shardio: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
