"""The loaders of all ranks of a job, in this process: what they deliver together, and others that go on from there.

And what tests of loops have in common: batches compared, and a Loader for the DataLoaders of others.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from hypothesis import strategies as st

import shardio


class Job:
    """A loader for each rank, which go on from `state` if it is given; batches are kept in their global order."""

    def __init__(self, data: Any, ranks: int = 1, batch_size: Any = None, state: Any = None, **options: Any) -> None:
        options = {"seed": 3, "tail": "pad", "threads": 1} | options
        worlds = [shardio.World(rank, ranks) for rank in range(ranks)]
        self.loaders = [shardio.Loader(data, batch_size, world=world, **options) for world in worlds]
        for loader in self.loaders if state is not None else ():
            loader.load_state_dict(json.loads(json.dumps(state)))
        self.batches: list[dict[str, Any]] = []

    def run(self, steps: int | None = None) -> Any:
        """Deliver some steps of an epoch at most, or all that are left; return the state, which ranks agree on."""
        loops = zip(*self.loaders, strict=True)  # kept, as a loop that is dropped after a step is a peek
        for step in islice(loops, steps):
            self.batches += step
        states = [loader.state_dict() for loader in self.loaders]
        assert states == states[:1] * len(states)
        return states[0]

    @property
    def samples(self) -> list[Any]:
        """The samples that were delivered; see `samples`."""
        return samples(self.batches)


def samples(batches: Iterable[dict[str, Any]]) -> list[Any]:
    """The numbers of the samples in batches, without padding; where samples hold their `number`, it is that."""
    found: list[Any] = []
    for batch in batches:
        assert batch.get("number", batch["index"]).tolist() == batch["index"].tolist()
        found += batch["index"][batch["valid"]].tolist() if "valid" in batch else batch["index"].tolist()
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two batches, or parts of them, have equal values of equal types under the same names, in order."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return one.dtype == other.dtype and torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


class Around(torch.utils.data.IterableDataset[dict[str, Any]]):
    """A Loader for a DataLoader of others, as docs/frameworks.md gives it."""

    def __init__(self, loader: shardio.Loader) -> None:
        self.loader = loader
        self.state_dict, self.load_state_dict = loader.state_dict, loader.load_state_dict

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.loader)


def exact_over_ranks(
    data: Any,
    ranks: int,
    batch_size: int,
    draw: st.DataObject,
    values: Callable[[Any], list[Any]] = samples,
    *,
    start: Any = None,
    **options: Any,
) -> list[Any]:
    """Return the values that ranks deliver in an epoch, which begins with the state `start`, in their global order.

    Other ranks, which take over midway, must deliver the rest of it.
    """
    whole = Job(data, ranks, batch_size, start, **options)
    whole.run()
    expected, steps = values(whole.batches), len(whole.batches) // ranks
    if steps > 1:
        first = Job(data, ranks, batch_size, start, **options)
        state = first.run(draw.draw(st.integers(1, steps - 1)))
        rest = Job(data, draw.draw(st.integers(1, 3)), draw.draw(st.integers(1, 9)), state, **options)
        rest.run()
        assert values([*first.batches, *rest.batches]) == expected
    return expected
