"""The loaders of benchmarks/sequences.py: each is a function of a `Place` that returns batches, epoch by epoch.

A batch is (tokens, real): int64 [rows, LENGTH] or, of buckets, [documents, longest], and how many are no padding.
Each rank is a process of the library's environment; the functions import what they need.
"""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise, repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._run_peer import Epochs, versions

REQUIREMENTS = (
    "torch==2.13.0",
    "numpy==2.4.6",
    "grain==0.2.18",
    "datasets==5.2.0",
    "transformers==5.24.0",
    "boto3",
    "lightning-utilities",
    "obstore",
    "requests",
    "tifffile",
)
WITHOUT_DEPENDENCIES = ("litdata==0.2.76", "trl==1.16.0", "megatron-core==0.16.1")
VERSIONS = ("torch", "numpy", "litdata", "datasets", "trl", "grain", "megatron-core")
ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {"DISABLE_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
)

TEXTS: Mapping[str, str] = MappingProxyType({"windows": "documents", "packed": "documents", "buckets": "paragraphs"})
LENGTH, BATCH, BUDGET, BINS, POOL, CORES = 2048, 32, 16_384, 128, 100, 2  # POOL: batches
WARM_UP = 40  # batches, whose shapes are checked; more than any loader makes ahead
CONTAINERS = ("hdf5", "tar", "lmdb")

Batch = tuple[Any, int]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a loader runs.

    Attributes:
        folder: the documents, in shardio's containers, as arrays, and in the peers' formats.
        rank, world: this process, and how many there are.
        once: whether one epoch is wanted, to the last row, to be counted.
    """

    folder: Path
    rank: int
    world: int
    once: bool = False

    @property
    def workers(self) -> int:
        """Threads or worker processes of a rank."""
        return max(1, CORES // self.world)

    @property
    def batch(self) -> int:
        """Rows of a batch."""
        return 1 if self.once else BATCH

    @property
    def peers(self) -> Path:
        """Where the peers' formats are."""
        return self.folder / "peers"

    def data(self, texts: str = "documents") -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
        """The tokens of all texts end to end, mapped, and where each begins, with the end."""
        tokens, offsets = (self.folder / texts / f"{name}.npy" for name in ("tokens", "offsets"))
        return np.load(tokens, mmap_mode="r"), np.load(offsets)


def _whole(batches: Iterable[Any], name: str | None = None) -> Iterable[Batch]:
    """Batches without padding, of field `name`."""

    def epoch() -> Iterator[Batch]:
        for batch in batches:
            tokens = batch if name is None else batch[name]
            yield tokens.long(), tokens.numel()

    return Epochs(epoch)


def _torch_loader(place: Place, dataset: Any, shuffle: bool = True, **given: Any) -> Iterable[Any]:
    from torch.utils.data import DataLoader, DistributedSampler

    if "batch_sampler" not in given:
        given["sampler"] = DistributedSampler(dataset, place.world, place.rank, shuffle=shuffle, drop_last=True)
        given |= {"batch_size": place.batch, "drop_last": True}
    return DataLoader(dataset, num_workers=place.workers, persistent_workers=True, **given)


def windows_shardio(container: str, place: Place) -> Iterable[Batch]:
    """A cut of a dataset, on threads."""
    import shardio

    view = shardio.open(place.folder / "documents" / container).cut("tokens", LENGTH)
    return _whole(shardio.Loader(view, place.batch), "tokens")


def windows_memmap(place: Place) -> Iterable[Batch]:
    """nanoGPT's loop: random places of a memory map, in the rank's own thread; nothing is an epoch."""
    import torch

    torch.manual_seed(place.rank)
    data = np.memmap(place.peers / "tokens.bin", np.uint16, "r")

    def epoch() -> Iterator[Batch]:
        for _ in range(len(data) // LENGTH // place.batch // place.world):
            starts = torch.randint(len(data) - LENGTH, (place.batch,))
            tokens = torch.stack([torch.from_numpy(data[i : i + LENGTH].astype(np.int64)) for i in starts])
            yield tokens, tokens.numel()

    return Epochs(epoch)


def windows_litdata(place: Place) -> Iterable[Batch]:
    """LitData's TokensLoader under a StreamingDataLoader with worker processes."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    loader = TokensLoader(block_size=LENGTH)
    data = StreamingDataset(str(place.peers / "litdata"), item_loader=loader, shuffle=True, drop_last=True)
    options = {"num_workers": place.workers, "drop_last": True, "persistent_workers": True}
    return _whole(StreamingDataLoader(data, batch_size=place.batch, **options))


def windows_huggingface(place: Place) -> Iterable[Batch]:
    """Rows of 2,048 in Arrow files, with the torch formatter, under a DataLoader with worker processes."""
    import datasets

    data = datasets.load_from_disk(str(place.peers / "huggingface")).with_format("torch")
    return _whole(_torch_loader(place, data), "tokens")


def windows_megatron(place: Place) -> Iterable[Batch]:
    """Megatron's GPTDataset on its indexed dataset, under a DataLoader; it also makes labels, masks and positions."""
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    prefix = str(place.peers / "megatron" / "tokens")
    settings = dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), False)
    config = GPTDatasetConfig(
        random_seed=0,
        sequence_length=LENGTH,
        split="1",
        path_to_cache=str(place.peers / "megatron" / "cache"),
        tokenizer=_Vocabulary(),
        create_attention_mask=False,
        add_extra_token_to_sequence=False,
        **settings,
    )
    indexed = IndexedDataset(prefix)
    documents = np.arange(len(indexed.document_indices) - 1, dtype=np.int32)
    data = GPTDataset(indexed, prefix, documents, None, Split.train, config)
    return _whole(_torch_loader(place, data, shuffle=False), "tokens")  # its own index is shuffled


class _Vocabulary:
    """The part of a tokenizer that a GPTDataset calls."""

    eod, pad, vocab_size = 0, -1, 1 << 16
    unique_identifiers = {"class": "none"}


class _Documents:
    """A random-access source for Grain, over a memory map; `pieces` are documents cut to at most LENGTH."""

    def __init__(self, place: Place, pieces: bool) -> None:
        self._tokens, offsets = place.data()
        self._ranges = _pieces(offsets) if pieces else np.stack((offsets[:-1], offsets[1:]), axis=1)

    def __len__(self) -> int:
        return len(self._ranges)

    def __getitem__(self, index: int) -> dict[str, NDArray[np.uint16]]:
        begin, end = self._ranges[index]
        return {"tokens": np.asarray(self._tokens[begin:end])}


def _pieces(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where pieces of at most LENGTH begin and end."""
    cut = [(at, min(at + LENGTH, end)) for begin, end in pairwise(offsets) for at in range(begin, end, LENGTH)]
    return np.array(cut, np.int64)


def _grain(place: Place, pieces: bool, pack: Callable[[Any], Any]) -> Any:
    """Documents in random order, packed, in worker processes."""
    import grain

    documents = grain.MapDataset.source(_Documents(place, pieces)).seed(0).shuffle()
    documents = documents if place.once else documents.repeat()
    part = documents[place.rank :: place.world].to_iter_dataset(grain.ReadOptions(1, 2))
    batched = pack(part).batch(place.batch, drop_remainder=True)
    if place.once:
        return batched  # each worker would leave rows of its own unfilled
    return batched.mp_prefetch(grain.MultiprocessingOptions(num_workers=place.workers, per_worker_buffer_size=4))


def windows_grain(place: Place) -> Iterable[Batch]:
    """Grain's ConcatThenSplitIterDataset over documents in random order: rows begin where that order puts them."""
    import torch
    from grain.experimental import ConcatThenSplitIterDataset

    batches = _grain(place, False, lambda data: ConcatThenSplitIterDataset(data, length_struct={"tokens": LENGTH}))
    return Epochs(lambda: ((torch.from_numpy(b["tokens"]).long(), b["tokens"].size) for b in batches))


def packed_shardio(container: str, place: Place) -> Iterable[Batch]:
    """Rows of best fit of a dataset, on threads."""
    import shardio

    view = shardio.open(place.folder / "documents" / container).packed("tokens", LENGTH)
    loader = shardio.Loader(view, place.batch)
    return Epochs(lambda: ((b["tokens"], int(b["tokens_length"].sum())) for b in loader))


def packed_grain(kind: str, place: Place) -> Iterable[Batch]:
    """Grain's packing on the fly, of documents that were cut to the row's length."""
    import torch
    from grain import experimental

    packer = getattr(experimental, kind)
    batches = _grain(
        place, True, lambda data: packer(data, length_struct={"tokens": LENGTH}, num_packing_bins=BINS, seed=0)
    )
    tokens, segments = "tokens", "tokens_segment_ids"
    return Epochs(lambda: ((torch.from_numpy(b[tokens]).long(), int((b[segments] > 0).sum())) for b in batches))


def packed_huggingface(place: Place) -> Iterable[Batch]:
    """Rows that trl's pack_dataset has made, best fit with splits, padded by the collator of a DataLoader."""
    import datasets

    data = datasets.load_from_disk(str(place.peers / "trl")).with_format("torch")
    return _torch_loader(place, data, collate_fn=_padded_rows)


def _padded_rows(rows: list[dict[str, Any]]) -> Batch:
    import torch

    tokens = torch.zeros(len(rows), LENGTH, dtype=torch.int64)
    for row, values in zip(tokens, rows, strict=True):
        row[: len(values["tokens"])] = values["tokens"]
    return tokens, sum(len(values["tokens"]) for values in rows)


def buckets_shardio(container: str, place: Place) -> Iterable[Batch]:
    """A Loader with bucket_by and max_tokens."""
    import shardio

    data = shardio.open(place.folder / "paragraphs" / container)
    lengths = np.diff(place.data("paragraphs")[1])
    loader = shardio.Loader(
        data.select(lengths <= BUDGET),
        bucket_by="tokens",
        max_tokens=BUDGET,
        transforms={"tokens": [shardio.ToInt64(), shardio.PadTo()]},
    )
    return Epochs(lambda: ((b["tokens"], int(b["tokens_length"].sum())) for b in loader))


def buckets_torch(place: Place) -> Iterable[Batch]:
    """The usual sampler of batches under a DataLoader with worker processes, over a memory map."""
    return _torch_loader(
        place, _Tensors(place), batch_sampler=_Buckets(np.diff(place.data("paragraphs")[1]), place), collate_fn=_padded
    )


class _Tensors:
    """Paragraphs as tensors."""

    def __init__(self, place: Place) -> None:
        self._tokens, self._offsets = place.data("paragraphs")

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.from_numpy(self._tokens[self._offsets[index] : self._offsets[index + 1]].astype(np.int64))


class _Buckets:
    """Batches of like lengths: a random order is cut into pools, each sorted and cut by the budget, and mixed again."""

    def __init__(self, lengths: NDArray[np.int64], place: Place) -> None:
        self._lengths, self._place = lengths, place
        self._random = np.random.default_rng(0)  # the same on all ranks

    def __iter__(self) -> Iterator[list[int]]:
        order = self._random.permutation(np.flatnonzero(self._lengths <= BUDGET))
        size = int(POOL * BUDGET / self._lengths.mean())
        pools = (order[at : at + size] for at in range(0, len(order), size))
        batches = [batch for pool in pools for batch in by_budget(pool[np.argsort(self._lengths[pool])], self._lengths)]
        self._random.shuffle(batches)
        world = self._place.world
        return iter(batches[self._place.rank : len(batches) // world * world : world])


def by_budget(order: NDArray[np.int64], lengths: NDArray[np.int64]) -> Iterator[list[int]]:
    """Cut an order of documents into batches whose padded sizes are at most BUDGET."""
    batch: list[int] = []
    longest = 0
    for index in order.tolist():
        longest = max(longest, int(lengths[index]))
        if batch and longest * (len(batch) + 1) > BUDGET:
            yield batch
            batch, longest = [], int(lengths[index])
        batch.append(index)
    if batch:
        yield batch


def _padded(documents: list[Any]) -> Batch:
    from torch.nn.utils.rnn import pad_sequence

    return pad_sequence(documents, batch_first=True), sum(map(len, documents))


LOADERS: Mapping[str, Mapping[str, Callable[[Place], Iterable[Batch]]]] = MappingProxyType(
    {
        "windows": {
            **{f"shardio {name}": partial(windows_shardio, name) for name in CONTAINERS},
            "memmap": windows_memmap,
            "LitData": windows_litdata,
            "Hugging Face": windows_huggingface,
            "Grain": windows_grain,
            "Megatron": windows_megatron,
        },
        "packed": {
            **{f"shardio {name}": partial(packed_shardio, name) for name in CONTAINERS},
            "Grain first fit": partial(packed_grain, "FirstFitPackIterDataset"),
            "Grain best fit": partial(packed_grain, "BestFitPackIterDataset"),
            "Hugging Face trl": packed_huggingface,
        },
        "buckets": {
            **{f"shardio {name}": partial(buckets_shardio, name) for name in CONTAINERS},
            "DataLoader": buckets_torch,
        },
    }
)
"""Loaders by task and name; those of shardio's run in its own environment."""


def prepare(place: Place, out: Path) -> None:
    """Write the corpus in each peer's own format."""
    import datasets
    import litdata
    import pyarrow as pa
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder, get_bin_path, get_idx_path
    from trl.data_utils import pack_dataset

    tokens, offsets = place.data()
    (out / "megatron").mkdir(parents=True)
    tokens.tofile(out / "tokens.bin")
    rows = len(tokens) // LENGTH
    flat = pa.array(np.asarray(tokens[: rows * LENGTH]))
    grouped = pa.table({"tokens": pa.FixedSizeListArray.from_arrays(flat, LENGTH)})
    datasets.Dataset(grouped).save_to_disk(str(out / "huggingface"))
    lists = pa.table({"tokens": pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.asarray(tokens)))})
    pack_dataset(datasets.Dataset(lists), LENGTH, "bfd_split").save_to_disk(str(out / "trl"))
    litdata.optimize(
        partial(_litdata_document, place),
        list(range(len(offsets) - 1)),
        output_dir=str(out / "litdata"),
        chunk_size=LENGTH * 8012,
        item_loader=litdata.TokensLoader(),
        num_workers=1,
        start_method="fork",
    )
    prefix = str(out / "megatron" / "tokens")
    builder = IndexedDatasetBuilder(get_bin_path(prefix), dtype=np.uint16)
    for begin, end in pairwise(offsets):
        builder.add_document(np.asarray(tokens[begin:end]), [int(end - begin)])
    builder.finalize(get_idx_path(prefix))


def _litdata_document(place: Place, index: int) -> Iterator[Any]:
    import torch

    tokens, offsets = place.data()
    yield torch.from_numpy(np.array(tokens[offsets[index] : offsets[index + 1]]))


def count(batches: Iterable[Batch]) -> dict[str, int]:
    """The rows, places and tokens of an epoch."""
    shapes = [(len(tokens), tokens.numel(), real) for tokens, real in batches]
    return dict(zip(("rows", "places", "tokens"), map(int, np.sum(shapes, axis=0)), strict=True))


def rate(batches: Iterable[Batch], task: str, seconds: float) -> dict[str, float]:
    """The tokens that arrive at a rank, without padding, and the seconds. Raises ValueError on a wrong batch."""
    import torch
    import torch.distributed as dist

    arriving = chain.from_iterable(repeat(batches))
    for tokens, _ in (next(arriving) for _ in range(WARM_UP)):
        if tokens.dtype != torch.int64 or (task != "buckets" and tokens.shape[1:] != (LENGTH,)):
            raise ValueError(f"a batch of {tokens.dtype} {tuple(tokens.shape)}")
    dist.barrier()
    begun, delivered = time.perf_counter(), 0
    while time.perf_counter() < begun + seconds:
        delivered += next(arriving)[1]
    return {"tokens": delivered, "seconds": time.perf_counter() - begun}


def main(order: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out an order of sequences.py on one rank."""
    warnings.simplefilter("ignore")
    place = Place(Path(order["folder"]), order["rank"], order["world"], order["do"] == "count")
    if order["do"] == "prepare":
        prepare(place, Path(order["out"]))
        return versions(VERSIONS)
    import torch.distributed as dist

    dist.init_process_group("gloo", f"file://{order['meeting']}", rank=place.rank, world_size=place.world)
    batches = LOADERS[order["task"]][order["loader"]](place)
    return count(batches) if place.once else rate(batches, order["task"], order["seconds"])
