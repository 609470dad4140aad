"""What users meet of the public names: exceptions that they can catch, and help that they can read."""

import builtins
import inspect
import pickle
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import shardio
from shardio import errors
from shardio.errors import ShardioError

MODULES = ("errors", "plan", "source", "testing")
LONGEST_ANNOTATION = 80


def public() -> dict[str, Any]:
    """Every public module, class, function, method and property, by its dotted name."""
    found = {f"shardio.{name}": getattr(shardio, name) for name in shardio.__all__}
    for module in MODULES:
        members = vars(import_module(f"shardio.{module}")).items()
        found |= {f"shardio.{module}.{name}": value for name, value in members if _is_ours(name, value)}
    for name, value in list(found.items()):
        if inspect.isclass(value):
            found |= {f"{name}.{member}": part for member, part in _members(value)}
    return found


def _is_ours(name: str, value: Any) -> bool:
    return not name.startswith("_") and callable(value) and value.__module__.startswith("shardio")


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(kind).items():
        if not name.startswith("_"):
            value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if callable(value):
                yield name, value


PUBLIC = public()


def raised(text: str) -> set[str]:
    """The exceptions that a docstring says are raised: names of several words in the sentences that say so."""
    passages = re.findall(r"\b[Rr]aises?\b.*?(?:\n\n|\Z)", text, re.DOTALL)
    return {name for passage in passages for name in re.findall(r"\b(?:[A-Z][a-z]+){2,}\b|\bNotADataset\b", passage)}


def test_every_exception_that_a_docstring_names_can_be_caught() -> None:
    """What public docstrings say is raised is Python's own, or an attribute of `shardio`."""
    named = {name: place for place, value in PUBLIC.items() for name in raised(inspect.getdoc(value) or "")}
    assert {"ConfigError", "StateMismatch", "NotADataset", "SourceError", "TooManyBad", "IndexError"} <= named.keys()
    for name, place in named.items():
        kind = getattr(shardio, name, None) or getattr(builtins, name, None)
        assert isinstance(kind, type), f"{place} says that it raises {name}, which is no attribute of shardio"
        assert issubclass(kind, Exception), f"{place} says that it raises {name}, which is no exception"


def test_every_exception_and_warning_is_public() -> None:
    """Every error and warning in `shardio.errors` is also an attribute of `shardio`."""
    found = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert found <= set(shardio.__all__)
    assert {"ConfigError", "TooManyBad", "PipelineStalled"} <= found


def test_signatures_can_be_read() -> None:
    """`help` names types by short names: no union is spelled out with the path of each of its members."""
    for name, value in PUBLIC.items():
        try:
            signature = inspect.signature(value)
        except (TypeError, ValueError):  # type aliases have none
            continue
        types = [parameter.annotation for parameter in signature.parameters.values()]
        for annotation in map(inspect.formatannotation, [*types, signature.return_annotation]):
            assert len(annotation) <= LONGEST_ANNOTATION, f"{name} has a parameter or a result of the type {annotation}"


def test_a_message_has_an_end() -> None:
    """A long quotation from a file is cut off in a message, also after pickling; shorter messages stay whole."""
    for kind in (kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ShardioError)):
        for error in (kind("x.h5: no type " + "q" * 1_000_000), pickle.loads(pickle.dumps(kind("q" * 1_000_000)))):  # noqa: S301
            assert len(str(error)) < 11_000
            assert str(error).endswith(" more characters")
        assert str(kind("x.h5: no such field")) == "x.h5: no such field"
