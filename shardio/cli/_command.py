"""The help of every command, and errors that name options as people type them."""

import re
from contextvars import ContextVar
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ..errors import Option, ShardioError, spelling, worded

_parameters: ContextVar[tuple[Any, ...]] = ContextVar("parameters", default=())
"""The parameters of the command that runs."""

Refusal: type[Any] = getattr(typer, "TyperException", typer.BadParameter.mro()[2])
"""The exception of typer about wrong arguments; before typer 0.27, click's `ClickException`."""


class _Described:
    """The shared part of commands and groups: examples that can be copied, and usage errors that know their command."""

    help: str | None

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the description; indented paragraphs, which are examples, keep their lines."""
        self.help = None if self.help is None else re.sub(r"\n\n(?:\b\n)?(?=  )", "\n\n\b\n", self.help)
        super().format_help_text(ctx, formatter)  # type: ignore[misc]  # typer's, of the other base class

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the arguments; every error gets the context whose help it names, which some of typer's lack."""
        try:
            return super().parse_args(ctx, args)  # type: ignore[misc]  # as above
        except Refusal as error:
            error.ctx = getattr(error, "ctx", None) or ctx
            raise


class Command(_Described, TyperCommand):
    """A command whose options stand in groups, and whose errors name options as they are typed."""

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
            return super().parse_args(ctx, args)
        except Refusal as error:
            named = {f"--{p.name}".replace("_", "-"): p.opts[0] for p in self.params if p.name}
            if (given := getattr(error, "option_name", "")) != named.get(given, given):
                error.message += f"; it is {named[given]}"
            elif "unexpected extra argument" in error.message and any(p.name == "src" for p in self.params):
                error.message += "; quote a pattern, as in 'data/*', so that the shell leaves it as it is"
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error of shardio's names the command's options as they are typed."""
        parameters, before = _parameters.set(tuple(self.params)), spelling.set(_typed_option)
        try:
            return super().invoke(ctx)
        except ShardioError as error:
            error.args = (worded(error.wording),)
            raise
        finally:
            _parameters.reset(parameters)
            spelling.reset(before)


class Group(_Described, TyperGroup):
    """A command with subcommands, each of which it describes in full."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each subcommand with the first sentence of its description."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, " ".join((found.help or "").split("\n\n")[0].split())) for name, found in commands if found]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def _typed_option(option: Option) -> str:
    found = next((p for p in _parameters.get() if p.param_type_name == "option" and p.name == option.name), None)
    if found is None:  # an option of the Python interface alone
        return str(option)
    if isinstance(option.value, bool):
        return str((found.opts if option.value else found.secondary_opts)[0])
    value = ",".join(option.value) if isinstance(option.value, list | tuple) else option.value
    number = f"{value:g}" if isinstance(value, float) else value
    return str(found.opts[0]) if value is None else f"{found.opts[0]} {number}"
