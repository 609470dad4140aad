"""Keywords of torch's DataLoader and of webdataset, and what a Loader has in their place."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from ..errors import ConfigError

_P = ParamSpec("_P")
_LEAVE_OUT = "leave it out: workers stay for all epochs, and batches come in order"
_SAMPLER = (
    "a Loader divides the samples among the ranks itself; shardio.TorchDataset, under a DataLoader, takes samplers"
)
_PINNED = "with device='cuda' batches arrive on the GPU, copied from pinned memory"
_DIVIDES = "leave it out: a Loader divides the samples among the ranks itself, whatever the number of shards"
_KEYWORDS = {
    "num_workers": "threads= takes its place, or with isolate=True processes; leave it out for 'auto'",
    "prefetch_factor": "prefetch= takes its place, in batches of all workers; leave it out for 'auto'",
    "drop_last": "tail= takes its place: 'drop' is the default, 'pad' delivers every sample",
    "collate_fn": "map= takes a function of whole batches, or with map_by='sample' of samples before they are collated",
    "generator": "seed= takes its place",
    "worker_init_fn": "map= takes a function with the parameter rng, which is the same on every worker",
    "multiprocessing_context": "isolate=True takes processes instead of threads",
    "transform": "transforms= takes its place",
    "sampler": _SAMPLER,
    "batch_sampler": _SAMPLER,
    "pin_memory": _PINNED,
    "pin_memory_device": _PINNED,
    "persistent_workers": _LEAVE_OUT,
    "in_order": _LEAVE_OUT,
    # webdataset's
    "resampled": "leave it out: an epoch is len(loader) steps on every rank, and every sample comes once",
    "shardshuffle": "leave it out: shuffle= is 'global', a permutation of all samples, or 'block'",
    "nodesplitter": _DIVIDES,
    "workersplitter": _DIVIDES,
    "empty_check": _DIVIDES,
    "handler": "on_bad_sample= takes its place: 'replace' or 'mask', with max_bad=",
    "cache_dir": "cache= takes its place, for a dataset at a URL; local shards are read from where they lie",
}


def refuses_words_of_others(function: Callable[_P, None]) -> Callable[_P, None]:
    """Have `function` raise ConfigError for such a keyword that it lacks, with what to use; for decoration."""

    @wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> None:
        for word in kwargs:
            if word in _KEYWORDS:
                raise ConfigError(f"a Loader has no {word}: {_KEYWORDS[word]}")
        function(*args, **kwargs)

    return checked
