"""The two places that conversions write to, a folder and a store, with what tests look up and change there."""

import random
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash
from _cli import unfinished
from _time_limit import wait_until

import shardio
from shardio.conversion.api import convert
from shardio.errors import BadSample, ShardioError
from shardio.format import manifest
from shardio.format.manifest import Manifest
from shardio.order.world import World
from shardio.system.directory import Directory
from shardio.testing.stores import MemoryStore
from shardio_converters.imagefolder import imagefolder

SIZE = "4KB"
URL = "s3://bucket/photos"


class Photos:
    """The images of a folder; before sample `at` is read it calls `then`, once."""

    def __init__(self, root: Path, at: int | None = None, then: Callable[[], object] | None = None) -> None:
        self._source, self._at, self._then = imagefolder(root), at, then
        self.fields, self.metadata = self._source.fields, self._source.metadata
        self.read: list[int] = []

    def early(self) -> int:
        """The number of samples read from the first half, a few of them for the fingerprint of the source."""
        return sum(number < 30 for number in self.read)

    def sizes(self) -> np.ndarray:
        return self._source.sizes()

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.read.append(index)
        if index == self._at and self._then is not None:
            then, self._then = self._then, None
            then()
        return dict(self._source[index])


def scratch() -> None:
    raise BadSample("the disk has a scratch")


def changed(record: bytes, **values: Any) -> bytes:
    """A record of a journal with other values, after its checksum."""
    data = msgspec.msgpack.encode(msgspec.msgpack.decode(record[16:]) | values)
    return xxhash.xxh3_128_digest(data) + data


def kill_at_work(command: Sequence[str], out: Path, chance: random.Random) -> bool:
    """Kill a command at some moment after one more shard is finished; return whether it still ran."""
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        before = len(unfinished(out, "*.done"))
        wait_until(lambda: len(unfinished(out, "*.done")) > before or process.poll() is not None)
        time.sleep(chance.random() * 0.1)
        running = process.poll() is None
        process.kill()
    return running


class FolderPlace:
    """A directory that conversions write to."""

    def __init__(self, root: Path) -> None:
        self.out = root / "out"

    def convert(self, source: Any, **options: Any) -> Any:
        return convert(source, self.out, **{"shard_size": SIZE} | options)

    def all(self) -> dict[str, bytes]:
        """All files below the output by their names in it, with `RUN` for the folder of a run."""
        paths = [path for path in self.out.rglob("*") if path.is_file()] if self.out.exists() else []
        return {self._name(path): path.read_bytes() for path in paths}

    def objects(self) -> dict[str, bytes]:
        """All files by names that no two writers share."""
        return self.all()

    def _name(self, path: Path) -> str:
        return re.sub(r"\.converting/run-[0-9a-f]{8}/(shards/)?", "RUN/", str(path.relative_to(self.out)))

    def shards(self) -> dict[str, bytes]:
        """All files beside the manifest: those of the shards, unless something was left."""
        return {name: data for name, data in self.all().items() if name != manifest.FILE_NAME}

    def write(self, name: str, data: bytes | None) -> None:
        """Replace a file of the run, or the plan, or remove it."""
        (path,) = (path for path in self.out.rglob("*") if path.is_file() and self._name(path) == name)
        path.unlink()
        if data is not None:
            path.write_bytes(data)

    def manifest(self) -> Manifest:
        return shardio.open(self.out).manifest


class StorePlace:
    """A place in a store in memory that conversions write to."""

    def __init__(self, store: MemoryStore) -> None:
        self.out, self.store = URL, store

    def convert(self, source: Any, **options: Any) -> Any:
        return convert(source, URL, **{"shard_size": SIZE} | options)

    def all(self) -> dict[str, bytes]:
        """All objects at the place by the names that they would have in a directory."""
        return {self._name(name): data for name, data in self.objects().items()}

    def objects(self) -> dict[str, bytes]:
        """All objects by names that no two writers share."""
        return {info.name: bytes(self.store.read(info.name).data) for info in self.store.list("photos")}

    def _name(self, name: str) -> str:
        name = re.sub(r"\.converting/run-[0-9a-f]{8}/", "RUN/", name.removeprefix("photos/"))
        return re.sub(
            r"^(shard-\d{6})-[0-9a-f]{8}", r"\1", name if name != "RUN/plan.json" else ".converting/plan.json"
        )

    def shards(self) -> dict[str, bytes]:
        """The files of the shards that the manifest names; fails if one is missing."""
        stems = {name.partition(".")[0]: name[:12] for name in self.manifest().shards.names}
        found = {}
        for info in self.store.list("photos"):
            stem, _, rest = info.name.removeprefix("photos/").partition(".")
            if stem in stems:
                found[f"{stems[stem]}.{rest}"] = bytes(self.store.read(info.name).data)
        assert {name.partition(".")[0] for name in found} == {*stems.values()}
        return found

    def writers(self) -> set[str]:
        """The names of the writers of the dataset's shards."""
        return {name.split("-")[2][:8] for name in self.manifest().shards.names}

    def runs(self) -> set[str]:
        """The unfinished runs."""
        return {name.split("/")[2] for name in self.objects() if "/.converting/" in name}

    def write(self, name: str, data: bytes | None) -> None:
        """Replace an object of the run, or the plan, or a shard, or remove it."""
        wanted = name.replace("RUN/shard", "shard")
        (found,) = (info.name for info in self.store.list("photos") if self._name(info.name) == wanted)
        if data is None:
            self.store.delete([found])
        else:
            self.store.write(found, data)

    def manifest(self) -> Manifest:
        return manifest.Manifest.from_json(bytes(self.store.read("photos/shardio.json").data))


@contextmanager
def cut_off(out: Path, renames: int, error: BaseException) -> Iterator[None]:
    """Raise an error within the `with` block, instead of the rename into a folder that follows so many."""
    rename, left = Directory.rename, [renames]

    def cut(source: Directory, name: str, target: Directory, new: str) -> None:
        if target.path == out:
            if not left[0]:
                raise error
            left[0] -= 1
        rename(source, name, target, new)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Directory, "rename", cut)
        yield


def by_ranks(
    place: FolderPlace | StorePlace,
    source: Callable[[int], Any],
    size: int = 3,
    absent: Sequence[int] = (),
    **options: Any,
) -> list[Manifest | Exception | None]:
    """Convert by ranks, on a thread each, the first of which begins last; return the manifest or error of each."""
    results: list[Manifest | Exception | None] = [None] * size

    def work(rank: int) -> None:
        if not rank:
            time.sleep(0.3)
        try:
            given = {name: option(rank) if callable(option) else option for name, option in options.items()}
            results[rank] = place.convert(source(rank), world=World(rank, size), workers=1, **given).manifest
        except (ShardioError, OSError) as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size) if rank not in absent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results
