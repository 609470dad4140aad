"""Python code and commands of shardio, each in a process of its own that need not import torch and shardio first.

A server imports them once and is forked for every process, which gets arguments, folder, environment, processors and
output of its own, and ends as the interpreter would. So come the processes that multiprocessing spawns, as those of a
loader with `isolate=True`: each is a child of whoever spawned it. Scripts that tests run spawn theirs themselves.
"""

import atexit
import ctypes
import fcntl
import gc
import json
import multiprocessing.util
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

LIMIT = 120  # seconds
_MOST = 1 << 17  # bytes of a request
_PRELOADED = (
    *("numpy", "torch", "h5py", "lmdb", "cv2", "PIL.Image", "shardio", "shardio.cli", "shardio.loader.loader"),
    *("shardio.conversion.api", "shardio.bench.measurement", "shardio.care.stats", "docstring_parser"),
    *("shardio.loader.workers.process_workers", "pytest", "hypothesis.strategies"),  # what tests' modules import
)
_PR_SET_CHILD_SUBREAPER = 36
COMMAND = "from shardio.__main__ import main; main()"
_SHIM = """#!{python} -IS
import json, os, socket, sys
task = {{"code": {code!r}, "argv": sys.argv, "folder": os.getcwd(), "environ": dict(os.environ)}}
task["cores"] = list(os.sched_getaffinity(0))
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({path!r})
    socket.send_fds(server, [json.dumps(task).encode()], [0, 1, 2])
    sys.exit(int(server.recv(64)) % 256)
"""


def run(
    code: str,
    *argv: str,
    folder: Path | None = None,
    environ: dict[str, str] | None = None,
    cores: list[int] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run code in a folder; return its exit code and what it printed."""
    task = _task(code, argv) | {"folder": str(folder or Path.cwd())}
    task |= {} if environ is None else {"environ": environ}
    task |= {"cores": sorted(cores)} if cores else {}
    with (
        open(os.devnull) as nothing,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        _asked(task, [file.fileno() for file in (nothing, out, err)]) as server,
    ):
        status = int(server.recv(64))
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess([code, *argv], status, out.read(), err.read())


SPAWN = multiprocessing.util.spawnv_passfds
"""Starts an interpreter: a test of how interpreters start puts it back."""


def fork_what_is_spawned() -> None:
    """From now on let multiprocessing take the processes that it spawns from the server."""
    lock, own = threading.Lock(), os.getpid()

    def forked(path: bytes, args: Sequence[str], descriptors: Sequence[int]) -> int:
        tracks_resources, of_a_forked_child = "--multiprocessing-fork" not in args, os.getpid() != own
        if tracks_resources or of_a_forked_child or "LD_PRELOAD" in os.environ:  # which takes a new program
            return SPAWN(path, args, descriptors)
        code = args[args.index("-c") + 1]
        mask = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
        numbers = [0, 1, 2, *sorted(map(int, descriptors))]
        task = _task(code, ["--multiprocessing-fork"]) | {"parent": os.getpid(), "mask": mask, "numbers": numbers}
        prctl = ctypes.CDLL(None).prctl
        with lock:
            prctl(_PR_SET_CHILD_SUBREAPER, 1)  # to be the parent of what the server forks and leaves
            try:
                with _asked(task, numbers) as server:
                    return int(server.recv(64))
            finally:
                prctl(_PR_SET_CHILD_SUBREAPER, 0)

    multiprocessing.util.spawnv_passfds = forked


def _task(code: str, argv: Sequence[str]) -> dict[str, Any]:
    """Return a request to the server: it runs code in a process that is like this one."""
    cores = sorted(os.sched_getaffinity(0))
    return {"code": code, "argv": ["-c", *argv], "folder": os.getcwd(), "environ": dict(os.environ), "cores": cores}


def _asked(task: dict[str, Any], descriptors: Sequence[int]) -> socket.socket:
    """A connection to the server on which it answers."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(str(commands() / "socket"))
    socket.send_fds(server, [json.dumps(task).encode()], [*descriptors])
    return server


@cache
def commands() -> Path:
    """Start the server of this process; return a folder with a `shardio` for shells, which asks the server."""
    folder = Path(tempfile.mkdtemp(prefix="forked-"))
    shim = folder / "shardio"
    shim.write_text(_SHIM.format(python=sys.executable, code=COMMAND, path=str(folder / "socket")))
    shim.chmod(0o755)
    server = subprocess.Popen([sys.executable, __file__, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(server.communicate)
    server.stdout.readline()  # it listens
    return folder


def _serve(folder: Path) -> None:
    for name in _PRELOADED:
        with suppress(ModuleNotFoundError):  # torch, and what imports it
            __import__(name)
    from shardio.conversion import source

    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # who started it may have blocked some
    for name in source.names():
        source.find(name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(folder / "socket"))
        listening.listen()
        print("ready", flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        gc.freeze()  # so that no process copies all pages to count references
        while listening in select.select([listening, sys.stdin], [], [])[0]:  # stdin ends with who started this
            client, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _answer(client)
            client.close()
    shutil.rmtree(folder)


def _answer(client: socket.socket) -> None:
    """Fork the process that a client asks for, and tell the client how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, descriptors, _, _ = socket.recv_fds(client, _MOST, 250)
    task = json.loads(request)
    child = os.fork()
    if child == 0:
        if "parent" in task:
            _move(task, descriptors, client)
        else:
            client.close()
            for standard, given in enumerate(descriptors):
                os.dup2(given, standard)
                os.close(given)
            signal.alarm(LIMIT)
        _become(task)
    if "parent" in task:
        os._exit(0)
    for descriptor in (*descriptors, 0, 1, 2):
        os.close(descriptor)
    client.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
    os._exit(0)


def _move(task: dict[str, Any], descriptors: list[int], client: socket.socket) -> None:
    """Become the child of the client, and give its descriptors their numbers; no others stay open."""
    limit = time.monotonic() + LIMIT
    while os.getppid() != task["parent"]:
        if time.monotonic() > limit:  # it has ended
            os._exit(1)
        time.sleep(0.001)
    client.send(str(os.getpid()).encode())
    above = max(task["numbers"]) + 1
    moved = [fcntl.fcntl(given, fcntl.F_DUPFD, above) for given in descriptors]
    client.detach()
    os.closerange(3, above)
    for given, number in zip(moved, task["numbers"], strict=True):
        os.dup2(given, number)
    os.closerange(above, max(moved) + 1)
    signal.pthread_sigmask(signal.SIG_SETMASK, task["mask"])


def _become(task: dict[str, Any]) -> None:
    """Run the code in this process, as `python -c` would, and end."""
    os.chdir(task["folder"])
    os.environ.clear()
    os.environ.update(task["environ"])
    os.sched_setaffinity(0, task["cores"])
    sys.argv, sys.path[0] = task["argv"], ""
    status = 0
    try:
        exec(compile(task["code"], "<code>", "exec"), {"__name__": "__main__"})  # from our own tests and documents
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  # as the interpreter would
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # not sys.exit: to take torch's modules apart takes half a second


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
