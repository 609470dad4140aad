"""Reading rows, blocks, windows or documents of a dataset in a store fetches only the pieces that it touches."""

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from _datasets import in_store, load, packed
from _remote import opened
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio.containers import hdf5
from shardio.containers.extents import Blocks
from shardio.conversion.indexing import index
from shardio.errors import ObjectChanged, StoreError
from shardio.format.pieces import PIECE
from shardio.testing.stores import Faults, FaultyStore, MemoryStore

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
    with h5py.File(folder / "source.h5", "w", rdcc_nbytes=8 << 20) as file:
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


@settings(max_examples=6)
@given(rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_blocks_come_by_the_runs_or_chunks_that_hold_them(case: Case, rows: list[int], seed: int) -> None:
    """Blocks of rows are read from a store with the pieces of their runs of bytes, or of their chunks, alone."""
    size = (20, 30)
    begins = np.random.default_rng(seed).integers(0, np.subtract(SHAPE[1:], size) + 1, (len(rows), 2))
    blocks = Blocks(begins, size)
    with tempfile.TemporaryDirectory() as cache:
        dataset = opened(case.store, Path(cache))
        dataset.read([0], ["n"])
        before, selection = dataset.fetched.bytes, dataset.selection(np.array(rows))
        with selection.fetch(["x", "n"], {"x": blocks}):
            found = selection.blocks("x", blocks)
            fetched = dataset.fetched.bytes - before
            whole = selection.column("x")  # as whoever fetched blocks may need
        expected = case.local.read(rows)["x"]
        np.testing.assert_array_equal(whole, expected)
        for block, row, (top, left) in zip(found, expected, begins, strict=True):
            np.testing.assert_array_equal(block, row[:, top : top + size[0], left : left + size[1]])
        if by_spans(case):
            assert fetched <= 1.1 * PIECE * case.pieces(rows, np.insert(begins, 0, 0, axis=1), (SHAPE[0], *size))


@pytest.mark.parametrize("shuffle", ["global", "block", None])
def test_crops_are_those_of_whole_samples(case: Case, tmp_path: Path, shuffle: Any) -> None:
    """A Loader fetches what its crops touch, ahead too, and delivers to each rank what it delivers of whole samples."""
    transforms = {"x": [shardio.RandomSpatialCrop((20, 30)), shardio.RandomAxisFlip()]}
    options: dict[str, Any] = {"shuffle": shuffle, "block": 3, "window": 2, "transforms": transforms}
    dataset, delivered = opened(case.store, tmp_path / "cache"), list[int]()
    for rank in range(2):
        world = shardio.World(rank, 2, rank, 2)
        crops = load(dataset, 2, world=world, **options)
        for batch, same in zip(crops, load(case.local, 2, world=world, verify=True, **options), strict=True):
            assert all(batch[name].equal(same[name]) for name in ("x", "n", "index"))
            delivered += batch["index"].tolist()
    assert sorted(delivered) == list(range(ROWS))
    with h5py.File(case.source) as file:
        if file["x"].chunks is None:
            assert dataset.fetched.bytes <= (24 + 4 * ROWS) * PIECE


@pytest.mark.parametrize("part", [shardio.RandomWindow(1, offset=True), shardio.RandomRow(offset=True)], ids=repr)
@pytest.mark.parametrize("names", [("x",), ("a", "b")])
def test_windows_of_one_shape_and_crops_of_several_names(
    case: Case, tmp_path: Path, names: tuple[str, ...], part: Any
) -> None:
    """A window or row of arrays of one shape is fetched as a crop is; several names of a field each have their own."""
    options: dict[str, Any] = {"fields": dict.fromkeys(names, "x"), "seed": 1}
    options["transforms"] = {name: [part] for name in names[:1]}
    options["transforms"] |= {name: [shardio.RandomSpatialCrop((4, 5), offset=True)] for name in names[1:]}
    dataset = opened(case.store, tmp_path / "cache")
    for batch, same in zip(load(dataset, 4, **options), load(case.local, 4, verify=True, **options), strict=True):
        assert batch.keys() == same.keys() >= {f"{name}_offset" for name in names}
        assert all(batch[name].equal(same[name]) for name in batch)
    with h5py.File(case.source) as file:
        if file["x"].chunks is None:
            touched = 5 + 1.5 * (len(names) - 1)  # pieces of a row, of 8
            assert dataset.fetched.bytes <= (10 + touched * ROWS) * PIECE


def test_a_table_of_many_chunks_comes_in_few_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening an adopted file asks for the nodes of a table of chunks level by level, and fetches no chunk."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        stored = file.create_dataset("x", (0, 100, 400), "f4", maxshape=(None, 100, 400), chunks=(1, 10, 400))
        for row in range(150):  # so that nodes lie between chunks
            stored.resize(row + 1, 0)
            stored[row] = row
    index([tmp_path / "a.h5"], tmp_path / "d")
    rounds, in_helper = list[str](), hdf5._in_helper

    def counted(path: Path, function: str, **arguments: Any) -> str | None:
        rounds.append(function)
        return in_helper(path, function, **arguments)

    monkeypatch.setattr(hdf5, "_in_helper", counted)
    dataset = opened(in_store(tmp_path / "d"), tmp_path / "cache")
    assert (dataset.read([7, 149])["x"][:, 50, 50] == [7, 149]).all()
    assert rounds.count("touch") <= 10
    assert dataset.fetched.bytes < (tmp_path / "a.h5").stat().st_size / 2


def test_a_file_that_is_damaged_or_replaced_is_named(case: Case, tmp_path: Path) -> None:
    """Damaged pieces of a crop are no numbers, and no crop is made of the old and of a new object."""
    name = f"d/{case.local.manifest.shards.names[0]}"
    data = np.frombuffer(case.store.read(name).data, np.uint8).copy()
    data[len(data) * 7 // 10 : len(data) * 9 // 10 : 4096] ^= 1
    objects = {info.name: bytes(case.store.read(info.name).data) for info in case.store.list("d")}
    blocks = {"x": Blocks(np.array([[5, 5]]), (2, 3))}
    dataset = opened(MemoryStore(objects | {name: data.tobytes()}), tmp_path / "damaged")
    with pytest.raises(StoreError, match=f"{name}: bytes .* checksum differs"):
        dataset.selection(np.array([9])).blocks("x", blocks["x"])
    if by_spans(case):
        store = MemoryStore(objects)
        dataset = opened(store, tmp_path / "replaced")
        dataset.read([0], ["n"])
        store.write(name, data.tobytes())
        with pytest.raises((ObjectChanged, StoreError), match=name):
            dataset.selection(np.array([9])).blocks("x", blocks["x"])


DOCUMENTS, ENTRIES, WINDOW = 48, 120_000, 1_000


@pytest.fixture(scope="module", params=["tar", "hdf5"])
def documents(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> shardio.Dataset:
    """Documents of up to 240 KB in several shards."""
    random = np.random.default_rng(0)
    rows = [
        {"tokens": random.integers(0, 9, length).astype(np.int16), "n": number}
        for number, length in enumerate([*random.integers(ENTRIES // 2, ENTRIES, DOCUMENTS - 2), 0, 7])
    ]
    folder = tmp_path_factory.mktemp("documents")
    return packed(folder / "d", rows, {"tokens": ("int16", (None,)), "n": "int64"}, container=request.param,
                  shard_size="2MB")  # fmt: skip


def windows(dataset: Any, world: shardio.World, **options: Any) -> shardio.Loader:
    """A loader of a window of each document."""
    transforms = {"tokens": [shardio.RandomWindow(WINDOW), shardio.PadTo(WINDOW)]}
    return load(dataset, 4, world=world, transforms=transforms, **options)


def test_a_row_comes_without_the_rest_of_its_document(documents: shardio.Dataset, tmp_path: Path) -> None:
    """RandomRow of a ragged value fetches the piece that has the entry, and delivers what it does locally."""
    remote = opened(in_store(Path(documents.path)), tmp_path / "cache")
    rule: dict[str, Any] = {"transforms": {"tokens": [shardio.RandomRow()]}, "on_bad_sample": "mask", "max_bad": 1}
    for one, other in zip(load(remote, 4, **rule), load(documents, 4, verify=True, **rule), strict=True):
        assert all(one[name].equal(other[name]) for name in ("tokens", "index", "valid"))
    assert remote.fetched.bytes <= (1.1 * DOCUMENTS + 3 * len(documents.manifest.shards)) * PIECE


def rows_of(batches: Iterable[Any]) -> dict[int, list[list[int]]]:
    """The values of the samples of batches, by their numbers."""
    return {
        int(n): [batch[name][place].tolist() for name in ("tokens", "tokens_length")]
        for batch in batches
        for place, n in enumerate(batch["index"])
    }


@pytest.mark.parametrize("shuffle", ["global", "block"])
def test_windows_come_without_the_rest_of_their_documents(
    documents: shardio.Dataset, tmp_path: Path, shuffle: Any
) -> None:
    """RandomWindow fetches the pieces of its windows, for all ranks of a node, and delivers what it does locally."""
    options: dict[str, Any] = {"shuffle": shuffle, "block": 4, "window": 3}
    remote = opened(in_store(Path(documents.path)), tmp_path / "cache")
    found, expected = dict[int, Any](), dict[int, Any]()
    for rank in range(2):
        world = shardio.World(rank, 2, rank, 2)
        own = rows_of(windows(remote, world, **options))
        assert not own.keys() & found.keys()
        found |= own
        expected |= rows_of(windows(documents, world, **options))
    assert found == expected
    assert found.keys() == set(range(DOCUMENTS))
    shards = len(documents.manifest.shards)
    assert remote.fetched.bytes <= (1.1 * 2 * DOCUMENTS + 3 * shards) * PIECE


def test_windows_in_an_epoch_that_is_resumed(documents: shardio.Dataset, tmp_path: Path) -> None:
    """A resumed epoch goes on with the same windows, another number of ranks too, through faults of the store."""
    store = FaultyStore(in_store(Path(documents.path)), Faults(corrupt=0.1))
    first = windows(opened(store, tmp_path / "a"), shardio.World())
    batches = iter(first)
    found = rows_of([next(batches) for _ in range(4)])
    state = first.state_dict()
    del batches
    for rank in range(2):
        rest = windows(opened(store, tmp_path / "b"), shardio.World(rank, 2, rank, 2))
        rest.load_state_dict(state)
        found |= rows_of(rest)
    assert found == rows_of(windows(documents, shardio.World()))
    assert store.count


@pytest.mark.parametrize("container", ["hdf5", "tar"])
@pytest.mark.parametrize("shuffle", ["global", "block", None])
def test_rows_of_documents(tmp_path: Path, container: str, shuffle: Any) -> None:
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


def test_rows_of_long_documents_come_without_the_rest(documents: shardio.Dataset, tmp_path: Path) -> None:
    """A row that is cut from documents fetches the pieces that hold its entries."""
    remote = opened(in_store(Path(documents.path)), tmp_path / "cache")
    rows, same = (dataset.cut("tokens", WINDOW) for dataset in (remote, documents))
    np.testing.assert_array_equal(rows.read([5, 900])["tokens"], same.read([5, 900])["tokens"])
    assert remote.fetched.bytes <= (2 * 2 + 3 * len(documents.manifest.shards)) * PIECE
