"""Options of commands: each is a keyword of a Python function or a field of a dataclass.

Its name, type and default are those in the signature, and its help is the text on it in the docstring, where an option
in a code span, such as `max_bad`, is shown as people type it, `--max-bad`.
"""

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import typer
from docstring_parser import ParseError, google

from ..errors import ConfigError

_GROUP = re.compile(r"^Args: .*\n", re.MULTILINE)
"""The heading of a group of arguments: the section `Args:` goes on with them."""
_CODE = re.compile(r"`\"(?P<word>[^\"`]+)\"`|`(?P<name>\w+)(?:=\"?(?P<value>[\w.-]+)\"?)?`")


@dataclass(frozen=True, slots=True)
class Documentation:
    """The parts of a docstring, in Google's style, that `--help` shows; those that the docstring lacks are empty.

    Attributes:
        summary: the first line.
        text: the paragraphs between the summary and the first section.
        arguments: by name, the description of each argument or attribute on one line.
        examples: command lines.
    """

    summary: str = ""
    text: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    examples: tuple[str, ...] = ()

    def help_for(self, name: str, flags: Mapping[str, str]) -> str:
        """Return the description of an argument, with options written as in `flags`, the flag of each by name."""

        def typed(found: re.Match[str]) -> str:
            word, name, value = found.group("word", "name", "value")
            if word or name not in flags:
                return word or found[0]
            return flags[name] + (f" {value}" if value not in (None, "True") else "")

        return _CODE.sub(typed, self.arguments.get(name, ""))


def read(function: Callable[..., Any]) -> Documentation:
    """Parse the docstring of a function or a class; of a malformed one only the first line is used."""
    docstring = _GROUP.sub("", inspect.getdoc(function) or "")
    try:
        parsed = google.parse(docstring)
    except ParseError:
        return Documentation(docstring.partition("\n")[0])
    descriptions = {param.arg_name: " ".join((param.description or "").split()) for param in parsed.params}
    examples = "\n".join(example.description or "" for example in parsed.examples).splitlines()
    return Documentation(
        summary=parsed.short_description or "",
        text=parsed.long_description or "",
        arguments={name: f"{text[:1].upper()}{text[1:]}" for name, text in descriptions.items()},
        examples=tuple(line.strip() for line in examples if line.strip()),
    )


@dataclass(frozen=True, slots=True)
class Shown:
    """How the command line shows an option, where that differs from what its keyword says; None takes the keyword's.

    Attributes:
        flag: the option as it is typed.
        kind: its type.
        default: its default, in a tuple of one.
        help: the text on it.
        show_default: what the help says of the default.
        metavar: what the help calls the value.
        convert: what the command gets for the value.
    """

    flag: str | None = None
    kind: Any = None
    default: tuple[Any] | None = None
    help: str | None = None
    show_default: str | None = None
    metavar: str | None = None
    convert: Callable[[Any], Any] | None = None


def options_of(
    function: Callable[..., Any],
    groups: Mapping[str, str],
    shown: Mapping[str, Shown] = types.MappingProxyType({}),
    like: Callable[..., Any] | None = None,
) -> list[inspect.Parameter]:
    """Return options for keywords of a function or fields of a dataclass, as parameters of a command.

    Args:
        function: the function or the dataclass.
        groups: the names of the options, separated by spaces and in the order of the help, by the heading that they
            stand under; "" is the command's own.
        shown: what differs on the command line, by name.
        like: a function whose docstring has the texts on options that this one's lacks.
    """
    documentation = read(function)
    if like is not None:
        documentation = replace(documentation, arguments={**read(like).arguments, **documentation.arguments})
    parameters = inspect.signature(function, eval_str=True).parameters
    names = " ".join(groups.values()).split()
    flags = {name: shown.get(name, Shown()).flag or f"--{name.replace('_', '-')}" for name in [*names, *shown]}
    made = []
    for group, members in groups.items():
        for name in members.split():
            own = shown.get(name, Shown())
            kind = own.kind or kind_of(parameters[name].annotation)
            default = own.default[0] if own.default else parameters[name].default
            option = typer.Option(
                *([flags[name]] if own.flag or default is False else []),
                help=own.help or documentation.help_for(name, flags),
                rich_help_panel=group or None,
                metavar=own.metavar,
                show_default=own.show_default or True,
                callback=own.convert,
            )
            made.append(parameter(name, Annotated[kind, option], None if default == () else default))
    return made


def kind_of(annotation: Any) -> Any:
    """Return the type of an option for a keyword of this type: text, unless it takes numbers or words or a flag."""
    is_union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
    kinds = [kind for kind in typing.get_args(annotation) if kind is not types.NoneType] if is_union else [annotation]
    kind = typing.get_args(kinds[0])[0] if typing.get_origin(kinds[0]) is Annotated else kinds[0]
    return kind if len(kinds) == 1 and (kind in (bool, int, float) or typing.get_origin(kind) is Literal) else str


def parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """Return a parameter of a command."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def with_options(
    name: str, options: Sequence[inspect.Parameter], group: Callable[..., Any] = dict
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator for commands that replaces a parameter by options.

    Args:
        name: the name of the parameter; it gets `group(option=value, ...)`.
        options: the options.
        group: what makes one object of all values.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command).parameters.values() if p.name != name]

        def wrapped(**values: Any) -> None:
            grouped = group(**{option.name: values.pop(option.name) for option in options})
            command(**values, **{name: grouped})

        parameters = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *options]
        described: Any = wrapped
        described.__signature__ = inspect.Signature(parameters)
        described.__annotations__ = {p.name: p.annotation for p in parameters}
        described.__doc__, described.__name__ = command.__doc__, command.__name__
        return wrapped

    return decorate


def count_or_auto(text: str, name: str = "threads") -> int | Literal["auto"]:
    """Parse the value of `--threads`, or of another option of its kind; the loader checks the number."""
    if text == "auto":
        return "auto"
    if not text.isdigit():
        raise ConfigError(f"--{name} must be auto or an integer, got {text!r}")
    return int(text)
