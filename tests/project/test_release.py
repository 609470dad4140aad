"""scripts/release: what it refuses, and that it stops before anything is published."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import shardio

ROOT = Path(__file__).parents[2]
IDENTITY = {f"GIT_{who}_{what}": "test@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


class Repository:
    """A repository with what scripts/release looks at, ready for the release of 1.2.3."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("scripts", "shardio"):
            (folder / name).mkdir(parents=True)
        shutil.copy(ROOT / "scripts/release", folder / "scripts")
        self.write("shardio/__init__.py", '__version__ = "1.2.3"\n')
        self.write("CHANGELOG.md", "# Changelog\n\n## 1.2.3, 2026-02-01\n\n## 1.2.2, 2026-01-01\n")
        self.write("CITATION.cff", "version: 1.2.3\n")
        self.git("init", "--quiet")
        self.commit()
        self.git("tag", "v1.2.2")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def git(self, *words: str) -> str:
        command = ["git", "-c", "core.hooksPath=/dev/null", *words]
        environ = os.environ | IDENTITY
        return subprocess.run(command, cwd=self.folder, env=environ, check=True, capture_output=True, text=True).stdout

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "Change it", "--allow-empty")

    def release(self, *words: str) -> "subprocess.CompletedProcess[str]":
        environ = os.environ | IDENTITY | {"PYTHON": sys.executable}
        command = [self.folder / "scripts/release", *words]
        return subprocess.run(command, cwd=self.folder, env=environ, capture_output=True, text=True)


def changelog_without_date(repository: Repository) -> None:
    repository.write("CHANGELOG.md", "## 1.2.3, unreleased\n")
    repository.commit()


def other_version(repository: Repository) -> None:
    repository.write("shardio/__init__.py", '__version__ = "1.2.4"\n')
    repository.commit()


def other_citation(repository: Repository) -> None:
    repository.write("CITATION.cff", "version: 1.2.2\n")
    repository.commit()


@pytest.mark.parametrize(
    ("change", "version", "words"),
    [
        # A file that is in no commit would be in the sdist.
        (lambda it: it.write("new", ""), "1.2.3", "the working tree has changes"),
        (lambda it: it.git("tag", "v1.2.3"), "1.2.3", "the tag v1.2.3 exists"),
        # As versions, not as texts: 1.10.0 is higher.
        (lambda it: it.git("tag", "v1.10.0"), "1.2.3", "1.2.3 is not higher than 1.10.0"),
        (changelog_without_date, "1.2.3", "CHANGELOG.md has no section '## 1.2.3, 2"),
        (other_version, "1.2.3", "shardio/__init__.py has another __version__ than 1.2.3"),
        (other_citation, "1.2.3", "CITATION.cff has another version than 1.2.3"),
        (lambda it: None, "1.2", "1.2 is no version"),
        (lambda it: None, "v1.2.3", "v1.2.3 is no version"),
    ],
)
def test_what_is_refused(change: Callable[[Repository], object], version: str, words: str, tmp_path: Path) -> None:
    """Each thing that a release needs and that is not so ends the script in words, and sets no tag."""
    repository = Repository(tmp_path)
    change(repository)
    before = repository.git("tag")
    done = repository.release(version)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"scripts/release: {words}")
    assert repository.git("tag") == before


def test_what_is_ready(tmp_path: Path) -> None:
    """`--check` prints nothing where all is in order."""
    done = Repository(tmp_path).release("--check", "1.2.3")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.long
def test_a_dry_run_of_this_repository(tmp_path: Path) -> None:
    """The sdist and the wheel made of it pass their checks, the wheel converts and loads, and no tag is set."""
    subprocess.run(["git", "clone", "--quiet", "--no-tags", ROOT, tmp_path / "clone"], check=True)
    repository = object.__new__(Repository)
    repository.folder = tmp_path / "clone"
    text, changed = re.subn(
        rf"^## {re.escape(shardio.__version__)}, .*$", f"## {shardio.__version__}, 2026-01-01",
        (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE,
    )  # fmt: skip
    assert changed
    repository.write("CHANGELOG.md", text)
    repository.commit()
    done = repository.release("--dry-run", shardio.__version__)
    assert done.returncode == 0, done.stderr
    assert f"shardio_data-{shardio.__version__}.tar.gz has the SHA-256 " in done.stdout
    assert done.stdout.endswith(f"nothing is wrong with {shardio.__version__}; no tag was set\n")
    assert repository.git("tag") == ""
