"""Options that several commands have, as the fields of a dataclass, which a command takes in one parameter."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, cast


def with_options(command: Callable[..., None], parameter: str, group: type[Any]) -> Callable[..., None]:
    """Turn a command into one that has an option for each field of `group`, in the place of a parameter of that type.

    Args:
        command: the command.
        parameter: the name of the parameter.
        group: a dataclass whose fields are annotated as typer's options are.
    """
    own = [p for p in inspect.signature(command).parameters.values() if p.name != parameter]
    names = [option.name for option in fields(group)]

    def wrapped(**values: Any) -> None:
        options = group(**{name: values.pop(name) for name in names})
        command(**values, **{parameter: options})

    options = [
        inspect.Parameter(o.name, inspect.Parameter.KEYWORD_ONLY, annotation=o.type, default=o.default)
        for o in fields(group)
    ]
    parameters = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *options]
    described = cast(Any, wrapped)
    described.__signature__ = inspect.Signature(parameters)
    described.__annotations__ = {p.name: p.annotation for p in parameters}
    described.__doc__, described.__name__ = command.__doc__, command.__name__
    return wrapped
