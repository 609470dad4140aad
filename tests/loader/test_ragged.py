"""Values of several lengths in a batch: lists, PadTo, Ragged, RandomWindow, and the transforms of arrays."""

from functools import partial
from pathlib import Path
from typing import Any

import _datasets
import numpy as np
import pytest
import torch
from _datasets import packed
from _device import device as device
from _jobs import same
from numpy.typing import NDArray

import shardio
from shardio.errors import BadSample, ConfigError, MapError, ShardCorrupt
from shardio.loader.batch.job import job_size
from shardio.loader.batch.spec import BatchOptions, DeviceOptions, batch_spec

LENGTHS = (3, 0, 1, 8, 5, 2, 7, 4, 6, 1, 9, 3, 2, 0, 5, 6)
FIELDS: Any = {"points": ("float32", (None, 3)), "tokens": ("uint16", (None,)), "scan": ("int16", (None, None, None))}
load = partial(_datasets.load, batch_size=4, seed=3)
lone = pytest.mark.filterwarnings("ignore:field 'tokens' holds rows of torch.uint16")


def sample(number: int) -> dict[str, Any]:
    """Points and tokens of the sample's length, and a scan of a shape of its own; the values tell where they were."""
    length = LENGTHS[number]
    shape = (4 + length, 5 + number % 3, 6)
    return {
        "points": (100 * number + np.arange(3 * length, dtype=np.float32)).reshape(length, 3),
        "tokens": (10 * number + np.arange(length)).astype(np.uint16),
        "scan": (1000 * number + np.arange(np.prod(shape)) % 1000).astype(np.int16).reshape(shape),
    }


def sequences(place: Path | None = None, fields: Any = FIELDS, **options: Any) -> Any:
    """A dataset of one `sample` for each length."""
    return packed(place, [{name: sample(n)[name] for name in fields} for n in range(len(LENGTHS))], fields, **options)


def padded(values: list[NDArray[Any]], length: int, value: float, side: str) -> NDArray[Any]:
    """Pad values, none of which is longer than the given length, as PadTo does."""
    out = np.full((len(values), length, *values[0].shape[1:]), value, values[0].dtype)
    for row, each in zip(out, values, strict=True):
        row[slice(0, len(each)) if side == "right" else slice(length - len(each), length)] = each
    return out


@lone
@pytest.mark.parametrize("container", ["memory", "tar", "hdf5", "lmdb"])
@pytest.mark.parametrize("options", [{}, {"verify": True}, {"shuffle": "block", "block": 4, "window": 2}])
def test_each_container_delivers_what_was_stored(container: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Without a transform a field is a list of tensors; PadTo and Ragged hold the same numbers."""
    data = sequences(tmp_path / "d", container=container)
    names = {"points": "points", "tokens": "tokens", "padded": "tokens", "flat": "points"}
    transforms = {"padded": [shardio.ToInt64(), shardio.PadTo(value=-1)], "flat": [shardio.Ragged()]}
    seen = []
    for batch in load(data, fields=names, transforms=transforms, **options):
        stored = [sample(number) for number in batch["index"].tolist()]
        seen += batch["index"].tolist()
        lengths = [len(each["tokens"]) for each in stored]
        for name in ("points", "tokens"):
            assert [value.tolist() for value in batch[name]] == [each[name].tolist() for each in stored]
        tokens = [each["tokens"].astype(np.int64) for each in stored]
        assert (batch["padded"].dtype, batch["padded_length"].dtype) == (torch.int64, torch.int64)
        assert batch["padded"].tolist() == padded(tokens, max(lengths), -1, "right").tolist()
        assert batch["padded_length"].tolist() == lengths
        assert batch["flat"].tolist() == np.concatenate([each["points"] for each in stored]).tolist()
        assert batch["flat_offsets"].tolist() == np.cumsum([0, *lengths]).tolist()
    assert sorted(seen) == list(range(len(LENGTHS)))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    ("options", "length", "kept"),
    [
        ({}, None, slice(None)),  # the longest value of the batch
        ({"multiple_of": 4}, None, slice(None)),
        ({"multiple_of": 1000}, None, slice(None)),  # rows of more bytes than are padded together
        ({"length": 9}, 9, slice(None)),
        ({"length": 9, "multiple_of": 8}, 16, slice(None)),
        ({"length": 3, "cut": "end"}, 3, slice(0, 3)),
        ({"length": 3, "cut": "start", "multiple_of": 2}, 4, slice(-3, None)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", None])
def test_padding(options: dict[str, Any], length: int | None, kept: slice, side: Any, dtype: Any) -> None:
    """Values stand at one side, cut off at one end, and numbers of any dtype fill the rest."""
    conversion = [] if dtype is None else [shardio.ToFloat(dtype)]
    rule = shardio.PadTo(value=-2.5, side=side, **options)
    for batch in load(sequences(fields={"points": FIELDS["points"]}), transforms=[*conversion, rule]):
        values = [sample(number)["points"][kept] for number in batch["index"].tolist()]
        lengths = list(map(len, values))
        longest = max(lengths) if length is None else length
        size = -(-longest // options.get("multiple_of", 1)) * options.get("multiple_of", 1)
        assert batch["points"].dtype == getattr(torch, dtype or "float32")
        assert torch.equal(
            batch["points"], torch.from_numpy(padded(values, size, -2.5, side)).to(batch["points"].dtype)
        )
        assert batch["points_length"].tolist() == lengths


@pytest.mark.parametrize("options", [{}, {"threads": 1, "isolate": True}])
def test_nested_tensors(options: dict[str, Any], device: str) -> None:
    """Ragged(nested=True) delivers a jagged tensor, also from processes and on a device."""
    rule = {"points": [shardio.Ragged(nested=True)]}
    for where in ({}, {"device": device}):
        for batch in load(sequences(), fields=["points"], transforms=rule, **where, **options):
            assert batch["points"].layout == torch.jagged
            assert [each.tolist() for each in batch["points"].unbind()] == [
                sample(number)["points"].tolist() for number in batch["index"].tolist()
            ]
            assert "points_offsets" not in batch


def test_a_window_longer_than_any_value_keeps_all() -> None:
    """However large the number is."""
    data = packed(None, [{"x": np.ones(n, np.float32)} for n in (2, 0)], {"x": ("float32", (None,))})
    transforms = {"x": [shardio.RandomWindow(1 << 70), shardio.PadTo(value=-np.inf)]}
    (batch,) = load(data, batch_size=2, shuffle=None, transforms=transforms)
    assert batch["x"].tolist() == [[1, 1], [-np.inf, -np.inf]]


@pytest.mark.parametrize("axes", [-1, -2])
@pytest.mark.parametrize("then", [[shardio.PadTo()], [shardio.Ragged()], []])
def test_a_flip_of_one_entry_changes_nothing(then: Any, axes: int) -> None:
    """Values of one entry and of none are delivered reversed as well, by whatever joins them."""
    values = [np.arange(length, dtype=np.float32).reshape(length, 1) for length in (1, 0, 1, 2)]
    data = packed(None, [{"x": value} for value in values], {"x": ("float32", (None, 1))})
    transforms = {"x": [shardio.RandomAxisFlip(1.0, axes), *then]}
    for batch in load(data, batch_size=1, transforms=transforms):
        value = values[int(batch["index"])]
        assert np.array_equal(batch["x"][0] if not then else batch["x"].reshape(value.shape), np.flip(value, axes))


EVERY: Any = {
    "points": [shardio.RandomWindow(4), shardio.Normalize((1.0, 2.0, 3.0), 2.0), shardio.PadTo(6, value=-1)],
    "tokens": [shardio.ToInt64(), shardio.PadTo(multiple_of=4)],
    "flat": [shardio.RandomAxisFlip(axes=-2), shardio.Ragged()],
    "scan": [shardio.RandomSpatialCrop((4, 4, 4)), shardio.RandomRotate90()],
    "whole": [shardio.RandomSpatialCrop(4), shardio.ToFloat()],
}
NAMES = {"points": "points", "tokens": "tokens", "flat": "points", "scan": "scan", "whole": "scan"}


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 1},
        {"threads": 4},
        pytest.param({"threads": 2, "isolate": True}, marks=pytest.mark.slow),
        {"device": True},
        {"map": dict},
        {"map": dict, "map_by": "sample"},
        pytest.param({"map": dict, "map_by": "sample", "isolate": True, "threads": 1}, marks=pytest.mark.slow),
        {"verify": True},
    ],
)
def test_whoever_makes_a_batch_makes_the_same(options: dict[str, Any], device: str, tmp_path: Path) -> None:
    """Threads, processes, a device, checksums and a function that changes nothing give the same batches."""
    data = sequences(tmp_path / "d", container="hdf5")
    options = {**options, **({"device": device} if "device" in options else {})}
    expected = list(load(data, fields=NAMES, transforms=EVERY, threads=1))
    assert same(list(load(data, fields=NAMES, transforms=EVERY, **options)), expected)
    resumed = load(data, fields=NAMES, transforms=EVERY, **options)
    batches = iter(resumed)
    next(batches)
    state = resumed.state_dict()
    del batches
    other = load(data, fields=NAMES, transforms=EVERY, **options)
    other.load_state_dict(state)
    assert same(list(other), expected[1:])


MOVES: Any = [
    [shardio.RandomSpatialCrop((4, 5))],
    [shardio.RandomSpatialCrop(3)],
    [shardio.CenterSpatialCrop((2, 4, 3))],
    [shardio.RandomWindow(3)],
    [shardio.RandomWindow(4), shardio.RandomAxisFlip(0.5, (-1, -3)), shardio.RandomWindow(2)],
    [shardio.RandomRotate90(axes=(-3, -2)), shardio.RandomSpatialCrop((4, 4, 4)), shardio.Normalize(3.0, 2.0)],
    [shardio.RandomAxisFlip(), shardio.ToFloat("bfloat16")],
    [shardio.ToInt64()],
    [shardio.RandomRow(), shardio.RandomAxisFlip(), shardio.Normalize(3.0, 2.0)],
]


@pytest.mark.parametrize(
    ("shape", "transforms"),
    [(shape, each) for each in MOVES for shape in [(None, 6, 7), (None, None, None), (6, None, 7)]]
    + [(None, each) for each in MOVES[1:3] + MOVES[5:]],  # the others say that arrays of any shape have fewer axes
)
def test_arrays_of_one_shape_give_the_same_however_they_are_stored(transforms: Any, shape: Any) -> None:
    """Draws and results are those of a field of one shape, as tensors or as a list."""
    arrays = [{"x": (np.arange(252) + number).astype(np.int16).reshape(6, 6, 7)} for number in range(8)]
    stored = shardio.Field("array", "int16", shape)
    for options in ({}, {"threads": 3}):
        plain = load(shardio.from_samples(arrays, {"x": ("int16", (6, 6, 7))}), transforms=transforms, **options)
        ragged = load(shardio.from_samples(arrays, {"x": stored}), transforms=transforms, **options)
        for one, other in zip(plain, ragged, strict=True):
            found = other["x"] if isinstance(other["x"], torch.Tensor) else torch.stack(other["x"])
            assert torch.equal(one["x"], found)


@pytest.mark.parametrize("shape", [(None, None, None), None])
def test_a_crop_of_all_axes_makes_one_tensor_of_scans(shape: Any) -> None:
    """Blocks of one size are one tensor, whether the dataset says how many axes there are or the crop does."""
    data = sequences(fields={"scan": {"kind": "array", "dtype": "int16", "shape": shape}})
    seen = 0
    for batch in load(data, transforms=[shardio.RandomSpatialCrop((4, 4, 5))]):
        assert batch["scan"].shape == (4, 4, 4, 5)
        for number, block in zip(batch["index"].tolist(), batch["scan"].numpy(), strict=True):
            scan = sample(number)["scan"]
            places = np.lib.stride_tricks.sliding_window_view(scan, block.shape).reshape(-1, *block.shape)
            assert (places == block).all(axis=(1, 2, 3)).any()
            seen += 1
    assert seen == len(LENGTHS)


def test_a_window_is_read_and_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """RandomWindow as the first transform reads its entries alone, and each name draws windows of its own."""
    long = [{"x": np.arange(10_000, dtype=np.int32)} for _ in range(8)]
    data = shardio.from_samples(long, {"x": ("int32", (None,))})
    loader = load(data, fields={"a": "x", "b": "x"}, transforms={n: [shardio.RandomWindow(50)] for n in "ab"})
    for batch in loader:
        for name in "ab":
            assert batch[name].shape == (4, 50)
            assert (batch[name] - batch[name][:, :1]).tolist() == [list(range(50))] * 4
        assert batch["a"].tolist() != batch["b"].tolist()
    assert loader.stats().bytes == 2 * len(long) * 50 * 4


def test_large_batches_are_made_one_by_one(tmp_path: Path) -> None:
    """What padding or long values take counts where the batches that are made together are chosen."""
    rows = [{"points": np.zeros((10**5, 3), np.float32)}] * 4
    long = packed(tmp_path / "d", rows, {"points": FIELDS["points"]}, container="hdf5")
    for data, rule, batches in (
        (sequences(), shardio.PadTo(16), 32),
        (sequences(), shardio.PadTo(10**5), 1),
        (long, shardio.PadTo(), 1),
    ):
        spec = batch_spec(data, BatchOptions(("points",), {"points": [rule]}), DeviceOptions())
        assert job_size(spec, 8, threads=2).batches == batches


def test_small_crops_of_large_arrays_are_made_together() -> None:
    """A crop counts as what is read of it, so that tasks have many; with `verify=True` the whole array counts."""
    data = packed(None, [{"field": np.zeros((721, 1440), np.float32)}], {"field": ("float32", (721, 1440))})
    crop = {"field": [shardio.RandomSpatialCrop((64, 64))]}
    for verify, samples in ((False, 256), (True, 7)):
        spec = batch_spec(data, BatchOptions(("field",), crop, verify=verify), DeviceOptions())
        assert job_size(spec, 64, threads=2).task_samples == pytest.approx(samples, rel=0.3)


def test_names_of_one_field_share_no_memory() -> None:
    """What is written into one name's tensors does not show in another's."""
    names = dict.fromkeys("abc", "points")
    for batch in load(sequences(), fields=names, transforms={"c": [shardio.Ragged()]}):
        for value in batch["a"]:
            value.zero_()
        stored = [sample(number)["points"] for number in batch["index"].tolist()]
        assert [value.tolist() for value in batch["b"]] == [value.tolist() for value in stored]
        assert batch["c"].tolist() == np.concatenate(stored).tolist()


@pytest.mark.parametrize("by", [None, "batch", "sample"])
def test_missing_and_masked_values_have_no_entries(by: Any) -> None:
    """A missing value has length 0, and `_present` says so; a masked one has length 0 too."""
    rows = [{"x": None if n % 3 == 0 else np.full(n, n, np.int32), "label": n} for n in range(8)]
    rows[5]["x"] = np.full(40, 5, np.int32)  # longer than PadTo takes
    field = shardio.Field("array", "int32", (None,), optional=True)
    data: Any = shardio.from_samples(rows, {"x": field, "label": "int64"})
    names = dict.fromkeys(("fixed", "longest", "flat", "window", "plain"), "x") | {"label": "label"}
    transforms = {
        "fixed": [shardio.PadTo(9, value=-1)],
        "longest": [shardio.PadTo(value=-1)],
        "flat": [shardio.Ragged()],
        "window": [shardio.RandomWindow(1)],
    }
    mapped = {} if by is None else {"map": lambda batch: dict(batch), "map_by": by}
    options: Any = {"on_bad_sample": "mask", "shuffle": None, **mapped}
    if by == "sample":  # a function may shorten values, so that they are joined after it
        data = data.select([0, 1, 2, 3, 4, 6, 7, 7])
    for batch in load(data, fields=names, transforms=transforms, **options):
        valid = batch["valid"].tolist()
        there = [ok and label % 3 > 0 for ok, label in zip(valid, batch["label"].tolist(), strict=True)]
        lengths = [label if ok else 0 for ok, label in zip(there, batch["label"].tolist(), strict=True)]
        for name in ("fixed", "longest"):
            assert batch[f"{name}_length"].tolist() == lengths
            assert [row[n:].unique().tolist() for row, n in zip(batch[name], lengths, strict=True) if n < len(row)] == [
                [-1] for n in lengths if n < batch[name].shape[1]
            ]
        assert batch["flat_offsets"].diff().tolist() == lengths
        assert batch["window"][:, 0].tolist() == lengths
        for name in ("fixed", "longest", "flat", "window"):
            assert batch[f"{name}_present"].tolist() == there
        assert [value is None for value in batch["plain"]] == [
            ok and label % 3 == 0 for ok, label in zip(valid, batch["label"].tolist(), strict=True)
        ]


def test_a_function_gets_what_will_be_joined() -> None:
    """By batch it gets joined fields, by sample single values, and what it returns is joined by the same rule."""
    transforms = {"points": [shardio.PadTo(12)], "tokens": [shardio.ToInt64(), shardio.Ragged()]}

    def by_batch(batch: dict[str, Any]) -> dict[str, Any]:
        assert batch["points"].shape[1] == 12
        return {"sum": batch["points"].sum(dim=(1, 2)), "n": batch["points_length"], "t": batch["tokens_offsets"]}

    def doubled(row: dict[str, Any]) -> dict[str, Any]:
        return {"points": row["points"].repeat(2, 1)[:12], "tokens": row["tokens"][:1].numpy()}

    for batch in load(sequences(), fields=["points", "tokens"], transforms=transforms, map=by_batch):
        assert batch["n"].tolist() == batch["t"].diff().tolist()
    for batch in load(sequences(), fields=["points", "tokens"], transforms=transforms, map=doubled, map_by="sample"):
        lengths = [LENGTHS[number] for number in batch["index"].tolist()]
        assert batch["points"].shape == (4, 12, 3)
        assert batch["points_length"].tolist() == [min(12, 2 * n) for n in lengths]
        assert batch["tokens_offsets"].diff().tolist() == [min(1, n) for n in lengths]
    points = {"points": FIELDS["points"]}
    for wrong in (lambda row: {"points": 3}, lambda row: {"points": row["points"].repeat(9, 1)}):
        with pytest.raises(MapError, match=r"map function (must give|gave) 'points'"):
            list(load(sequences(fields=points), transforms=[shardio.PadTo(12)], map=wrong, map_by="sample"))


@pytest.mark.parametrize(
    ("field", "transforms", "message"),
    [
        ("points", [shardio.RandomWindow(6)], r"row \d+ .*'points': a window of 6 entries is not in .*\(5, 3\)"),
        ("points", [shardio.PadTo(4)], r"row \d+ .*'points': has 5 entries, PadTo takes 4"),
        ("points", [shardio.RandomSpatialCrop((6, 2))], r"'points': a block of \(6, 2\) is not in .*\(5, 3\)"),
        ("scan", [shardio.RandomRotate90()], r"'scan': RandomRotate90 needs axes of one size, .* are \(5, 6\)"),
        ("any", [shardio.RandomSpatialCrop((2, 2))], r"'any': the transforms take arrays of shape \(None, None\), got"),
        ("any", [shardio.PadTo()], r"'any': the transforms take arrays of shape \(None,\), got"),
        ("tokens", [shardio.PadTo()], r"'tokens': token 44 is not in the vocabulary, which has 44 tokens"),
        ("tokens", [], r"'tokens': token 44 is not in the vocabulary"),
    ],
)
@lone
def test_what_transforms_do_not_take_is_a_bad_sample(field: str, transforms: Any, message: str) -> None:
    """A value that is too short or long, or has another shape, or a token that is unknown, is named by its row."""
    good, odd = sample(10), sample(4)  # of 9 and 5 entries
    good["scan"], good["tokens"] = np.zeros((9, 6, 6), np.int16), good["tokens"] % 44
    usual = (4,) if transforms == [shardio.PadTo()] else (4, 4)
    rows = [{**good, "any": np.zeros(usual)} for _ in range(7)]
    rows[3] = {**odd, "scan": odd["scan"][:, :5], "any": np.zeros((4, 4, 4))}
    if transforms == [shardio.PadTo(4)]:
        rows = [{**row, "points": row["points"][:4]} for row in rows]
        rows[3]["points"] = odd["points"]
    fields: Any = FIELDS | {"tokens": shardio.Field("array", "uint16", (None,), attributes={"vocabulary": 44})}
    data = shardio.from_samples(rows, fields | {"any": {"kind": "array", "dtype": "float64"}}, shard_samples=4)
    with pytest.raises(BadSample, match=message):
        list(load(data, batch_size=7, fields=[field], transforms={field: transforms}))
    loader = load(
        data, batch_size=7, fields=[field], transforms={field: transforms}, on_bad_sample="mask", shuffle=None
    )
    (batch,) = loader
    assert batch["valid"].tolist() == [number != 3 for number in range(7)]
    ((record),) = loader.quarantine()
    assert (record.location.index, record.location.row) == (3, 3)


@pytest.mark.parametrize("container", ["memory", "tar", "hdf5", "lmdb"])
def test_a_value_may_not_be_larger_than_the_limit(container: str, tmp_path: Path) -> None:
    """A value of more than max_value_bytes is a bad sample."""
    with pytest.raises(BadSample, match=r"'points'.*: 108 bytes are claimed, max_value_bytes allows 100"):
        list(load(sequences(tmp_path / "d", container=container), fields=["points"], max_value_bytes=100))


@pytest.mark.parametrize(
    ("field", "transforms", "message"),
    [
        ("tokens", [shardio.PadTo(value=-1)], "for 'tokens': PadTo's value must be one that uint16 holds, got -1"),
        ("tokens", [shardio.PadTo(value=0.5)], "must be one that uint16 holds, got 0.5"),
        ("points", [shardio.PadTo(value=1e300)], r"must be one that float32 holds, got 1e\+300"),
        (
            "points",
            [shardio.ToFloat("float16"), shardio.PadTo(value=1e6)],
            "must be one that float16 holds, got 1000000",
        ),
        ("points", [shardio.ToFloat("bfloat16"), shardio.PadTo(value=10**400)], "must be one that bfloat16 holds"),
        ("points", [shardio.PadTo(), shardio.ToFloat()], "transform 0: PadTo must come last"),
        ("points", [shardio.PadTo(), shardio.Ragged()], "transform 0: PadTo must come last, and once"),
        (
            "scan",
            [shardio.PadTo()],
            r"PadTo takes arrays whose first axis, .* got arrays of shape \(None, None, None\)",
        ),
        ("fixed", [shardio.Ragged()], r"Ragged takes arrays whose first axis, .* got arrays of shape \(4,\)"),
        ("fixed", [shardio.RandomWindow(5)], r"a window of 5 entries is not in arrays of shape \(4,\)"),
        ("points", [shardio.Normalize((1.0, 2.0), 1.0)], "mean must have 1 or 3 numbers, got 2: .* the second axis"),
        (
            "scan",
            [shardio.Normalize((1.0, 2.0), 1.0)],
            "mean must have 1 number, got 2: the number of channels .* unknown",
        ),
        ("points", [shardio.RandomSpatialCrop((2, 4))], r"a block of \(2, 4\) is not in arrays of shape \(None, 3\)"),
        ("points", [shardio.CenterCrop(2)], "transform 0 must be a shardio array transform"),
        ("fixed", [shardio.PadTo()], "PadTo takes arrays whose first axis"),
    ],
)
def test_fields_that_do_not_suit_are_refused(field: str, transforms: Any, message: str) -> None:
    """What the field's shape and dtype rule out is an error of the loader."""
    data = packed(None, [sample(n) | {"fixed": np.zeros(4)} for n in range(8)], FIELDS | {"fixed": ("float64", (4,))})
    with pytest.raises(ConfigError, match=message):
        load(data, transforms={field: transforms})


def test_a_column_that_is_added_clashes_with_no_other() -> None:
    """A field called like the lengths of another one is an error that says what to do."""
    fields: Any = {"x": ("int32", (None,)), "x_length": "int64"}
    data = shardio.from_samples([{"x": np.zeros(1, np.int32), "x_length": 1}] * 4, fields)
    with pytest.raises(ConfigError, match=r"PadTo adds the column 'x_length'.*deliver 'x' under another name"):
        load(data, transforms={"x": [shardio.PadTo()]})


def test_views_pad_as_datasets_do(tmp_path: Path) -> None:
    """Choices, joined datasets, mixtures and weighted views deliver their samples' values."""
    fields: Any = {"points": FIELDS["points"], "n": "int64"}
    rows = [{"points": sample(n)["points"], "n": n} for n in range(len(LENGTHS))]
    one, two = packed(None, rows, fields), packed(tmp_path / "d", rows, fields, container="hdf5")
    transforms = {"points": [shardio.PadTo(multiple_of=2)]}
    data: Any
    for data in (
        one.where("n > 3"),
        shardio.concat({"a": one, "b": two.select(range(5))}),
        shardio.mix({"a": one, "b": two}, weights={"a": 1, "b": 2}),
        two.weighted([1.0 + n for n in range(len(LENGTHS))]),
    ):
        for batch in load(data, transforms=transforms):
            values = [sample(number)["points"] for number in batch["n"].tolist()]
            assert batch["points_length"].tolist() == list(map(len, values))
            longest = max(map(len, values))
            assert batch["points"].tolist() == padded(values, longest + longest % 2, 0, "right").tolist()


def test_a_torch_dataset_pads_to_a_length() -> None:
    """A sample is padded to a given length; what only a batch has is refused."""
    transforms: Any = {"points": [shardio.PadTo(12)], "scan": [shardio.RandomSpatialCrop((4, 4, 4))]}
    fields = ["points", "scan"]
    data = shardio.TorchDataset(sequences(), fields=fields, transforms=transforms)
    batches = torch.utils.data.DataLoader(data, batch_size=4)
    for batch in batches:
        assert (batch["points"].shape, batch["scan"].shape) == ((4, 12, 3), (4, 4, 4, 4))
        assert batch["points_length"].tolist() == [LENGTHS[number] for number in batch["index"].tolist()]
    with pytest.raises(ConfigError, match="'points': a TorchDataset delivers samples"):
        shardio.TorchDataset(sequences(), transforms={"points": [shardio.PadTo()]})


def test_damage_is_found(tmp_path: Path) -> None:
    """With verify, a token that has changed on disk makes its sample bad, which is also masked."""
    data = sequences(tmp_path / "d", fields={"tokens": FIELDS["tokens"]}, container="lmdb", shard_size="1GB")
    (path,) = (tmp_path / "d").glob("*.lmdb")
    content = path.read_bytes()
    stored = sample(10)["tokens"].tobytes()
    assert content.count(stored) == 1
    path.write_bytes(content.replace(stored, stored[:-1] + b"\x01"))
    data = shardio.open(tmp_path / "d")
    transforms = {"tokens": [shardio.ToInt64(), shardio.PadTo()]}
    with pytest.raises(ShardCorrupt, match="checksum"):
        list(load(data, transforms=transforms, verify=True))
    loader = load(data, transforms=transforms, verify=True, on_bad_sample="mask")
    valid = {n: v for batch in loader for n, v in zip(batch["index"].tolist(), batch["valid"].tolist(), strict=True)}
    assert [number for number, ok in valid.items() if not ok] == [10]
