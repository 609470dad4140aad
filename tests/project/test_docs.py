"""The documents are true: every command and snippet in them runs in order, and every link and path exists."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from _builders import jpeg

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?P<skip><!-- not run here: [^>]+ -->\n)?```(?P<language>\w+)\n(?P<code>.*?)```", re.DOTALL)
COMMANDS = {
    "convert",
    "index",
    "info",
    "verify",
    "stats",
    "repair",
    "reshard",
    "merge",
    "show",
    "bench",
    "train",
    "demo",
}


def documents() -> list[Path]:
    """README and all files in docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.slow
@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_snippets_run(document: Path, tmp_path: Path) -> None:
    """Every bash and python block succeeds, in a folder with some photos and the example data."""
    for number in range(40):
        path = tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(375, 500, seed=number))
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    path_of_commands = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    for block in BLOCK.finditer(document.read_text()):
        if block["skip"] or block["language"] not in ("bash", "python"):
            continue
        runner = ["bash", "-euc"] if block["language"] == "bash" else [sys.executable, "-Wignore", "-c"]
        done = subprocess.run(
            [*_on_one_core(), *runner, block["code"]], cwd=tmp_path, capture_output=True, text=True, timeout=120,
            env={"PATH": path_of_commands, "HOME": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 0, f"{block['code']}\n{done.stdout}\n{done.stderr}"


def _on_one_core() -> list[str]:
    """The start of a command that keeps it on one core of this pytest worker, as `shardio train` takes all cores."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(cores[int(worker) % len(cores)])] if worker and shutil.which("taskset") else []


def test_every_command_is_documented() -> None:
    """README names every command and no other."""
    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"shardio ([a-z]+)(?= |`)", text))
    modules = {path.stem for path in (ROOT / "shardio" / "cli").glob("[a-z]*.py")}
    assert modules == COMMANDS
    for name in COMMANDS:
        assert re.search(rf"shardio {name}\b|\b{name}[,)]", text), name
    assert named & COMMANDS >= {"convert", "info", "verify", "show", "bench", "train"}


def test_links_lead_somewhere() -> None:
    """Every relative link in the documents leads to a file."""
    for document in [*documents(), *(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY"))]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_paths_in_the_architecture_exist() -> None:
    """Every path in the architecture exists, and every folder of the package is in its tree."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:shardio|tests|converters)/[\w./]*)`", text))
    assert len(named) > 30
    for path in named:
        assert (ROOT / path).exists(), path
    for path in re.findall(r"(?<![\w/])((?:loader|engines|native|transforms)/[\w/]+\.(?:py|h))", text):
        assert (ROOT / "shardio" / path).exists(), path
    tree = text.split("```text")[1].split("```")[0]
    for folder in (ROOT / "shardio").iterdir():
        if folder.is_dir() and (folder / "__init__.py").exists():
            assert f"{folder.name}/ " in tree, folder.name


def test_guarantees_name_tests_that_exist() -> None:
    """Every guarantee names tests that exist."""
    rows = [line for line in (ROOT / "docs" / "guarantees.md").read_text().splitlines() if line.startswith("| **")]
    assert len(rows) > 15
    for row in rows:
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", row)
        assert named, row
        for file, test in named:
            (path,) = (ROOT / "tests").rglob(file)
            assert re.search(rf"^ *def {test}\(", path.read_text(), re.MULTILINE), f"{file}::{test}"
