"""Each framework keeps a Loader's state in its own checkpoints: two ranks save, one and three go on, exactly."""

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import _forked
import _loops
import pytest

PATHS = [str(Path(__file__).parents[2] / "examples"), *map(str, Path(__file__).parents[:2])]
ELASTIC = [name for name in _loops.IMPORTS if name != "torchdata_torch_dataset"]


def seen(folder: Path, ranks: int) -> list[int]:
    """The samples that the ranks of a job got, in no order."""
    each = [json.loads((folder / f"seen-{ranks}-{rank}.json").read_text()) for rank in range(ranks)]
    return [number for numbers in each for number in numbers]


def run(name: str, folder: Path, *resumed: int) -> None:
    """Run a framework's loop on two ranks, and go on with other numbers of ranks."""
    if importlib.util.find_spec(_loops.IMPORTS[name].split(".")[0]) is None:
        pytest.skip(f"{name} is not installed")
    result_of(f"_loops.main({name!r}, {str(folder)!r}, {[*resumed]})")


@pytest.mark.long
@pytest.mark.parametrize("name", ELASTIC)
def test_one_and_three_ranks_go_on_where_two_stopped(name: str, tmp_path: Path) -> None:
    """The samples of two ranks before, and of one or three after, are the epoch: none twice, and none left out."""
    run(name, tmp_path, 1, 3)
    before = seen(tmp_path, 2)
    assert len(before) == 2 * _loops.BATCH * _loops.STEPS
    for ranks in (1, 3):
        assert sorted(before + seen(tmp_path / f"on-{ranks}", ranks)) == list(range(_loops.N))


@pytest.mark.long
def test_a_torch_dataset_goes_on_with_the_same_ranks(tmp_path: Path) -> None:
    """StatefulDataLoader skips what its sampler has named, so the same ranks get the rest of the epoch."""
    run("torchdata_torch_dataset", tmp_path, 2)
    both = seen(tmp_path, 2) + seen(tmp_path / "on-2", 2)
    assert sorted(both) != list(range(_loops.N))  # the sampler repeats a sample to make the ranks equal
    assert (len(both), set(both)) == (_loops.N + 1, set(range(_loops.N)))


def result_of(call: str) -> Any:
    """Return what a function of `_loops` returns in a process of its own."""
    code = f"import sys; sys.path[:0] = {PATHS}; import json, _loops; from pathlib import Path; "
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = _forked.run(f"{code}print(json.dumps({call}))", environ=environ)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("resumed", [False, True])
def test_accelerate_updates_at_an_epochs_end(resumed: bool) -> None:
    """Gradients that are left at an epoch's end change the weights, as with a DataLoader, also of a resumed epoch."""
    pytest.importorskip("accelerate")
    reference, found = result_of(f"_loops.accelerate_updates({resumed})")
    assert len(found) == 6
    assert found == pytest.approx(reference)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 3, 4])  # of ten batches in an epoch
def test_a_resumed_trainer_updates_as_one_that_was_not_stopped(accumulate: int, tmp_path: Path) -> None:
    """transformers' Trainer updates its weights after the same batches, whichever checkpoint it goes on from."""
    pytest.importorskip("transformers")
    found = result_of(f"_loops.transformers_updates(Path({str(tmp_path)!r}), {accumulate})")
    whole = found.pop("whole")
    assert [batches for batches, _ in whole] == 2 * [min(accumulate, 10 - n) for n in range(0, 10, accumulate)]
    assert found == {f"checkpoint-{n}": whole[n:] for n in range(1, len(whole))}
