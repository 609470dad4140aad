"""What a converter's docstring says, for `--help`: its summary, its text, its arguments, its examples."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_HEADING = re.compile(r"([A-Z][a-z]+):")
_ARGUMENT = re.compile(r"(\w+)(?: \([^)]*\))?: *(.*)")


@dataclass(frozen=True, slots=True)
class Told:
    """The parts of a docstring of Google's style.

    Attributes:
        summary: its first line.
        text: the paragraphs before the first section.
        arguments: what is said of each.
        examples: command lines.
    """

    summary: str = ""
    text: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    examples: tuple[str, ...] = ()


def read(function: Callable[..., Any]) -> Told:
    """The parts of a function's docstring; those that it lacks are empty."""
    lines = (inspect.getdoc(function) or "").splitlines()
    sections: dict[str, list[str]] = {"": []}
    section = ""
    for line in lines[1:]:
        if heading := _HEADING.fullmatch(line):
            section = heading[1]
        sections.setdefault(section, []).append("" if heading else line)
    examples = [line.strip() for name in ("Example", "Examples") for line in sections.get(name, ())]
    return Told(
        lines[0] if lines else "",
        "\n".join(sections[""]).strip(),
        _arguments(sections.get("Args", [])),
        tuple(line for line in examples if line),
    )


def _arguments(lines: list[str]) -> dict[str, str]:
    text = inspect.cleandoc("\n" + "\n".join(lines))
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if not line.startswith(" ") and (entry := _ARGUMENT.fullmatch(line)):
            name = entry[1]
            found[name] = entry[2]
        elif name and line.strip():
            found[name] += f" {line.strip()}"
    return {name: f"{text[:1].upper()}{text[1:]}" for name, text in found.items()}
