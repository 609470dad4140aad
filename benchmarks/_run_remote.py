"""The process of a loader that reads from a bucket, in its peer's environment: epochs, timed, with what they fetch.

    python -m benchmarks._run_remote ORDER.json RESULT.json

The process imports its library, makes the file `ready` of the order, and begins when the file `go` is there. Times are
those of the clock that all processes of a machine share.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks._crops import DECODERS
from benchmarks._link import Counters
from benchmarks._run_peer import cpu_seconds
from benchmarks._workloads import IMAGE_SIZE, PASSES

Epoch: TypeAlias = Callable[[], Iterator[tuple[Any, Any]]]
"""Begins an epoch: batches of images `[B, ...]` and labels `[B]`."""

BUFFER = 1000  # samples of WebDataset's shuffle buffer in each worker, as in bench_webdataset.py


IMPORTED = {
    "shardio": ("obstore", "shardio.transforms"),
    "litdata": ("litdata",),
    "streaming": ("streaming",),
    "webdataset": ("webdataset",),
}


def load(library: str) -> None:
    """Import a library, so that its import is not timed, nor that of torch, which a training program has."""
    for name in ("cv2", "torch", *IMPORTED[library]):
        importlib.import_module(name)


def shardio_epochs(order: dict[str, Any]) -> Epoch:
    """shardio's Loader on a dataset in the bucket or, without a cache, in a folder."""
    import shardio

    remote = {} if order["cache"] is None else {"cache": order["cache"], "cache_size": order["cache_size"]}
    rank, ranks = order["rank"], order["ranks"]
    loader = shardio.Loader(
        shardio.open(order["url"], **remote),
        order["batch_size"] // ranks,
        shuffle=order["shuffle"],
        window=order["window"],
        transforms=[shardio.RandomResizedCrop(IMAGE_SIZE, antialias=False), shardio.RandomHorizontalFlip()],
        decode="fast",
        threads=max(1, order["threads"] // ranks),
        fields=["image", "label"],
        world=shardio.World(rank, ranks, rank, ranks),
    )
    return lambda: ((batch["image"], batch["label"]) for batch in loader)


def litdata_epochs(order: dict[str, Any]) -> Epoch:
    """LitData's StreamingDataLoader."""
    import litdata
    from litdata.streaming import downloader

    # It reads with obstore, which takes plain HTTP, as the server here speaks it, only where it is told to.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"
    limit = {} if order["cache_size"] is None else {"max_cache_size": order["cache_size"]}
    data = litdata.StreamingDataset(
        order["url"], cache_dir=order["cache"], shuffle=True, drop_last=True, transform=_decoded, **limit
    )
    loader = litdata.StreamingDataLoader(
        data,
        batch_size=order["batch_size"],
        drop_last=True,
        **_workers(order),
    )
    return lambda: iter(loader)


def _workers(order: dict[str, Any]) -> dict[str, Any]:
    """The options for workers of a DataLoader, which each peer's loader is."""
    return {"num_workers": order["threads"], "persistent_workers": True, "prefetch_factor": 2}


def _decoded(sample: tuple[bytes, int]) -> tuple[Any, int]:
    import torch

    return torch.from_numpy(DECODERS["opencv"](sample[0])), sample[1]


def streaming_epochs(order: dict[str, Any]) -> Epoch:
    """MosaicML Streaming's StreamingDataLoader."""
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    class Samples(StreamingDataset):  # type: ignore[misc]  # the library has no types
        """Decoded samples."""

        def __getitem__(self, at: int) -> Any:
            sample = super().__getitem__(at)
            return _decoded((sample["image"], sample["label"]))

    clean_stale_shared_memory()
    data = Samples(
        remote=order["url"],
        local=order["cache"],
        shuffle=True,
        batch_size=order["batch_size"],
        cache_limit=order["cache_size"],
    )
    loader = StreamingDataLoader(
        data,
        batch_size=order["batch_size"],
        drop_last=True,
        **_workers(order),
    )
    return lambda: iter(loader)


def webdataset_epochs(order: dict[str, Any]) -> Epoch:
    """WebDataset's WebLoader, whose cache keeps whole shards."""
    import webdataset as wds
    from torch.utils.data import default_collate

    Path(order["cache"]).mkdir(parents=True, exist_ok=True)
    urls = [f"{order['url']}/{name}" for name in order["shards"]]
    data = wds.WebDataset(urls, shardshuffle=len(urls), cache_dir=order["cache"]).shuffle(BUFFER)
    data = data.map(_member).batched(order["batch_size"], partial=False, collation_fn=default_collate)
    batches = chain.from_iterable(repeat(wds.WebLoader(data.repeat(PASSES), batch_size=None, **_workers(order))))
    return lambda: islice(batches, order["count"] // order["batch_size"])


def _member(sample: dict[str, Any]) -> tuple[Any, int]:
    return _decoded((sample["jpg"], int(sample["cls"])))


LOADERS: dict[str, Callable[[dict[str, Any]], Epoch]] = {
    "shardio": shardio_epochs,
    "litdata": litdata_epochs,
    "streaming": streaming_epochs,
    "webdataset": webdataset_epochs,
}


def run(order: dict[str, Any]) -> list[dict[str, Any]]:
    """Run the epochs of an order; return what each did."""
    counters, done = Counters(Path(order["counters"])), []
    epoch: Epoch | None = None
    for _ in range(order["epochs"]):
        before, cpu, begun = counters.read(), cpu_seconds_here(), time.monotonic()
        epoch = epoch or LOADERS[order["library"]](order)
        samples, first, first_samples = 0, 0.0, 0
        for data, _ in epoch():
            samples += len(data)
            if not first:
                first, first_samples = time.monotonic(), samples
        ended, passed = time.monotonic(), counters.read() - before
        done.append(
            {
                "begun": begun,
                "first": first,
                "ended": ended,
                "samples": samples,
                "first_samples": first_samples,
                "cpu": cpu_seconds_here() - cpu,
                "bytes": passed.bytes,
                "requests": passed.requests,
                "connections": passed.connections,
            }
        )
    return done


def cpu_seconds_here() -> float:
    """Processor seconds of this process and its workers."""
    import os

    return cpu_seconds(os.getpid())


def main() -> None:
    """Run from the command line."""
    order = json.loads(Path(sys.argv[1]).read_text())
    load(order["library"])
    Path(order["ready"]).touch()
    while not Path(order["go"]).exists():
        time.sleep(0.002)
    Path(sys.argv[2]).write_text(json.dumps(run(order)))


if __name__ == "__main__":
    main()
