"""A virtual environment for each peer, created once and kept until its requirements change."""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks._peers import HERE, Module, load

ROOT = HERE.parent
TAIL = 1500  # characters of an installation's output to include in an error


class NotInstalled(Exception):
    """A peer's environment could not be created; the message gives the reason."""


def environment(library: str, work: Path, kind: str = "bench") -> Path:
    """Return the interpreter of the peer's environment below `work`, and create the environment if it is missing.

    `kind` is that of the peer's module, which says what to install.

    Raises NotInstalled with the end of pip's output, or with the Debian packages that are missing.
    """
    module = load(library, kind)
    missing = [name for name in module.DEBIAN if not _has_debian(name)]
    if missing:
        raise NotInstalled(f"Debian packages are missing: apt-get install {' '.join(missing)}")
    folder = (work / "envs" / (library if kind == "bench" else f"{kind}-{library}")).absolute()
    python, stamp = folder / "bin" / "python", folder / "stamp"
    made_of = _made_of(module)
    if stamp.is_file() and stamp.read_text() == made_of:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    for step in _steps(module):
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *step])
    stamp.write_text(made_of)
    return python


def _steps(module: Module) -> list[list[str]]:
    """The arguments of pip, in order. torch comes first and alone, so that no dependency selects another build."""
    wanted = list(module.REQUIREMENTS)
    torch = [item for item in wanted if item.startswith("torch==")]
    own = [part for item in wanted for part in item.split(" ", 1)]
    steps = [torch] if torch else []
    # Only shardio's own dependencies use its tested versions: peers state theirs.
    steps.append([*own, "-c", "constraints.txt"] if "-e" in own else own)
    if module.WITHOUT_DEPENDENCIES:
        steps.append(["--no-deps", *module.WITHOUT_DEPENDENCIES])
    return steps


def _made_of(module: Module) -> str:
    parts = [sys.version, *module.REQUIREMENTS, "--no-deps", *module.WITHOUT_DEPENDENCIES]
    if any(item.startswith("-e") for item in module.REQUIREMENTS):
        compiled = [
            path for path in (ROOT / "hatch_build.py", *sorted((ROOT / "shardio").rglob("*.c"))) if path.is_file()
        ]
        parts += [path.read_text() for path in (ROOT / "pyproject.toml", ROOT / "constraints.txt", *compiled)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _has_debian(name: str) -> bool:
    asked = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", name]
    try:
        return subprocess.run(asked, capture_output=True, text=True).stdout == "installed"
    except FileNotFoundError:
        return True  # not Debian: packages have other names here, and pip's error shows what is missing


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise NotInstalled(f"{' '.join(command[1:])} failed: ...{done.stdout.strip()[-TAIL:]}")
