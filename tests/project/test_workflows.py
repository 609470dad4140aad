"""The workflows of the public repository: what they may do, and that the commands that they run exist."""

import os
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def read(path: Path) -> dict[str, Any]:
    # BaseLoader: YAML's `on` is a boolean to others.
    workflow: dict[str, Any] = yaml.load(path.read_text(), yaml.BaseLoader)
    return workflow


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


@each_workflow
def test_actions_are_pinned_by_commit(path: Path) -> None:
    """A tag can be moved to other code; a commit cannot. The comment says which version it is."""
    used = [line for line in path.read_text().splitlines() if re.search(r"\buses:", line)]
    assert len(used) == sum("uses" in step for step in steps(path)) > 0
    for line in used:
        assert re.search(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


@each_workflow
def test_workflows_may_do_no_more_than_they_need(path: Path) -> None:
    """They read, a job that writes says what, only one that pushes keeps the token, and each ends."""
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert "group" in workflow["concurrency"]
    assert "pull_request_target" not in workflow["on"]
    for name, job in workflow["jobs"].items():
        assert int(job["timeout-minutes"]) <= 60, name
        pushes = job.get("permissions", {}).get("contents") == "write"
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] == str(pushes).lower(), name


@each_workflow
def test_commands_exist(path: Path) -> None:
    """The scripts and tests of the repository that a step names are there, and the scripts know their options."""
    runs = [step["run"] for step in steps(path) if "run" in step]
    commands = [command for run in runs for command in re.findall(r"scripts/[^$()|&\n]*", run)]
    assert commands
    for command in commands:
        script, *words = shlex.split(command.rstrip('"'))
        assert os.access(ROOT / script, os.X_OK), script
        for word in words:
            if word.startswith("--") or word == "publish":
                assert word in (ROOT / script).read_text(), command
            elif word.startswith("tests/"):
                assert (ROOT / word).exists(), command


def test_every_python_is_tested_that_the_metadata_name() -> None:
    """The classifiers are the Pythons of the job `test`, the oldest of which is the one that shardio requires."""
    tested = read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    prefix = "Programming Language :: Python :: 3."
    assert [f"{prefix}{version.removeprefix('3.')}" for version in tested] == [
        classifier for classifier in PROJECT["classifiers"] if classifier.startswith(prefix)
    ]
    assert PROJECT["requires-python"] == f">={tested[0]}"
