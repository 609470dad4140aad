"""Of datasets in a store only the pieces are fetched that reading rows, blocks and windows touches."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from _datasets import in_store
from _remote import opened
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio.conversion.indexing import index
from shardio.format.pieces import PIECE
from shardio.testing.stores import MemoryStore

ROWS, SHAPE = 12, (2, 181, 360)
LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "contiguous": {},
    "big-endian": {"dtype": ">f4"},
    "chunks of rows": {"chunks": (1, *SHAPE), "compression": "gzip", "compression_opts": 1},
    "chunks of 3 rows, raw": {"chunks": (3, *SHAPE)},
    "small chunks": {"chunks": (1, 1, 60, 90), "compression": "lzf", "shuffle": True, "maxshape": (None, *SHAPE)},
    "raw chunks": {"chunks": (2, 1, 100, 100)},
    "a filter of libhdf5": {"chunks": (1, 1, 60, 90), "scaleoffset": 2},
    "packed": {"dtype": "i2", "chunks": (1, 1, 181, 180), "compression": "gzip"},
}
"""Options of h5py for files that other programs wrote."""


@dataclass(frozen=True)
class Case:
    """A file in a store, adopted, beside the same in a folder."""

    source: Path
    local: shardio.Dataset
    store: MemoryStore

    def pieces(self, rows: Any, begins: Any = None, size: tuple[int, ...] = SHAPE) -> int:
        """The number of pieces that rows touch, or blocks of them, by what h5py says of the file."""
        found = set[int]()
        starts = np.zeros((len(rows), 3), int) if begins is None else begins
        with h5py.File(self.source) as file:
            stored = file["x"]
            item = stored.dtype.itemsize
            for row, begin in zip(rows, starts.tolist(), strict=True):
                spans: list[tuple[int, int]]
                if stored.chunks is None:
                    lines = product(range(begin[0], begin[0] + size[0]), range(begin[1], begin[1] + size[1]))
                    base = stored.id.get_offset()
                    offsets = [np.ravel_multi_index((row, *line, begin[2]), stored.shape) for line in lines]
                    spans = [(base + int(offset) * item, size[2] * item) for offset in offsets]
                elif not stored.id.get_create_plist().get_nfilters() and stored.chunks[1:] == SHAPE:
                    chunk = stored.id.get_chunk_info_by_coord((row, 0, 0, 0))
                    first = chunk.byte_offset + row % stored.chunks[0] * int(np.prod(SHAPE)) * item
                    lines = product(range(begin[0], begin[0] + size[0]), range(begin[1], begin[1] + size[1]))
                    offsets = [np.ravel_multi_index((*line, begin[2]), SHAPE) for line in lines]
                    spans = [(first + int(offset) * item, size[2] * item) for offset in offsets]
                else:
                    ends = [b + s - 1 for b, s in zip(begin, size, strict=True)]
                    axes = zip(begin, ends, stored.chunks[1:], strict=True)
                    cells = product(*(range(b // c * c, e + 1, c) for b, e, c in axes))
                    infos = [stored.id.get_chunk_info_by_coord((row, *cell)) for cell in cells]
                    spans = [(info.byte_offset, info.size) for info in infos]
                for offset, length in spans:
                    found.update(range(offset // PIECE, (offset + length - 1) // PIECE + 1))
        return len(found)


@pytest.fixture(scope="module", params=LAYOUTS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A file of each layout."""
    folder, options = tmp_path_factory.mktemp("parts"), dict(LAYOUTS[request.param])
    values = np.random.default_rng(0).integers(0, 90, (ROWS, *SHAPE)).astype(options.pop("dtype", "f4"))
    with h5py.File(folder / "source.h5", "w") as file:
        stored = file.create_dataset("x", data=values, **options)
        if values.dtype == "i2":
            stored.attrs["scale_factor"], stored.attrs["add_offset"] = 0.5, -3.0
        file["n"] = np.arange(ROWS)
    index([folder / "source.h5"], folder / "d", decode_cf=True)
    return Case(folder / "source.h5", shardio.open(folder / "d"), in_store(folder / "d"))


def by_spans(case: Case) -> bool:
    """Whether shardio itself finds the chunks of the file; otherwise it comes whole."""
    with h5py.File(case.source) as file:
        return file["x"].scaleoffset is None


@settings(max_examples=6)
@given(rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=3))
def test_rows_come_by_the_chunks_that_hold_them(case: Case, rows: list[int]) -> None:
    """Rows in place are read from a store with the pieces of their chunks alone, whatever the layout."""
    with tempfile.TemporaryDirectory() as cache:
        dataset = opened(case.store, Path(cache))
        assert dataset.read([0], ["n"])["n"].tolist() == [0]
        before = dataset.fetched.bytes
        np.testing.assert_array_equal(dataset.read(rows)["x"], case.local.read(rows)["x"])
        if by_spans(case):
            assert before <= 24 * PIECE
            assert dataset.fetched.bytes - before <= 1.1 * PIECE * case.pieces(rows)
