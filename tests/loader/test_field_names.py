"""Fields under names of their own: one stored field under several, each with its transforms and its set of draws."""

import pickle
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _builders import encode, jpeg, spoiled
from _datasets import CONTAINERS, load, packed
from _device import device as device
from _masks import grey_png
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import shardio
from shardio import Field, World
from shardio.dataset.selection import Selection
from shardio.errors import ConfigError
from shardio.transforms import RandomGenerator
from shardio.transforms.random_generator import RandomKeys

N = 24
FIELDS: dict[str, Any] = {
    "image": "image",
    "mask": Field("image", role="mask"),
    "thumb": Field("pixels", shape=(12, 12)),
    "grid": ("float32", (1, 9, 8)),
    "count": ("int32", (3,)),
    "points": Field("array", dtype="int32"),
    "label": "int64",
    "caption": "text",
    "blob": "bytes",
    "meta": "json",
    "shot": Field("image", optional=True),
    "score": Field("scalar", dtype="float32", optional=True),
    "note": Field("text", optional=True),
    "track": Field("array", dtype="int16", optional=True),
}
CROP = [shardio.RandomResizedCrop(8), shardio.RandomHorizontalFlip()]
BLOCK = [shardio.RandomSpatialCrop((1, 5, 5)), shardio.RandomAxisFlip(0.5, (-2, -1))]
TRANSFORMS: dict[str, list[Any]] = {
    "image": [*CROP, shardio.ColorJitter(0.4, 0.4, 0.4), shardio.ToFloat(), shardio.RandomErasing(0.5)],
    "mask": CROP,
    "thumb": [shardio.RandomCrop(8), shardio.RandomHorizontalFlip()],
    "grid": [*BLOCK, shardio.Normalize(2, 3)],
    "points": [shardio.ToInt64()],
    "label": [shardio.ToInt64()],
    "shot": [shardio.RandomCrop((10, 10)), shardio.Normalize(0.5, 0.25)],
}
DRAWN = ("image", "mask", "thumb", "grid", "shot")
"""The fields whose transforms draw."""

TWICE = {f"{name}{end}": name for end in ("", "_b") for name in FIELDS}
TWICE_TRANSFORMS = {name: TRANSFORMS[stored] for name, stored in TWICE.items() if stored in TRANSFORMS}

pytestmark = pytest.mark.filterwarnings(r"ignore:fields '\w+' and '\w+' both have:shardio.PairingWarning")


def sample(number: int) -> dict[str, Any]:
    """A sample whose mask and points hold where each of their numbers stands; some lack what is optional."""
    height, width = 20 + number % 3, 26
    places = np.arange(height * width, dtype=np.uint16).reshape(height, width)
    random = np.random.default_rng(number)
    whole = {
        "shot": jpeg(14, 16, seed=number),
        "score": number + 0.5,
        "note": f"note {number}",
        "track": np.full((number % 3, 2), number, np.int16),
    }
    return {
        "image": jpeg(height, width, seed=number),
        "mask": grey_png(places),
        "thumb": random.integers(0, 256, (12, 12, 3), np.uint8),
        "grid": random.random((1, 9, 8), np.float32),
        "count": random.integers(0, 999, 3).astype(np.int32),
        "points": np.arange(number % 4, dtype=np.int32),
        "label": number,
        "caption": f"sample {number}",
        "blob": bytes([number]) * (number % 5),
        "meta": {"n": [number]},
    } | {name: None if number % 6 == place else value for place, (name, value) in enumerate(whole.items())}


@pytest.fixture(scope="module")
def data() -> shardio.Dataset:
    return shardio.from_samples(map(sample, range(N)), FIELDS, shard_samples=7)


def rows_of(batches: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Each sample of some batches by its index, each value as something that == compares."""
    rows = {}
    for batch in batches:
        for row, index in enumerate(batch["index"].tolist()):
            values = {name: values[row] for name, values in batch.items()}
            rows[index] = {
                name: (str(value.dtype), value.tolist()) if isinstance(value, torch.Tensor) else value
                for name, value in values.items()
            }
    return rows


@pytest.mark.parametrize(
    ("container", "options"),
    [
        *((container, {"verify": True, "orient": True}) for container in CONTAINERS),
        ("hdf5", {}),
        ("memory", {"decode": "fast"}),
    ],
)
def test_the_first_name_gets_what_the_field_alone_gets(
    tmp_path: Path, container: str, options: dict[str, Any], part: str
) -> None:
    """Of every kind of field, bit for bit; the second name gets the same where nothing is drawn, or other views."""
    dataset = packed(tmp_path / "d", map(sample, range(N)), FIELDS, container=container)
    options = {"seed": 3, **options}
    alone = rows_of(load(dataset, transforms=TRANSFORMS, **options))
    twice = rows_of(load(dataset, transforms=TWICE_TRANSFORMS, fields=TWICE, **options))
    assert alone.keys() == twice.keys() == set(range(N))
    differ: Counter[str] = Counter()
    for index, row in twice.items():
        assert {name: row[name] for name in alone[index]} == alone[index]
        differ.update(name for name in FIELDS if row[f"{name}_b"] != row[name])
        assert {name for name in row if name.endswith("_present")} == {
            f"{name}{end}_present" for name in ("shot", "score") for end in ("", "_b")
        }
        assert all(row[f"{name}_b_present"] == row[f"{name}_present"] for name in ("shot", "score"))
    assert {name: count > N // 2 for name, count in differ.items()} == dict.fromkeys(DRAWN, True)


@pytest.mark.parametrize("container", ["memory", *CONTAINERS])
def test_no_two_names_share_memory(tmp_path: Path, container: str, part: str) -> None:
    """What is written into one name's values, even where they are as stored, changes no other name's."""
    data = packed(tmp_path / "d", map(sample, range(N)), FIELDS, container=container)
    plain = [name for name in FIELDS if name not in ("image", "mask", "shot", "caption", "blob", "note")]
    fields = {f"{name}{end}": name for end in "abc" for name in plain}
    middle = [shardio.CenterSpatialCrop((5, 4))]
    transforms = {"grida": [shardio.Normalize(2, 3)], "gridb": middle, "counta": [shardio.ToInt64()]}
    for batch in load(data, fields=fields, transforms=transforms, shuffle=None):
        assert torch.equal(batch["gridb"], batch["gridc"][..., 2:7, 2:6])
        for name in plain:
            stored = [data[index][name] for index in batch["index"].tolist()]
            for end in "ab":
                for value in batch[f"{name}{end}"]:
                    if isinstance(value, dict):
                        value["n"][0] = -1
                    elif value is not None:
                        value.fill_(1)
            for found, wanted in zip(batch[f"{name}c"], stored, strict=True):
                if isinstance(found, torch.Tensor):
                    wanted = 0 if wanted is None else wanted
                    np.testing.assert_array_equal(found.squeeze().numpy(), np.squeeze(wanted))
                else:
                    assert found == wanted


def test_the_nth_names_belong_together() -> None:
    """Each image gets the crop and flip of its own mask, in every pixel, and other ones than the other pairs."""
    size, sets = (20, 26), 4
    y, x = np.mgrid[: size[0], : size[1]].astype(np.uint8)
    image, mask = encode("png", np.stack([y, x, 0 * x], axis=2)), grey_png(100 * y.astype(np.uint16) + x)
    dataset = shardio.from_samples([{"image": image, "mask": mask}] * 64, {name: FIELDS[name] for name in (
        "image", "mask")})  # fmt: skip
    fields = {f"{name}{n}": name for n in range(sets) for name in ("image", "mask")}
    moves = [shardio.RandomCrop(9), shardio.RandomHorizontalFlip()]
    places: list[list[tuple[int, ...]]] = [[] for _ in range(sets)]
    for batch in load(dataset, fields=fields, transforms=dict.fromkeys(fields, moves)):
        for n in range(sets):
            pixels = batch[f"image{n}"].long()
            assert torch.equal(100 * pixels[..., 0] + pixels[..., 1], batch[f"mask{n}"])
            places[n] += [tuple(corners) for corners in batch[f"mask{n}"][:, 0, ::8].tolist()]
    corners = np.array(places)[:, :, 0]
    for one in range(sets):
        assert len(set(places[one])) > 32
        for other in range(one):
            assert (corners[one] == corners[other]).mean() < 0.2
    assert np.abs(np.corrcoef(corners) - np.eye(sets)).max() < 0.5


@given(seed=st.integers(0, 2**70), epoch=st.integers(0, 99), sets=st.sets(st.integers(0, 50), min_size=2, max_size=2))
def test_sets_of_draws_are_independent(seed: int, epoch: int, sets: set[int]) -> None:
    """Two sets of one seed have nothing in common: neither numbers nor, over 4,000 samples, a correlation."""
    keys = RandomKeys(seed, epoch, np.arange(4000))
    drawn = [keys.draws(number) for number in sets]
    one, other = (RandomGenerator(k.seed, k.epoch, 0, k.samples).uniform(1)[:, 0] for k in drawn)
    assert not np.intersect1d(one, other).size
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.1  # six standard errors


def test_nothing_but_the_seed_decides(data: shardio.Dataset) -> None:
    """Threads, ranks, batches, a resume, pickling, shuffles and a TorchDataset change no view."""
    options: dict[str, Any] = {"fields": TWICE, "transforms": TWICE_TRANSFORMS, "seed": 5}
    wanted = rows_of(load(data, 5, tail="pad", **options))
    wanted = {index: {name: row[name] for name in row if name != "valid"} for index, row in wanted.items()}
    assert rows_of(load(data, 3, threads=4, shuffle="block", block=4, **options)) == wanted
    ranks = [load(data, 4, world=World(rank, 3), **options) for rank in range(3)]
    assert {index: row for rank in ranks for index, row in rows_of(rank).items()} == wanted
    first = load(data, 6, **options)
    batches = [batch for _, batch in zip(range(2), first, strict=False)]
    second = pickle.loads(pickle.dumps(first))  # noqa: S301  # our own
    other = load(data, 4, world=World(0, 1), **options)
    other.load_state_dict(first.state_dict())
    assert rows_of(batches) | rows_of(second) == rows_of(batches) | rows_of(other) == wanted
    samples = shardio.TorchDataset(data, **options)
    chosen = DataLoader(samples, batch_size=4, collate_fn=lambda rows: rows)  # type: ignore[arg-type]
    for sample in (row for rows in chosen for row in rows):
        for name, value in wanted[sample["index"]].items():
            found = torch.as_tensor(sample[name]) if isinstance(value, tuple) else sample[name]
            assert ((str(found.dtype), found.tolist()) if isinstance(value, tuple) else found) == value, name


def test_in_processes_and_on_a_device(data: shardio.Dataset, device: str) -> None:
    """Worker processes, and a device that converts, moves and erases, make the same views."""
    options: dict[str, Any] = {"fields": TWICE, "transforms": TWICE_TRANSFORMS, "engine": "cpu"}
    wanted = rows_of(load(data, **options))
    assert rows_of(load(data, isolate=True, **options)) == wanted
    assert rows_of(load(data, device=device, **options)) == wanted


def test_a_map_gets_all_names(data: shardio.Dataset) -> None:
    """A function of batches or samples finds each value by the name that delivers it."""

    def pair(values: dict[str, Any]) -> dict[str, Any]:
        return {"views": (values["a"] * 256.0 + values["b"]), "n": values["label"]}

    options: dict[str, Any] = {
        "fields": {"a": "image", "b": "image", "label": "label"}, "transforms": {"a": CROP, "b": CROP},
    }  # fmt: skip
    plain = rows_of(load(data, map=pair, **options))
    assert rows_of(load(data, map=pair, map_by="sample", **options)) == plain
    two = rows_of(
        {"views": batch["a"] * 256.0 + batch["b"], "index": batch["index"]} for batch in load(data, **options)
    )
    assert {index: row["views"] for index, row in plain.items()} == {index: row["views"] for index, row in two.items()}


@pytest.mark.usefixtures("nothing_ahead")
@pytest.mark.parametrize("verify", [False, True])
def test_a_stored_field_is_read_once(data: shardio.Dataset, verify: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten names of a field, as for DINO, read it as often as one does, and count its bytes once."""
    read: Counter[str] = Counter()
    for method in ("values", "column"):
        original = getattr(Selection, method)

        def counted(selection: Selection, name: str, *args: Any, original: Any = original) -> Any:
            read[name] += 1
            return original(selection, name, *args)

        monkeypatch.setattr(Selection, method, counted)
    names, bytes_read = ("image", "grid", "points", "caption"), []
    for times in (1, 10):
        read.clear()
        fields = {"label": "label"} | {f"{name}{n}": name for n in range(times) for name in names}
        options = {"transforms": {name: CROP for name in fields if name.startswith("image")}, "verify": verify}
        loader = load(data, fields=fields, **options)
        assert len(list(loader)) == N // 8
        assert read["label"] > 0
        assert {name: read[name] for name in names} == dict.fromkeys(names, read["label"])
        bytes_read.append(loader.stats().bytes)
    assert bytes_read[0] == bytes_read[1] > N * 9 * 8 * 4


@pytest.mark.parametrize("action", ["raise", "replace", "mask"])
def test_a_bad_sample_is_bad_under_all_names(action: str) -> None:
    """It is raised with the name of the stored field, replaced by one sample for all names, or masked in all."""
    samples = [{"image": spoiled(jpeg(seed=n)) if n == 3 else jpeg(seed=n), "label": n} for n in range(8)]
    dataset = shardio.from_samples(samples, {"image": "image", "label": "int64"})
    fields = {"a": "image", "b": "image", "label": "label", "again": "label"}
    loader = load(dataset, fields=fields, transforms={"a": CROP, "b": CROP}, on_bad_sample=action, max_bad=0.5)
    if action == "raise":
        with pytest.raises(shardio.BadSample, match=r"sample 3.*field 'image'"):
            list(loader)
        return
    (batch,) = loader
    assert [record.location.index for record in loader.quarantine()] == [3]
    blank = batch["index"] == 3  # if it was not replaced
    assert int(blank.sum()) == (action == "mask")
    for name in ("label", "again"):
        assert torch.equal(batch[name], torch.where(blank, 0, batch["index"]))
    for name in ("a", "b"):
        assert torch.equal((batch[name] == 0).all(dim=(1, 2, 3)), blank)
    assert torch.equal((batch["a"] == batch["b"]).all(dim=(1, 2, 3)), blank)


def test_one_field_under_another_name(data: shardio.Dataset) -> None:
    """A dict may also rename fields, for mixing too, which takes one image and the `label` of the batch."""
    plain = load(data, transforms={"image": TRANSFORMS["image"]}, fields=["image", "label"])
    renamed = {"view": "image", "label": "label"}
    transforms = {"view": TRANSFORMS["image"]}
    for one, other in zip(plain, load(data, transforms=transforms, fields=renamed), strict=True):
        assert list(other) == ["view", "label", "index"]
        assert torch.equal(one["image"], other["view"])
    mixed = load(data, transforms=transforms, fields=renamed, mixing=shardio.CutMix(N))
    assert {batch["label"].shape for batch in mixed} == {(8, N)}


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({"a": "picture"}, {}, "no field 'picture'"),
        ({"a": "_shape.image"}, {}, "no field '_shape.image'; there are image, mask"),
        ({"a": 3}, {}, "fields must be a dict of stored fields by the names to deliver, got 'a': 3"),
        ({3: "image"}, {}, "fields must be a dict of stored fields by the names to deliver, got 3: 'image'"),
        ({"index": "label"}, {}, "field 'index' clashes with a column that the loader adds; deliver it under another"),
        ({"valid": "label"}, {}, "field 'valid' clashes with a column that the loader adds"),
        ({"s": "score", "s_present": "label"}, {}, "field 's_present' clashes with a column that the loader adds"),
        (
            {"a": "image", "b": "image"},
            {"transforms": {"image": CROP}},
            r"transforms for 'image', which fields=\['a', 'b'\] delivers as \['a', 'b'\]: give each a list",
        ),
        ({"a": "image", "b": "image"}, {"transforms": CROP}, "needs exactly one image or array field"),
        (
            {"a": "image", "b": "image", "label": "label"},
            {"transforms": {"a": CROP, "b": CROP}, "mixing": shardio.CutMix(N)},
            r"mixing needs exactly one image field, there are \['a', 'b'\]",
        ),
    ],
)
def test_wrong_names_are_refused(data: shardio.Dataset, fields: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(data, fields=fields, **options)


def test_a_mixture_keeps_its_columns(data: shardio.Dataset) -> None:
    """`source` is taken in batches of a mixture, whose samples that come twice differ in both views."""
    mixture = shardio.mix({"few": data, "many": data}, weights={"few": 1, "many": 2})
    with pytest.raises(ConfigError, match="field 'source' clashes"):
        load(mixture, fields={"source": "label"})
    transforms = {"a": TRANSFORMS["image"], "b": TRANSFORMS["image"]}
    seen = list(load(mixture, fields={"a": "image", "b": "image"}, transforms=transforms))
    views = torch.cat([batch[name] for batch in seen for name in "ab"])
    assert len(views.flatten(1).unique(dim=0)) == len(views)


def test_warnings_compare_names_of_one_set(data: shardio.Dataset) -> None:
    """Two views of one field pair with nothing, neither do those of different sets; an image and its mask do."""
    other, fields = [shardio.RandomHorizontalFlip(0.2), *CROP], {"a": "image", "b": "image", "a_mask": "mask"}
    with warnings.catch_warnings(action="error"):
        list(load(data, fields=fields, transforms={"a": CROP, "b": other, "a_mask": CROP}))
    with pytest.warns(shardio.PairingWarning, match=r"fields 'a' and 'a_mask' both have .* but draw different places"):
        load(data, fields=fields, transforms={"a": CROP, "b": CROP, "a_mask": other})
    rows = [{"one": jpeg(seed=n), "other": jpeg(seed=n)} for n in range(8)]
    both = shardio.from_samples(rows, {"one": "image", "other": "image"})
    fields = {"a": "one", "b": "one", "c": "other"}
    with pytest.warns(shardio.PairingWarning, match=r"fields 'a' and 'c' hold the same .*\{'a': 'one', 'c': 'one'\}"):
        list(load(both, fields=fields, transforms=dict.fromkeys("abc", CROP)))
    list(load(both, fields=fields, transforms={"b": CROP, "c": CROP}))


def test_images_that_look_like_masks_are_named_once() -> None:
    """By the name of the stored field, which a conversion takes, whatever names deliver it."""
    file = grey_png(np.arange(40 * 40, dtype=np.uint8).reshape(40, 40) % 3)
    dataset = shardio.from_samples([{"image": file}] * 8, {"image": Field("image", channels=1)})
    with pytest.warns(shardio.MaskWarning, match="the first PNGs of field 'image' hold 3 ") as caught:
        list(load(dataset, fields={"a": "image", "b": "image"}, transforms={"a": CROP, "b": CROP}))
    assert len(caught) == 1


RANDOM_CROP, RANDOM_FLIP = shardio.RandomCrop(8), shardio.RandomHorizontalFlip()
MOVES: list[Any] = [
    [RANDOM_CROP],
    [shardio.RandomResizedCrop(8)],
    [RANDOM_FLIP, shardio.CenterCrop(8)],
    [shardio.CenterCrop(8), shardio.RandomRotation(9)],
    [shardio.CenterCrop(8), shardio.RandomApply([RANDOM_FLIP])],
    [shardio.CenterCrop(8), shardio.TrivialAugmentWide()],
]


def boxed(name: str, **more: Any) -> shardio.Dataset:
    """Images with a box each, under a name."""
    fields = {"image": "image", name: ("float32", (4,))} | dict.fromkeys(more, "image")
    rows = [{"image": jpeg(16, 16, seed=n), name: np.zeros(4, np.float32)} | more for n in range(8)]
    return shardio.from_samples(rows, fields)


@pytest.mark.parametrize("transforms", MOVES)
@pytest.mark.parametrize("name", ["box", "boxes", "bbox", "bboxes", "keypoints", "landmarks"])
def test_boxes_that_an_image_leaves_behind_are_told(name: str, transforms: Any) -> None:
    """One warning names the field, the image and what moves it."""
    with pytest.warns(shardio.PairingWarning, match=f"field {name!r} is delivered as it is stored, .*'image'") as told:
        list(load(boxed(name), transforms={"image": transforms}))
    assert len(told) == 1


def test_boxes_that_an_image_and_its_mask_leave_behind_are_told() -> None:
    """A mask is no second image."""
    rows = [{"image": jpeg(16, 16), "mask": grey_png(np.zeros((16, 16), np.uint8)), "boxes": [[0, 0, 4, 4]]}] * 8
    fields = {"image": "image", "mask": Field("image", role="mask"), "boxes": "json"}
    with pytest.warns(shardio.PairingWarning, match=r"field 'boxes' .* but RandomCrop of 'image' move"):
        load(shardio.from_samples(rows, fields), transforms={"image": [RANDOM_CROP], "mask": [RANDOM_CROP]})


def moved(batch: dict[str, Any]) -> dict[str, Any]:
    return batch


@pytest.mark.parametrize(
    ("name", "transforms", "options"),
    [
        ("boxes", [shardio.CenterCrop(8), shardio.ColorJitter(0.2)], {}),  # nothing moves at random
        ("boxes", [RANDOM_CROP], {"map": moved}),  # which may move them
        ("boxes", [RANDOM_CROP], {"fields": ["image"]}),
        ("boxes", [RANDOM_CROP], {"fields": {"image": "image", "stored": "boxes"}}),
        ("boxes_3d", [RANDOM_CROP], {}),
        ("Boxes", [RANDOM_CROP], {}),
    ],
)
def test_boxes_that_stay_with_their_image_are_not_told(name: str, transforms: Any, options: Any) -> None:
    """Fixed crops, colours, a function, and fields that are not delivered under such a name give no warning."""
    list(load(boxed(name), transforms={"image": transforms}, **options))


@pytest.mark.filterwarnings("ignore:fields 'image' and 'other' hold the same bytes:shardio.PairingWarning")
def test_boxes_beside_two_images_are_not_told() -> None:
    """With two images, no warning comes: nobody knows which one the boxes lie on."""
    list(load(boxed("boxes", other=jpeg(16, 16)), transforms={"image": [RANDOM_CROP], "other": [RANDOM_CROP]}))


@pytest.mark.slow
def test_worker_processes_do_not_repeat_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    """Processes of a Loader don't repeat its warnings."""
    with pytest.warns(shardio.PairingWarning, match="field 'boxes'"):
        loader = load(boxed("boxes"), transforms={"image": [RANDOM_CROP]}, isolate=True)
    list(loader)
    assert "PairingWarning" not in capfd.readouterr().err
