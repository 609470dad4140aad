"""The comparison of loaders of sequences counts what they deliver."""

from itertools import pairwise

import numpy as np
import pytest
from _datasets import packed

from benchmarks.sequence_loaders import BUDGET, CONTAINERS, LENGTH, LOADERS, Place, by_budget, count

LENGTHS = np.random.default_rng(0).integers(0, 3 * LENGTH, 60)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Documents and paragraphs of LENGTHS, which are the same."""
    folder = tmp_path_factory.mktemp("sequences")
    tokens = np.arange(LENGTHS.sum()).astype(np.uint16)
    offsets = np.cumsum([0, *LENGTHS])
    for texts in ("documents", "paragraphs"):
        for name in CONTAINERS:
            rows = [{"tokens": part} for part in np.split(tokens, offsets[1:-1])]
            packed(folder / texts / name, rows, {"tokens": ("uint16", (None,))}, container=name)
        np.save(folder / texts / "tokens.npy", tokens)
        np.save(folder / texts / "offsets.npy", offsets)
    (folder / "peers").mkdir()
    tokens.tofile(folder / "peers" / "tokens.bin")
    return Place(folder, 0, 1, once=True)


@pytest.mark.parametrize(("task", "name"), [(t, n) for t in LOADERS for n in LOADERS[t] if n.startswith("shardio")])
def test_an_epoch_has_all_tokens(task: str, name: str, place: Place) -> None:
    """Windows leave out less than a row; packed rows and buckets have every token, and padding."""
    counted, tokens = count(LOADERS[task][name](place)), int(LENGTHS.sum())
    if task == "windows":
        assert tokens - LENGTH < counted["tokens"] == counted["places"] == counted["rows"] * LENGTH
    else:
        assert counted["tokens"] == tokens < counted["places"]
    if task == "packed":
        assert tokens / LENGTH < counted["rows"] == counted["places"] / LENGTH
    if task == "buckets":
        assert counted["rows"] == len(LENGTHS)


@pytest.mark.parametrize(("task", "name"), [("windows", "memmap"), ("buckets", "DataLoader")])
def test_peers_have_as_many(task: str, name: str, place: Place) -> None:
    """Peers that need no other library deliver the same numbers of rows and tokens."""
    ours, theirs = (count(LOADERS[task][one](place)) for one in ("shardio hdf5", name))
    assert (theirs["rows"], theirs["tokens"]) == (ours["rows"], ours["tokens"])


def test_batches_keep_to_the_budget() -> None:
    """An order is cut into batches of at most so many places, each as large as the next document allows."""
    order = np.random.default_rng(1).permutation(len(LENGTHS))
    batches = list(by_budget(order, LENGTHS))
    assert [index for batch in batches for index in batch] == order.tolist()
    places = [len(batch) * LENGTHS[batch].max() for batch in batches]
    assert max(places) <= BUDGET
    for batch, (first, *_) in pairwise(batches):
        assert (len(batch) + 1) * LENGTHS[[*batch, first]].max() > BUDGET
