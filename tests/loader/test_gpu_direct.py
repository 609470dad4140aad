"""Arrays read by the device itself equal those that the host reads, from every container that stores them raw.

kvikio cannot be called without a GPU driver, so a stand-in with its interface reads late, into host memory.
"""

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import _datasets
import numpy as np
import pytest
import torch
from _datasets import packed
from _device import NearCopier

import shardio
from shardio import World
from shardio.errors import ConfigError, MissingDependency, ShardCorrupt

SHAPE = (4, 64, 80)


class Future:
    """A read that happens in `get`."""

    def __init__(self, path: str, target: torch.Tensor, size: int, offset: int) -> None:
        self.request = (path, target, size, offset)

    def get(self) -> int:
        path, target, size, offset = self.request
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read(size)
        target[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return len(data)


_read = Future.get


class CuFile:
    """The interface of kvikio.CuFile."""

    opened: list[str] = []
    reads: list[int] = []

    def __init__(self, path: str, flags: str) -> None:
        assert flags == "r"
        self.path = path
        self.opened.append(path)

    def pread(self, target: torch.Tensor, size: int, file_offset: int) -> Future:
        self.reads.append(size)
        return Future(self.path, target, size, file_offset)


@pytest.fixture
def kvikio(monkeypatch: pytest.MonkeyPatch) -> type[CuFile]:
    """Replace kvikio, with a driver that claims to be available, and the GPU by the host."""
    CuFile.opened, CuFile.reads = [], []
    module = SimpleNamespace(CuFile=CuFile, cufile_driver={"is_gds_available": True})
    monkeypatch.setitem(sys.modules, "kvikio", module)  # type: ignore[arg-type]
    monkeypatch.setattr("shardio.loader.loader.check_gpu_direct", lambda device, dataset, others: None)
    monkeypatch.setattr("shardio.loader.device.prefetcher.copier_to", NearCopier)
    return CuFile


def dataset(path: Path, container: str, **options: Any) -> shardio.Dataset:
    fields = {
        "field": shardio.Field("array", "float32", SHAPE),
        "small": shardio.Field("array", "int16", (3,)),
        "label": shardio.Field("scalar", "int64"),
    }
    random = np.random.default_rng(0)
    rows = (
        {"field": random.random(SHAPE, np.float32), "small": np.full(3, n, np.int16), "label": n} for n in range(24)
    )
    return packed(path, rows, fields, container=container, shard_size="600KB", **options)


load = partial(_datasets.load, batch_size=6, seed=3)


def same(loaded: shardio.Loader, wanted: shardio.Loader) -> list[int]:
    """Check that both loaders deliver the same batches and the same bad samples; return these."""
    for ours, theirs in zip(loaded, wanted, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    numbers = [[bad.location.index for bad in one.quarantine()] for one in (loaded, wanted)]
    assert numbers[0] == numbers[1]
    return numbers[0]


@pytest.mark.parametrize("shuffle", ["global", None])
@pytest.mark.parametrize("container", ["hdf5", "tar", "lmdb"])
def test_the_device_reads_what_the_host_reads(
    tmp_path: Path, kvikio: type[CuFile], container: str, shuffle: Any
) -> None:
    """The device reads every array of an epoch, opens each file once, and reads neighbours together."""
    data = dataset(tmp_path / "d", container)
    plain = load(data, shuffle=shuffle)
    same(load(data, shuffle=shuffle, gpu_direct=True), plain)
    assert len(kvikio.opened) == len(set(kvikio.opened)) == len(data.manifest.shards)
    rows = [size // (4 * 64 * 80 * 4) for size in kvikio.reads]
    assert sum(rows) == 24
    if shuffle is None or container != "hdf5":
        assert (max(rows) > 1) == (container == "hdf5")


@pytest.mark.parametrize("weights", [None, {"a": 2, "b": 1}])
def test_a_mixture_is_read_from_the_files_of_its_sources(tmp_path: Path, kvikio: type[CuFile], weights: Any) -> None:
    """Each row of a mixture is read from the file of its own source."""
    sources = {"a": dataset(tmp_path / "a", "hdf5"), "b": dataset(tmp_path / "b", "tar")}
    plain, direct = (load(shardio.mix(sources, weights), gpu_direct=gpu_direct) for gpu_direct in (False, True))
    same(direct, plain)
    assert len(kvikio.opened) == sum(len(source.manifest.shards) for source in sources.values())


def test_a_file_that_ends_early_is_named(tmp_path: Path, kvikio: type[CuFile]) -> None:
    """A truncated file is named with the field and the number of bytes read."""
    data = dataset(tmp_path / "d", "hdf5")
    loader = load(data, shuffle=None, gpu_direct=True)
    for _ in loader:  # opens all files: what is cut before it is opened is found then
        pass
    batches = iter(loader)
    next(batches)
    (*_, last) = sorted((tmp_path / "d").glob("*.h5"))
    with open(last, "r+b") as file:
        file.truncate(100_000)
    with pytest.raises(ShardCorrupt, match=r"shard-\d+\.h5.*field 'field': \d+ of \d+ bytes could be read"):
        list(batches)


@pytest.mark.parametrize("on_bad", ["replace", "mask"])
@pytest.mark.parametrize("fields", [None, ["field"]])
def test_bad_samples_of_a_shard_that_is_cut_short(
    tmp_path: Path, kvikio: type[CuFile], fields: Any, on_bad: Any
) -> None:
    """Bad samples of a truncated shard are replaced or masked as without gpu_direct, even a whole batch of them."""
    data = dataset(tmp_path / "d", "tar")
    given: dict[str, Any] = {"shuffle": None, "on_bad_sample": on_bad, "max_bad": 12, "fields": fields}
    (*_, last) = sorted((tmp_path / "d").glob("*.tar"))
    with open(last, "r+b") as file:
        file.truncate(last.stat().st_size - 2 * 4 * 64 * 80 * 4)
    assert same(load(tmp_path / "d", **given, gpu_direct=True), load(data, **given))


@pytest.mark.parametrize("on_bad", ["replace", "mask"])
def test_bad_samples_of_a_shard_that_is_cut_while_it_is_read(tmp_path: Path, kvikio: type[CuFile], on_bad: Any) -> None:
    """The epoch completes when a shard is truncated during reading, whether device or host notices."""
    data = dataset(tmp_path / "d", "tar")
    loader = load(data, shuffle=None, on_bad_sample=on_bad, max_bad=12, gpu_direct=True)
    batches = iter(loader)
    found = [next(batches)]
    (*_, last) = sorted((tmp_path / "d").glob("*.tar"))
    with open(last, "r+b") as file:
        file.truncate(100_000)
    found += batches
    assert len(found) == 4
    assert loader.quarantine()


@pytest.mark.parametrize("on_bad", ["replace", "mask", "raise"])
@pytest.mark.parametrize("where", ["open", "pread"])
def test_reads_that_cannot_begin(
    tmp_path: Path, kvikio: type[CuFile], where: str, on_bad: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host reads a batch whose device reads cannot begin, and raises damage in that batch's turn."""
    data = dataset(tmp_path / "d", "hdf5")
    _, second, _ = sorted(str(path) for path in (tmp_path / "d").glob("*.h5"))

    def fails(self: CuFile, *given: Any) -> Any:
        if (given[0] if where == "open" else self.path) == second:
            raise OSError("no direct way")
        return original(self, *given)

    original = CuFile.__init__ if where == "open" else CuFile.pread
    monkeypatch.setattr(CuFile, "__init__" if where == "open" else "pread", fails)
    loader = load(data, shuffle=None, on_bad_sample=on_bad, gpu_direct=True)
    if on_bad == "raise":
        batches = iter(loader)
        assert torch.equal(next(batches)["field"], next(iter(load(data, shuffle=None)))["field"])
        with pytest.raises(OSError, match="no direct way"):
            list(batches)
        return
    same(loader, load(data, shuffle=None, on_bad_sample=on_bad))


def test_padding_that_is_bad_is_masked(tmp_path: Path, kvikio: type[CuFile]) -> None:
    """Padding whose shard is lost is masked."""
    dataset(tmp_path / "d", "tar")
    (first, *_) = sorted((tmp_path / "d").glob("*.tar"))
    first.unlink()
    given: dict[str, Any] = {"shuffle": None, "on_bad_sample": "mask", "max_bad": 12, "tail": "pad", "world": World()}
    pair = [shardio.Loader(tmp_path / "d", 5, threads=2, gpu_direct=direct, **given) for direct in (True, False)]
    assert same(*pair)


@pytest.mark.parametrize("on_bad", ["replace", "mask"])
def test_reads_that_fail_on_the_device_only(
    tmp_path: Path, kvikio: type[CuFile], on_bad: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host reads a batch that the device failed to read, and reports no bad samples."""
    data = dataset(tmp_path / "d", "hdf5")
    short = iter(range(100))
    monkeypatch.setattr(Future, "get", lambda self: _read(self) if next(short) % 3 else 0)
    loader = load(data, on_bad_sample=on_bad, gpu_direct=True)
    same(loader, load(data, on_bad_sample=on_bad))
    assert not loader.quarantine()
    assert next(short) > 3


def test_rows_that_are_compressed_are_refused(tmp_path: Path, kvikio: type[CuFile]) -> None:
    """Compressed arrays are refused, because the device reads stored bytes."""
    data = dataset(tmp_path / "d", "hdf5", compression="gzip")
    with pytest.raises(
        ConfigError, match="field 'field': gpu_direct needs rows whose stored bytes are the delivered ones"
    ):
        list(load(data, gpu_direct=True))


def test_what_cannot_go_together_is_said() -> None:
    """`gpu_direct` on a device other than a GPU is refused."""
    data = shardio.from_samples([{"field": np.zeros(SHAPE, np.float32)}] * 6)
    with pytest.raises(ConfigError, match="needs device='cuda', got 'cpu'"):
        load(data, gpu_direct=True)


@pytest.mark.parametrize("option", ["map", "isolate", "verify"])
def test_what_needs_the_host_is_refused(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that need arrays on the host are refused before kvikio is imported."""
    data = shardio.from_samples([{"field": np.zeros(SHAPE, np.float32)}] * 6)
    monkeypatch.setattr("shardio.loader.loader.torch_device", lambda device: torch.device("cuda"))
    with pytest.raises(ConfigError, match=f"gpu_direct=True and {option} cannot be combined"):
        load(data, gpu_direct=True, device="cuda", **{option: dict if option == "map" else True})


def test_without_kvikio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without kvikio, the error says how to install it."""
    from shardio.loader.device.gpu_direct import GpuDirect

    monkeypatch.setitem(sys.modules, "kvikio", None)
    with pytest.raises(MissingDependency, match="gpu_direct needs kvikio: pip install kvikio-cu13"):
        GpuDirect(torch.device("cpu"))


def test_without_the_driver(kvikio: type[CuFile]) -> None:
    """Without the driver a warning says that reads go through host memory, and reading works."""
    from shardio.loader.device.gpu_direct import GpuDirect

    sys.modules["kvikio"].cufile_driver = {"is_gds_available": False}  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="does not support GPUDirect Storage .nvidia-fs is not loaded."):
        GpuDirect(torch.device("cpu"))
