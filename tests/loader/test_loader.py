"""The loader delivers every sample once, resumes exactly, and is independent of threads, container and engine."""

import json
import threading
from collections.abc import Callable
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _builders import jpeg
from _datasets import load, numbers, packed, photos
from _jobs import Job, same, samples
from _time_limit import wait_until
from hypothesis import example, given, settings
from hypothesis import strategies as st

import shardio
from shardio import World, native
from shardio.errors import ConfigError, PipelineClosed, ShardCorrupt, StateMismatch, StateWarning
from shardio.format.fields import infer_fields
from shardio.loader.batch import job

TRAIN = [shardio.RandomResizedCrop(16), shardio.RandomHorizontalFlip()]


@given(
    n=st.integers(1, 60),
    world=st.integers(1, 4),
    batch=st.integers(1, 13),
    seed=st.integers(0, 2**40),
    tail=st.sampled_from(["drop", "pad"]),
    threads=st.integers(1, 3),
)
@settings(max_examples=40, deadline=None)
def test_exactly_once_over_real_loaders(n: int, world: int, batch: int, seed: int, tail: str, threads: int) -> None:
    """Ranks deliver disjoint parts of each epoch in equally many steps, and samples match their indices."""
    ds = numbers(n)
    if tail == "drop" and n < world * batch:
        with pytest.raises(ConfigError, match="fill no global batch"):
            load(ds, batch, world=World(0, world), tail=tail)
        return
    loaders = [load(ds, batch, world=World(r, world), seed=seed, tail=tail, threads=threads) for r in range(world)]
    for _ in range(2):
        epochs = [list(loader) for loader in loaders]
        assert {len(epoch) for epoch in epochs} == {len(loaders[0])}
        taken = [index for epoch in epochs for index in samples(epoch)]
        assert len(taken) == len(set(taken)) == (n if tail == "pad" else n // (world * batch) * world * batch)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, str], shardio.Dataset]:
    """Return a function that gives the numbers below n in a container on disk, in several shards."""

    @cache
    def make(n: int, container: str) -> shardio.Dataset:
        path, samples = tmp_path_factory.mktemp("numbers") / "d", ({"number": number} for number in range(n))
        return packed(path, samples, {"number": "int64"}, container=container, shard_size=100)

    return make


@given(
    n=st.integers(30, 70),
    worlds=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    batches=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    threads=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    containers=st.tuples(*[st.sampled_from(["tar", "hdf5", "lmdb"])] * 2),
    order=st.sampled_from([{}, {"shuffle": "block", "block": 3, "window": 4}, {"shuffle": None}]),
    stop=st.integers(1, 40),
)
@settings(max_examples=40, deadline=None)
def test_elastic_resume(
    stored: Callable[[int, str], shardio.Dataset],
    n: int,
    worlds: tuple[int, int],
    batches: tuple[int, int],
    threads: tuple[int, int],
    containers: tuple[str, str],
    order: dict[str, Any],
    stop: int,
) -> None:
    """Stopped anywhere and resumed with another world, batch size, container and threads, an epoch is the same."""

    datasets = [stored(n, container) for container in containers]
    first = Job(datasets[0], worlds[0], batches[0], seed=5, threads=threads[0], **order)
    state = first.run(stop)
    second = Job(datasets[1], worlds[1], batches[1], state, seed=5, threads=threads[1], **order)
    second.run()
    whole = shardio.Plan(n, 5, state["epoch"], **order).indices(0, n).tolist()
    assert (first.samples if state["epoch"] == 0 else []) + second.samples == whole


def test_ranks_that_take_neighbors_deliver_each_sample_once() -> None:
    """assign="node" stands in the repr alone; ranks with it and, after a resume, without it share an epoch exactly."""
    options: dict[str, Any] = {"shuffle": "block", "block": 5, "window": 4}
    neighbors, others = (Job(numbers(100), 4, 5, assign=assign, **options) for assign in ("node", "rank"))
    assert "assign='node'" in repr(neighbors.loaders[0])
    assert "assign" not in repr(others.loaders[0])
    state = neighbors.run(2)
    assert "assign" not in json.dumps(state)
    rest = Job(numbers(100), 2, 5, state, **options)
    rest.run()
    assert sorted(neighbors.samples + rest.samples) == list(range(100))


def test_after_the_last_batch_the_next_epoch_begins() -> None:
    """A state taken after the last batch, even before the loop ends, resumes with the next epoch."""
    ds = numbers(20)
    loader = load(ds, 5)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)
    resumed = load(ds, 5)
    resumed.load_state_dict(state)
    assert next(iter(resumed))["index"].tolist() == shardio.Plan(20, 0, 1).indices(0, 5).tolist()
    with pytest.raises(StopIteration):
        next(iterator)


@given(
    taken=st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["drop", "close", "next loop", "resume"])), max_size=8),
    processes=st.just(False),
)
@settings(max_examples=60, deadline=None)
@example([(1, "drop"), (5, "drop"), (1, "close"), (6, "next loop"), (1, "next loop"), (3, "resume")], True)
@pytest.mark.filterwarnings("ignore:3 loops in a row:shardio.StateWarning")
def test_a_peek_costs_nothing(taken: list[tuple[int, str]], processes: bool) -> None:
    """A loop that is dropped after at most one batch leaves the state and the next loop as they were; others do not."""
    ds = numbers(23)  # five batches of 4
    loader = load(ds, 4, isolate=processes)
    epoch = position = 0
    midway = alive = False
    for count, ending in taken:
        state = loader.state_dict()
        assert alive or (state["epoch"], state["position"]) == (loader.epoch, position) == (epoch, position)
        begun = (epoch + 1, 0) if midway else (epoch, position)
        order = shardio.Plan(23, 0, begun[0]).indices(begun[1], 20).tolist()
        count = min(count, len(order) // 4)
        batches = iter(loader)
        assert [i for _ in range(count) for i in next(batches)["index"].tolist()] == order[: 4 * count]
        ended = 4 * count == len(order)
        inside = (begun[0] + 1, 0) if ended else (begun[0], begun[1] + 4 * count)
        state = loader.state_dict()
        assert (state["epoch"], state["position"]) == inside
        if count > 1 or ended:
            (epoch, position), midway = inside, not ended
        if ending == "close":
            batches.close()
        elif ending == "resume":
            loader = load(ds, 4)
            loader.load_state_dict(state)
            (epoch, position), midway = inside, False
        alive = ending == "next loop"
        if not alive:
            del batches


def test_peeks_in_a_row_are_told() -> None:
    """A loader whose loops are all left after one batch says once that each delivers the same one, and no other."""
    loader = load(numbers(12), 4)
    list(zip(range(2), loader, strict=False))  # left midway
    peeks = [next(iter(loader))["index"].tolist() for _ in range(3)]
    with pytest.warns(StateWarning, match=r"3 loops in a row .* same batch of epoch 1: keep one iterator") as warned:
        peeks += [next(iter(loader))["index"].tolist() for _ in range(3)]
    assert (len(warned), warned[0].filename) == (1, __file__)
    assert peeks == peeks[:1] * 6
    for epoch in range(6):  # of epochs that were chosen
        loader.set_epoch(epoch)
        assert loader.epoch == epoch
        next(iter(loader))
    list(loader)
    for _ in range(3):  # with longer loops between
        next(iter(loader)), next(iter(loader))
        list(loader)


def test_a_peek_after_resuming_costs_nothing() -> None:
    """Any world that resumes may peek first: the rest of the epoch is delivered once, and the state is as loaded."""
    first = load(numbers(40), 4, tail="pad")
    before = samples(islice(first, 3))
    state = first.state_dict()
    ranks = [load(numbers(40), 3, tail="pad", world=World(rank, 2)) for rank in range(2)]
    for loader in ranks:
        loader.load_state_dict(state)
        next(iter(loader))
        assert loader.state_dict() == state
    assert sorted([*before, *(sample for loader in ranks for sample in samples(loader))]) == list(range(40))


def test_an_error_in_the_second_batch_is_no_peek() -> None:
    """The batch before an error stays delivered."""

    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        if 10 in batch["index"]:
            raise ValueError
        return batch

    loader = load(numbers(20), 10, shuffle=None, map=fail)
    batches = iter(loader)
    next(batches)
    with pytest.raises(shardio.MapError):
        next(batches)
    del batches
    assert loader.state_dict()["position"] == 10


@pytest.mark.parametrize("changed", [{"threads": 1}, {"threads": 5, "prefetch": 7}, {"prefetch": 1}])
def test_threads_and_prefetch_change_nothing(changed: dict[str, Any]) -> None:
    """Samples, order and crops do not depend on the number of threads and prefetched batches."""
    ds = photos(60)
    for plain, other in zip(load(ds, transforms=TRAIN), load(ds, transforms=TRAIN, **changed), strict=True):
        assert same(plain, other)


def test_what_a_batch_holds() -> None:
    """A batch holds tensors where values can be stacked, lists elsewhere, `index` always, and `valid` with padding."""
    rows = [
        {
            "image": jpeg(10 + n % 2, 12, seed=n),
            "label": n,
            "flag": n % 2 == 0,
            "grid": np.full((2, 2), n, np.uint16),
            "points": np.arange(n, dtype=np.float32),
            "text": str(n),
            "blob": b"x" * n,
            "extra": {"n": n},
        }
        for n in range(6)
    ]
    kinds = {name: kind for name, kind in infer_fields(rows[0]).items() if name != "points"}
    ds = shardio.from_samples(rows, kinds | {"points": shardio.Field("array", dtype="float32")})
    (batch,) = load(ds, 8, shuffle=None, tail="pad")
    assert [tuple(image.shape) for image in batch["image"]] == [(10 + n % 2, 12, 3) for n in [0, 1, 2, 3, 4, 5, 0, 1]]
    assert batch["image"][0].dtype == torch.uint8
    assert batch["label"].dtype == batch["index"].dtype == torch.int64
    assert batch["flag"].dtype == batch["valid"].dtype == torch.bool
    assert batch["valid"].tolist() == [True] * 6 + [False] * 2
    assert batch["grid"].shape == (8, 2, 2)
    assert batch["grid"].dtype == torch.uint16
    assert [len(points) for points in batch["points"]] == [0, 1, 2, 3, 4, 5, 0, 1]
    assert batch["text"][3] == "3"
    assert batch["blob"][2] == b"xx"
    assert batch["extra"][5] == {"n": 5}
    assert next(iter(load(ds, 2, fields=["text"]))).keys() == {"text", "index"}


@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
def test_arrays_of_differing_shapes_are_their_own(tmp_path: Path, container: str) -> None:
    """Arrays of a batch may be changed in place, padding's repeats too: no other one changes, nor what is stored."""
    fields = {"array": shardio.Field("array", dtype="float32")}
    arrays = [np.full((number % 5, 1 + number % 3), number, np.float32) for number in range(21)]
    datasets = [
        packed(tmp_path / str(len(own)), [{"array": array} for array in own], fields, container=container)
        for own in (arrays, arrays[:3])
    ]
    for loaded in (datasets[0], shardio.mix(dict(zip("ab", datasets, strict=True)), weights={"a": 1, "b": 1})):
        for _ in range(2):
            for batch in load(loaded, 8, tail="pad", seed=1):
                expected = [torch.from_numpy((arrays + arrays[:3])[index]) for index in batch["index"].tolist()]
                assert all(map(torch.equal, batch["array"], expected))
                for number, array in enumerate(batch["array"]):
                    array.fill_(-number)
                assert all((array == -number).all() for number, array in enumerate(batch["array"]))


def test_arrays_of_differing_shapes_may_be_kept(tmp_path: Path) -> None:
    """Arrays, tensors and views of them that are kept do not change, although memory is used again."""
    fields = {"array": shardio.Field("array", dtype="int64")}
    rows = [{"array": np.full(2 + number % 7, number)} for number in range(200)]
    loader, kept = load(packed(tmp_path / "d", rows, fields, container="hdf5"), 5, seed=1), []
    for _ in range(3):
        for batch in loader:
            arrays = batch["array"]
            views = (arrays[0], arrays[1].numpy(), arrays[2][1:], arrays[3].numpy()[::-1], arrays[4].view(1, -1))
            kept += [(views[step % 5], int(batch["index"][step % 5])) for step in (len(kept),)]
            del arrays, views, batch
    assert len(kept) == 120
    assert all((np.asarray(array) == number).all() for array, number in kept)


@pytest.mark.parametrize("broken", [b"(2, ", b"\x93NUMPY"])
def test_a_damaged_array_is_named(tmp_path: Path, broken: bytes) -> None:
    """A `.npy` whose header is damaged is named by its shard, row and field, and those before it are delivered."""
    rows = [{"array": np.zeros((2 if number == 5 else 1, number))} for number in range(9)]
    packed(tmp_path / "d", rows, {"array": shardio.Field("array", dtype="int64")}, shard_size="1MB")
    path = tmp_path / "d" / "shard-000000.tar"
    before, after = (data := path.read_bytes())[: (begin := data.index(b"(2, ") - 128)], data[begin:]
    path.write_bytes(before + after.replace(broken, b"?" * len(broken), 1))
    iterator = iter(load(shardio.open(tmp_path / "d"), 3, shuffle=None))
    assert [array.shape for array in next(iterator)["array"]] == [(1, 0), (1, 1), (1, 2)]
    with pytest.raises(ShardCorrupt, match=r"shard-000000.tar, row 5 \(sample 5\), field 'array': not array: "):
        next(iterator)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(("together", "most"), [(1, 6), (4, 6 * 4)])
def test_memory_is_reused_by_a_plain_loop(together: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that drops its batches reuses the same few addresses, without the garbage collector."""
    monkeypatch.setattr(job, "MOST_BATCHES", (together, together))
    loader = load(photos(200), 4, transforms=TRAIN, prefetch=2)
    assert len({batch["image"].data_ptr() for batch in loader}) <= most


def test_leaving_early_ends_the_threads() -> None:
    """Dropping the iterator, or starting the next loop, ends the threads of the previous one."""
    loader = load(photos(60), transforms=TRAIN, world=World(0, 1))
    for _ in loader:
        break
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("shardio rank")], seconds=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"digest": "xxh3:0"}, "the state's digest is 'xxh3:0', this loader's is 'xxh3:"),
        ({"seed": 9}, "the state's seed is 9, this loader's is 0"),
        ({"shuffle": ""}, "the state's order is 'stored', this loader's is 'global'"),
        (
            {"shuffle": "block", "block": 4, "window": 10**5000},
            "the state's order is 'block of 4, window of a huge int',",
        ),
    ],
)
def test_a_state_of_something_else_is_refused(change: dict[str, Any], message: str) -> None:
    """A state of another dataset, seed or order is refused with both values."""
    loader = load(numbers(12), 4)
    with pytest.raises(StateMismatch, match=message):
        loader.load_state_dict(loader.state_dict() | change)
    with pytest.raises(StateMismatch, match="not a loader's state"):
        loader.load_state_dict({})


@pytest.mark.parametrize(
    ("state", "message"),
    [
        *[(state, "must be a mapping with version, digest") for state in (None, ["epoch", 0], "state")],
        *[({"epoch": epoch}, "the state's epoch must be an integer") for epoch in (None, True, 1.0)],
        ({"epoch": np.int64(1)}, r"the state's epoch must be an integer \(int\), got .*1.* \(int64\)"),
        ({"epoch": -1}, "not a position in an epoch: epoch -1, position 0"),
        ({"epoch": 10**5000}, "epoch a huge int"),  # which Python does not write
        ({"position": 13}, "not a position in an epoch of 12"),
        ({"position": np.zeros(3)}, "the state's position must be an integer"),
        ({"seed": 10**5000}, "the state's seed is a huge int, this loader's is 0"),
        ({"digest": 7}, "the state's digest must be a string"),
        ({"version": True}, "the state's version is True, this loader's is 3"),
        ({"rank": 3}, "not a loader's state: it has 'rank'"),
        ({5: 3}, "not a loader's state: it has 5"),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_what_is_no_state_is_refused(state: Any, message: str, strict: bool) -> None:
    """Whatever is no state is refused in words, with `strict=False` too, and the loader stays where it is."""
    loader = load(numbers(12), 4)
    loader.set_epoch(5)
    wrong = loader.state_dict() | state if isinstance(state, dict) else state
    if "this loader's is 0" in message and not strict:
        with pytest.warns(StateWarning, match=message):
            loader.load_state_dict(wrong, strict=False)
        return
    with pytest.raises(StateMismatch, match=message):
        loader.load_state_dict(wrong, strict=strict)
    assert loader.epoch == 5


def test_a_state_without_a_value_is_refused() -> None:
    """Each value of a state is needed, and is named where it is missing."""
    loader = load(numbers(12), 4)
    state = loader.state_dict()
    for name in state:
        with pytest.raises(StateMismatch, match=f"it has no '{name}'"):
            loader.load_state_dict({other: state[other] for other in state if other != name})


def test_a_state_of_something_else_may_be_taken_on(tmp_path: Path) -> None:
    """`strict=False` goes on at the same place, and says what is lost; another number of samples restarts the epoch.
    Another version is refused all the same."""
    state = load(numbers(40), 4, seed=1).state_dict() | {"epoch": 3, "position": 12}
    loader = load(numbers(40), 4, seed=2)
    with pytest.warns(
        StateWarning, match=r"the state's seed is 1, this loader's is 2: epoch 3 may deliver .* twice or not"
    ):
        loader.load_state_dict(state, strict=False)
    assert loader.epoch == 3
    assert sum(len(batch["index"]) for batch in loader) == 28
    assert sorted(samples(loader)) == list(range(40))
    loader = load(numbers(41), 4, seed=1)
    with pytest.warns(
        StateWarning, match=r"digest is .*; the state's samples is 40, this loader's is 41: epoch 3 starts over"
    ):
        loader.load_state_dict(state, strict=False)
    assert (loader.epoch, loader.state_dict()["position"]) == (3, 0)
    with pytest.raises(StateMismatch, match="the state's version is 2, this loader's is 3"):
        loader.load_state_dict(state | {"version": 2}, strict=False)
    with pytest.raises(StateMismatch, match="not a position in an epoch of 41: epoch 0, position 42"):
        loader.load_state_dict(loader.state_dict() | {"epoch": 0, "position": 42}, strict=False)


def zip_with(batch: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return batch | other


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 1000}, r"60 samples fill no global batch of 1000 \(1 rank x 1000\); .* tail='pad'"),
        ({"world": (0, 2)}, r"world must be a shardio.World\(rank, size\), as in shardio.World\(0, 2\), got \(0, 2\)"),
        ({"fields": "image"}, r"fields must be a list of names, as in \['image'\], got 'image'"),
        ({"isolate": None}, "isolate must be True or False, got None"),
        ({"tail": "keep"}, "tail must be 'drop' or 'pad', got 'keep'"),
        ({"shuffle": "all"}, "shuffle must be 'global', 'block' or None, got 'all'$"),
        ({"shuffle": False}, "got False; 'global' stands for True, None for False"),
        ({"threads": 0}, "threads must be 'auto' or an integer of at least 1, got 0"),
        ({"prefetch": "2"}, "prefetch must be 'auto' or an integer of at least 1, got '2'"),
        ({"timeout": float("inf")}, "timeout must be a number of seconds above 0, got inf"),
        ({"fields": ["nope"]}, "no field 'nope'"),
        ({"transforms": {"label": TRAIN}}, "transforms for 'label', but the image fields"),
        ({"transforms": [shardio.ToFloat(), *TRAIN]}, "RandomResizedCrop must come before"),
        ({"on_bad_sample": "skip"}, "on_bad_sample must be 'raise', 'replace' or 'mask', got 'skip'"),
        ({"max_bad": -1}, "max_bad must be a count, or a share of at least 0 and below 1, got -1"),
        ({"max_bad": 1.5}, "max_bad must be an integer, or below 1 for a share, got 1.5"),
        ({"quarantine_file": "/tmp"}, "quarantine_file must be a file in a writable folder, got /tmp"),
        ({"map": 3}, "map must be a function, got 3"),
        ({"map": zip_with}, r"map must be a function of a batch, .* got zip_with.*: missing a required .* 'other'"),
        ({"map_by": "row"}, "map_by must be 'batch' or 'sample', got 'row'"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    """Each message names the rule and the value, before any thread is started."""
    with pytest.raises(ConfigError, match=message):
        load(photos(60), **options)


def test_stats_add_up() -> None:
    """Statistics hold samples, bytes, waiting time and time by stage of the current epoch."""
    ds = photos(60)
    loader = load(ds, transforms=TRAIN, fields=["image"], device="cpu")
    assert loader.stats().samples == 0
    delivered = samples(loader)
    stats = loader.stats()
    assert stats.samples == len(delivered) == 56
    assert stats.bytes == sum(len(ds[index]["image"]) for index in delivered)
    assert 0 < stats.wait_seconds <= stats.seconds
    assert stats.device_seconds == 0
    assert 0 < stats.starved <= 1
    assert stats.stage_seconds.keys() == {"plan", "read", "decode", "assemble"}
    assert stats.samples_per_second == pytest.approx(56 / stats.seconds)


def test_set_epoch_in_the_middle_of_a_loop() -> None:
    """The running loop continues unchanged, and the next one begins at the requested epoch."""
    loader = load(numbers(20), 4)
    for step, _ in enumerate(loader):
        if step == 1:
            loader.set_epoch(7)
        if step >= 1:
            assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (7, 0)
    assert next(iter(loader))["index"].tolist() == shardio.Plan(20, 0, 7).indices(0, 4).tolist()


def test_set_epoch_keeps_the_place_of_a_loaded_state() -> None:
    """A loop that selects its epoch by habit goes on where the state stands; another epoch begins at its beginning."""
    loader = load(numbers(20), 4)
    loader.set_epoch(3)
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    loader.load_state_dict(state)
    for epoch, position in ((3, 8), (3, 8), (4, 0), (3, 0)):  # the state is forgotten with the first other epoch
        loader.set_epoch(epoch)
        assert loader.state_dict() == state | {"epoch": epoch, "position": position}
    loader.load_state_dict(state)
    loader.set_epoch(3)
    taken = samples(loader)
    assert taken == shardio.Plan(20, 0, 3).indices(8, 20).tolist()
    assert loader.epoch == 4


@pytest.mark.parametrize("isolate", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_set_epoch_before_a_loops_first_batch(isolate: bool) -> None:
    """A loop that has delivered nothing delivers the requested epoch, or goes on if it is in that epoch."""
    loader = load(numbers(20), 4, isolate=isolate, threads=1)
    for resumed_at in (0, 8):
        loader.load_state_dict(loader.state_dict() | {"epoch": 2, "position": resumed_at})
        batches = iter(loader)
        loader.set_epoch(2)
        assert next(batches)["index"].tolist() == shardio.Plan(20, 0, 2).indices(resumed_at, resumed_at + 4).tolist()
        batches = iter(loader)
        loader.set_epoch(7)
        loader.set_epoch(5)
        assert loader.epoch == 5
        taken = next(batches)["index"].tolist()
        assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (5, 4)
        taken += samples(batches)
        assert taken == shardio.Plan(20, 0, 5).indices(0, 20).tolist()
        assert (loader.epoch, loader.stats().samples) == (6, 20)


@pytest.mark.parametrize(("tail", "left"), [("drop", [5, 4, 1, 0]), ("pad", [6, 5, 2, 1])])
def test_steps_left(tail: Any, left: list[int]) -> None:
    """`steps_left` counts the steps from the state's position to the epoch's end."""
    loader, counted = load(numbers(22), 4, tail=tail), []
    for position in (0, 4, 16, 19):
        loader.load_state_dict(loader.state_dict() | {"position": position})
        counted.append(loader.steps_left)
    assert counted == left
    loader.set_epoch(0)
    loader.set_epoch(1)
    assert [loader.steps_left for _ in loader] == [*range(len(loader) - 1, 0, -1), len(loader)]


@pytest.mark.parametrize("isolate", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_newer_loop_ends_the_older_one_in_words(isolate: bool) -> None:
    """With two loops over one loader, the older one raises that it was closed."""
    loader = load(numbers(20), 4, isolate=isolate, threads=1)
    older = iter(loader)
    next(older)
    next(iter(loader))
    with pytest.raises(PipelineClosed, match="a newer loop over the same loader has begun"):
        next(older)


def test_fields_that_clash_with_the_loaders_own_are_refused() -> None:
    """A field named `index` is refused, not silently replaced."""
    ds = shardio.from_samples([{"index": n * 10, "y": 1} for n in range(8)])
    for fields in (None, ["index", "y"]):
        with pytest.raises(ConfigError, match="field 'index' clashes"):
            load(ds, 4, fields=fields)
    assert next(iter(load(ds, 4, fields=["y"], shuffle=None)))["index"].tolist() == [0, 1, 2, 3]


def test_numpy_numbers_are_numbers() -> None:
    """Seeds, epochs and batch sizes may be NumPy integers, but not fractions."""
    loader = load(numbers(20), np.int64(4), seed=np.int64(3))
    loader.set_epoch(np.int64(2))
    assert next(iter(loader))["index"].tolist() == shardio.Plan(20, 3, 2).indices(0, 4).tolist()
    for wrong in ({"seed": 1.5}, {"batch_size": "4"}, {"device": "foo"}):
        with pytest.raises(ConfigError, match=r"must be an integer|device"):
            load(numbers(20), **wrong)
    for epoch in (1.0, -1):
        with pytest.raises(ConfigError, match="epoch must be"):
            loader.set_epoch(epoch)  # type: ignore[arg-type]  # what the test is about


@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
def test_block_shuffle_asks_storage_for_what_comes(
    tmp_path: Path, container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block is prefetched once per epoch before its samples are read, and the samples are the plan's.

    What the next epoch needs first follows.
    """
    rows = [{"x": bytes([number]) * 50} for number in range(100)]
    dataset = packed(tmp_path / "d", rows, {"x": "bytes"}, container=container, shard_size=900)
    asked: list[int] = []
    advised: list[int] = []
    real = shardio.Dataset.read_ahead

    def read_ahead(self: shardio.Dataset, run: range, fields: Any) -> None:
        asked.extend(run)
        real(self, run, fields)

    monkeypatch.setattr(shardio.Dataset, "read_ahead", read_ahead)
    monkeypatch.setattr("os.posix_fadvise", lambda file, offset, size, advice: advised.append(size))
    loader = load(dataset, 10, shuffle="block", block=8, window=3, threads=1)
    delivered = [
        (index, value) for batch in loader for index, value in zip(batch["index"].tolist(), batch["x"], strict=True)
    ]
    assert [index for index, _ in delivered] == shardio.Plan(100, 0, 0, "block", 8, 3).indices(0, 100).tolist()
    assert all(value == bytes([index]) * 50 for index, value in delivered)
    assert sorted(asked[:100]) == list(range(100))
    # Values within a page of an LMDB stand in falling order, so nothing is read ahead of them.
    assert sum(advised) >= 100 * 50 or container == "lmdb" or native.library() is None
