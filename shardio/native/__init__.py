"""The compiled part of shardio, where it was built: C functions, called without the GIL.

`hatch_build.py` compiles it when the package is installed, given a C compiler and libjpeg-turbo's headers. Without it
everything works, through slower ways. It is plain C behind ctypes and knows nothing of Python, so one build serves
every version of Python.
"""

import ctypes
from functools import cache
from pathlib import Path

FILE = Path(__file__).parent / "_native.so"


@cache
def library() -> ctypes.CDLL | None:
    """The compiled functions; None where they were not built, or for another machine."""
    if not FILE.is_file():
        return None
    try:
        return ctypes.CDLL(str(FILE))
    except OSError:  # built elsewhere, or the libjpeg that it was built with is gone
        return None
