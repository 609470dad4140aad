"""Datasets in a bucket of the real server, and how commands reach them."""

import itertools
import os
import random
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from _s3 import S3Server

import shardio
from shardio.stores import open_store
from shardio.stores.url import as_url


def uploaded(s3: S3Server, folder: Path, url: str) -> str:
    """Copy the files of a folder, and those of folders in it, to a URL; return the URL."""
    place = as_url(url)
    s3.make_bucket(place.root.removeprefix("s3://"))
    store = open_store(place, s3.options)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        store.upload((place / str(path.relative_to(folder))).path, path)
    return url


def opened(s3: S3Server, url: str, cache: Path, size: str = "64MB") -> shardio.Dataset:
    """The dataset at a URL, by way of a cache."""
    return shardio.open(url, cache=cache, cache_size=size, store_options=s3.options)


def names_in(s3: S3Server, url: str) -> list[str]:
    """The names of the objects at a URL."""
    place = as_url(url)
    return [info.name.removeprefix(f"{place.path}/") for info in open_store(place, s3.options).list(place.path)]


def store_options(s3: S3Server) -> list[str]:
    """The options of a command that lead to the server."""
    return [f"--store-option={name}={value}" for name, value in s3.options.items()]


def options_of(s3: S3Server, cache: Path) -> list[str]:
    """The options of a command that reads from the server."""
    return [f"--cache={cache}", "--cache-size=64MB", *store_options(s3)]


def run_and_kill(command: Sequence[str], environment: dict[str, str], folder: Path, objects: Callable[[], int]) -> Path:
    """Run a command to its end, after it was killed four times once there were some more objects.

    Each time it has an empty temporary folder, as on another machine; return the last one.
    """
    draw = random.Random(5)
    for attempt in itertools.count():
        temporary = folder / f"machine-{attempt}"
        temporary.mkdir()
        with subprocess.Popen(command, env=os.environ | environment | {"TMPDIR": str(temporary)}) as process:
            end, target = time.monotonic() + 30, objects() + draw.randrange(1, 10)
            while process.poll() is None and objects() < target and time.monotonic() < end:
                time.sleep(0.01)
            if process.poll() is None and attempt < 4:
                process.kill()
                continue
            assert process.wait() == 0
        assert attempt
        return temporary
    raise AssertionError
