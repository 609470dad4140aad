"""Options of Loaders with boxes: what is cut, missing or masked, what warns, and the forms of batches."""

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from _builders import jpeg, pixels
from _detection import FIELDS, SANITIZE, TRAIN, by_image, corners, dataset, sample
from _masks import grey_png

import shardio
from shardio import Field, Loader, PadTo, Ragged

UNPAIRED = FIELDS | {"points": Field("array", "float32", (None, 3, 3), role="points", on="image", per="boxes")}


def test_more_instances_than_are_padded_to() -> None:
    """They make a bad sample, or all fields of the group are cut at the same end."""
    data = dataset(10)
    with pytest.raises(shardio.BadSample, match=r"'boxes': has 3 entries, PadTo takes 2: cut='end' or 'start'"):
        list(Loader(data, 5, transforms={"boxes": [PadTo(2)]}, shuffle=None))
    for cut, kept in (("end", slice(None, 2)), ("start", slice(-2, None))):
        for batch in Loader(data, 5, transforms={"labels": [PadTo(2, cut=cut)]}, shuffle=None):
            for target in by_image(batch):
                wanted = sample(int(target["image_id"]))
                for name in ("boxes", "labels", "points"):
                    np.testing.assert_array_equal(target[name].numpy(), wanted[name][kept])
    with pytest.raises(shardio.ConfigError, match="fields per instance take one rule"):
        Loader(data, 5, transforms={"boxes": [PadTo(2, cut="end")], "labels": [PadTo(2, cut="start")]})


@pytest.mark.parametrize("rule", [[], [Ragged()], [PadTo()], [PadTo(5)]], ids=repr)
@pytest.mark.parametrize("options", [{}, {"map": dict}, {"map": dict, "map_by": "sample"}], ids=repr)
def test_missing_boxes_are_not_none_at_all(rule: list[Any], options: dict[str, Any]) -> None:
    """A column says which images have boxes; in lists a missing value is None."""
    fields = {
        name: Field(
            kind="array",
            dtype=kind.dtype,
            shape=kind.shape,
            role=kind.role,
            on=kind.on,
            per=kind.per,
            optional=True,
        )
        for name, kind in FIELDS.items()
        if name in ("boxes", "labels")
    }
    rows = [
        {name: sample(n)[name] if name == "image" or n % 3 else None for name in ("image", "boxes", "labels")}
        for n in range(12)
    ]
    data = shardio.from_samples(rows, {"image": "image"} | fields)
    (batch,) = Loader(data, 12, transforms={"image": TRAIN, "boxes": rule}, shuffle=None, geometry=True, **options)
    there = [n % 3 > 0 for n in range(12)]
    if rule:
        assert batch["boxes_present"].tolist() == batch["labels_present"].tolist() == there
        assert all(len(target["boxes"]) == 0 for target, has in zip(by_image(batch), there, strict=True) if not has)
    else:
        assert [value is not None for value in batch["boxes"]] == there


def test_boxes_that_are_missing_where_labels_are_not() -> None:
    """Such a sample is bad."""
    fields = {
        "image": "image",
        "boxes": Field("array", "float32", (None, 4), role="boxes", on="image", optional=True),
        "labels": FIELDS["labels"],
    }
    data = shardio.from_samples([{"image": jpeg(), "boxes": None, "labels": np.arange(2)}], fields)
    with pytest.raises(shardio.BadSample, match="'labels': has 2 entries, and 'boxes' 0: fields per instance"):
        list(Loader(data, 1))


@pytest.mark.parametrize("mask_size", [None, (30, 40)])
def test_a_mask_gets_the_crop_of_its_boxes(mask_size: tuple[int, int] | None) -> None:
    """The mask of an image is cropped for the image's boxes, and so must have its size in pixels."""

    def row(number: int) -> dict[str, Any]:
        mask = np.zeros((60, 80), np.uint8)
        left, top = np.random.default_rng(number).integers(0, 40, 2).tolist()
        mask[top : top + 20, left : left + 20] = 1
        stored = mask if mask_size is None else mask[::2, ::2]
        boxes = np.array([[left, top, left + 20, top + 20]], np.float32)
        return {"image": pixels(60, 80, seed=number), "mask": grey_png(stored), "boxes": boxes}

    fields = {"image": Field("pixels", shape=(60, 80)), "mask": Field("image", role="mask"), "boxes": FIELDS["boxes"]}
    data = shardio.from_samples(map(row, range(32)), fields)
    moves: list[Any] = [shardio.RandomZoomOut(), shardio.RandomIoUCrop(), shardio.RandomVerticalFlip()]
    if mask_size is not None:
        resized = [shardio.Resize((32, 32)), *moves]
        with pytest.raises(shardio.BadSample, match=r"must have the same size, got 60 x 80 and 30 x 40"):
            list(Loader(data, 8, transforms={"image": [*resized, SANITIZE], "mask": resized}))
        return
    loader = Loader(data, 8, transforms={"image": [*moves, SANITIZE], "mask": moves}, seed=1)
    seen = 0
    for batch in loader:
        for row_number, target in enumerate(by_image(batch)):
            mask = batch["mask"][row_number].numpy()
            assert mask.shape == batch["image"][row_number].shape[:2]
            for box in target["boxes"].numpy():
                found = np.argwhere(mask)
                np.testing.assert_array_equal(box, [*found.min(axis=0)[::-1], *found.max(axis=0)[::-1] + 1])
                seen += 1
    assert seen > 20


def test_boxes_on_stored_pixels() -> None:
    """Boxes lie on images that are stored as pixels as on files, also on images that stay as they are."""

    def row(number: int) -> dict[str, Any]:
        boxes = sample(number)["boxes"].clip(0, 60)
        return {"image": pixels(60, 80, seed=number), "boxes": boxes}

    fields = {"image": Field("pixels", shape=(60, 80)), "boxes": FIELDS["boxes"]}
    data = shardio.from_samples(map(row, range(16)), fields)
    for transforms in ([], [shardio.RandomResizedCrop(32)], [shardio.PadImages()]):
        for batch in Loader(data, 8, transforms={"image": transforms}, geometry=True, orient=True):
            for place, target in enumerate(by_image(batch)):
                moved = corners(row(int(target["image_id"]))["boxes"], batch["image_geometry"][place].numpy())
                height, width = batch["image_delivered_size"][place].tolist()
                np.testing.assert_allclose(target["boxes"], moved.clip(0, [width, height] * 2), atol=1e-3)


@pytest.mark.parametrize("rule", [[], [Ragged()], [PadTo()]], ids=repr)
@pytest.mark.parametrize(
    "options", [{"to": "numpy"}, {"map": dict}, {"map": dict, "map_by": "sample"}, {"isolate": True}], ids=repr
)
def test_forms_of_batches(rule: list[Any], options: dict[str, Any]) -> None:
    """As arrays, by way of a function for batches or samples, or made by processes, batches have the same values."""
    transforms = {"image": TRAIN, "boxes": rule}
    plain, other = (Loader(dataset(24), 8, transforms=transforms, geometry=True, **more) for more in ({}, options))
    for one, two in zip(plain, other, strict=True):
        assert one.keys() == two.keys()
        for name, values in one.items():
            assert len(values) == len(two[name])
            for mine, theirs in zip(values, two[name], strict=True):
                assert isinstance(theirs, np.ndarray | np.generic) == ("to" in options)
                np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


FLIPS = (shardio.RandomHorizontalFlip(), shardio.RandomVerticalFlip())


@pytest.mark.parametrize(
    "transforms", [[FLIPS[0]], [FLIPS[1]], [shardio.RandomApply([FLIPS[0]])], [shardio.RandomChoice(FLIPS)]]
)
def test_flips_of_points_without_pairs_are_told(transforms: list[Any]) -> None:
    """Once, when the Loader is made; an empty list says that there are none."""
    data = shardio.from_samples(map(sample, range(8)), UNPAIRED)
    with pytest.warns(shardio.PairingWarning, match="Flip of 'image', left points of 'points' become right") as told:
        list(Loader(data, 4, transforms={"image": transforms}))
    assert len(told) == 1


@pytest.mark.parametrize(
    ("points", "transforms", "fields"),
    [
        (UNPAIRED["points"], [shardio.RandomResizedCrop(32)], None),  # no flip
        (UNPAIRED["points"], [FLIPS[0]], ["image", "boxes"]),  # no points
        (FIELDS["points"], [FLIPS[0]], None),
        (
            Field(
                "array", "float32", (None, 3, 3), role="points", on="image", per="boxes", attributes={"flip_pairs": []}
            ),
            [FLIPS[0]],
            None,
        ),
    ],
)
def test_flips_that_need_no_pairs(points: Field, transforms: list[Any], fields: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Loader(
            shardio.from_samples(map(sample, range(4)), FIELDS | {"points": points}),
            4,
            transforms={"image": transforms},
            fields=fields,
        )


MOVES: list[tuple[Any, Any]] = [
    (shardio.RandomVerticalFlip(), shardio.RandomVerticalFlip(0.6)),
    (shardio.ScaleJitter(64), shardio.ScaleJitter(64, (0.5, 1.0))),
    (shardio.RandomShortestSize([48, 64]), shardio.RandomShortestSize([48, 80])),
    (shardio.RandomZoomOut(fill=7), shardio.RandomZoomOut(side_range=(1, 2))),
    (shardio.RandomIoUCrop(), shardio.RandomIoUCrop(trials=10)),
]


@pytest.mark.parametrize(("move", "other"), MOVES, ids=lambda each: type(each).__name__)
def test_masks_that_move_apart_are_told(move: Any, other: Any) -> None:
    """Lists with the same move draw alike, also with another fill; with other arguments they don't."""
    row = {"image": jpeg(60, 80), "mask": grey_png(np.zeros((60, 80), np.uint8)), "boxes": np.ones((1, 4), np.float32)}
    fields = {"image": "image", "mask": Field("image", role="mask"), "boxes": FIELDS["boxes"]}
    data = shardio.from_samples([row] * 4, fields)
    same = shardio.RandomZoomOut() if isinstance(move, shardio.RandomZoomOut) else move
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(Loader(data, 4, transforms={"image": [move, SANITIZE], "mask": [same]}))
    with pytest.warns(shardio.PairingWarning, match=f"'image' and 'mask' both have {type(move).__name__}, but draw"):
        Loader(data, 4, transforms={"image": [move, SANITIZE], "mask": [other]})


@pytest.mark.parametrize("move", [move for move, _ in MOVES[:4]], ids=lambda each: type(each).__name__)
def test_boxes_without_a_role_are_told(move: Any) -> None:
    """A field named boxes that lies on no image stays behind, and the warning names the role."""
    rows = [{"image": jpeg(60, 80), "boxes": np.zeros((1, 4), np.float32)}] * 4
    data = shardio.from_samples(rows, {"image": "image", "boxes": ("float32", (None, 4))})
    with pytest.warns(
        shardio.PairingWarning, match=r"'boxes' is delivered as it is stored, .*role='boxes'.*on='image'"
    ):
        Loader(data, 4, transforms={"image": [move]})


@pytest.mark.parametrize("transform", [shardio.RandomIoUCrop(), shardio.PadImages(), shardio.PadImages(64)], ids=repr)
def test_lists_of_images_have_no_boxes(transform: Any) -> None:
    """Transforms that need boxes, or the images of a batch, take no lists of images."""
    data = shardio.from_samples([{"pages": [jpeg()] * 2}] * 4, {"pages": "images"})
    with pytest.raises(shardio.ConfigError, match=f"'pages': {type(transform).__name__} takes single images"):
        Loader(data, 2, transforms={"pages": [transform]})


def test_sanitize_is_for_boxes() -> None:
    """It may be in the list of the boxes, whose image's it is, and of no other field; a TorchDataset pads no batch."""
    data = dataset(8)
    crop = [shardio.RandomIoUCrop(), shardio.Resize((32, 32))]
    Loader(data, 2, transforms={"image": crop, "boxes": [SANITIZE]})
    names = {"a": "image", "b": "image", "a_boxes": "boxes", "b_boxes": "boxes"}
    with pytest.raises(shardio.ConfigError, match=r"'a': .* put SanitizeBoundingBoxes\(\) behind it"):
        Loader(data, 2, fields=names, transforms={"a": crop, "b": [*crop, SANITIZE]})
    with pytest.raises(shardio.ConfigError, match="'labels': SanitizeBoundingBoxes goes into the list of the boxes or"):
        Loader(data, 2, transforms={"labels": [SANITIZE]})
    plain = shardio.from_samples([{"image": jpeg(20, 30), "boxes": np.zeros((1, 4))}])
    with pytest.raises(shardio.ConfigError, match="SanitizeBoundingBoxes needs role='boxes', got image"):
        Loader(plain, 1, transforms={"image": [SANITIZE]})
    with pytest.raises(shardio.ConfigError, match="a TorchDataset delivers samples: give PadImages a size"):
        shardio.TorchDataset(data, transforms={"image": [shardio.PadImages()]})


def test_a_torch_dataset_delivers_what_a_loader_does() -> None:
    """Sample by sample, with the same crops for the same seed."""
    data = dataset(16)
    alone = shardio.TorchDataset(data, transforms={"image": TRAIN}, geometry=True, seed=4)
    for batch in Loader(data, 8, transforms={"image": TRAIN}, geometry=True, seed=4, shuffle=None):
        for row, index in enumerate(batch["index"].tolist()):
            one: Mapping[str, Any] = alone[index]
            assert {*one} == {*batch}
            for name in ("image", "boxes", "labels", "points", "image_geometry"):
                assert torch.equal(torch.as_tensor(one[name]), batch[name][row])


def test_datasets_of_other_pairs_of_points_are_not_joined() -> None:
    """A flip exchanges the same points in all sources of a mixture, so these must state the same pairs."""
    other = dataclasses.replace(FIELDS["points"], attributes={"flip_pairs": [[1, 2]]})
    sources = {"a": dataset(2), "b": shardio.from_samples([sample(1)], FIELDS | {"points": other})}
    with pytest.raises(
        shardio.ConfigError, match=r"'points', flip_pairs is \[\[0, 1\]\] in source 'a', and \[\[1, 2\]\] in"
    ):
        shardio.concat(sources)


def test_rows_of_classes_stay_beside_joined_boxes() -> None:
    """MultiHot makes rows of the labels that are left; the rule of the boxes joins the others."""
    transforms: Any = {
        "image": [shardio.RandomIoUCrop(), shardio.SanitizeBoundingBoxes()],
        "boxes": [shardio.Ragged()],
        "labels": [shardio.MultiHot(4)],
    }
    data = shardio.from_samples(
        [sample(1) | {"labels": np.array([3])}, sample(2) | {"labels": np.array([1, 0])}], FIELDS
    )
    (batch,) = shardio.Loader(data, 2, transforms=transforms, shuffle=None, seed=1)
    assert batch["labels"].shape == (2, 4)
    assert batch["labels"].sum(dim=1).tolist() == batch["boxes_offsets"].diff().tolist()
