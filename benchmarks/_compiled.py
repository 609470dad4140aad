"""Other builds of the compiled part instead of the installed one, and the calls of its functions counted and timed."""

import ctypes
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import Any, final
from unittest import mock

from shardio import native
from shardio.native import rows

FOLDER = Path(native.__file__).parent


@final
class CountedLibrary:
    """Calls the functions of the compiled part, and counts the calls and their processor time."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._calls: defaultdict[int, int] = defaultdict(int)  # by thread: sums that threads share lose some
        self._nanoseconds: defaultdict[int, int] = defaultdict(int)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("shardio_"):
            raise AttributeError(name)
        if name == "shardio_follow":  # called as a thread begins and ends, not for a batch
            return getattr(self._library, name)
        function = _CountedFunction(getattr(self._library, name), self._calls, self._nanoseconds)
        return self.__dict__.setdefault(name, function)

    @property
    def calls(self) -> int:
        """The number of calls that have ended."""
        return sum(list(self._calls.values()))

    @property
    def seconds(self) -> float:
        """The processor seconds within these calls, which hold no lock of the interpreter."""
        return sum(list(self._nanoseconds.values())) / 1e9


@final
class _CountedFunction:
    def __init__(self, function: Any, calls: dict[int, int], nanoseconds: dict[int, int]) -> None:
        self.__dict__.update(_function=function, _calls=calls, _nanoseconds=nanoseconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_function"], name)

    def __setattr__(self, name: str, value: Any) -> None:  # the types of arguments and result
        setattr(self._function, name, value)

    def __call__(self, *arguments: Any) -> Any:
        begun = time.thread_time_ns()
        try:
            return self._function(*arguments)
        finally:
            thread = get_ident()
            self._nanoseconds[thread] += time.thread_time_ns() - begun
            self._calls[thread] += 1


@contextmanager
def in_place(library: Any) -> Iterator[None]:
    """Have Loaders that are made in this `with` block call `library` as the compiled part."""
    remembered = native.library, rows.function
    try:
        with mock.patch.object(native, "load", return_value=library):
            for function in remembered:
                function.cache_clear()
            yield
    finally:
        for function in remembered:
            function.cache_clear()


def sleeping(folder: Path, microseconds: int) -> ctypes.CDLL:
    """Compile and load the compiled part, with images that take so many microseconds of sleep and have no pixels."""
    import hatch_build  # which needs hatchling

    target, flags = folder / "_sleeping.so", f"{os.environ.get('CFLAGS', '')} -DSHARDIO_SLEEP_US={microseconds}"
    with mock.patch.dict(os.environ, CFLAGS=flags):
        problem = hatch_build.compile_library(FOLDER, target)
    if problem is not None:
        raise RuntimeError(f"the C part did not build: {problem}")
    return native.load_file(target)
