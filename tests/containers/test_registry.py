"""The registry is the only list of containers: one that a test registers works everywhere."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import shardio
from shardio import containers
from shardio.care.repair import repair
from shardio.care.verify import verify
from shardio.containers.base import check_out, check_rows, check_value_bytes
from shardio.errors import ConfigError, ShardCorrupt
from shardio.format.fields import Field, as_fields, fields_to_json
from shardio.format.limits import MAX_VALUE_BYTES
from shardio.format.manifest import FILE_NAME
from shardio.system.types import Column, Rows, Stored
from shardio.testing import check_source
from shardio_converters.numpy import numpy

FIELDS = {"x": ("float32", (3,)), "label": "int64", "text": "text"}


class TextWriter:
    """Write a shard as one JSON document with values in hexadecimal."""

    def __init__(self, path: Path, fields: Mapping[str, Field]) -> None:
        self._path, self._fields = path, fields
        self._samples: list[dict[str, str]] = []

    def append(self, sample: Stored) -> None:
        self._samples.append({name: bytes(value).hex() for name, value in sample.items()})

    def close(self) -> None:
        visible = fields_to_json({name: field for name, field in self._fields.items() if not name.startswith("_")})
        self._path.write_text(json.dumps({"fields": visible, "samples": self._samples}))


class TextReader:
    """Read the shards of `TextWriter`."""

    def __init__(self, path: Path, fields: Mapping[str, Field]) -> None:
        self._path, self._fields, self._samples = path, fields, content(path)["samples"]

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, rows: Rows, field: str, out: NDArray[Any] | None = None, *, most: int = MAX_VALUE_BYTES) -> Column:
        check_rows(rows, len(self), self._path)
        values = [bytes.fromhex(self._samples[row][field]) for row in rows.tolist()]
        kind = self._fields[field]
        if not kind.fixed:
            check_value_bytes(max(map(len, values), default=0), most, f"{self._path}, field {field!r}")
            return values
        out = check_out(out, len(rows), kind)
        out[...] = np.frombuffer(b"".join(values), kind.row_dtype).reshape(out.shape)
        return out

    def locator(self, field: str) -> None:
        return None

    def close(self) -> None:
        pass


class TextContainer:
    """The container that this module adds."""

    name = "hextext"
    suffix = ".hextext"
    index_suffix = ""
    on_disk = True
    options: Mapping[str, str] = MappingProxyType({"compression": "none, that is, nothing"})

    def writer(self, path: Path, fields: Mapping[str, Field], first: int, **options: Any) -> TextWriter:
        return TextWriter(path, fields)

    def reader(self, path: Path, fields: Mapping[str, Field]) -> TextReader:
        return TextReader(path, fields)

    def files(self, path: Path) -> tuple[Path, ...]:
        return (path,)

    def read_fields(self, path: Path) -> Mapping[str, Field]:
        return as_fields(content(path)["fields"])


def content(path: Path) -> dict[str, Any]:
    """The content of a `TextContainer` shard."""
    try:
        stored: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ShardCorrupt(f"{path}: {error}") from error
    return stored


def sample(number: int) -> dict[str, Any]:
    """One sample of `FIELDS`."""
    return {"x": np.full(3, number, np.float32), "label": number, "text": f"sample {number}"}


@pytest.fixture(autouse=True)
def _added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register `TextContainer` for one test."""
    container: containers.Container = TextContainer()
    monkeypatch.setattr(containers, "CONTAINERS", {**containers.CONTAINERS, container.name: container})


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """50 samples in several shards of `TextContainer`."""
    with shardio.create(tmp_path / "data", container="hextext", fields=FIELDS, shard_size="500B") as writer:
        for number in range(50):
            writer.append(sample(number))
    return tmp_path / "data"


def test_facts() -> None:
    """The registry's answers include the new container."""
    assert containers.get("hextext").name == "hextext"
    assert containers.names() == ("tar", "hdf5", "lmdb", "hextext")
    assert containers.with_option("compression").keys() == {"hdf5", "hextext"}
    assert containers.index_suffixes() == (".idx.h5", ".idx.npy")
    with pytest.raises(ConfigError, match="container must be one of tar, hdf5, lmdb, hextext, got"):
        containers.get("zip")


def test_written_opened_and_verified(dataset: Path) -> None:
    """A dataset of it is written, opened, read and verified."""
    opened = shardio.open(dataset)
    assert len(opened.manifest.shards) > 3
    assert [opened[number]["text"] for number in range(50)] == [sample(number)["text"] for number in range(50)]
    assert verify(opened, deep=True).problems == ()
    (dataset / "shard-000001.hextext").write_text("{}")
    assert "shard-000001.hextext" in verify(shardio.open(dataset)).problems[0]


def test_loaded(dataset: Path) -> None:
    """An epoch delivers each sample once, as from any container."""
    rows = [row for batch in shardio.Loader(dataset, 10, threads=2) for row in batch["label"].tolist()]
    assert sorted(rows) == list(range(50))


def test_converted(tmp_path: Path) -> None:
    """Sources are converted to it with the same samples and digest as in any container."""
    np.save(tmp_path / "x.npy", np.arange(30, dtype=np.int32).reshape(10, 3))
    expected = [{"array": row} for row in np.arange(30, dtype=np.int32).reshape(10, 3)]
    check_source(numpy(tmp_path / "x.npy"), expected, tmp_path / "out")
    assert shardio.open(tmp_path / "out" / "hextext").manifest.container == "hextext"


def test_made_again(dataset: Path) -> None:
    """Its lost manifest is repaired, and a dataset of it is replaced on request."""
    digest = shardio.open(dataset).digest
    (dataset / FILE_NAME).unlink()
    assert repair(dataset).manifest.digest == digest
    with shardio.create(dataset, container="hextext", fields=FIELDS, overwrite=True) as writer:
        writer.append(sample(1))
    names = ["shard-000000.hextext", "shard-000000.hextext.sums.idx.npy", FILE_NAME]
    assert sorted(path.name for path in dataset.iterdir()) == names
