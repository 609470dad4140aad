"""The standing ranks of another interpreter, with the shardio that is installed there; see `turn_server`."""

import json
import os
import re
import select
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import fields
from types import TracebackType
from typing import Any, final

from ..errors import ConfigError, PipelineStalled, ShardioError
from ..system import processes
from .config import BenchConfig
from .machine import Installation
from .rank import START_LIMIT
from .turn_server import SCHEMA

_MODULE = "shardio.bench.turn_server"
_END_LIMIT = 10.0  # seconds for the other interpreter to end its ranks


@final
class OtherPython:
    """The rank processes of one configuration in another interpreter, which end with the `with` block.

    Args:
        python: the interpreter: a path, or a name on PATH.
        config: what to measure. The other shardio has its own defaults for what is not set.

    Attributes:
        installation: what is installed there.

    Raises ConfigError if `python` runs no shardio that measures in turns, and ShardioError with what is raised there.
    """

    def __init__(self, python: str, config: BenchConfig) -> None:
        program = shutil.which(python)
        if program is None:
            raise ConfigError(f"versus_python must be an interpreter's path, got {python!r}")
        self._python = python
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115  # `_end` closes it
        with processes.children_ignore_interrupts():
            self._process = subprocess.Popen(
                [program, "-m", _MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._messages,
                env=os.environ | {"PYTHONSAFEPATH": "1"},  # a shardio in the working directory is not what is installed
            )
        try:
            changed = {f.name: getattr(config, f.name) for f in fields(config) if getattr(config, f.name) != f.default}
            hello = self._ask({"config": changed})
            if hello.get("schema") != SCHEMA:
                raise self._no_shardio(f"its first answer is {hello}")
            self.installation = Installation(**hello["installation"])
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> "OtherPython":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def rate(self, seconds: float) -> float:
        """Let the ranks take batches for so long; return the samples per second of all."""
        rate: float = self._ask({"turn": seconds}, seconds)["samples_per_second"]
        return rate

    def _ask(self, question: dict[str, Any], seconds: float = 0.0) -> dict[str, Any]:
        to, answers = self._process.stdin, self._process.stdout
        assert to is not None
        assert answers is not None
        with suppress(BrokenPipeError):  # what it said before it ended tells more
            to.write(json.dumps(question).encode() + b"\n")
            to.flush()
        if not select.select([answers], [], [], START_LIMIT + seconds)[0]:
            raise PipelineStalled(f"bench: {self._python} sent nothing for {START_LIMIT + seconds:.0f} s")
        line = answers.readline()
        if not line:
            raise self._ended()
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._no_shardio(f"it says {line[:80].decode(errors='replace').strip()!r}")
        if "error" in answer:
            raise ShardioError(f"bench: {self._python}: {answer['error']}")
        return answer

    def _ended(self) -> ShardioError:
        """The error for an interpreter that ended without a word on standard output."""
        self._process.wait()
        self._messages.seek(0)
        said = self._messages.read().decode(errors="replace").strip()
        if re.search(r"No module named '?shardio\b(?!\.)", said):
            return self._no_shardio("there is no shardio in its environment")
        if re.search(r"No module named '?shardio\.", said):
            return self._no_shardio("the shardio in its environment is too old for that")
        last = f": {said.splitlines()[-1]}" if said else ""
        return ShardioError(f"bench: {self._python} ended with exit code {self._process.returncode}{last}")

    def _no_shardio(self, why: str) -> ConfigError:
        return ConfigError(
            f"versus_python must be an interpreter whose shardio measures in turns, got {self._python}: {why}"
        )

    def _end(self) -> None:
        with self._process as process, self._messages:
            with suppress(BrokenPipeError):
                assert process.stdin is not None
                process.stdin.close()
            try:
                process.wait(_END_LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()  # its ranks die with it
