"""How every command shows its help and names options in errors: as people type them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ..errors import ShardioError

_KEYWORDS = {
    "container": "--to",
    "compression": "--compress",
    "checkpoint_every_steps": "--checkpoint-every",
    "metrics_every_steps": "--metrics-every",
    "store_options": "--store-option",
}
"""Keywords of the Python interface that are called otherwise on the command line, with their options."""

_ALWAYS = frozenset(("overwrite",))
"""Names without an underscore that messages use for nothing but the option."""

_options: ContextVar[Mapping[str, str]] = ContextVar("options", default=MappingProxyType({}))
"""The options of the command that runs, as typed, by name of the parameter."""

_VERBS = "must|needs?|goes|takes|cannot|already|replaces|starts|continues|names"


_CALL = r"\b\w+\((?:[^()]|\([^()]*\))*\)"
_LAST_ALTERNATIVE = r", or (?P<name>\w+)='[^']*'(?=$|[;:.])"


class Command(TyperCommand):
    """A command whose options stand in groups, whose examples can be copied, and whose errors name options as typed."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the description; examples keep their lines."""
        self.help = _keeping_lines(self.help)
        super().format_help_text(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, options, and then each group of options (`rich_help_panel`) in its own section."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                own = "Arguments" if parameter.param_type_name == "argument" else "Options"
                group = getattr(parameter, "rich_help_panel", None) or own
                sections.setdefault(group, []).append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the arguments; errors say which option is meant, or what the shell has done to a pattern."""
        try:
            with _telling_of(ctx):
                return super().parse_args(ctx, args)
        except typer.TyperException as error:
            meant = _KEYWORDS.get(getattr(error, "option_name", "").removeprefix("--").replace("-", "_"))
            if meant in {option for parameter in self.params for option in parameter.opts}:
                error.message += f"; it is {meant}"
            elif "unexpected extra argument" in error.message and any(p.name == "src" for p in self.params):
                error.message += "; quote a pattern, as in 'data/*', so that the shell leaves it as it is"
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error of shardio's names the command's options as they are typed."""
        before = _options.set({p.name: p.opts[0] for p in self.params if p.param_type_name == "option" and p.name})
        try:
            return super().invoke(ctx)
        except ShardioError as error:
            error.args = (typed(str(error)), *error.args[1:])
            raise
        finally:
            _options.reset(before)


class Group(TyperGroup):
    """A command with subcommands, each of which it describes in full."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the arguments before the subcommand's."""
        with _telling_of(ctx):
            return super().parse_args(ctx, args)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the description; examples keep their lines."""
        self.help = _keeping_lines(self.help)
        super().format_help_text(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each subcommand with the first sentence of its description."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, " ".join((found.help or "").split("\n\n")[0].split())) for name, found in commands if found]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


@contextmanager
def _telling_of(ctx: Any) -> Iterator[None]:
    """Let usage errors of the `with` block know their command, whose help they name; typer leaves it out of some."""
    try:
        yield
    except typer.TyperException as error:
        if getattr(error, "ctx", None) is None:
            error.ctx = ctx  # type: ignore[attr-defined]  # which usage errors have
        raise


def typed(message: str) -> str:
    """Return a message of the Python interface with the options of the command that runs as they are typed."""
    return as_typed(message, _options.get())


def as_typed(message: str, options: Mapping[str, str]) -> str:
    r"""Return a message of the Python interface with options as they are typed: `--max-bad 3` for `max_bad=3`.

    A word counts as an option if it says so: `overwrite=True`, a name with an underscore, or the word that the message
    (or a part of it after a colon) begins with, as in `limit must be at least 1`. Quoted words, parts of paths and the
    arguments of calls, as in `Field(dtype='int16')`, stay. An alternative that the command lacks is left out: of
    `a smaller batch_size, or tail='pad'` the end, without `--tail`.

    Args:
        message: the message.
        options: by name of the parameter, the option as typed.
    """
    known = {**{name: option for name, option in _KEYWORDS.items() if option in options.values()}, **options}
    names = _either(known)
    apart = r"(?<![\w'\"/.\-])"  # not within quotes, a path or another word
    unmistakable = _either(name for name in known if "_" in name or name in _ALWAYS)
    message = re.sub(rf"{_LAST_ALTERNATIVE}", lambda found: found[0] if found["name"] in known else "", message)
    for pattern in (
        rf"{_CALL}|{apart}(?P<name>{names})=(?P<value>True\b|\['[^']*'\]|'[^']*'|[\w.]+)",
        rf"(?:^|(?<=: )|(?<=; ))(?P<name>{names})(?=:| (?:{_VERBS})\b)",
        rf"{apart}(?P<name>{unmistakable})(?![\w'\"/.=\-])",
    ):
        message = re.sub(pattern, lambda found: _option(found, known), message)
    return message


def _option(found: re.Match[str], options: Mapping[str, str]) -> str:
    if found["name"] is None:
        return found[0]
    option, value = options[found["name"]], found.groupdict().get("value")
    return option if value in (None, "True") else option + " " + value.strip("[']")


def _either(names: Iterable[str]) -> str:
    """A pattern of any of the names; of nothing if there are none."""
    return "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)"


def _keeping_lines(text: str | None) -> str | None:
    """Mark indented paragraphs, which are examples, so that their lines are not broken anew."""
    return None if text is None else re.sub(r"\n\n(?:\b\n)?(?=  )", "\n\n\b\n", text)
