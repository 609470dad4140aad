"""Reading `.npy`, NumPy's own file format, from bytes that may be damaged."""

import tokenize
from collections.abc import Callable
from typing import Any

_TRIES = 100


def guarded(read: Callable[[], Any]) -> Any:
    """Call `read`, which has NumPy read a `.npy` header, and return its result.

    NumPy parses headers with `ast`, which in some versions of Python fails at random if several threads parse at once
    (https://github.com/python/cpython/issues/106905): this calls `read` again after such a failure.

    Raises ValueError for whatever exception a damaged header causes.
    """
    for _ in range(_TRIES):
        try:
            return read()
        except SystemError:
            continue
        except (SyntaxError, TypeError, AttributeError, LookupError, ArithmeticError, MemoryError) as error:
            raise ValueError(f"its header is damaged: {error}") from error
        except tokenize.TokenError as error:
            raise ValueError(f"its header is damaged: {error}") from error
    raise ValueError("its header cannot be parsed")
