"""The interpreter ends with its own exit status, whatever threads are inside compiled code."""

import signal
import subprocess
import sys
import time

import pytest

from shardio import native

SCRIPT = """
import atexit, functools, sys, threading, time
import cv2, numpy
from shardio.system import at_exit, background

class Resource:
    def at_exit(self):
        print("closed", flush=True)

def compiled(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        cv2.GaussianBlur(pixels, (31, 31), 5.0)

def work(seconds, timeout, call=compiled):
    at_exit.awaited_calls[threading.get_ident()] = str, "a call of ours", time.monotonic() + timeout
    try:
        call(seconds)
    finally:
        del at_exit.awaited_calls[threading.get_ident()]

pixels = numpy.zeros((300, 300, 3), numpy.float32)
cv2.setNumThreads(1)
at_exit._LIMIT = 0.2
resource = Resource()
at_exit.close_at_exit(resource)
"""


def end_of(code: str, *, interrupt: bool = False) -> tuple[int, str, str]:
    """Run a script, interrupt it once it says that it waits, and return its exit code and what it printed."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT + code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as script:
        first = script.stderr.readline() if interrupt else ""
        if interrupt:
            script.send_signal(signal.SIGINT)
        said, errors = script.communicate(timeout=60)
    return script.returncode, said, first + errors


ENDINGS = {
    "pass": 0,
    "sys.exit(3)": 3,
    "sys.exit('mine')": 1,
    "raise ValueError": 1,
    "try: raise ValueError\nfinally: raise SystemExit(7)": 7,
    "raise KeyboardInterrupt": -signal.SIGINT,  # as Python ends
}


@pytest.mark.slow
@pytest.mark.skipif(native.library() is None and sys.version_info < (3, 14), reason="not compiled here")
@pytest.mark.parametrize(("ending", "code"), ENDINGS.items())
def test_threads_that_are_left_behind_change_no_exit_status(ending: str, code: int) -> None:
    """With threads inside C++ that never end, handlers of `atexit` run, output is flushed, and the status is right."""
    status, said, _ = end_of(
        f"""
for _ in range(3):
    background.start(functools.partial(work, 1e9, 0.3))
atexit.register(print, "a handler")
at_exit.close_at_exit(resource)
sys.stdout.write("no newline, ")
{ending}
"""
    )
    assert status == code
    assert said == "no newline, closed\na handler\n"


@pytest.mark.long
@pytest.mark.slow
def test_a_call_is_awaited_until_its_deadline() -> None:
    """The end waits for a call, and prints which it is; one whose time is over counts as any other thread."""
    status, said, errors = end_of("background.start(functools.partial(work, 0.6, 30), 'a worker'); time.sleep(0.1)")
    assert (status, said) == (0, "closed\n")
    assert errors == "shardio: the process waits up to 30 s to end: a worker is in a call of ours\n"
    for ending in ("background.start(functools.partial(work, 0.1, 30))", "background.start(lambda: time.sleep(1e9))"):
        assert end_of(ending) == (0, "closed\n", "")
    begun = time.monotonic()
    hangs = "background.start(functools.partial(work, 1e9, 0.5, time.sleep)); time.sleep(0.6)"
    assert end_of(hangs) == (0, "closed\n", "")
    assert time.monotonic() - begun < 30


@pytest.mark.slow
def test_an_interrupt_ends_the_wait() -> None:
    """Ctrl-C ends the process that waits, with its own status and nothing more to say."""
    status, said, errors = end_of(
        "background.start(functools.partial(work, 1e9, 600, time.sleep)); sys.exit(3)", interrupt=True
    )
    assert (status, said) == (3, "closed\n")
    assert errors.startswith("shardio: the process waits up to 600 s to end")
    assert errors.count("\n") == 1


@pytest.mark.slow
def test_a_forked_child_waits_for_no_thread_of_its_parent() -> None:
    """A child that is forked while threads of its parent run ends as it likes, and at once."""
    status, said, errors = end_of(
        """
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)
background.start(lambda: time.sleep(1e9))
at_exit._LIMIT = 1e9
child = os.fork()
if not child:
    sys.exit(4)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
at_exit._LIMIT = 0.1
"""
    )
    assert (status, errors) == (0, "")
    assert said == "closed\n4\nclosed\n"
