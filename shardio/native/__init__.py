"""The optional compiled part of shardio: C functions that run without the GIL.

`hatch_build.py` compiles it when the package is installed, if a C compiler and libjpeg-turbo's headers are there.
Without it, everything works with slower Python code. It is plain C behind ctypes and knows nothing of Python, so one
build serves all versions of Python. `SHARDIO_NATIVE=off` leaves it out, when shardio is installed and when it runs. The
modules of this folder call its functions, and need `library()` to be loaded.
"""

import ctypes
import os
import warnings
from functools import cache
from pathlib import Path

from ..errors import NativeWarning

FILE = Path(__file__).parent / "_native.so"
OFF = "SHARDIO_NATIVE=off"
_RESULTS = {
    "shardio_jpeg_version": ctypes.c_char_p,
    "shardio_decoder_new": ctypes.c_void_p,
    "shardio_make_images": ctypes.c_int64,
    "shardio_recoder_new": ctypes.c_void_p,
    "shardio_recode": ctypes.c_int64,
    "shardio_transcode": ctypes.c_int64,
    "shardio_restart": ctypes.c_int64,
}
"""The types that functions return, of those that are called as attributes of the library."""
HOW_TO_GET = (
    "install a wheel of shardio, which holds it, or a C compiler and libjpeg-turbo's headers (Debian: apt-get install "
    "gcc libjpeg62-turbo-dev), and then shardio again"
)


def load() -> ctypes.CDLL | str:
    """Return the compiled functions, or the reason why there are none."""
    if os.environ.get("SHARDIO_NATIVE") == "off":
        return OFF
    if not FILE.is_file():
        return "it was not built"
    try:
        return load_file(FILE)
    except OSError as error:  # built for another machine, or libjpeg has been removed
        return f"it cannot be loaded: {error}"


def load_file(file: Path) -> ctypes.CDLL:
    """Return the compiled functions of a file. Raises OSError if it cannot be loaded."""
    loaded = ctypes.CDLL(str(file))
    for name, result in _RESULTS.items():  # here: of two threads that look up a function first, one may lose its own
        getattr(loaded, name).restype = result
    return loaded


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled functions, or None if they were not built, cannot be loaded here, or are switched off."""
    loaded = load()
    return None if isinstance(loaded, str) else loaded


def jpeg_version() -> str | None:
    """Return the version of libjpeg-turbo that the compiled part was built with; None without a compiled part."""
    loaded = library()
    if loaded is None:
        return None
    return str(loaded.shardio_jpeg_version().decode())


@cache
def warn_if_missing() -> None:
    """Warn (NativeWarning), once per process, if there is no compiled part although nobody has switched it off."""
    reason = load()
    if isinstance(reason, str) and reason != OFF:
        warnings.warn(
            f"shardio's compiled part is missing ({reason}): JPEG photos load at about a quarter of the rate. "
            f"To get it, {HOW_TO_GET}; {OFF} says that you do without it",
            NativeWarning,
            stacklevel=4,  # where the Loader is made, past the wrapper of its __init__
        )
