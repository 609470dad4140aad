"""Boxes, points and what is per instance follow their image through a Loader."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from _builders import jpeg, spoiled
from _detection import FIELDS, TRAIN, by_image, corners, dataset, sample

import shardio
from shardio import Field, Loader, PadTo, Ragged, World

SANITIZED = [shardio.SanitizeBoundingBoxes()]


@pytest.mark.parametrize("rule", [[Ragged()], [PadTo(6)], [PadTo()], [Ragged(nested=True)], []], ids=repr)
def test_boxes_move_by_the_geometry(rule: list[Any]) -> None:
    """Boxes and points are at the place to which the batch's matrix maps them, whatever the form of the batch."""
    data, seen = dataset(), 0
    transforms: Any = {"image": TRAIN, "boxes": rule}
    for batch in Loader(data, 8, transforms=transforms, geometry=True):
        for row, target in enumerate(by_image(batch)):
            stored, matrix = sample(int(target["image_id"])), batch["image_geometry"][row].numpy()
            assert target["labels"].dtype == torch.int64
            kept = target["labels"].numpy() % 100
            assert (target["labels"].numpy() // 100 == int(target["image_id"])).all()
            moved = corners(stored["boxes"][kept], matrix)
            height, width = batch["image_delivered_size"][row].tolist()
            inside = moved.clip(0, [width, height, width, height])
            np.testing.assert_allclose(target["boxes"].numpy(), inside, atol=1e-3)
            seen += len(kept)
    assert seen > 40


def test_one_column_counts_for_the_group() -> None:
    """A rule for one field of a group is that of all, and one pair of columns says how many instances there are."""
    (batch,) = Loader(dataset(8), 8, transforms={"labels": [PadTo(4)]}, fields=["image", "labels", "boxes"])
    assert {"boxes_length"} == {name for name in batch if name.endswith(("_length", "_offsets"))}
    assert batch["boxes"].shape == (8, 4, 4)
    assert batch["labels"].shape == (8, 4)


def test_crops_do_not_depend_on_what_is_delivered() -> None:
    """RandomIoUCrop draws for boxes that are not delivered as for those that are; labels are filtered all the same."""
    data = dataset()
    transforms: Any = {"image": TRAIN, "labels": [Ragged()]}
    some, every = (
        list(Loader(data, 8, transforms=transforms, fields=fields, seed=3)) for fields in (["image", "labels"], None)
    )
    for one, other in zip(some, every, strict=True):
        assert torch.equal(one["image"], other["image"])
        assert torch.equal(one["labels"], other["labels"])
        assert torch.equal(one["labels_offsets"], other["boxes_offsets"])


@pytest.mark.parametrize(("ranks", "threads"), [(1, 3), (2, 1), (3, 2)])
def test_ranks_and_threads_make_no_difference(ranks: int, threads: int) -> None:
    """Every sample has the same crop and the same boxes on any number of ranks and threads."""
    data, found = dataset(36), [dict[int, Any](), dict[int, Any]()]
    for seen, (size, workers) in zip(found, [(1, 1), (ranks, threads)], strict=True):
        for rank in range(size):
            loader = Loader(data, 3, transforms={"image": TRAIN}, world=World(rank, size), threads=workers, seed=1)
            for batch in loader:
                for row, target in enumerate(by_image(batch)):
                    seen[int(target["image_id"])] = (batch["image"][row], target)
    assert found[0].keys() == found[1].keys()
    for index, (image, target) in found[0].items():
        assert torch.equal(image, found[1][index][0])
        assert all(torch.equal(value, found[1][index][1][name]) for name, value in target.items())


@pytest.mark.parametrize("rule", [[Ragged()], [PadTo(6)], [PadTo()], []], ids=repr)
def test_kept_numbers_the_stored_boxes(rule: list[Any]) -> None:
    """On request a batch says which of the stored boxes its boxes are, joined as they are."""
    transforms: Any = {"image": [shardio.RandomIoUCrop(), shardio.SanitizeBoundingBoxes(kept=True)], "boxes": rule}
    for batch in Loader(dataset(), 8, transforms=transforms):
        for target in shardio.to_torchvision(batch, instances=["boxes", "labels", "boxes_kept"]):
            assert len(target["boxes_kept"]) == len(target["boxes"])
            assert (target["labels"] == 100 * target["image_id"] + target["boxes_kept"]).all()
            assert target["boxes_kept"].dtype == torch.int64


def test_targets_need_the_field_that_is_counted() -> None:
    """Targets are never cut by no count: without the field that the batch counts for the group there is an error."""
    for rule in (Ragged(), PadTo(6)):
        (batch,) = Loader(dataset(8), 8, transforms={"boxes": [rule]})
        with pytest.raises(shardio.ConfigError, match="labels_offsets"):
            shardio.to_torchvision(batch, instances=["labels"])


@pytest.mark.parametrize("rule", [[Ragged()], [PadTo(6)], []], ids=repr)
def test_targets_of_numpy_batches_are_tensors(rule: list[Any]) -> None:
    """Batches of NumPy arrays give the targets that batches of tensors do, without their padding."""
    transforms: Any = {"image": TRAIN, "boxes": rule}
    one, other = (next(iter(Loader(dataset(8), 8, transforms=transforms, to=to))) for to in ("torch", "numpy"))
    for target, expected in zip(by_image(other), by_image(one), strict=True):
        assert target.keys() == expected.keys()
        assert all(torch.equal(target[name], expected[name]) for name in expected)


def test_kept_does_not_take_the_name_of_a_field() -> None:
    """A column that a rule adds never hides a field."""
    data = shardio.from_samples([sample(1) | {"boxes_kept": 1}], FIELDS | {"boxes_kept": "int64"})
    with pytest.raises(shardio.ConfigError, match="boxes_kept"):
        Loader(data, 1, transforms={"image": [shardio.SanitizeBoundingBoxes(kept=True)]})


def test_two_names_have_crops_of_their_own() -> None:
    """The n-th name of the boxes goes with the n-th name of the image."""
    names = {"a": "image", "b": "image", "a_boxes": "boxes", "b_boxes": "boxes"}
    crop = [shardio.RandomResizedCrop(32)]
    batch = next(iter(Loader(dataset(), 8, fields=names, transforms={"a": crop, "b": crop}, geometry=True)))
    for name in ("a", "b"):
        for row, index in enumerate(batch["index"].tolist()):
            moved = corners(sample(index)["boxes"], batch[f"{name}_geometry"][row].numpy()).clip(0, 32)
            np.testing.assert_allclose(batch[f"{name}_boxes"][row].numpy(), moved, atol=1e-3)
    assert not torch.equal(batch["a_geometry"], batch["b_geometry"])


def test_fields_of_a_group_must_have_equal_lengths() -> None:
    """A sample whose labels are more than its boxes is bad, and both lengths are named."""
    wrong = sample(3) | {"labels": np.arange(7)}
    data = shardio.from_samples([sample(1), wrong], FIELDS)
    with pytest.raises(shardio.BadSample, match=r"'labels': has 7 entries, and 'boxes' 3"):
        list(Loader(data, 2, transforms={"image": TRAIN}))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rule", [Ragged(), PadTo(6)], ids=repr)
def test_targets_of_two_groups_are_counted_each_by_its_own(rule: Any) -> None:
    """Points without boxes may be as many as boxes in a batch, and others in each image."""
    marks = Field("array", "float32", (None, 1, 2), role="points", on="image")
    samples = [sample(number) | {"marks": np.full((4 - number % 5, 1, 2), number, np.float32)} for number in range(10)]
    data = shardio.from_samples(samples, FIELDS | {"marks": marks})
    for batch in Loader(data, 5, transforms={"boxes": [rule], "marks": [rule]}, shuffle=None):
        for target in shardio.to_torchvision(batch, instances=["boxes", "marks"]):
            number = int(target["image_id"])
            assert (len(target["boxes"]), len(target["marks"])) == (number % 5, 4 - number % 5)
            assert (target["marks"] == number).all()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("name", ["boxes", "points"])
@pytest.mark.parametrize("transforms", [TRAIN, [], SANITIZED], ids=["crop", "none", "sanitized"])
def test_coordinates_must_be_numbers_of_pixels(transforms: list[Any], name: str, number: float) -> None:
    """A sample with a box or a point that is NaN, infinite or farther away than any image reaches is bad.

    So it is where the box alone decides which labels are delivered.
    """
    fields = ["image", "labels"] if name == "boxes" and transforms == SANITIZED else None
    samples = [sample(number) for number in range(8)]
    samples[4][name].flat[5] = number
    data = shardio.from_samples(samples, FIELDS)
    with pytest.raises(shardio.BadSample, match=rf"row 4.*'{name}': coordinates must be numbers of at most 16,777,216"):
        list(Loader(data, 8, transforms={"image": transforms}, fields=fields))


@pytest.mark.filterwarnings("error")
def test_boxes_of_any_shape_are_data() -> None:
    """Empty boxes, those with their corners exchanged and those outside of the image move, and may be left out."""
    odd = [[9, 9, 2, 2], [5, 5, 5, 5], [-5e6, -5e6, 5e6, 5e6], [1e7, 0, -1e7, 9], [-50, -50, -10, -10], [9, 9, 30, 30]]
    boxes = np.array(odd, np.float32)
    samples = [sample(number, 6) | {"boxes": boxes} for number in range(8)]
    data = shardio.from_samples(samples, FIELDS)
    rule = shardio.SanitizeBoundingBoxes(min_visibility=0.2)
    moves: list[Any] = [
        shardio.RandomZoomOut(),
        shardio.RandomIoUCrop(),
        shardio.ScaleJitter(64),
        shardio.RandomRotation(9),
    ]
    for transforms, kept in (([], 6), ([shardio.SanitizeBoundingBoxes()], 1), ([*moves, rule], None)):
        for batch in Loader(data, 8, transforms={"image": transforms}):
            for target in by_image(batch):
                assert kept in (None, len(target["boxes"]))
                assert target["boxes"].isfinite().all()


@pytest.mark.parametrize("size", [48, 50, 224, 320])
def test_boxes_that_reach_the_edges_of_their_image_stay(size: int) -> None:
    """A resize in float32 may round an edge to beyond that of the image, which is no reason to leave the box out."""
    samples = []
    for number in range(80):
        ends = np.array([60 + number, 139 - number], np.float32)
        boxes = np.array([[0, 0, *ends], [*(ends - 30), *ends], [0, 0, 30, 30]], np.float32)
        samples.append(sample(number, 3) | {"image": jpeg(139 - number, 60 + number), "boxes": boxes})
    data = shardio.from_samples(samples, FIELDS)
    moves: list[Any] = [shardio.SanitizeBoundingBoxes(), shardio.Resize((size, size)), shardio.RandomHorizontalFlip()]
    for batch in Loader(data, 8, transforms={"image": [*moves, shardio.PadImages(400, place="center")]}):
        assert [len(boxes) for boxes in batch["boxes"]] == [3] * 8


@pytest.mark.parametrize(
    ("fields", "transforms", "message"),
    [
        (["boxes"], {}, "'boxes' lies on 'image', which fields= must deliver"),
        (None, {"boxes": [shardio.ToFloat()]}, "boxes follow 'image' and take only"),
        (None, {"boxes": [Ragged()], "labels": [PadTo(3)]}, "fields per instance take one rule"),
        (
            {"image": "image", "labels": "labels", "again": "labels"},
            {},
            "'again' is per 'boxes' on 'image', which fields= must deliver under as many names",
        ),
        (None, {"labels": [shardio.RandomWindow(1)]}, "RandomWindow.* would part it from 'boxes'"),
        (None, {"labels": [shardio.RandomAxisFlip()]}, "RandomAxisFlip.* would part it from 'boxes'"),
        (None, {"labels": [shardio.RandomSpatialCrop(1)]}, "RandomSpatialCrop.* would part it from 'boxes'"),
        (None, {"labels": [PadTo(6, side="left")]}, "instances are padded at the right, got PadTo"),
        (None, {"image": [shardio.RandomIoUCrop()]}, r"put SanitizeBoundingBoxes\(\) behind it"),
    ],
)
def test_what_does_not_fit_is_refused(fields: Any, transforms: Any, message: str) -> None:
    with pytest.raises(shardio.ConfigError, match=message):
        Loader(dataset(4), 2, fields=fields, transforms=transforms)


@pytest.mark.parametrize(
    "floats", [[], [shardio.ToFloat()], [shardio.ToFloat(dtype="bfloat16")]], ids=["bytes", "float32", "bfloat16"]
)
def test_images_of_a_batch_are_padded(floats: list[Any]) -> None:
    """PadImages makes a batch as large as its largest image; each image is in its upper left corner."""
    data = dataset()
    padded = Loader(data, 8, transforms={"image": [shardio.PadImages(multiple_of=16, value=7), *floats]}, geometry=True)
    plain = Loader(data, 8, transforms={"image": floats}, fields=["image"])
    shapes = set()
    for one, other in zip(padded, plain, strict=True):
        shapes.add(one["image"].shape)
        first = 1 if not floats else 2
        shape, sizes = one["image"].shape, one["image_delivered_size"]
        assert [shape[first], shape[first + 1]] == (-(-sizes.amax(0) // 16) * 16).tolist()
        for image, alone, (height, width) in zip(one["image"], other["image"], sizes.tolist(), strict=True):
            channels_first = image if floats else image.permute(2, 0, 1)
            assert torch.equal(channels_first[:, :height, :width], alone if floats else alone.permute(2, 0, 1))
            padding = channels_first[:, height:].float()
            torch.testing.assert_close(padding, torch.full_like(padding, 7 / 255 if floats else 7), atol=1e-4, rtol=0)
    assert len(shapes) > 2


def test_images_are_padded_to_a_size() -> None:
    """PadImages of a size takes images up to it, in the middle if that is asked for, and boxes go with them."""
    crop = [shardio.PadImages((128, 160), place="center"), shardio.ToFloat()]
    for batch in Loader(dataset(), 8, transforms={"image": crop}, geometry=True):
        assert batch["image"].shape == (8, 3, 128, 160)
        for row, target in enumerate(by_image(batch)):
            moved = corners(sample(int(target["image_id"]))["boxes"], batch["image_geometry"][row].numpy())
            np.testing.assert_allclose(target["boxes"].numpy(), moved, atol=1e-3)
    with pytest.raises(shardio.BadSample, match=r"PadImages takes at most 64 x 64, got \d+ x \d+"):
        list(Loader(dataset(), 8, transforms={"image": [shardio.PadImages(64)]}))


@pytest.mark.parametrize("rule", [shardio.SanitizeBoundingBoxes(), shardio.SanitizeBoundingBoxes(min_visibility=0.5)])
def test_images_in_the_middle_keep_their_boxes(rule: Any) -> None:
    """SanitizeBoundingBoxes leaves out the same boxes wherever PadImages puts the image, or if it isn't padded."""
    crop = [shardio.RandomCrop((50, 40)), rule]
    found = [
        [
            target["labels"].tolist()
            for batch in Loader(dataset(), 8, transforms={"image": given})
            for target in by_image(batch)
        ]
        for given in (crop, *([*crop, shardio.PadImages(128, place=place)] for place in ("topleft", "center")))
    ]
    assert found[0] == found[1] == found[2]
    assert sum(map(len, found[0])) > 20


def test_masked_samples_have_no_instances() -> None:
    """A bad sample that is masked has no boxes, and zeros as its geometry."""
    data = shardio.from_samples(
        [sample(1), sample(2) | {"image": spoiled(sample(2)["image"])}], FIELDS | {"image": Field("image")}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (batch,) = Loader(
            data,
            2,
            transforms={"image": TRAIN, "boxes": [Ragged()]},
            on_bad_sample="mask",
            geometry=True,
            shuffle=None,
            max_bad=2,
        )
    assert batch["valid"].tolist() == [True, False]
    assert batch["boxes_offsets"][1] == batch["boxes_offsets"][2]
    assert not batch["image_geometry"][1].any()
    assert not batch["image_stored_size"][1].any()
