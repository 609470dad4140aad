"""Runs Python snippets, each in a process of its own, without importing torch and shardio for each anew.

A process imports them once, and is forked for every snippet.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_PRELOADED = (
    "numpy",
    "torch",
    "h5py",
    "cv2",
    "PIL.Image",
    "shardio",
    "shardio.loader.loader",
    "shardio.conversion.api",
)


class Snippets:
    """The process that is forked; it ends with `close`.

    Args:
        command: the start of its command, such as `taskset -c 0`.
    """

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [*command, sys.executable, "-Wignore", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=env,
        )  # fmt: skip

    def run(self, code: str, folder: Path) -> "subprocess.CompletedProcess[str]":
        """Run a snippet in a folder, which is its home, too; return its exit code and what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"code": code, "folder": str(folder)}), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        return subprocess.CompletedProcess([], answer["code"], answer["out"], answer["err"])

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _serve() -> None:
    for name in _PRELOADED:
        __import__(name)
    for line in sys.stdin:
        task = json.loads(line)
        out, err = (Path(task["folder"]) / name for name in (".snippet-out", ".snippet-err"))
        child = os.fork()
        if child == 0:
            _be(task, out, err)
        _, status = os.waitpid(child, 0)
        answer = {"code": os.waitstatus_to_exitcode(status), "out": out.read_text(), "err": err.read_text()}
        print(json.dumps(answer), flush=True)


def _be(task: dict[str, Any], out: Path, err: Path) -> None:
    """Run a snippet in this process, as `python -c` would, and end."""
    for place, descriptor in ((out, 1), (err, 2)):
        os.dup2(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.chdir(task["folder"])
    os.environ["HOME"] = task["folder"]
    sys.argv, sys.path[0] = ["-c"], ""
    status = 0
    try:
        exec(compile(task["code"], "<snippet>", "exec"), {"__name__": "__main__"})  # from our own documents
    except BaseException:  # noqa: BLE001  # as the interpreter would
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _serve()
