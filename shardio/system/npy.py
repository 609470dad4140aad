"""NumPy's own file format, read from bytes that may be damaged."""

import tokenize
from collections.abc import Callable
from typing import Any

_TRIES = 100


def guarded(read: Callable[[], Any]) -> Any:
    """What `read` gives, a call of NumPy that reads a `.npy` header. ValueError for whatever a damaged header raises.

    NumPy parses headers with `ast`, which in some versions of Python fails at random where threads do so at once
    (https://github.com/python/cpython/issues/106905): such a call is made again.
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
