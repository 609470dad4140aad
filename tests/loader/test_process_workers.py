"""`map` functions on threads and in processes give the same batches, and their failures are explained."""

import functools
import gc
import multiprocessing.util
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import _forked
import numpy as np
import pytest
import torch
from _cli import python
from _datasets import packed, photo
from _jobs import same
from _time_limit import wait_until
from _workers import workers_of

import shardio
from shardio import World, native
from shardio.errors import (
    ConfigError,
    MapError,
    PipelineClosed,
    PipelineStalled,
    WorkerDied,
)
from shardio.system import processes

COUNT = 40


def photos() -> shardio.Dataset:
    points = shardio.Field("array", dtype="float32", optional=True)
    fields = {"image": "image", "label": "int64", "key": "text", "points": points}
    rows = [photo(n, classes=COUNT) | {"points": np.arange(n % 3, dtype=np.float32)} for n in range(COUNT)]
    return shardio.from_samples([row | ({"points": None} if n % 7 == 3 else {}) for n, row in enumerate(rows)], fields)


PLACE = r"map: samples \[\d+(, \d+)*\]( and \d+ more)? in shard-0000\d\d.memory(, shard-\S+)* of /memory/\S+"


def load(dataset: shardio.Dataset, **options: Any) -> shardio.Loader:
    given = {"batch_size": 6, "threads": 2, "world": World(), "seed": 3, "tail": "pad", "timeout": 30.0}
    image = [shardio.RandomResizedCrop(16), shardio.RandomHorizontalFlip()]
    transforms = image if "image" in dataset.fields else None
    return shardio.Loader(dataset, transforms=transforms, **(given | options))


def brighter(batch: dict[str, Any]) -> dict[str, Any]:
    """Return float images, larger than the input, and drop a field."""
    return {"image": batch["image"].float() * 2, "label": batch["label"] + 1, "key": batch["key"]}


def per_sample(sample: dict[str, Any]) -> dict[str, Any]:
    """Process one sample: return a tensor, a number, a text, and arrays of different sizes."""
    assert isinstance(sample["label"], int)
    assert sample["image"].shape == (16, 16, 3)
    mean = sample["image"].float().mean((0, 1))
    return {"mean": mean, "twice": 2 * sample["label"], "key": sample["key"] * 2, "some": np.ones(sample["index"] % 3)}


def noisy(sample: dict[str, Any], rng: np.random.Generator, *, epoch: int, seed: int) -> dict[str, Any]:
    """Draw numbers for one sample, and tell what the function was given."""
    return {"noise": rng.random(), "times": int(rng.integers(1 << 62)), "given": (seed, epoch)}


def shaken(batch: dict[str, Any], rng: np.random.Generator, seed: int, scale: float = 3.0) -> dict[str, Any]:
    """Draw one number for a batch; `scale` has another name, so the loader leaves it alone."""
    return {"noise": scale + rng.random(), "given": seed}


def noise_of(batches: Iterable[dict[str, Any]]) -> dict[int, float]:
    """The number that `noisy` drew for each sample, by index."""
    return {n: x for b in batches for n, x in zip(b["index"].tolist(), b["noise"].tolist(), strict=True)}


def unusual(batch: dict[str, Any]) -> dict[str, Any]:
    """Return unusual tensors: bfloat16, transposed, zero-dimensional, empty, nested."""
    image = batch["image"]
    parts = {"rows": [row.float() for row in image[:2]], "pair": (image[0, 0], "text"), "none": None}
    return {"half": image.bfloat16(), "turned": image.mT, "sum": image.sum(), "empty": image[:0], "parts": parts}


def unlucky(batch: dict[str, Any]) -> dict[str, Any]:
    if 7 in batch["index"].tolist():
        raise KeyError("seven")
    return batch


def deadly(batch: dict[str, Any]) -> dict[str, Any]:
    os._exit(5)


def nothing(batch: dict[str, Any]) -> Any:
    """Return None by mistake."""


SAMPLES = {"map": per_sample, "map_by": "sample"}
NOISY = {"map": noisy, "map_by": "sample"}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"map": brighter}, {"map": unusual}, {"map": shaken}, SAMPLES, NOISY])
def test_processes_deliver_what_threads_deliver(options: dict[str, Any]) -> None:
    """Two epochs are the same on threads and in processes, with padding and lists, with and without a function."""
    dataset = photos()
    workers = 1 if options else 2
    threads, isolated = load(dataset, **options), load(dataset, isolate=True, threads=workers, **options)
    for _ in range(2):
        kept = []
        for a, b in zip(threads, isolated, strict=True):
            assert same(a, b)
            kept.append((a, b))
        assert len(kept) == 7
        assert all(same(a, b) for a, b in kept)  # batches that are kept do not change
    assert threads.state_dict() == isolated.state_dict()
    assert isolated.stats().samples == 42
    assert isolated.stats().bytes == threads.stats().bytes
    assert isolated.stats().stage_seconds.keys() == threads.stats().stage_seconds.keys()


def test_map_of_batches_and_of_samples() -> None:
    """The function returns the batch; `index` and `valid` stay; numbers and equal shapes become tensors."""
    for batch in load(photos(), map=brighter):
        assert batch.keys() == {"image", "label", "key", "index", "valid"}
        assert batch["image"].dtype == torch.float32
        assert torch.equal(batch["label"], batch["index"] + 1)
    for batch in load(photos(), map=per_sample, map_by="sample"):
        assert batch.keys() == {"mean", "twice", "key", "some", "index", "valid"}
        assert batch["mean"].shape == (6, 3)
        assert torch.equal(batch["twice"], batch["index"] * 2)
        assert batch["key"] == [f"k{n}k{n}" for n in batch["index"].tolist()]
        assert [len(array) for array in batch["some"]] == [n % 3 for n in batch["index"].tolist()]


def test_random_numbers_of_a_map_are_those_of_the_sample() -> None:
    """What `rng` gives depends on seed, epoch and sample alone: not on threads, ranks, batch sizes or a resume."""
    dataset = photos()
    loader = load(dataset, **NOISY)
    first, second = noise_of(loader), noise_of(loader)
    assert len(set(first.values()) | set(second.values())) == 2 * COUNT
    ranks = [load(dataset, **NOISY, world=World(r, 2), batch_size=5, threads=1, shuffle=None) for r in range(2)]
    assert noise_of(ranks[0]) | noise_of(ranks[1]) == first
    assert noise_of(load(dataset, **NOISY, seed=4)) != first
    part = load(dataset, **NOISY)
    part.set_epoch(1)
    batches = iter(part)
    begun = noise_of([next(batches), next(batches)])
    resumed = load(dataset, **NOISY, batch_size=7)
    resumed.load_state_dict(part.state_dict())
    assert begun | noise_of(resumed) == second


def test_a_sample_that_comes_twice_gets_other_random_numbers() -> None:
    """A mixture that repeats a sample within an epoch has it augmented in another way."""
    mixed = shardio.mix({"a": photos()}, {"a": 1}, samples=2 * COUNT)
    noise = [x for batch in load(mixed, map=noisy, map_by="sample", tail="drop", batch_size=8) for x in batch["noise"]]
    assert len(set(map(float, noise))) == 2 * COUNT


def test_a_map_is_given_seed_and_epoch() -> None:
    """A function gets what it has parameters for without a default, or with None; any other is the user's choice.

    One of batches draws by its first sample.
    """

    def drawing(batch: dict[str, Any], rng: Any = None, seed: int | None = None, epoch: int = 7) -> dict[str, Any]:
        return {"noise": rng.random(), "given": (seed, epoch)}

    batches = list(load(photos(), map=drawing))
    assert len({batch["noise"] for batch in batches}) == len(batches)
    assert {batch["given"] for batch in batches} == {(3, 7)}
    loader = load(photos(), **NOISY)
    for epoch in range(2):
        assert all(given == (3, epoch) for batch in loader for given in batch["given"])
    drawn = [batch["noise"] for batch in load(photos(), map=shaken)]
    assert len(set(drawn)) == 7
    assert all(3 <= number < 4 for number in drawn)
    assert next(iter(load(photos(), map=functools.partial(shaken, seed=9))))["given"] == 9
    assert next(iter(load(photos(), map=functools.partial(shaken, scale=0))))["noise"] == pytest.approx(drawn[0] - 3)


@pytest.mark.parametrize("isolate", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_function_that_fails_is_named(isolate: bool) -> None:
    """The error names the function, the samples and the exception, in the batch's turn."""
    with pytest.raises(MapError, match=r"map function unlucky, the batch of samples \[.*7.*\]: KeyError: 'seven'"):
        list(load(photos(), map=unlucky, isolate=isolate, threads=1))
    with pytest.raises(MapError, match=r"map function nothing, .*: it must return a dict, got NoneType"):
        list(load(photos(), map=nothing))


def test_samples_of_different_names_are_refused() -> None:
    """A function that returns different keys for samples of one batch is refused."""
    loader = load(photos(), map=lambda sample: {str(sample["index"] % 2): 1}, map_by="sample", shuffle=None)
    with pytest.raises(MapError, match="number 1 of the batch has"):
        next(iter(loader))


def test_what_cannot_be_sent_is_refused_in_words() -> None:
    """A lambda, which cannot be sent to another process, is refused with the reason."""
    with pytest.raises(ConfigError, match="must be picklable"):
        next(iter(load(photos(), map=lambda batch: batch, isolate=True)))


NOTEBOOK = """
import functools, sys
import shardio

sys.path.insert(0, {folder!r})
import my_map

def brighter(batch, by=1):
    return batch

for function in (brighter, functools.partial(brighter, by=2)):
    try:
        next(iter(shardio.Loader({dataset!r}, 1, isolate=True, threads=1, map=function)))
    except shardio.ConfigError as error:
        print(error)
print(len(list(shardio.Loader({dataset!r}, 1, isolate=True, threads=1, map=my_map.brighter))))
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_function_of_a_notebooks_cell_is_refused_in_words(tmp_path: Path) -> None:
    """A function that only a session has is refused, also in a partial, with what to do; one of a module is taken."""
    packed(tmp_path / "d", [{"n": 1}])
    (tmp_path / "my_map.py").write_text("def brighter(batch):\n    return batch\n")
    cells = NOTEBOOK.format(folder=str(tmp_path), dataset=str(tmp_path / "d"))
    run = python("-c", cells)
    *refused, taken = run.stdout.splitlines()
    assert refused == [refused[0]] * 2
    assert "a notebook's cell or an interactive session: write what map= uses into a module" in refused[0]
    assert taken == "1"


def sized(batch: dict[str, Any], blob: bytes) -> dict[str, Any]:
    """Tell the size of what the worker was given."""
    return {"size": len(blob)}


WAIT_FOR_ANOTHER = """
import os, sys, time
if any("spawn_main" in word for word in sys.orig_argv):
    here, begun = os.path.dirname(__file__), time.monotonic()
    open(os.path.join(here, f"{os.getpid()}.started"), "w").close()
    while sum(name.endswith(".started") for name in os.listdir(here)) < 2:
        if time.monotonic() > begun + 60:
            open(os.path.join(here, "alone"), "w").close()
            break
        time.sleep(0.01)
"""


@pytest.mark.long
@pytest.mark.slow
def test_worker_processes_start_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None waits until another one has read what it was given, however much that is.

    Each worker's interpreter waits, before it reads anything, until the other one runs, too.
    """
    (tmp_path / "sitecustomize.py").write_text(WAIT_FOR_ANOTHER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(multiprocessing.util, "spawnv_passfds", _forked.SPAWN)
    loader = load(photos(), isolate=True, threads=2, map=functools.partial(sized, blob=bytes(1 << 20)))
    assert [batch["size"] for batch in loader] == [1 << 20] * 7
    assert len(list(tmp_path.glob("*.started"))) == 2
    assert not (tmp_path / "alone").exists()


@pytest.mark.slow
def test_a_worker_process_that_dies_is_named() -> None:
    """The error names the exit code or signal of the worker process, and the loop ends at once."""
    with pytest.raises(WorkerDied, match=r"shardio rank 0 worker \d \(process \d+\) died: exit code 5"):
        list(load(photos(), isolate=True, threads=1, map=deadly))
    loader = load(photos(), isolate=True, batch_size=1)  # more steps than workers can prepare ahead
    epoch = iter(loader)
    next(epoch)
    victim = next(process.pid for process in workers_of(loader) if process.name.endswith("worker 1"))
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(WorkerDied, match=r"exit code -9$"):
        list(epoch)


def in_parts(batch: dict[str, Any]) -> dict[str, Any]:
    """Take half a second, of which a suspension skips a tenth at most."""
    for _ in range(10):
        time.sleep(0.05)
    return batch


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
def test_a_suspension_counts_for_no_wait(isolate: bool) -> None:
    """A job that is suspended for longer than `timeout` goes on: what it waits for was suspended, too."""
    loader = load(photos(), isolate=isolate, threads=1, batch_size=10, prefetch=1, map=in_parts, timeout=4.0)
    epoch = iter(loader)
    next(epoch)
    pids = " ".join(str(pid) for pid in (os.getpid(), *(p.pid for p in (workers_of(loader) if isolate else ()))))
    with subprocess.Popen(["sh", "-c", f"kill -STOP {pids}; sleep 5; kill -CONT {pids}"]):
        assert len(list(epoch)) == 3


@pytest.mark.slow
@pytest.mark.skipif(native.library() is None, reason="needs the compiled part")
def test_a_first_sigterm_is_left_to_the_parent() -> None:
    """Launchers send it to all processes of a job: the workers work on until the parent is done; a second one ends."""
    loader = load(photos(), isolate=True, batch_size=1)
    epoch = iter(loader)
    next(epoch)
    pids = [str(process.pid) for process in workers_of(loader)]
    subprocess.run(["kill", "-TERM", *pids], check=True)
    assert len(list(epoch)) == COUNT - 1
    epoch = iter(loader)
    next(epoch)
    assert [str(process.pid) for process in workers_of(loader)] == pids
    subprocess.run(["kill", "-TERM", *pids], check=True)
    with pytest.raises(WorkerDied, match=r"exit code -15$"):
        list(epoch)


def leave_a_loop() -> None:
    """End a process in the middle of a loop over a loader with workers, which stays alive until then."""
    global kept
    kept = iter(load(photos(), isolate=True, batch_size=1))
    next(kept)


@pytest.mark.slow
def test_a_process_ends_with_its_workers() -> None:
    """A process of multiprocessing ends although a loader of its own still has workers, which it terminates itself."""
    process = processes.CONTEXT.Process(target=leave_a_loop)
    process.start()
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.long
@pytest.mark.slow
def test_a_script_without_a_guard_is_told(tmp_path: Path) -> None:
    """Worker processes import the script: the error of one that starts them at its top level names the guard."""
    dataset = tmp_path / "d"
    packed(dataset, [{"n": 1}])
    script = tmp_path / "run.py"
    script.write_text(f"import shardio\nlist(shardio.Loader({str(dataset)!r}, 1, isolate=True, threads=1))\n")
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    last = run.stderr.splitlines()[-1]
    assert "WorkerDied" in last
    assert "exit code 1 before its first batch; with isolate=True a script needs `if __name__ == '__main__':`" in last


def test_a_script_that_is_no_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The advice names what stands where a script should, as with `python - < script`; else it names the guard."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert "`if __name__ == '__main__':`" in processes.script_advice()
    main.__file__ = "<stdin>"
    assert "<stdin> is no file: save the script as a file, and run that" in processes.script_advice()
    main.__file__ = __file__
    assert "`if __name__ == '__main__':`" in processes.script_advice()


def test_a_thread_that_hangs_is_named() -> None:
    """After the timeout the error names rank, worker, stage, samples and shards."""
    loader = load(photos(), map=lambda batch: time.sleep(1.5) or batch, timeout=0.5)
    with pytest.raises(PipelineStalled, match=rf"shardio rank 0: no batch for 0 s; .*worker \d: {PLACE} for \d+ s"):
        list(loader)


@pytest.mark.slow
def test_dropping_the_loader_ends_its_worker_processes() -> None:
    """No worker process survives its loader."""
    loader = load(photos(), isolate=True, threads=1)
    next(iter(loader))
    members = workers_of(loader)
    del loader
    gc.collect()
    # Not `join`: another thread waits for the same process, and one of the two learns its exit code late.
    wait_until(lambda: not any(process.is_alive() for process in members))


def once(batch: dict[str, Any]) -> dict[str, Any]:
    """Hang on the first call in any process."""
    marker = Path(os.environ["SHARDIO_TEST_MARKER"])
    if not marker.exists():
        marker.touch()
        time.sleep(1000)
    return batch


@pytest.mark.long
def test_a_worker_process_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the timeout the error names the worker process, and the next loop has new ones."""
    monkeypatch.setenv("SHARDIO_TEST_MARKER", str(tmp_path / "marker"))
    loader = load(photos(), isolate=True, map=once, threads=1, timeout=8.0)
    with pytest.raises(PipelineStalled, match=rf"worker 0 \(process \d+\): no batch for 8 s; {PLACE}"):
        list(loader)
    assert len(list(loader)) == 7


def big(batch: dict[str, Any]) -> dict[str, Any]:
    """Return more than a pipe holds and a conjugate view, and overwrite the loader's index."""
    turned = torch.complex(batch["label"].float(), torch.ones(len(batch["label"]))).conj()
    batch["index"].zero_()
    return {"blob": [bytes(400_000)], "turned": turned}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:3 loops in a row:shardio.StateWarning")
@pytest.mark.parametrize("isolate", [False, True])
def test_loops_begun_and_left_again_and_again(isolate: bool) -> None:
    """Unsent batches of left loops do not block the next; `index` and `valid` stay; conjugates are resolved."""
    loader = load(photos(), isolate=isolate, map=big)
    for _ in range(60):
        batch = next(iter(loader))
    assert torch.equal(batch["turned"].real.long(), batch["index"])
    assert (batch["turned"].imag == -1).all()


@pytest.mark.slow
def test_a_forked_child_leaves_the_parents_loop_alone() -> None:
    """A forked child cannot use the parent's loop, and gets an error."""
    batches = iter(load(photos(), isolate=True, threads=1))
    next(batches)
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except PipelineClosed:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(list(batches)) == 6
