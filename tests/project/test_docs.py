"""The documents are true: every command and snippet in them runs in order, and every link and path exists."""

import doctest
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import _forked
import pytest
import typer.main
from _adoptable import tars
from _builders import jpeg
from _s3 import KEY, SECRET, s3_server

import shardio
import shardio.train
from shardio.cli import app
from shardio.stores import open_store
from shardio.stores.url import as_url

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"(?P<skip><!-- not run here: [^>]+ -->\n)?"
    r"```(?P<language>\w+)\n(?P<code>.*?)```"
    r"(?:\n\n```text\n(?P<printed>.*?)```)?",
    re.DOTALL,
)
PROGRESS = re.compile(r"^epoch \d+/\d+  step .*\n", re.MULTILINE)
"""A line of `shardio train` every ten seconds, which a slow machine prints in the middle of an epoch."""

PATH_OF_COMMANDS = f"{Path(sys.executable).parent}:/usr/bin:/bin"


def documents() -> list[Path]:
    """README and all files in docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


LONG = (
    "bench.md",
    "columns.md",
    "converting.md",
    "frameworks.md",
    "install.md",
    "laptop.md",
    "months.md",
    "netcdf-zarr.md",
    "remote.md",
    "resuming.md",
    "segmentation.md",
    "training.md",
    "unbalanced.md",
    "video.md",
    "volumes.md",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "document",
    [
        pytest.param(path, marks=pytest.mark.long if path.name in LONG else (), id=str(path.relative_to(ROOT)))
        for path in documents()
        if "```" in path.read_text()
    ],
)
def test_snippets_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bash and python block succeeds, in a folder with some photos and the example data.

    A block that is directly followed by a text block prints that text, in which `...` may be anything.
    """
    _photos(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    with _bucket(tmp_path, monkeypatch) if document.name == "remote.md" else nullcontext({}) as environment:
        _run_snippets(document, tmp_path, environment)


def _photos(folder: Path) -> None:
    for number in range(40):
        path = folder / "photos" / ("cat", "dog")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_photo(number))


def _run_snippets(document: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    environ = {"PATH": f"{_forked.commands()}:{PATH_OF_COMMANDS}", "HOME": str(tmp_path)} | environment
    for block in BLOCK.finditer(document.read_text()):
        if block["skip"] or block["language"] not in ("bash", "python"):
            continue
        if block["language"] == "python" and "isolate=True" not in block["code"]:  # whose processes start from files
            done = _forked.run(block["code"], folder=tmp_path, environ=environ, cores=_core())
        else:
            cores = ",".join(map(str, _core()))
            runner = ["bash", "-euc"] if block["language"] == "bash" else [sys.executable, "-Wignore", "-c"]
            done = subprocess.run(
                ["taskset", "-c", cores, *runner, block["code"]], cwd=tmp_path, capture_output=True, text=True,
                timeout=120, env=environ,
            )  # fmt: skip
        assert done.returncode == 0, f"{block['code']}\n{done.stdout}\n{done.stderr}"
        if block["printed"] is not None:
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            told = PROGRESS.sub("", done.stdout)
            assert doctest.OutputChecker().check_output(block["printed"], told, flags), done.stdout


@contextmanager
def _bucket(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Run a server with a bucket of the photos as a dataset, and of tars; yield the variables that lead there."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    shardio.convert(folder / "photos", folder / "made" / "photos", converter="imagefolder", shard_size="200KB")
    tars(folder / "made" / "tars")
    with s3_server(folder / "server") as server:
        server.make_bucket("bucket")
        store = open_store(as_url("s3://bucket"), server.options)
        for path in sorted(path for path in (folder / "made").rglob("*") if path.is_file()):
            store.upload(path.relative_to(folder / "made").as_posix(), path)
        shutil.rmtree(folder / "made")
        names = {"AWS_ENDPOINT_URL": server.endpoint, "AWS_REGION": "us-east-1"}
        yield names | {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}


@cache
def _photo(number: int) -> bytes:
    return jpeg(375, 500, seed=number)


def _core() -> list[int]:
    """One core for this pytest worker, as `shardio train` takes all; all cores where there is one worker."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    cores = sorted(os.sched_getaffinity(0))
    return [cores[int(worker) % len(cores)]] if worker else cores


@pytest.mark.parametrize("name", ["Loader", "convert", "derive"])
def test_examples_in_docstrings_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example with which a docstring begins runs in a folder with some photos, and prints what it shows."""
    _photos(tmp_path)
    monkeypatch.chdir(tmp_path)
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(shardio, name), name)
    assert len(example.examples) > 2
    told: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=told.append)
    assert not told, "".join(told)


@pytest.mark.parametrize(
    ("function", "first"),
    [
        (
            shardio.Loader,
            "dataset batch_size transforms fields shuffle seed tail world threads device map on_bad_sample",
        ),
        (
            shardio.convert,
            "source out converter container shard_size where shuffle split resize_shorter workers on_error resume",
        ),
    ],
)
def test_help_begins_with_the_arguments_that_most_people_need(function: Callable[..., Any], first: str) -> None:
    """A docstring has every argument once: the twelve that most people need, and then the others by group."""
    text = inspect.getdoc(function) or ""
    first_group, *groups = re.findall(r"^Args:(?: (?P<heading>.+))?\n((?:(?: {4}.*)?\n)+)", text, re.MULTILINE)
    assert first_group[0] == ""
    assert text.index("Args:") < 1000
    assert [heading for heading, _ in groups if not heading] == []
    names = [re.findall(r"^ {4}(\w[\w, ]*):", entries, re.MULTILINE) for _, entries in (first_group, *groups)]
    assert names[0] == first.split()
    listed = ", ".join(name for group in names for name in group).split(", ")
    assert sorted(listed) == sorted(inspect.signature(function).parameters)


def test_every_command_is_documented() -> None:
    """The page of the commands has a row for each command and no other."""
    rows = re.findall(r"^\| `shardio ([a-z]+)\b", (ROOT / "docs" / "commands.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]  # a Group has them


def test_every_public_name_is_in_the_reference() -> None:
    """Each name that shardio exports has an entry in docs/api, once, and so have the modules that users import."""
    entries = [
        entry
        for page in sorted((ROOT / "docs" / "api").glob("*.md"))
        for entry in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    ]
    assert len(entries) == len(set(entries))
    names = {f"shardio.{name}" for name in shardio.__all__}
    assert names <= set(entries)
    assert {f"shardio.train.{name}" for name in shardio.train.__all__} <= set(entries)


def test_links_lead_somewhere() -> None:
    """Every relative link in the documents leads to a file, and to a heading of it."""
    for document in [*documents(), *(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY"))]:
        for target, heading in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", document.read_text()):
            path = document.parent / target if target else document
            assert path.exists(), f"{document.name}: {target}"
            assert not heading or heading in _anchors(path), f"{document.name}: {target}#{heading}"


def _anchors(document: Path) -> set[str]:
    """What the headings of a document are called in links, on the site and where the repository is shown."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


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


def test_guarantees_name_tests_of_the_suite() -> None:
    """Every promise names files of tests, of which none is left out of the suite as a whole."""
    promises = re.findall(r"\*\*(.+?)\.?\*\*", (ROOT / "docs" / "guarantees.md").read_text())
    rows = re.findall(r"^\| ([^|]+) \| (`.+) \|$", (ROOT / "docs" / "guarantees-tests.md").read_text(), re.MULTILINE)
    assert promises == [promise for promise, _ in rows]
    for _, tests in rows:
        for file in re.findall(r"`([^`]+)`", tests):
            code = (ROOT / "tests" / file).read_text()
            assert not re.search(r"^pytestmark = pytest\.mark\.(long|alone|cluster|attack)", code, re.MULTILINE)
