"""A URL is refused in words wherever a path is expected; no folder `s3:` is made or sought."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardio
import shardio.train
from shardio.cli import main
from shardio.conversion.source import names
from shardio.errors import ConfigError
from shardio.system.local_path import local_path

URL = "s3://bucket/photos"


@pytest.mark.parametrize(
    "path", ["photos", "/data/s3/photos", "./s3:/photos", "a:b", "x:/y", "data/12:30", b"a", "", "caf\udce9"]
)
def test_what_is_local(path: Any) -> None:
    """Anything else is a path, whatever it is called."""
    assert local_path(path if isinstance(path, str) else os.fsdecode(path)) == Path(os.fsdecode(path))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        *((url, r"local, got the URL [\w+]+://") for url in ("gs://b", "https://host/x.tar", "hdfs:///x", "S3://b/c")),
        (URL, rf"{URL}: .*read from there .* first, and what is written .* afterwards$"),
        (Path(URL), f"local, got the URL {URL}"),  # a Path has lost one of its slashes
        ("az+x://b/{0..3}.tar", r"local, got the URL az\+x://b/"),
        ("file:///data/x", "no scheme, got file:///data/x: give /data/x$"),
        ("data\ud800", r"text that a file system takes, got 'data\\ud800'"),
    ],
)
def test_what_is_not(url: Any, message: str) -> None:
    """The message names the whole URL and what to do, or the path that works."""
    with pytest.raises(ConfigError, match=message):
        local_path(url)


def test_commands_of_webdataset(tmp_path: Path) -> None:
    """`pipe:` addresses are refused in words by whatever takes a path; a file of such a name can still be given."""
    for use in (shardio.open, lambda path: shardio.Loader(path, 1), lambda path: shardio.index(path, tmp_path / "out")):
        with pytest.raises(
            ConfigError, match=r"must be that of a file, got the command pipe:cat a\.tar: write what it"
        ):
            use("pipe:cat a.tar")
    assert local_path("./pipe:cat") == Path("pipe:cat")


@pytest.mark.parametrize(
    "use",
    [
        shardio.repair,
        lambda url: shardio.convert(url, "out", converter="idx"),
        lambda url: shardio.train.run(shardio.train.TrainConfig(train="data", output=url)),
    ],
)
def test_from_python(use: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever needs a local path refuses a URL, and makes nothing."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=URL):
        use(URL)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("source", sorted({*names()} - {"torch"}))  # which takes `module:name`
def test_from_the_command_line(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that needs a local path ends with one line that names the URL, and makes nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["shardio", "convert", source, URL, "out"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"local, got the URL {URL}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
