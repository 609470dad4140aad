"""Loaders of buckets: exact over ranks, resumed by any, refused in words; threads and processes alike."""

from __future__ import annotations

import pickle
from typing import Any

import _datasets
import _jobs
import numpy as np
import pytest
from _builders import jpeg, tiff, with_exif
from _jobs import samples
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio import World
from shardio.errors import BadSample, ConfigError, StateMismatch, StateWarning, TooManyBad
from shardio.system import allocation

LENGTHS = np.clip(np.random.default_rng(0).lognormal(2.5, 0.8, 500), 0, 60).astype(int)
BY_TOKENS: dict[str, Any] = {"bucket_by": "length", "max_tokens": 128}
BY_SIZE: dict[str, Any] = {"bucket_by": "length", "batch_size": 8}


def texts(lengths: Any, first: int = 0) -> shardio.Dataset:
    """Samples of so many tokens, which hold the number of the sample."""
    rows = [{"tokens": np.full(n, first + i), "length": int(n), "number": first + i} for i, n in enumerate(lengths)]
    fields = {"tokens": ("int64", (None,)), "length": "int64", "number": "int64"}
    return shardio.from_samples(rows, fields, shard_samples=70)


def load(data: Any, *, rank: int = 0, ranks: int = 1, **options: Any) -> shardio.Loader:
    options = {"tail": "pad", "threads": 1, "seed": 3} | options
    return shardio.Loader(data, world=World(rank, ranks), **options)


class Job(_jobs.Job):
    """A job whose samples come in buckets."""

    @property
    def delivered(self) -> list[list[int]]:
        """The samples of each batch, without batches that are padding, which are whole."""
        for batch in self.batches:
            assert [len(value) for value in batch["tokens"]] == batch["length"].tolist()
            assert len({*batch["valid"].tolist()}) == 1
        return [samples([batch]) for batch in self.batches if batch["valid"].all()]


DATA = texts(LENGTHS)


@given(
    lengths=st.lists(st.one_of(st.integers(0, 2), st.integers(0, 40)), min_size=1, max_size=120),
    rule=st.one_of(
        st.integers(40, 200).map(lambda tokens: {"max_tokens": tokens}),
        st.integers(1, 9).map(lambda size: {"batch_size": size}),
    ),
    ranks=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    steps=st.lists(st.integers(1, 20), min_size=2, max_size=2),
    shuffle=st.sampled_from(["global", "block", None]),
    threads=st.integers(1, 3),
)
@settings(max_examples=40, deadline=None)
def test_an_epoch_is_delivered_once_by_any_ranks(
    lengths: list[int], rule: dict[str, int], ranks: list[int], steps: list[int], shuffle: Any, threads: int
) -> None:
    """Stopped and resumed anywhere by other ranks, an epoch is the batches of one rank; none is over its tokens."""
    data = texts(lengths)
    options = {"bucket_by": "length", "shuffle": shuffle, "block": 4, "window": 4, "threads": threads} | rule
    whole = Job(data, 1, **options)
    whole.run()
    assert sorted(whole.samples) == list(range(len(lengths)))
    for batch in whole.delivered:
        assert len(batch) * max(lengths[number] for number in batch) <= rule.get("max_tokens", 1 << 60)
        assert len(batch) <= rule.get("batch_size", 1 << 60)
    state, delivered = None, []
    for size, count in zip(ranks, [*steps, None], strict=True):
        if state is None or state["epoch"] == 0:
            job = Job(data, size, state=state, **options)
            state, delivered = job.run(count), delivered + job.delivered
    assert delivered == whole.delivered
    assert state["epoch"] == 1


def test_the_lengths_of_ragged_fields_are_known() -> None:
    """Buckets by a field of several lengths are those by their numbers; a missing value has length 0."""
    jobs = [Job(DATA, 1, **BY_TOKENS | {"bucket_by": by}) for by in ("length", "tokens")]
    for job in jobs:
        job.run()
    assert jobs[0].delivered == jobs[1].delivered
    values = [None if n % 3 == 0 else np.arange(n % 5) for n in range(60)]
    field = shardio.Field("array", "int64", (None,), optional=True)
    data = shardio.from_samples([{"x": value} for value in values], {"x": field})
    batches = list(load(data, bucket_by="x", max_tokens=20))
    assert sorted(samples(batches)) == list(range(60))
    for batch in batches:
        assert len(batch["x"]) * max(1, *(0 if value is None else len(value) for value in batch["x"]), 0) <= 20


@given(
    window=st.none() | st.integers(1, 70),
    pad=st.builds(
        shardio.PadTo,
        st.none() | st.integers(61, 80),
        multiple_of=st.integers(1, 9),
        side=st.sampled_from(["left", "right"]),
    )
    | st.builds(shardio.PadTo, st.integers(1, 80), multiple_of=st.integers(1, 9), cut=st.just("end")),
    max_tokens=st.integers(96, 600),
)
@settings(max_examples=40, deadline=None)
def test_tokens_are_counted_as_they_are_delivered(window: int | None, pad: shardio.PadTo, max_tokens: int) -> None:
    """Padded and cut values count as in the batch, which has no more than the tokens, and room for no further one."""
    crop = [] if window is None else [shardio.RandomWindow(window)]
    options = {"bucket_by": "tokens", "max_tokens": max_tokens, "transforms": {"tokens": [*crop, pad]}}
    job = [batch["tokens"].shape for batch in load(DATA, **options, shuffle=None, block=500, window=1)]
    assert sum(samples for samples, _ in job) == len(LENGTHS)
    assert max(samples * length for samples, length in job) <= max_tokens
    full = [(samples + 1) * max(1, length) > max_tokens for samples, length in job]
    assert sum(full) >= len(full) - 4  # the last batch of each window


def test_a_state_tells_what_lengths_are() -> None:
    """Other transforms that change lengths are refused in words, those that don't aren't, nor another name."""
    by = {"bucket_by": "tokens", "max_tokens": 128}
    pad = shardio.PadTo(48, multiple_of=32, cut="end")
    state = load(DATA, **by, transforms={"tokens": [shardio.RandomWindow(60), pad]}).state_dict()
    assert state["bucket_lengths"] == "max=60,max=48,min=48,multiple=32"
    words = "up to 128 tokens by tokens up to 60 up to 48 padded to 48 in multiples of 32"
    with pytest.raises(StateMismatch, match=f"'{words[:70]}.*, this loader's is 'up to 128 tokens by tokens'"):
        load(DATA, **by).load_state_dict(state)
    plain = load(DATA, **by, transforms={"tokens": [shardio.ToInt64(), shardio.Ragged()]}).state_dict()
    load(DATA, **by, fields=["number"]).load_state_dict(plain)
    two = {"a": [shardio.RandomWindow(8), shardio.PadTo()], "b": [shardio.PadTo(multiple_of=4)]}
    loader = load(DATA, **by, fields={"a": "tokens", "b": "tokens"}, transforms=two)
    assert loader.state_dict()["bucket_lengths"] == "max=8|multiple=4"
    assert max(batch["b"].numel() for batch in loader) <= 128


@pytest.mark.parametrize("rule", [BY_TOKENS, BY_SIZE])
@pytest.mark.parametrize("other", [{"threads": 3, "prefetch": 5}, {"threads": 2, "isolate": True}])
def test_threads_and_processes_change_nothing(rule: dict[str, Any], other: dict[str, Any]) -> None:
    """Two epochs by threads, by processes and alone are the same batches, whose memory is as large as they are."""
    jobs = [Job(DATA, 1, **rule | options) for options in ({}, other)]
    for job in jobs:
        job.run()
        job.run()
    assert jobs[0].delivered == jobs[1].delivered
    assert jobs[0].loaders[0].stats().samples == len(LENGTHS)


@pytest.mark.parametrize(("tail", "ranks"), [("drop", 3), ("pad", 3), ("drop", 1)])
def test_the_tail_is_whole_batches(tail: str, ranks: int) -> None:
    """`drop` leaves out the last fewer batches than ranks; `pad` repeats the epoch's first ones, marked invalid."""
    every = Job(DATA, 1, **BY_TOKENS)
    every.run()
    steps, rest = divmod(len(every.delivered), ranks)
    assert rest or ranks == 1
    loaders = [load(DATA, rank=rank, ranks=ranks, tail=tail, **BY_TOKENS) for rank in range(ranks)]
    taken = [batch for step in zip(*loaders, strict=True) for batch in step]
    assert {len(loader) for loader in loaders} == {steps + (tail == "pad" and rest > 0)}
    if tail == "drop":
        assert [batch["index"].tolist() for batch in taken] == every.delivered[: steps * ranks]
    else:
        repeated = [batch["index"].tolist() for batch in taken if not batch["valid"].any()]
        assert repeated == every.delivered[: ranks - rest]


def test_the_length_is_that_of_the_epoch() -> None:
    """Epochs have more or fewer batches; `len`, the repr and `steps_left` tell those of the current one."""
    loader = load(DATA, **BY_TOKENS)
    told = []
    for epoch in range(12):
        loader.set_epoch(epoch)
        told.append((len(loader), loader.steps_left))
        batches = iter(loader)
        next(batches)
        next(batches)
        assert loader.steps_left == len(loader) - 2
        assert 2 + sum(1 for _ in batches) == told[-1][0] == told[-1][1]
    assert len({*told}) > 1
    assert f"{len(loader)} steps of up to 128 tokens by length per epoch" in repr(loader)
    assert loader.batch_size == pytest.approx(len(LENGTHS) / told[0][0], abs=0.5)
    assert load(DATA, **BY_SIZE).batch_size == 8


def test_the_state_counts_batches() -> None:
    """The position is that of a batch; what makes buckets is part of the state."""
    state = Job(DATA, 3, **BY_TOKENS).run(4)
    assert (state["position"], state["global_batch"], state["samples"]) == (12, 3, 500)
    assert (state["bucket_by"], state["bucket_size"], state["max_tokens"]) == ("length", 0, 128)
    with pytest.raises(StateMismatch, match=r"not a position in an epoch of \d+: epoch 0, position 400"):
        load(DATA, **BY_TOKENS).load_state_dict(state | {"position": 400})


@pytest.mark.parametrize(
    ("saved", "loaded", "message"),
    [
        (BY_TOKENS, BY_TOKENS | {"max_tokens": 129}, "'up to 128 .*', this loader's is 'up to 129 "),
        (BY_TOKENS, BY_SIZE, "'up to 128 tokens by length', this loader's is '8 samples by length'"),
        (BY_SIZE, BY_SIZE | {"batch_size": 9}, "'8 samples by .*', this loader's is '9 samples by"),
        (BY_SIZE, BY_SIZE | {"bucket_by": "number"}, "'8 samples by length', this loader's is '8 samples by number'"),
        (BY_SIZE, {"batch_size": 8}, "'8 samples by length', this loader's is 'none'"),
        ({"batch_size": 8}, BY_SIZE, "'none', this loader's is '8 samples by length"),
    ],
)
def test_a_state_of_other_buckets_is_refused(saved: dict[str, Any], loaded: dict[str, Any], message: str) -> None:
    """Another budget, size or field is refused with both values; taken on all the same, the epoch starts over."""
    state, loader = Job(DATA, 1, **saved).run(3), load(DATA, **loaded)
    with pytest.raises(StateMismatch, match=f"^the state's buckets is {message}"):
        loader.load_state_dict(state)
    with pytest.warns(StateWarning, match="epoch 0 starts over"):
        loader.load_state_dict(state, strict=False)
    assert sorted(samples(loader)) == list(range(500))


def mixture(*weights: float) -> Any:
    sources = {"a": texts(LENGTHS[:90]), "b": texts(LENGTHS[90:150], 90)}
    return shardio.mix(sources, dict(zip(sources, weights, strict=True)), samples=200)


def test_mixtures() -> None:
    """A mixture's epoch comes in buckets; other weights are taken at an epoch's beginning, and refused within it."""
    whole, job = Job(mixture(3, 1), 1, **BY_TOKENS), Job(mixture(3, 1), 2, **BY_TOKENS)
    whole.run()
    middle = job.run(3)
    assert sorted(whole.samples) == sorted(mixture(3, 1).plan(3, "global", 64, 16).lookup(np.arange(200))[0].tolist())
    rest = Job(mixture(3, 1), 3, state=middle, **BY_TOKENS)
    end = rest.run()
    assert job.delivered + rest.delivered == whole.delivered
    assert (middle["turns"], end["turns"]) == ([0, 0], [150, 50])
    with pytest.raises(StateMismatch, match=r"digest is .*: other weights hold from the beginning of an epoch on"):
        load(mixture(1, 1), **BY_TOKENS).load_state_dict(middle)
    changed = Job(mixture(1, 1), 1, state=end, **BY_TOKENS)
    middle = changed.run(2)
    assert (middle["turns"], middle["since"]) == ([150, 50], 200)
    again = Job(mixture(1, 1), 2, state=middle, **BY_TOKENS)
    assert again.run()["turns"] == [250, 150]
    assert sum(number >= 90 for number in changed.samples + again.samples) == 100


def test_weighted_samples() -> None:
    """Weighted samples come in buckets as often as without, numbered as what they are drawn from."""
    view = DATA.where("number < 200").weighted(np.arange(200.0))
    plain = load(view, batch_size=8)
    job = Job(view, 2, **BY_TOKENS)
    job.run()
    assert sorted(job.samples) == sorted(samples(plain))


@given(small=st.integers(5, 60), more=st.integers(1, 60), ranks=st.lists(st.integers(1, 3), min_size=3, max_size=3))
@settings(max_examples=25, deadline=None)
def test_a_dataset_that_has_grown(small: int, more: int, ranks: list[int]) -> None:
    """The epoch ends with the batches that it began with, on either dataset; the next one has all samples."""
    before, after = texts(LENGTHS[:small]), texts(LENGTHS[: small + more])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shardio.Dataset, "earlier", property(lambda d: {before.digest: small} if len(d) > small else {}))
        job = Job(before, ranks[0], **BY_TOKENS)
        state = job.run(1)
        ends = [Job(data, ranks[1], state=state, **BY_TOKENS) for data in (before, after)]
        if state["epoch"] == 0:
            states = [end.run() for end in ends]
            assert ends[0].delivered == ends[1].delivered
            assert sorted(job.samples + ends[1].samples) == list(range(small))
            state = states[0]
        later = Job(after, ranks[2], state=state, **BY_TOKENS)
        later.run()
        assert sorted(later.samples) == list(range(small + more))


@pytest.mark.parametrize("action", ["replace", "mask"])
def test_bad_samples(action: str) -> None:
    """Ranks take their steps whatever is bad, a replacement is no longer, and `max_bad` is a share of samples."""
    bad = {int(number) for number in np.argsort(LENGTHS)[100:400:50]}
    samples = [_datasets.photo(n, bad=n in bad) | {"length": int(LENGTHS[n])} for n in range(500)]
    data = shardio.from_samples(samples, shard_samples=70)
    options = {"on_bad_sample": action, "fields": ["image", "length"], **BY_TOKENS}
    loader = load(data, max_bad=len(bad), **options)
    for batch in loader:
        assert len(batch["length"]) * int(batch["length"].max()) <= 128
    assert {record.location.index for record in loader.quarantine()} == bad
    share = len(bad) / 500
    assert sum(1 for _ in load(data, max_bad=share, **options))
    with pytest.raises(TooManyBad):
        list(load(data, max_bad=share * 0.7, **options))


def test_an_error_comes_in_its_batchs_turn() -> None:
    """A batch that cannot be made comes after all batches before it, however many one job makes."""
    samples = [_datasets.photo(n, bad=n == 77) | {"length": int(LENGTHS[n])} for n in range(500)]
    whole = [batch["index"].tolist() for batch in load(shardio.from_samples(samples), fields=["length"], **BY_TOKENS)]
    place = next(place for place, batch in enumerate(whole) if 77 in batch)
    loop = iter(load(shardio.from_samples(samples), fields=["image", "length"], threads=2, **BY_TOKENS))
    assert [next(loop)["index"].tolist() for _ in range(place)] == whole[:place]
    with pytest.raises(BadSample, match="sample 77"):
        next(loop)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"give batch_size, .*, or max_tokens \(with bucket_by\), .*; got neither"),
        ({"bucket_by": "length"}, "got neither"),
        (BY_TOKENS | {"batch_size": 8}, "got both"),
        ({"max_tokens": 128}, "max_tokens needs bucket_by"),
        (BY_SIZE | {"batch_size": 0}, "batch_size must be at least 1, got 0"),
        (BY_TOKENS | {"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        (BY_TOKENS | {"max_tokens": 1 << 70}, r"max_tokens must be below 2\^62, got 1180591620717411303424"),
        (BY_TOKENS | {"max_tokens": "16k"}, "max_tokens must be an integer, got '16k'"),
        (BY_TOKENS | {"assign": "node"}, "assign must be 'rank' with bucket_by: .*, got 'node'"),
        (BY_SIZE | {"bucket_by": "nothing"}, "no field 'nothing'"),
        (BY_SIZE | {"bucket_by": 3}, "bucket_by must be the name of a field, got 3"),
        (
            {"bucket_by": "length", "max_tokens": 20},
            r"row \d+ \(sample \d+\) has \d+ tokens by length, and a batch holds at most max_tokens=20: .* where\(",
        ),
        (
            BY_TOKENS | {"bucket_by": "tokens", "max_tokens": 20},
            r"tokens by tokens, .*, or deliver parts with ",
        ),
        (
            BY_TOKENS | {"bucket_by": "tokens", "transforms": {"tokens": [shardio.PadTo(multiple_of=256)]}},
            "has 256 tokens by tokens in multiples of 256, and a batch holds at most max_tokens=128",
        ),
        (
            BY_TOKENS | {"max_tokens": 3000, "ranks": 40, "tail": "drop"},
            r"batches are fewer than 40 ranks; .*tail='pad'",
        ),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    """Each message names the rule and the value."""
    with pytest.raises(ConfigError, match=message):
        load(DATA, **options)


@pytest.mark.parametrize(
    ("values", "dtype", "message"),
    [
        ([1, -1], "int8", r"row 1 \(sample 1\): 'length' must be from 0 to 2147483647 to be a length, it is -1"),
        ([1, 2**40], "int64", "it is 1099511627776"),
        ([1, 2**63], "uint64", "it is 9223372036854775808"),
        ([1.0, 2.0], "float32", "'length' of .* is scalar, float32"),
        ([True, False], "bool", "'length' of .* is scalar, bool"),
        ([np.arange(3)] * 2, shardio.Field("array", "int64"), "bucket_by must name .*; 'length' of .* is array"),
        ([1, None], shardio.Field("scalar", "int16", optional=True), "sample 1 has no 'length'"),
    ],
)
def test_what_is_no_length_is_refused(values: list[Any], dtype: Any, message: str) -> None:
    """Lengths are integers that arrays may have."""
    data = shardio.from_samples([{"length": value} for value in values], {"length": dtype})
    with pytest.raises(ConfigError, match=message):
        load(data, **BY_TOKENS)


def test_a_pickled_loader_goes_on() -> None:
    """It holds arguments and state, and goes on where it stood."""
    loader = load(DATA, **BY_TOKENS)
    loop = iter(loader)
    for _ in range(3):
        next(loop)
    copy = pickle.loads(pickle.dumps(loader))  # noqa: S301  # our own
    assert [batch["index"].tolist() for batch in loop] == [batch["index"].tolist() for batch in copy]


def test_memory_is_as_large_as_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain loop goes round a few buffers, none of which is far larger than the largest batch."""
    made: list[int] = []
    empty = allocation.empty
    monkeypatch.setattr(allocation, "empty", lambda shape, dtype: [empty(shape, dtype), made.append(shape[0])][0])
    rows = [{"length": 1 + 63 * (n % 50 == 0), "array": np.full(1 << 18, n, np.uint8)} for n in range(200)]
    loader = load(shardio.from_samples(rows), bucket_by="length", max_tokens=64, threads=1, prefetch=1, device="cpu")
    for _ in range(3):
        for batch in loader:
            assert batch["array"][:, 0].tolist() == batch["index"].tolist()
    large = [size for size in made if size >= 1 << 18]
    assert max(large) == 64 << 18
    assert len(large) < 20


def photos(count: int, *, first: int = 0) -> shardio.Dataset:
    """Photos of many aspect ratios, half of them turned by EXIF."""
    sizes = np.random.default_rng(4).integers(8, 40, (first + count, 2)).tolist()
    files = (with_exif(jpeg(*sizes[n], seed=n), tiff(6 if n % 2 else 1)) for n in range(first, first + count))
    return shardio.from_samples([{"image": file} for file in files], shard_samples=17)


PHOTOS = photos(120)
VIEWS = {
    "photos": PHOTOS,
    "part": PHOTOS.select(np.random.default_rng(1).permutation(120)[:70]),
    "joined": shardio.concat({"one": PHOTOS[:50], "other": photos(40, first=120)}),
    "mixed": shardio.mix({"one": PHOTOS, "other": photos(40, first=120)}, {"one": 1, "other": 2}),
}


@given(
    name=st.sampled_from([*VIEWS]),
    batch_size=st.integers(1, 9),
    ranks=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    steps=st.lists(st.integers(1, 20), min_size=2, max_size=2),
    shuffle=st.sampled_from(["global", "block", None]),
    orient=st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_buckets_of_images_are_the_same_on_any_ranks(
    name: str, batch_size: int, ranks: list[int], steps: list[int], shuffle: Any, orient: bool
) -> None:
    """Stopped and resumed anywhere by other ranks, an epoch of images by aspect ratio is that of one rank."""
    options: dict[str, Any] = {"bucket_by": "image:aspect", "batch_size": batch_size, "orient": orient}
    options |= {"shuffle": shuffle, "block": 10, "window": 6}
    whole = _jobs.Job(VIEWS[name], 1, **options)
    whole.run()
    assert len(whole.samples) == len(VIEWS[name])
    state, delivered = None, []
    for size, count in zip(ranks, [*steps, None], strict=True):
        if state is None or state["epoch"] == 0:
            job = _jobs.Job(VIEWS[name], size, state=state, **options)
            state, delivered = job.run(count), delivered + job.samples
    assert delivered == whole.samples


@pytest.mark.parametrize("orient", [False, True])
def test_images_of_a_bucket_have_like_aspect_ratios(orient: bool) -> None:
    """Each window, here a quarter of the epoch, is cut by the ratio of width to height as images are delivered."""
    batches = [*load(PHOTOS, batch_size=5, bucket_by="image:aspect", orient=orient, shuffle=None)]
    for first in range(0, 24, 6):
        window = batches[first : first + 6]
        assert sorted(samples(window)) == list(range(5 * first, 5 * first + 30))
        ratios = [image.shape[1] / image.shape[0] for batch in window for image in batch["image"]]
        assert (np.diff(ratios) <= 1e-4).all()


def test_aspect_ratios_are_no_lengths() -> None:
    """They take batch_size, and a field of images; a state of stored images isn't that of upright ones."""
    for options, message in (
        ({"bucket_by": "image:aspect", "max_tokens": 100}, "max_tokens counts lengths, and 'image:aspect' are none"),
        ({"bucket_by": "picture:aspect", "batch_size": 4}, "no field 'picture'"),
        ({"bucket_by": "image", "batch_size": 4}, "or be 'NAME:aspect' for images; 'image'"),
    ):
        with pytest.raises(ConfigError, match=message):
            load(PHOTOS, **options)
    with pytest.raises(ConfigError, match="bucket_by='NAME:aspect' takes images; 'length' is scalar"):
        load(DATA, bucket_by="length:aspect", batch_size=4)
    state = load(PHOTOS, batch_size=4, bucket_by="image:aspect").state_dict()
    with pytest.raises(
        StateMismatch, match=r"'4 samples by image:aspect', this loader's is '4 .* image:aspect upright'"
    ):
        load(PHOTOS, batch_size=4, bucket_by="image:aspect", orient=True).load_state_dict(state)
