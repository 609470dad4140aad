"""A look at a function that worker threads call: whether it draws from torch's global generator, which they share."""

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_P = ParamSpec("_P")
T = TypeVar("T")

_TORCH = os.path.dirname(torch.__file__) + os.sep


def warns_of_global_draws(function: Callable[_P, T]) -> Callable[_P, T]:
    """Return a function that calls `function`, and warns if it draws from torch's global generator; for one call."""

    def looks(*args: _P.args, **kwargs: _P.kwargs) -> T:
        mode = _Draws()  # type: ignore[no-untyped-call]  # torch has no hints
        with mode:
            result = function(*args, **kwargs)
        if mode.line is not None:
            warnings.warn_explicit(
                "a map function draws from torch's global generator, which all threads share, so what it draws depends "
                "on the threads: give the function a parameter rng, and torch a generator of its own, "
                "generator=torch.Generator().manual_seed(int(rng.integers(2**63))), or see 'Random numbers' in "
                "docs/loading.md",
                UserWarning,
                *mode.line,
            )
        return result

    return looks


@final
class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no hints
    line: tuple[str, int] | None = None
    """The user's file and the number of the line that draws first."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = (*args, *(kwargs or {}).values())
        draws = torch.Tag.nondeterministic_seeded in func.tags
        if self.line is None and draws and not any(isinstance(value, torch.Generator) for value in values):
            self.line = _users_line()
        return func(*args, **(kwargs or {}))


def _users_line() -> tuple[str, int]:
    """Return the file and the number of the outermost line within the user's function that is not torch's own."""
    frame, found = sys._getframe(2), ("", 0)
    while frame.f_back is not None and frame.f_code.co_filename != __file__:
        line = frame.f_code.co_filename, frame.f_lineno
        found = found if line[0].startswith(_TORCH) else line
        frame = frame.f_back
    return found
