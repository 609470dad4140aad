"""Rows of documents whose dataset is in a store."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _datasets import in_store, load, packed
from _remote import opened


@pytest.mark.parametrize("container", ["hdf5", "tar"])
@pytest.mark.parametrize("shuffle", ["global", "block", None])
def test_rows_come_from_a_store(tmp_path: Path, container: str, shuffle: Any) -> None:
    """Rows, by blocks too, are those of the same dataset in a folder, and their documents are fetched ahead."""
    random = np.random.default_rng(0)
    rows = [{"tokens": random.integers(0, 9, n).astype(np.uint16)} for n in random.integers(0, 900, 300)]
    fields = {"tokens": ("uint16", (None,))}
    local = packed(tmp_path / "d", rows, fields, container=container, shard_size="80KB")
    remote = opened(in_store(tmp_path / "d"), tmp_path / "cache")
    options: dict[str, Any] = {"shuffle": shuffle, "block": 4, "window": 3}
    for make in ("cut", "packed"):
        view, expected = (getattr(dataset, make)("tokens", 256, documents=True) for dataset in (remote, local))
        loaders = [load(each, 8, verify=True, **options) for each in (view, expected)]
        for batch, same in zip(*loaders, strict=True):
            for name, values in same.items():
                assert batch[name].tolist() == values.tolist()
        assert view.in_store
    assert remote.fetched.bytes < 3 * sum(file.stat().st_size for file in (tmp_path / "d").iterdir())
