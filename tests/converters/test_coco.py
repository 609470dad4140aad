"""COCO's JSON: what becomes of annotations, and of every oddity that such files have."""

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import decoded, jpeg, png, tiff, with_exif, write_files
from _cli import unfinished
from numpy.typing import NDArray

import shardio
from shardio import SourceWarning
from shardio.errors import BadSample, ConfigError, ShardioError, SourceError
from shardio_converters.coco import coco

CATEGORIES = [{"id": 3, "name": "dog"}, {"id": 1, "name": "cat"}, {"id": 90, "name": "toothbrush"}]
"""Neither in order nor without gaps."""
POINTS = ["nose", "left_eye", "right_eye"]


def image(number: int, height: int = 20, width: int = 30, **others: Any) -> dict[str, Any]:
    return {"id": number, "file_name": f"{number}.jpg", "height": height, "width": width, **others}


def annotation(number: int, of: int, box: Sequence[float] = (2, 3, 10, 5), **others: Any) -> dict[str, Any]:
    given = {"id": number, "image_id": of, "category_id": 3, "bbox": box, "area": 4.5, "iscrowd": 0, **others}
    return {name: value for name, value in given.items() if value != "absent"}


def write(
    folder: Path,
    images: Sequence[Mapping[str, Any]],
    annotations: Sequence[Mapping[str, Any]],
    categories: Sequence[Mapping[str, Any]] = CATEGORIES,
    files: Mapping[str, bytes | None] | None = None,
) -> Path:
    """Write JSON and images of the sizes that it states, but for `files`; None writes none."""
    own = {one["file_name"]: jpeg(one["height"], one["width"], seed=one["id"]) for one in images}
    written = {f"images/{name}": data for name, data in {**own, **(files or {})}.items() if data is not None}
    write_files(folder, written)
    place = folder / "instances.json"
    place.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return place


def converted(place: Path, **options: Any) -> shardio.Dataset:
    """Convert with the images beside the file, and open the dataset."""
    own = {"images": place.parent / "images", **options.pop("own", {})}
    out = place.parent / f"out{len(list(place.parent.iterdir()))}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SourceWarning)
        shardio.convert(place, out, converter="coco", converter_options=own, **options)
    return shardio.open(out)


def notes(place: Path, **options: Any) -> str:
    made = shardio.convert(
        place,
        place.parent / "noted",
        converter="coco",
        converter_options={"images": place.parent / "images"},
        tell=lambda note: None,
        overwrite=True,
        **options,
    )
    return "; ".join(made.notes)


def test_every_image_is_a_sample(tmp_path: Path) -> None:
    """All fields of annotations arrive, as corners and as numbers of the sorted categories; none at all is no box."""
    polygon, code = [[1.0, 1.0, 5.0, 1.0, 5.0, 5.0]], {"size": [20, 30], "counts": "PPYo1"}
    place = write(
        tmp_path,
        [image(7), image(2), image(5)],
        [
            annotation(1, 5, [0.5, 1.25, 3.1, 4], category_id=90, segmentation=polygon),
            annotation(2, 7),
            annotation(3, 5, category_id=1, iscrowd=1, segmentation=code),
        ],
    )
    data = converted(place)
    assert [sample["image_id"] for sample in map(data.__getitem__, range(3))] == [7, 2, 5]
    assert dict(data.metadata) == {
        "source": "coco",
        "classes": ["cat", "dog", "toothbrush"],
        "category_ids": [1, 3, 90],
    }
    crowded = data[2]
    assert crowded["boxes"].tolist() == np.array([[0.5, 1.25, 3.6, 5.25], [2, 3, 12, 8]], np.float32).tolist()
    assert crowded["labels"].tolist() == [2, 0]
    assert crowded["category_id"].tolist() == [90, 1]
    assert crowded["iscrowd"].tolist() == [0, 1]
    assert crowded["annotation_id"].tolist() == [1, 3]
    assert crowded["area"].tolist() == [4.5, 4.5]
    assert crowded["segmentation"] == [polygon, code]
    assert crowded["key"] == "5.jpg"
    assert crowded["image"] == (tmp_path / "images" / "5.jpg").read_bytes()
    empty = data[1]
    assert empty["boxes"].shape == (0, 4)
    assert empty["labels"].shape == (0,)
    assert empty["segmentation"] == []
    assert data.fields["boxes"].role == "boxes"
    assert {name for name, field in data.fields.items() if field.per == "boxes"} == {
        "labels", "category_id", "area", "iscrowd", "annotation_id",
    }  # fmt: skip


def test_a_test_set_has_no_annotations(tmp_path: Path) -> None:
    """A file that lists images alone gives samples without boxes."""
    place = write(tmp_path, [image(1)], [])
    place.write_text(json.dumps({"images": [image(1)]}))
    assert converted(place)[0]["boxes"].shape == (0, 4)


def test_keypoints_state_their_pairs(tmp_path: Path) -> None:
    """Points arrive per box with visibility, a flip knows left from right, and a crowd without points has zeros."""
    person = {"id": 1, "name": "person", "keypoints": POINTS, "skeleton": [[1, 2]]}
    points = [4, 5, 2, 6, 5, 1, 0, 0, 0]
    place = write(
        tmp_path,
        [image(1), image(2)],
        [annotation(1, 1, category_id=1, keypoints=points), annotation(2, 1, category_id=1, iscrowd=1)],
        [person],
    )
    data = converted(place)
    assert data[0]["keypoints"].tolist() == [np.reshape(points, (3, 3)).tolist(), np.zeros((3, 3)).tolist()]
    assert data[1]["keypoints"].shape == (0, 3, 3)
    assert data.fields["keypoints"].flip_pairs == [[1, 2]]
    assert data.metadata["keypoints"] == POINTS
    assert data.metadata["skeleton"] == [[1, 2]]


def test_keypoints_without_names(tmp_path: Path) -> None:
    """Categories that name no points leave their pairs unknown; names that no annotation uses make the same field."""
    points = [annotation(1, 1, keypoints=[]), annotation(2, 1, keypoints=[1, 2, 2, 3, 4, 1])]
    data = converted(write(tmp_path / "a", [image(1)], points))
    assert data[0]["keypoints"].tolist() == [[[0, 0, 0], [0, 0, 0]], [[1, 2, 2], [3, 4, 1]]]
    assert data.fields["keypoints"].flip_pairs is None
    place = write(tmp_path / "b", [image(1)], [], [{"id": 1, "name": "person", "keypoints": POINTS}])
    assert converted(place)[0]["keypoints"].shape == (0, 3, 3)


ODDITIES: dict[str, tuple[list[Any], list[Any], str]] = {
    # images, annotations, and what is told: of a bad sample, in a note, or by an error at once
    "beyond an edge": ([image(1)], [annotation(1, 1, [25, 3, 10, 5])], "note: 1 beyond an edge of their image"),
    "negative": ([image(1)], [annotation(1, 1, [-4, 3, 10, 5])], "note: 1 beyond an edge of their image"),
    "outside": ([image(1)], [annotation(1, 1, [31, 3, 10, 5])], "note: 1 wholly outside of it"),
    "zero area": ([image(1)], [annotation(1, 1, [3, 3, 0, 5])], "note: 1 without area"),
    "rounding": ([image(1)], [annotation(1, 1, [20, 3, 10.004, 5])], "nothing"),
    "negative width": ([image(1)], [annotation(1, 1, [9, 3, -4, 5])], "bad: number 0 is no left, top, right"),
    "three numbers": ([image(1)], [annotation(1, 1, [9, 3, 4])], "bad: 'bbox' are no numbers of shape"),
    "a word": ([image(1)], [annotation(1, 1, ["a", 3, 4, 5])], "bad: 'bbox' are no numbers of shape"),
    "no box": ([image(1)], [annotation(1, 1, "absent")], "bad: instance 0 has no 'bbox'"),
    "null box": ([image(1)], [annotation(8, 1), annotation(1, 1, None)], "bad: instance 1 has no 'bbox'"),
    "unknown category": ([image(1)], [annotation(1, 1, category_id=2)], "bad: label 2 is none of 3: 1, 3, 90"),
    "no area": ([image(1)], [annotation(1, 1), annotation(2, 1, area="absent")], "bad: instance 1 has no 'area'"),
    "other size": (
        [image(1, 40, 60)],
        [annotation(1, 1)],
        "bad: image has 40 x 60 pixels (height x width), this one 20",
    ),
    "unknown image": ([image(1)], [annotation(1, 9)], "note: left out 1 annotation of images that are not listed"),
    "id twice": ([image(1)], [annotation(4, 1), annotation(4, 1)], "note: 1 id of annotations, such as 4, stand"),
    "other keys": ([image(1)], [annotation(1, 1, score=0.5, at=[1])], "note: left out 'at', 'score' of annotations"),
    "image twice": ([image(1), image(1)], [], "error: images must have different ids, 1 occurs twice"),
    "no images": ([], [], "error: lists no images"),
    "outer path": ([image(1, file_name="../1.jpg")], [], "error: '../1.jpg' leads out of the folder of images"),
    "text as id": ([image(1)], [annotation(1, 1, id="x")], "error: Expected `int`, got `str`"),
    "huge number": ([image(1)], [annotation(1, 1, [1e300, 3, 4, 5])], "bad: number 0 is not finite"),
}


@pytest.mark.parametrize("name", ODDITIES)
def test_nothing_odd_is_silent(name: str, tmp_path: Path) -> None:
    """Each oddity is stored as it is with a note, a bad sample that names its image, or an error at once."""
    images, annotations, told = ODDITIES[name]
    place = write(tmp_path, images, annotations, files={"1.jpg": jpeg(20, 30)})
    kind, _, words = told.partition(": ")
    if kind == "error":
        with pytest.raises(SourceError) as refused:
            coco(place, images=tmp_path / "images")
        assert words in str(refused.value)
    elif kind == "bad":
        with pytest.raises(BadSample) as bad:
            converted(place)
        assert words in str(bad.value)
        assert "1.jpg" in str(bad.value)
    else:
        assert words in notes(place) if words else notes(place) == ""
        (found,) = shardio.open(tmp_path / "noted")
        left, top, width, height = annotations[0]["bbox"]
        if annotations[0]["image_id"] == 1:
            assert found["boxes"][0].tolist() == pytest.approx([left, top, left + width, top + height])
        assert len(found["boxes"]) == len(found["labels"]) == sum(one["image_id"] == 1 for one in annotations)


def test_sizes_are_compared_one_by_one(tmp_path: Path) -> None:
    """An image without height and width doesn't keep those of the others from being compared."""
    place = write(
        tmp_path, [image(1, 40, 60), image(2)], [annotation(1, 1), annotation(2, 2)], files={"1.jpg": jpeg(20, 30)}
    )
    stated = json.loads(place.read_text())
    del stated["images"][1]["height"]
    place.write_text(json.dumps(stated))
    with pytest.raises(BadSample, match=r"1\.jpg.*image has 40 x 60 pixels"):
        converted(place)
    (found,) = converted(place, on_error="skip", max_bad=1)
    assert found["image_id"] == 2


def test_remarks_are_errors_with_strict(tmp_path: Path) -> None:
    """Annotations that are left out end a strict conversion."""
    place = write(tmp_path, [image(1)], [annotation(1, 9)])
    with pytest.raises(SourceError, match="annotation 1 of image 9"):
        converted(place, strict=True)


def test_a_missing_image_is_a_bad_sample(tmp_path: Path) -> None:
    """An image that is listed and missing is named, and may be skipped; the others keep their boxes."""
    place = write(tmp_path, [image(1), image(2)], [annotation(1, 2, category_id=1)], files={"1.jpg": None})
    with pytest.raises(BadSample, match=r"1\.jpg"):
        converted(place)
    (found,) = converted(place, on_error="skip", max_bad=1)
    assert found["labels"].tolist() == [0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "Input data was truncated"),
        ('{"annotations": []}', "missing required field `images`"),
        ('{"images": [{"id": 1}]}', "missing required field `file_name`"),
        ('{"images": [{"id": NaN, "file_name": "a"}]}', "malformed"),
    ],
)
def test_other_json_is_refused(text: str, told: str, tmp_path: Path) -> None:
    """A file that isn't COCO's JSON is refused with the reason and its place."""
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(SourceError, match=r"x\.json cannot be read") as refused:
        coco(tmp_path / "x.json")
    assert told in str(refused.value)


def test_options_that_lead_nowhere(tmp_path: Path) -> None:
    """A folder of images that isn't there, or a word that is none, is refused by name."""
    place = write(tmp_path, [image(1)], [])
    with pytest.raises(ConfigError, match="images must be a folder"):
        coco(place, images=tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="annotations must be upright or stored"):
        coco(place, images=tmp_path / "images", annotations="sideways")  # type: ignore[arg-type]  # a wrong word


def photo(orientation: int, box: Sequence[int], height: int, width: int) -> tuple[bytes, NDArray[np.uint8]]:
    """A PNG whose tag rotates it, with a white rectangle where `box` is once it is upright; and the upright pixels."""
    from shardio.engines.orientation import TRANSPOSITIONS, transpose

    upright = np.zeros((height, width, 3), np.uint8)
    upright[box[1] : box[3], box[0] : box[2]] = 255
    rows, columns, swap = TRANSPOSITIONS[orientation]
    stored = upright.swapaxes(0, 1) if swap else upright
    stored = stored[:: -1 if rows else 1, :: -1 if columns else 1]
    assert (transpose(stored, TRANSPOSITIONS[orientation]) == upright).all()
    return with_exif(shardio.source.encode_png(np.ascontiguousarray(stored), "x"), tiff(orientation)), upright


@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_annotations_become_stored_ones(orientation: int, tmp_path: Path) -> None:
    """Boxes of upright pixels surround the same pixels in the stored image, and in the batch that turns both back."""
    box = [4, 2, 11, 17]
    data, upright = photo(orientation, box, 20, 30)
    own = {"annotations": "upright"} if orientation in (2, 3, 4) else {}
    place = write(
        tmp_path,
        [image(1, file_name="1.png")],
        [annotation(1, 1, [4, 2, 7, 15], category_id=1, keypoints=[4, 2, 2, 10, 16, 1, 0, 0, 0])],
        [{"id": 1, "name": "person", "keypoints": POINTS}],
        {"1.png": data},
    )
    dataset = converted(place, own=own)
    stored = decoded(data).max(axis=2) > 0
    rows, columns = np.flatnonzero(stored.any(axis=1)), np.flatnonzero(stored.any(axis=0))
    found = dataset[0]["boxes"][0].tolist()
    assert found == [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
    corners = {tuple(point[:2].astype(int)) for point in dataset[0]["keypoints"][0][:2]}
    assert {(x in (columns[0], columns[-1]), y in (rows[0], rows[-1])) for x, y in corners} == {(True, True)}
    (batch,) = shardio.Loader(dataset, 1, orient=True, fields=["image", "boxes", "keypoints"])
    assert batch["boxes"][0].tolist() == [box]
    assert batch["keypoints"][0].tolist() == [[[4, 2, 2], [10, 16, 1], [0, 0, 0]]]
    assert (batch["image"][0].numpy() == upright).all()


TAGGED = [
    # orientation, the size that the file states, the option, what becomes of the box [2, 3, 12, 8] on 20 x 30 pixels
    (6, (30, 20), None, [3, 8, 8, 18]),  # the upright size: rotated back
    (6, (20, 30), None, [2, 3, 12, 8]),  # the stored size
    (6, (20, 30), "upright", "annotated image has 20 x 30 pixels"),
    (6, (30, 20), "stored", "annotated image has 30 x 20 pixels"),
    (6, (10, 15), None, "annotated image has 10 x 15 pixels (height x width), this one 30 x 20 or 20 x 30"),
    (3, (20, 30), None, "no size tells whether upright or stored pixels are annotated"),
    (3, (20, 30), "stored", [2, 3, 12, 8]),
    (3, (20, 30), "upright", [18, 12, 28, 17]),
]


@pytest.mark.parametrize(("orientation", "size", "option", "expected"), TAGGED)
def test_sizes_tell_which_pixels_are_annotated(
    orientation: int, size: tuple[int, int], option: Any, expected: Any, tmp_path: Path
) -> None:
    """The size in the file decides; where it can't, and where the two contradict each other, the sample is bad."""
    data = with_exif(jpeg(20, 30), tiff(orientation))
    place = write(tmp_path, [image(1, *size)], [annotation(1, 1)], files={"1.jpg": data})
    own = {} if option is None else {"annotations": option}
    if isinstance(expected, str):
        with pytest.raises(BadSample, match=r"1\.jpg") as bad:
            converted(place, own=own)
        assert expected in str(bad.value)
    else:
        assert converted(place, own=own)[0]["boxes"].tolist() == [expected]


def test_square_images_are_bad_until_said(tmp_path: Path) -> None:
    """A rotated square has one size either way; without boxes nothing needs to be known."""
    data = with_exif(jpeg(20, 20), tiff(6))
    listed = [image(1, 20, 20), image(2, 20, 20)]
    place = write(tmp_path, listed, [annotation(1, 1)], files={"1.jpg": data, "2.jpg": data})
    with pytest.raises(BadSample, match="stored pixels are annotated: annotations="):
        converted(place)
    assert converted(place, own={"annotations": "upright"})[0]["boxes"].tolist() == [[3, 8, 8, 18]]
    (kept,) = converted(place, on_error="skip", max_bad=1)
    assert kept["image_id"] == 2


def test_turned_annotations_are_counted(tmp_path: Path) -> None:
    """A note counts the images whose annotations were turned, also where other options change the images."""
    data = with_exif(jpeg(20, 30), tiff(6))
    place = write(tmp_path, [image(1, 30, 20)], [annotation(1, 1)], files={"1.jpg": data})
    for options in ({}, {"resize_shorter": 15}):
        assert "rotates or flips 1 image whose upright pixels are annotated" in notes(place, **options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"resize_shorter": 10}, [1, 1.5, 6, 4]),
        ({"orient": True}, [12, 2, 17, 12]),
        ({"orient": True, "resize_shorter": 10}, [6, 1, 8.5, 6]),
        ({"store_pixels": True, "resize": (40, 30)}, [2, 6, 12, 16]),
        ({"store_pixels": True, "resize": (60, 20), "orient": True}, [12, 4, 17, 24]),
    ],
    ids=str,
)
def test_boxes_follow_images_that_shrink(options: dict[str, Any], expected: list[float], tmp_path: Path) -> None:
    """A conversion that changes the pixels moves the boxes with them."""
    data = with_exif(jpeg(20, 30), tiff(6))
    place = write(tmp_path, [image(1)], [annotation(1, 1)], files={"1.jpg": data})
    assert converted(place, **options)[0]["boxes"].tolist() == [expected]


def test_a_killed_conversion_is_resumed(tmp_path: Path) -> None:
    """Workers give the bytes that one process gives, and `--resume` after a kill does too."""
    listed = [image(number) for number in range(60)]
    place = write(tmp_path, listed, [annotation(number, number // 3) for number in range(120)])
    own = ["coco", place, tmp_path / "killed", "--images", tmp_path / "images", "--shard-size", "4KB"]
    command = [sys.executable, "-m", "shardio", "convert", *map(str, own)]
    whole = converted(place, shard_size="4KB", workers=2)
    with subprocess.Popen([*command, "--workers", "1"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as job:
        while job.poll() is None and not unfinished(tmp_path / "killed", "*.done"):
            time.sleep(0.01)
        job.kill()
    subprocess.run([*command, "--resume"], check=True, capture_output=True)
    assert shardio.open(tmp_path / "killed").digest == whole.digest
    assert len(whole) == 60


def test_training_reads_what_was_converted(tmp_path: Path) -> None:
    """A Loader gives targets of the converted dataset, and the conditions of `where` go by the image's id."""
    place = write(tmp_path, [image(1), image(2)], [annotation(1, 1), annotation(2, 2, category_id=1)])
    data = converted(place, where="image_id == 2")
    (batch,) = shardio.Loader(data, 1, fields=["image", "boxes", "labels"], transforms={"boxes": [shardio.Ragged()]})
    (target,) = shardio.to_torchvision(batch)
    assert target["labels"].tolist() == [0]
    assert target["boxes"].tolist() == [[2, 3, 12, 8]]


def test_categories_agree_on_keypoints(tmp_path: Path) -> None:
    """Two categories with other keypoints have no common field."""
    kinds = [{"id": 1, "name": "a", "keypoints": ["x"]}, {"id": 2, "name": "b", "keypoints": ["y"]}]
    place = write(tmp_path, [image(1, file_name="1.png")], [], kinds, {"1.png": png()})
    with pytest.raises(ShardioError, match="categories must have the same keypoints"):
        coco(place, images=tmp_path / "images")
