"""Many small values: what a tar of them takes is told beforehand, with the container that fits them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import jpeg
from _cli import run

from shardio.conversion.container_choice import choose_container, estimate_tar_cost
from shardio.errors import BadSample
from shardio.source import Field, Source

NUMBERS = {"x": Field("array", "float32", (3,)), "label": Field("scalar", "int64")}
VALUES: dict[str, Any] = {
    "x": np.zeros(3, np.float32),
    "label": 7,
    "text": "abc",
    "key": "a.npz",
    "image": jpeg(),
    "big": bytes(50_000),
}
KINDS = {"text": Field("text"), "key": Field("text"), "image": Field("image"), "big": Field("bytes")}


class Samples(Source):
    """As many equal samples as wanted; some of them may be bad."""

    metadata = {"source": "tests"}

    def __init__(self, count: int, *names: str, bad: int = 0) -> None:
        self.fields: Mapping[str, Field] = {name: (NUMBERS | KINDS)[name] for name in names}
        self.count, self.bad, self.reads = count, bad, 0

    def sizes(self) -> Any:
        """The same for all."""
        return np.full(self.count, 30)

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.reads += 1
        if index < self.bad:
            raise BadSample(f"sample {index} is bad")
        return {name: VALUES[name] for name in self.fields}


@pytest.mark.parametrize(
    ("count", "names", "wanted", "follows", "container", "note"),
    [
        (1_000_000, ("label",), None, True, "hdf5", "container='hdf5' is taken, as it fits numbers and arrays"),
        (10, ("label",), None, True, "hdf5", "tar would take about 10.6 KB for 80 B of data, 132 times as much"),
        (10, ("key", "x"), None, True, "hdf5", "container='hdf5' is taken, as it fits numbers and arrays"),
        (10, ("key",), None, True, "lmdb", "container='lmdb' is taken, as it fits small values"),
        (10, ("text",), None, True, "lmdb", "container='lmdb' is taken, as it fits small values"),
        (10, ("big",), None, True, "tar", None),
        (1_000_000, ("label",), None, False, "tar", "a tar takes about 1.1 GB for 8.0 MB of data, 132 times as much"),
        (1_000_000, ("text",), "tar", True, "tar", "container='lmdb' fits small values"),
        (10, ("label",), "tar", True, "tar", None),
        (1_000_000, ("big",), "tar", False, "tar", None),
        (1_000_000, ("label",), "lmdb", True, "lmdb", None),
    ],
)  # fmt: skip
def test_the_container(
    count: int, names: tuple[str, ...], wanted: str | None, follows: bool, container: str, note: str | None
) -> None:
    """The user's choice stands; a tar of many small values is noted; plain values get the container that fits them."""
    chosen, told = choose_container(Samples(count, *names), wanted, follows=follows)
    assert chosen == container
    assert (told is None) if note is None else (told is not None and note in told)


def test_few_samples_are_read() -> None:
    """At most eight samples are read, one of large ones, none of a few; bad ones are left out of the estimate."""
    for count, names, wanted, reads in (
        *((100_000, ("label",), None, 8), (100_000, ("big",), None, 1)),
        *((100_000, ("label",), "hdf5", 0), (1000, ("label",), None, 0)),
    ):
        source = Samples(count, *names)
        choose_container(source, wanted, follows=False)
        assert source.reads == reads
    assert estimate_tar_cost(Samples(1000, "label", bad=1000)) is None
    assert estimate_tar_cost(Samples(0, "label")) is None
    half = estimate_tar_cost(Samples(1000, "label", bad=500))
    assert half == estimate_tar_cost(Samples(1000, "label"))


def test_the_command_line_tells_it_beforehand(tmp_path: Path) -> None:
    """A dry run prints the note; numpy takes HDF5 unless --to names another."""
    np.save(tmp_path / "in.npy", np.zeros(12_000, np.int8))
    command = ("convert", "numpy", tmp_path / "in.npy", tmp_path / "out", "--dry-run")
    told = run(*command)
    assert "12000 samples in 1 hdf5 shard" in told
    assert "note: --to hdf5 is taken, as it fits numbers and arrays of one shape (a tar would take about 12" in told
    told = run(*command, "--to", "tar")
    assert "note: a tar takes about 12.6 MB for 12.0 KB of data, 1049 times as much: each value begins a block" in told
    assert "; --to hdf5 fits numbers and arrays of one shape" in told
