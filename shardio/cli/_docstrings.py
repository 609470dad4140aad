"""A converter's docstring, in Google's style, as the texts of its `--help`."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from docstring_parser import ParseError, google


@dataclass(frozen=True, slots=True)
class Documentation:
    """The parts of a docstring that `--help` shows; those that the docstring lacks are empty.

    Attributes:
        summary: the first line.
        text: the paragraphs between the summary and the first section.
        arguments: by name, the description of each argument on one line.
        examples: command lines.
    """

    summary: str = ""
    text: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    examples: tuple[str, ...] = ()


def read(function: Callable[..., Any]) -> Documentation:
    """Parse the docstring of a function; of a malformed one only the first line is used."""
    docstring = inspect.getdoc(function) or ""
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
