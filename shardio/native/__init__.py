"""The optional compiled part of shardio: C functions that run without the GIL.

`hatch_build.py` compiles it when the package is installed, if a C compiler and libjpeg-turbo's headers are there.
Without it, everything works with slower Python code. It is plain C behind ctypes and knows nothing of Python, so one
build serves all versions of Python. The modules of this folder call its functions, and need `library()` to be loaded.
"""

import ctypes
from functools import cache
from pathlib import Path

FILE = Path(__file__).parent / "_native.so"


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled functions, or None if they were not built, or cannot be loaded on this machine."""
    if not FILE.is_file():
        return None
    try:
        return ctypes.CDLL(str(FILE))
    except OSError:  # built for another machine, or libjpeg has been removed
        return None
