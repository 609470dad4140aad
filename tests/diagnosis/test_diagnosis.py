"""Machine, job, storage and packages, as they are found."""

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from _datasets import packed, tensors

from shardio import __version__, native
from shardio.bench.storage import StorageRates
from shardio.dataset.store_access import StoreAccess
from shardio.diagnosis import Finding, job, machine, storage
from shardio.diagnosis.software import PACKAGES, Package, look_at, software, version_line
from shardio.system import control_groups, file_systems


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of control groups and of shared memory are named."""
    (tmp_path / "own").write_text("0::/job\n")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "job" / "memory.max").write_text("1000000000\n")
    monkeypatch.setattr(control_groups, "MEMBERSHIP", tmp_path / "own")
    monkeypatch.setattr(control_groups, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    found = by_name(machine())
    assert "2 usable" in found["cores"].value
    assert "affinity to 3, time for 1.5" in found["cores"].value
    assert found["memory"].value.endswith("limited to 1.0 GB")
    assert found["shared memory"].state in ("ok", "note")
    assert any(name.startswith("GPU") for name in found)


def test_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher's variables are shown with the rank that follows; variables that make no sense are broken."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert by_name(job())["World"].value == "rank 0 of 1, local rank 0 of 1; no launcher's variables are set"
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    found = by_name(job())
    assert found["torchrun"].value == "RANK=5, WORLD_SIZE=8, LOCAL_RANK=1, LOCAL_WORLD_SIZE=4"
    assert found["World"] == Finding("World", "ok", "rank 5 of 8, local rank 1 of 4")
    monkeypatch.setenv("RANK", "five")
    assert by_name(job())["World"].state == "broken"


@pytest.mark.parametrize(
    ("kind", "network"), [("ext4", False), ("nfs4", True), ("fuse.gcsfuse", True), ("fuseblk", False), ("lustre", True)]
)
def test_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, network: bool) -> None:
    """The innermost mount counts, the last of several at one place; spaces in its path are escaped by the kernel."""
    inner = tmp_path / "my data"
    inner.mkdir()
    place = str(inner).replace(" ", "\\040")
    (tmp_path / "mountinfo").write_text(
        "20 1 8:1 / / rw - xfs /dev/sda1 rw\n"
        f"21 20 0:51 / {place} rw,relatime shared:2 - tmpfs tmpfs rw\n"
        f"22 20 0:52 / {place} rw,relatime shared:3 master:1 - {kind} server:/my\\040data rw\n"
        f"23 20 0:53 / {place}-more rw - proc proc rw\n"
    )
    monkeypatch.setattr(file_systems, "MOUNTS", tmp_path / "mountinfo")
    found = file_systems.file_system(inner)
    assert (found.type, found.source, found.mount_point) == (kind, "server:/my data", str(inner))
    assert found.network is network
    assert found.block_size > 0
    assert file_systems.file_system(tmp_path).type == "xfs"


def test_a_dataset_and_where_it_lies(tmp_path: Path) -> None:
    """A dataset is told with its size, its file system, and whether it fits in memory; what is none is broken."""
    tensors(10, tmp_path / "d", shard_size="1MB")
    found = by_name(storage(str(tmp_path / "d")))
    assert "10 samples in 1 tar shard" in found["dataset"].value
    assert re.search(r"blocks of \d+ KiB", found["file system"].value)
    assert "free" in found["file system"].value
    assert (found["page cache"].state, {finding.state for finding in found.values()}) == ("ok", {"ok"})
    assert by_name(storage(str(tmp_path)))["dataset"].state == "broken"
    (nowhere,) = storage(str(tmp_path / "nowhere"))
    assert (nowhere.state, "no such directory" in nowhere.value) == ("broken", True)


def test_whether_a_cache_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of the data and of the cache's disk are told as figures, and the command if the cache pays; files stay."""
    packed(tmp_path / "d", ({"x": np.full(50_000, n, np.uint8)} for n in range(60)), shard_size="1MB")
    before = sorted(tmp_path.iterdir())
    beside = by_name(storage(str(tmp_path / "d"), StoreAccess(tmp_path / "c")))["cache"]
    assert "is on the disk of the data" in beside.value
    module = sys.modules["shardio.diagnosis.storage"]  # which the function of its name hides
    measured = module.file_rates
    with TemporaryDirectory(dir="/dev/shm") as memory:
        for factor, state, words in ((0.01, "note", "it pays for"), (100.0, "ok", "it does not pay")):

            def rates(files: list[Path], *given: Any, factor: float = factor, **more: Any) -> StorageRates:
                found = measured(files, *given, **{**more, "seconds": 0.02})
                return found if files[0].is_relative_to(memory) else replace(found, random=factor * 1e8)

            monkeypatch.setattr(module, "file_rates", rates)
            found = by_name(storage(str(tmp_path / "d"), StoreAccess(f"{memory}/cache", "1GB")))
            assert (found["reads"].state, found["cache"].state) == ("ok", state)
            assert words in found["cache"].value
            assert found["reads"].figures["random_bytes_per_second"] == factor * 1e8
            advice = f"shardio stage {tmp_path}/d --cache {memory}/cache --cache-size 1GB"
            assert found["cache"].advice == (advice if state == "note" else "")
        small = by_name(storage(str(tmp_path / "d"), StoreAccess(f"{memory}/cache", "1MB")))["cache"]
        assert (small.state, small.figures["limit_bytes"]) == ("ok", 1_000_000)
        assert not list(Path(memory).iterdir())
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("module", "purpose", "state", "value", "advice"),
    [
        ("shardio_test_whole", "tests", "ok", "1.2, more", ""),
        ("shardio_test_absent", "tests", "optional", "not installed", "for tests: pip install it"),
        ("shardio_test_absent.part", "tests", "optional", "not installed", "for tests: pip install it"),
        ("shardio_test_absent", "", "broken", "not installed", "pip install it"),
        ("shardio_test_broken", "tests", "broken", "OSError: libGL.so.1: cannot open", "install it anew"),
        ("shardio_test_half", "tests", "broken", "No module named 'shardio_test_of_somebody_else'", "install it anew"),
    ],
)
def test_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, purpose: str, state: str, value: str, advice: str
) -> None:
    """An absent package is optional, and broken only if shardio needs it; one that fails to import is broken."""
    (tmp_path / "shardio_test_broken.py").write_text("raise OSError('libGL.so.1: cannot open shared object file')")
    (tmp_path / "shardio_test_half.py").write_text("import shardio_test_of_somebody_else")
    (tmp_path / "shardio_test_whole.py").write_text("__version__ = '1.2'")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = look_at(Package("some", module, ("some-distribution-of-tests",), purpose, "it", lambda module: "more"))
    assert (found.state, found.advice) == (state, advice)
    assert value in found.value


def test_all_software() -> None:
    """shardio, Python and the compiled part come first, then every package; what shardio needs is ok here."""
    found = software()
    assert [finding.name for finding in found[:3]] == ["shardio", "Python", "compiled part"]
    assert found[0].value == __version__
    required = {package.name for package in PACKAGES if not package.purpose}
    assert required > {"NumPy", "PyTorch", "h5py", "lmdb"}
    assert {finding.state for finding in found if finding.name in required} == {"ok"}


@pytest.mark.parametrize(
    ("content", "off", "state"), [(None, "", "missing"), (b"no library", "", "broken"), (None, "off", "missing")]
)
def test_the_compiled_part(
    content: bytes | None, off: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiled part is missing if it was not built or is switched off, and broken if it does not load."""
    if content is not None:
        (tmp_path / "_native.so").write_bytes(content)
    monkeypatch.setattr(native, "FILE", tmp_path / "_native.so")
    monkeypatch.setenv("SHARDIO_NATIVE", off)
    (found,) = (finding for finding in software() if finding.name == "compiled part")
    assert found.state == state
    assert "a quarter of the rate" in found.advice


def test_the_version_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the versions of shardio, libjpeg-turbo, Python and torch."""
    monkeypatch.setattr(native, "jpeg_version", lambda: "3.1.3")
    python = ".".join(map(str, sys.version_info[:3]))
    assert version_line().startswith(f"shardio {__version__} (compiled, libjpeg-turbo 3.1.3; Python {python}, torch 2.")
    monkeypatch.setattr(native, "jpeg_version", lambda: None)
    assert version_line().startswith(f"shardio {__version__} (not compiled; Python {python}")
