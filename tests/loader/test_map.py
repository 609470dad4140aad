"""Arguments of a `map` function about its batch; warnings if it draws globally, and errors if it fails."""

import traceback
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from _datasets import load as with_defaults

import shardio
from shardio import World
from shardio.errors import MapError

COUNT = 40
ONE_BATCH: dict[str, Any] = {"prefetch": 1, "threads": 1}


def numbers() -> shardio.Dataset:
    rows = [{"x": float(n), "tokens": np.zeros(1 + n % 5, np.uint16)} for n in range(COUNT)]
    return shardio.from_samples(rows, {"x": "float32", "tokens": ("uint16", (None,))})


def load(batch_size: int | None = 4, **options: Any) -> shardio.Loader:
    return with_defaults(numbers(), batch_size=batch_size, **({"fields": ["x"], "seed": 3} | options))


def placed(batch: dict[str, Any], epoch: int, position: int) -> dict[str, Any]:
    """Tell each sample where its global batch begins; of samples and of batches."""
    x = batch["x"]
    return {"at": torch.full(x.shape, position) if isinstance(x, torch.Tensor) else position, "x": x, "epoch": epoch}


def positions(loader: shardio.Loader, steps: int | None = None) -> list[int]:
    """The position of each step, which all samples of a batch have in common."""
    batches = iter(loader)
    told = [set(batch["at"].tolist()) for _, batch in zip(range(steps or len(loader)), batches, strict=False)]
    return [position for (position,) in told]


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": None},
        {"map_by": "sample"},
        {"threads": 3, "prefetch": 9},  # several batches are one job
        ONE_BATCH,
        {"assign": "node"},
        {"tail": "pad"},
        {"on_bad_sample": "mask"},
        pytest.param({"isolate": True, "threads": 2}, marks=pytest.mark.slow),
        pytest.param({"isolate": True, "threads": 1, "map_by": "sample"}, marks=pytest.mark.slow),
    ],
)
def test_position_is_where_the_global_batch_begins(options: dict[str, Any]) -> None:
    """It is the same on all ranks, whatever makes the batches; it starts anew in each epoch."""
    for world, batch_size in ((1, 4), (2, 3), (3, 3)):
        for rank in range(world):
            loader = load(batch_size, map=placed, world=World(rank, world), **options)
            expected = [step * world * batch_size for step in range(len(loader))]
            assert positions(loader) == positions(loader) == expected


def test_position_goes_on_after_a_resume() -> None:
    """Samples delivered so far are what it counts, on another number of ranks and with other batches, too."""
    first = [load(3, map=placed, world=World(rank, 2)) for rank in range(2)]
    begun = [positions(loader, 3) for loader in first]
    assert begun == [[0, 6, 12]] * 2
    state = first[0].state_dict()
    for world, batch_size in ((1, 4), (3, 2), (2, 3)):
        for rank in range(world):
            resumed = load(batch_size, map=placed, world=World(rank, world))
            resumed.load_state_dict(state)
            left = (COUNT - 18) // (world * batch_size)
            assert positions(resumed, left) == [18 + step * world * batch_size for step in range(left)]


def test_position_counts_the_batches_of_buckets() -> None:
    """With buckets it is the number of the step's first batch in the epoch."""
    for world in (1, 2):
        for rank in range(world):
            options: dict[str, Any] = {"bucket_by": "tokens", "max_tokens": 12, "fields": ["x"]}
            loader = load(None, map=placed, world=World(rank, world), **options)
            assert positions(loader) == [step * world for step in range(len(loader))]


def test_a_function_may_choose_its_position() -> None:
    """A default that the user has given to a parameter of that name stays."""

    def fixed(batch: dict[str, Any], position: int = 7) -> dict[str, Any]:
        return {"at": torch.tensor([position])}

    assert positions(load(map=fixed)) == [7] * (COUNT // 4)


def draws(batch: dict[str, Any]) -> dict[str, Any]:
    return {"x": torch.nn.functional.dropout(batch["x"])}  # draws, in torch's own code


@pytest.mark.parametrize("options", [{}, {"map_by": "sample", "threads": 1}])
def test_a_draw_from_torchs_generator_is_told_once_with_its_line(options: Any) -> None:
    """Threads share that generator: one warning names the line of the function that draws."""

    def noisy(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": batch["x"] + torch.rand(1)}

    for function in (draws, noisy) if not options else (noisy,):
        line = function.__code__.co_firstlineno + 1
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            loader = load(map=function, **options)
            for _ in range(2):
                list(loader)
        (warning,) = told
        assert "draws from torch's global generator, which all threads share" in str(warning.message)
        assert (warning.filename, warning.lineno) == (__file__, line)


@pytest.mark.parametrize("isolate", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_draws_that_no_thread_disturbs_are_not_told(isolate: bool) -> None:
    """A generator of the function's own, and processes, have draws of their own."""
    function = draws if isolate else own
    assert len(list(load(map=function, isolate=isolate, threads=1))) == COUNT // 4


def own(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    return {"x": batch["x"] + torch.rand(1, generator=generator).bernoulli(generator=generator)}


def fails(batch: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"x": batch["missing"]}
    except KeyError as error:
        raise Unsendable(lambda: 3) from error


class Unsendable(Exception):
    """An exception that cannot be pickled."""


@pytest.mark.parametrize("isolate", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("function", "line"), [(placed, 'x = batch["x"]'), (fails, "raise Unsendable(lambda: 3)")])
def test_the_traceback_of_the_users_function_is_kept(function: Any, line: str, isolate: bool) -> None:
    """The printed error shows the line that failed, its cause too, also when a process has raised it."""
    with pytest.raises(MapError) as caught:
        list(load(map=function, fields=["tokens"], isolate=isolate, threads=1))
    assert caught.value.__cause__ is not None
    printed = "".join(traceback.format_exception(caught.value))
    assert f"in {function.__name__}" in printed
    assert line in printed
    assert "KeyError: 'x'" in printed if function is placed else "KeyError: 'missing'" in printed
