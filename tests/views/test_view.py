"""Views: samples chosen from a dataset, as a dataset that loaders read exactly."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio.errors import ConfigError, StateMismatch
from shardio.order.world import World
from shardio.views import index_map
from shardio.views.index_map import BitMap, NumberMap, RangeMap, of_mask
from shardio.views.view import BaseDataset

COUNT = 60
DATA = shardio.from_samples(
    [{"n": n, "label": n % 5, "key": f"{'val' if n % 4 == 0 else 'train'}/{n}"} for n in range(COUNT)], shard_samples=7
)


@st.composite
def stacks(draw: Any) -> tuple[BaseDataset, list[Any]]:
    """A random stack of views over DATA, and the samples that it should have, of windows the rows."""
    view: BaseDataset = DATA
    expected: list[Any] = list(range(COUNT))
    kinds = ["slice", "select", "mask", "where", "windows"]
    for _ in range(draw(st.integers(0, 3))):
        match draw(st.sampled_from(kinds)):
            case "slice":
                bound = st.none() | st.integers(-len(expected) - 2, len(expected) + 2)
                chosen = slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, -1, -3])))
                view, expected = view[chosen], expected[chosen]
            case "select":
                numbers = draw(st.lists(st.integers(0, len(expected) - 1), max_size=80)) if expected else []
                view, expected = view.select(numbers), [expected[number] for number in numbers]
            case "mask":
                mask = draw(st.lists(st.booleans(), min_size=len(expected), max_size=len(expected)))
                view = view.select(np.array(mask, np.bool_))
                expected = [number for number, there in zip(expected, mask, strict=True) if there]
            case "where":
                label = draw(st.integers(0, 5))
                view = view.where(f"label < {label} and n != 7 or key.startswith('val/1')")
                expected = [
                    n for n in expected if (n % 5 < label and n != 7) or (n % 4 == 0 and str(n).startswith("1"))
                ]
            case "windows":
                length, stride = draw(st.integers(1, 5)), draw(st.integers(1, 6))
                view = view.windows(length, stride=stride, within="dataset")
                starts = range(0, len(expected) - length + 1, stride)
                expected = [expected[start : start + length] for start in starts]
                kinds = ["slice", "select", "mask"]
    return view, expected


@given(stacks())
def test_a_stack_of_views_holds_what_its_choices_say(stack: Any) -> None:
    """Samples, numbers and origins are those of the choices, one after the other."""
    view, expected = stack
    assert len(view) == len(expected)
    assert view.read(range(len(view)), ["n"])["n"].tolist() == expected
    assert view.origin(range(len(view))).tolist() == expected
    if expected:
        assert np.array_equal(view[-1]["n"], expected[-1])
        assert view.locate(len(view) - 1).index == len(view) - 1


@settings(max_examples=30)
@given(stacks(), st.integers(1, 4), st.integers(1, 9), st.sampled_from(["global", "block", None]), st.data())
def test_an_epoch_is_the_view_over_any_ranks(stack: Any, size: int, batch: int, shuffle: Any, data: Any) -> None:
    """The ranks together deliver the view as a multiset, and resume anywhere with another world."""
    view, expected = stack
    if not expected:
        with pytest.raises(ConfigError, match="at least one sample"):
            shardio.Loader(view, 1, threads=1)
        return

    def loaders(world: int, batch_size: int) -> list[shardio.Loader]:
        options: dict[str, Any] = {"shuffle": shuffle, "block": 3, "window": 2, "tail": "pad", "threads": 1}
        return [shardio.Loader(view, batch_size, world=World(r, world), **options) for r in range(world)]

    def take(parts: list[shardio.Loader], steps: int | None = None) -> tuple[list[Any], Any]:
        got: list[Any] = []
        state = None
        for loader in parts:
            for step, delivered in enumerate(loader):
                got += delivered["n"][delivered["valid"]].tolist()
                assert (view.origin(delivered["index"].numpy()) == delivered["n"].numpy()).all()
                if step + 1 == steps:
                    state = loader.state_dict()
                    break
        return got, state

    ranks = loaders(size, batch)
    got, _ = take(ranks)
    assert sorted(got) == sorted(expected)
    steps = len(ranks[0])
    if steps > 1:
        before, state = take(loaders(size, batch), data.draw(st.integers(1, steps - 1)))
        others = loaders(data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9)))
        for loader in others:
            loader.load_state_dict(state)
        after, _ = take(others)
        assert sorted(before + after) == sorted(expected)


@given(stacks(), stacks())
def test_digests_differ_where_contents_do(one: Any, other: Any) -> None:
    """Views of one digest hold the same samples; a pickled view is the same view."""
    if one[1] != other[1]:
        assert one[0].digest != other[0].digest
    copied = pickle.loads(pickle.dumps(one[0]))  # noqa: S301  # our own
    assert copied.digest == one[0].digest
    assert copied.read(range(len(copied)), ["n"])["n"].tolist() == one[1]


def test_names_of_classes_count_in_a_digest() -> None:
    """Equal samples whose classes have other names give other views by name, and so other digests."""
    rows = [{"label": n % 2} for n in range(6)]
    one, other = (shardio.from_samples(rows, metadata={"classes": names}) for names in (["a", "b"], ["b", "a"]))
    assert one.digest == other.digest
    assert one.where("label == 'a'").digest != other.where("label == 'a'").digest
    assert one.where("label == 1").digest == other.where("label == 1").digest


def test_slices_take_whole_numbers_of_any_type_and_size() -> None:
    """Bounds of NumPy's types and ones far outside are those of a list, and a digest names them."""
    assert DATA[np.int64(3) :: np.int8(9)].digest == DATA[3::9].digest
    for chosen in (slice(None, None, 10**30), slice(None, None, -(10**30)), slice(-(10**30), 10**30)):
        view = DATA[chosen]
        assert view.read(range(len(view)), ["n"])["n"].tolist() == [*range(COUNT)][chosen]


def test_a_state_belongs_to_its_view() -> None:
    """The state of one view is refused by another one, with both digests."""
    state = shardio.Loader(DATA[:30], 4, threads=1).state_dict()
    with pytest.raises(StateMismatch, match=r"the state's digest is 'view:.*', this loader's is 'view:"):
        shardio.Loader(DATA[:31], 4, threads=1).load_state_dict(state)


def test_repeats_are_augmented_differently() -> None:
    """A sample that comes twice draws other random choices each time."""
    pixels = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)
    field = shardio.Field("pixels", shape=(64, 64), channels=3)
    data = shardio.from_samples([{"image": pixels}], {"image": field})
    loader = shardio.Loader(data.select([0, 0]), 2, transforms=[shardio.RandomCrop(8)], shuffle=None, threads=1)
    one, other = next(iter(loader))["image"]
    assert not (one == other).all()


@pytest.mark.parametrize("share", [0, 0.001, 0.01, 0.3, 0.9, 1])
@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 100_000])
def test_a_mask_becomes_the_smallest_map(count: int, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The map of a mask, given in parts, finds every chosen sample, in at most a bit and an eighth per sample."""
    monkeypatch.setattr(index_map, "_FEW_BYTES", 0)
    mask = np.random.default_rng(count).random(count) < share
    chosen, expected = of_mask(np.array_split(mask, 3)), np.flatnonzero(mask)
    assert chosen(np.arange(len(chosen))).tolist() == expected.tolist()
    for samples in {0, 1, count // 2, count}:
        assert chosen.leading(samples) == np.count_nonzero(expected < samples)
    match chosen:
        case BitMap():
            assert chosen.bits.nbytes + chosen.counts.nbytes <= count * 9 / 64 + 80
        case NumberMap():
            assert chosen.numbers.nbytes == 8 * len(expected)
        case _:
            assert isinstance(chosen, RangeMap)


@pytest.mark.parametrize(
    ("choose", "error", "message"),
    [
        (lambda: DATA.select([0, COUNT]), IndexError, r"index must be in \[0, 60\), got 60"),
        (lambda: DATA.select([True, False]), ConfigError, r"a mask for select must have 60 values, got \[2\]"),
        (lambda: DATA.select([0.5]), ConfigError, "indices must be whole numbers, got float64"),
        (lambda: DATA[::0], ConfigError, "slice step cannot be zero"),
        (lambda: DATA["a":], ConfigError, "not a slice of samples"),
        (lambda: DATA.where("missing > 3"), ConfigError, "missing"),
        (lambda: DATA.where(np.ones(COUNT)), ConfigError, "a condition is text, such as 'label < 10', got ndarray"),
        (lambda: DATA.select(np.array([2**64 - 1], np.uint64)), IndexError, "no sample has the number 18446744073709"),
        (lambda: DATA.origin([0.5]), ConfigError, "indices must be whole numbers, got float64"),
        (lambda: shardio.concat({1: DATA}), ConfigError, "the name of a source must be text, got 1"),  # type: ignore[dict-item]
        (lambda: DATA[:5][9], IndexError, r"index must be in \[0, 5\), got 9"),
    ],
)
def test_wrong_choices_are_refused(choose: Any, error: type[Exception], message: str) -> None:
    """A choice that doesn't fit its dataset is an error when it is made."""
    with pytest.raises(error, match=message):
        choose()
