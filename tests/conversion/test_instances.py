"""Boxes in a column of other sources become fields, whatever their format; and what every conversion checks of them."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from _builders import jpeg, tiff, with_exif, write_files

import shardio
from shardio import Field, SourceWarning
from shardio.errors import BadSample, ConfigError, SourceError
from shardio.testing import check_source
from shardio_converters.filelist import filelist

BOXES = [[2.0, 3.0, 10.0, 5.0], [0.0, 0.0, 4.0, 4.0]]
"""Left, top, width and height on an image of 20 x 40 pixels."""
CORNERS = [[2, 3, 12, 8], [0, 0, 4, 4]]
FORMATS = {
    "xywh": BOXES,
    "xyxy": CORNERS,
    "cxcywh": [[7, 5.5, 10, 5], [2, 2, 4, 4]],
    "cxcywhn": [[7 / 40, 5.5 / 20, 10 / 40, 5 / 20], [2 / 40, 2 / 20, 4 / 40, 4 / 20]],
}
OBJECTS = {"bbox": BOXES, "category": [1, 0], "area": [9.5, 16.0], "id": [11, 12], "crowded": [True, False]}
ROWS = [OBJECTS, {name: [] for name in OBJECTS}]
"""An image with two instances and one with none, as Hugging Face's data sets state them."""


def listed(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """JSON lines, a row per photo of 20 x 40 pixels."""
    write_files(folder, {f"{number}.jpg": jpeg(20, 40, seed=number) for number in range(len(rows))})
    lines = [json.dumps({"path": f"{number}.jpg", **row}) for number, row in enumerate(rows)]
    (folder / "list.jsonl").write_text("\n".join(lines))
    return folder / "list.jsonl"


def table(folder: Path, rows: Sequence[Mapping[str, Any]], kind: Any = None) -> Path:
    """A Parquet file of the same."""
    photos = [jpeg(20, 40, seed=number) for number in range(len(rows))]
    columns = {name: pa.array([row[name] for row in rows], (kind or {}).get(name)) for name in rows[0]}
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"image": pa.array(photos), **columns}), folder / "list.parquet")
    return folder / "list.parquet"


def saved(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """The same as `datasets` saves it, with names of the classes."""
    import datasets

    photos = [{"bytes": jpeg(20, 40, seed=number), "path": None} for number in range(len(rows))]
    number, numbers = datasets.Value("float32"), {"area": "float32", "id": "int64", "crowded": "bool"}
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "objects": datasets.Sequence(
                {
                    "bbox": datasets.Sequence(number, length=4),
                    "pose": datasets.ClassLabel(names=["left", "right", "front"]),
                    "category": datasets.ClassLabel(names=["cat", "dog"]),
                    **{name: datasets.Value(kind) for name, kind in numbers.items()},
                }
            ),
        }
    )
    data = {"image": photos, "objects": [{"pose": [0] * len(row["objects"]["id"]), **row["objects"]} for row in rows]}
    datasets.Dataset.from_dict(data, features=features).save_to_disk(folder)
    return folder


WRITERS: dict[str, Callable[..., Path]] = {"filelist": listed, "parquet": table, "huggingface": saved}


def converted(place: Path, converter: str, box_format: str = "xywh", boxes: str = "objects", **own: Any) -> Any:
    """Convert, and open the dataset."""
    out = place.parent / f"out{len(list(place.parent.iterdir()))}"
    options = {"boxes": boxes, "box_format": box_format, **own}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SourceWarning)
        shardio.convert(place, out, converter=converter, converter_options=options)
    return shardio.open(out)


@pytest.mark.parametrize("converter", WRITERS)
def test_objects_become_fields(converter: str, tmp_path: Path) -> None:
    """An object of lists in any kind of table gives the same fields, under the names that detectors take."""
    data = converted(WRITERS[converter](tmp_path / "in", [{"objects": row} for row in ROWS]), converter)
    assert data[0]["boxes"].tolist() == CORNERS
    assert data[1]["boxes"].shape == (0, 4)
    assert data[0]["labels"].tolist() == [1, 0]
    assert data[0]["area"].tolist() == [9.5, 16]
    assert data[0]["annotation_id"].tolist() == [11, 12]
    assert data[0]["iscrowd"].tolist() == [True, False]
    assert data.fields["boxes"] == Field("array", "float32", (None, 4), role="boxes", on="image")
    assert data.fields["labels"] == Field("array", "int64", (None,), per="boxes")
    assert "objects" not in data.fields
    assert data.metadata.get("classes") == (["cat", "dog"] if converter == "huggingface" else None)


@pytest.mark.parametrize("converter", ["filelist", "parquet"])
@pytest.mark.parametrize("box_format", FORMATS)
def test_every_format_gives_corners(box_format: str, converter: str, tmp_path: Path) -> None:
    """A list of objects, and each format of boxes, gives the corners in pixels."""
    objects = [{"bbox": box, "label": number} for number, box in enumerate(FORMATS[box_format])]
    data = converted(WRITERS[converter](tmp_path / "in", [{"objects": objects}]), converter, box_format)
    assert data[0]["boxes"].tolist() == CORNERS
    assert data[0]["labels"].tolist() == [0, 1]


def test_lists_beside_boxes_are_per_box(tmp_path: Path) -> None:
    """Where boxes are plain lists, those called labels, area and the like beside them have a value for each."""
    row = {"boxes": BOXES, "labels": [1, 0], "area": [2.5, 3.0], "note": "x"}
    data = converted(
        listed(tmp_path / "a", [row, {**row, "boxes": [], "labels": [], "area": []}]), "filelist", boxes="boxes"
    )
    assert data[0]["boxes"].tolist() == CORNERS
    assert data[0]["labels"].tolist() == [1, 0]
    assert data[1]["area"].shape == (0,)
    assert data.fields["labels"].per == data.fields["area"].per == "boxes"
    assert data[0]["note"] == "x"
    kinds = {"boxes": pa.list_(pa.list_(pa.float32(), 4)), "labels": pa.list_(pa.int64())}
    place = table(tmp_path / "b", [{"boxes": BOXES, "labels": [1, 0]}], kinds)
    assert converted(place, "parquet", boxes="boxes").digest
    assert converted(place, "parquet", boxes="boxes").fields["labels"].per == "boxes"


def test_a_table_of_text_holds_json(tmp_path: Path) -> None:
    """A cell of a CSV file may hold JSON."""
    write_files(tmp_path, {"0.jpg": jpeg(20, 40), "list.csv": 'path,boxes\n0.jpg,"[[2, 3, 10, 5]]"\n'})
    assert converted(tmp_path / "list.csv", "filelist", boxes="boxes")[0]["boxes"].tolist() == [[2, 3, 12, 8]]


def test_labels_that_are_strings_need_names(tmp_path: Path) -> None:
    """The option `classes` numbers strings; without it they are refused, and a string that it lacks is bad."""
    place = listed(tmp_path, [{"objects": [{"bbox": BOXES[0], "category": "dog"}]}])
    data = converted(place, "filelist", classes="cat,dog")
    assert data[0]["labels"].tolist() == [1]
    assert data.metadata["classes"] == ["cat", "dog"]
    with pytest.raises(ConfigError, match="labels in 'objects' are strings, such as 'dog': classes names all"):
        converted(place, "filelist")
    with pytest.raises(ConfigError, match="with boxes, classes must be the names of labels, got 'auto'"):
        converted(place, "filelist", classes="auto")
    with pytest.raises(BadSample, match="label 'dog' is none of 1: cat"):
        converted(place, "filelist", classes="cat")


def test_numbers_of_labels_are_below_the_number_of_names(tmp_path: Path) -> None:
    """With names of classes, an integer that has none is a bad sample, as a string is that is none."""
    place = listed(tmp_path / "in", [{"objects": [{"bbox": BOXES[0], "label": label}]} for label in (1, 2)])
    with pytest.raises(BadSample, match="label 2 is none of 2: 0, 1"):
        converted(place, "filelist", classes="cat,dog")
    assert converted(place, "filelist", classes="cat,dog,cow")[1]["labels"].tolist() == [2]


def test_what_is_no_number_is_left_out_with_a_remark(tmp_path: Path) -> None:
    """Other values of objects are named, not lost in silence."""
    source = filelist(
        listed(tmp_path, [{"objects": [{"bbox": BOXES[0], "pose": "left", "difficult": 1}]}]),
        boxes="objects",
        box_format="xywh",
    )
    assert list(source.remarks) == ["left out 'pose' of 'objects': no numbers"]
    assert set(source.fields) == {"image", "key", "boxes", "difficult"}


def test_the_source_keeps_its_contract(tmp_path: Path) -> None:
    """Samples by number, in blocks, pickled and through every container are the same."""
    source = filelist(listed(tmp_path, [{"objects": row} for row in ROWS]), boxes="objects", box_format="xywh")
    check_source(source, [dict(source[number]) for number in range(2)], tmp_path / "out")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "field 'objects': null"),
        ("[[1", "not JSON"),
        (7, "expected a list of objects or boxes, or an object of lists, got 7"),
        ({"bbox": 7}, "'bbox' must be a list with a value per instance, got 7"),
        ({"bbox": BOXES, "label": [1]}, "field 'labels' has 1 values, field 'boxes' has 2"),
        ([{"bbox": BOXES[0], "label": 1}, {"label": 1}], "instance 1 has no 'bbox'"),
        ([{"bbox": BOXES[0], "label": 1.5}], "field 'labels'"),
        ([{"bbox": BOXES[0]}], "instance 0 has no 'label'"),
    ],
)
def test_odd_values_are_bad_samples(value: Any, told: str, tmp_path: Path) -> None:
    """A value that states no boxes makes a bad sample with the reason."""
    good = {"objects": [{"bbox": BOXES[0], "label": 0}]}
    with pytest.raises(BadSample) as bad:
        converted(listed(tmp_path, [good, {"objects": value}]), "filelist")
    assert told in str(bad.value)


def test_missing_instances_may_be_optional(tmp_path: Path) -> None:
    """With `optional`, an image whose boxes are unknown differs from one that has none."""
    place = listed(tmp_path / "in", [{"objects": OBJECTS}, {"objects": None}, {"objects": ROWS[1]}])
    own = {"boxes": "objects", "box_format": "xywh"}
    names = "boxes,labels,area,annotation_id,iscrowd"
    shardio.convert(place, tmp_path / "out", converter="filelist", converter_options=own, optional=names)
    found = [sample["boxes"] for sample in shardio.open(tmp_path / "out")]  # type: ignore[attr-defined]  # iterable
    assert found[1] is None
    assert [len(found[0]), len(found[2])] == [2, 0]


def test_fields_of_sizes_tell_what_is_annotated(tmp_path: Path) -> None:
    """Fields `height` and `width` beside boxes decide for images that a tag rotates."""
    place = listed(tmp_path, [{"boxes": [[2, 3, 10, 5]], "height": 40, "width": 20}])
    (tmp_path / "0.jpg").write_bytes(with_exif(jpeg(20, 40), tiff(6)))
    assert converted(place, "filelist", boxes="boxes")[0]["boxes"].tolist() == [[3, 8, 8, 18]]


def test_sizes_may_be_missing(tmp_path: Path) -> None:
    """A row of a table without height and width is like one of a table that has no such columns."""
    rows = [{"objects": OBJECTS, "height": height, "width": width} for height, width in ((20, 40), (None, None))]
    place, own = table(tmp_path / "in", rows), {"boxes": "objects", "box_format": "xywh"}
    shardio.convert(place, tmp_path / "out", converter="parquet", converter_options=own, optional="height,width")
    assert shardio.open(tmp_path / "out")[1]["boxes"].tolist() == CORNERS


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"boxes": "objects"}, "boxes needs box_format"),
        ({"box_format": "xywh"}, "boxes needs box_format"),
        ({"boxes": "nope", "box_format": "xywh"}, "beside exactly one image, got 'nope'"),
        (
            {"boxes": "objects", "box_format": "yxyx"},
            "box_format must be one of xywh, xyxy, cxcywh, cxcywhn, got 'yxyx'",
        ),
        ({"boxes": "objects", "box_format": "xywh", "annotations": "up"}, "annotations must be upright or stored"),
        ({"boxes": "area", "box_format": "xywh"}, "some samples throughout have no boxes in 'area'"),
    ],
)
def test_wrong_options_are_refused(own: dict[str, Any], told: str, tmp_path: Path) -> None:
    """Each option that leads nowhere is named."""
    place = listed(tmp_path, [{"objects": OBJECTS, "area": [{"x": 1}]}])
    with pytest.raises((ConfigError, SourceError)) as refused:
        filelist(place, **own)
    assert told in str(refused.value)


class Given:
    """A source of one sample with boxes of its own."""

    metadata = {"source": "given"}
    fields = {
        "image": Field("image"),
        "boxes": Field("array", "float32", (None, 4), role="boxes", on="image"),
        "scores": Field("array", "float32", (None,), per="boxes"),
        "points": Field("array", "float32", (None, 1, 2), role="points", on="image"),
    }

    def __init__(self, boxes: Any, scores: Any = None, points: Any = ((1, 1),)) -> None:
        self.boxes, self.points = np.array(boxes, np.float32).reshape(-1, 4), np.array(points, np.float32)
        self.scores = np.zeros(len(self.boxes) if scores is None else scores, np.float32)

    def sizes(self) -> Any:
        return np.array([1000])

    def __getitem__(self, index: int) -> Any:
        points = self.points.reshape(-1, 1, self.points.shape[-1])
        return {"image": jpeg(20, 40), "boxes": self.boxes, "scores": self.scores, "points": points}


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (Given([[0, 0, np.nan, 4]]), "field 'boxes': number 0 is not finite"),
        (Given([[0, 0, 4, 4], [4, 0, 2, 4]]), "field 'boxes': number 1 is no left, top, right and bottom edge"),
        (Given([[0, 0, 4, 4]], scores=3), "field 'scores' has 3 values, field 'boxes' has 1"),
        (Given([[0, 0, 4, 4]], points=[[np.inf, 1]]), "field 'points': number 0 is not finite"),
    ],
)
def test_every_source_is_checked(source: Any, told: str, tmp_path: Path) -> None:
    """Whatever made them: coordinates are finite, edges in order, and fields of one axis equally long."""
    with pytest.raises(BadSample, match=r"sample 0 of the source") as bad:
        shardio.convert(source, tmp_path / "out")
    assert told in str(bad.value)


def test_boxes_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    """Boxes beyond an edge, outside and without area are stored unchanged, and one warning counts each kind."""
    boxes = [[30, 2, 45, 9], [50, 2, 55, 9], [3, 3, 3, 8], [1, 1, 9, 9], [-0.01, 0, 40.01, 20]]
    with pytest.warns(SourceWarning, match="1 beyond an edge of their image, 1 wholly outside of it, 1 without area"):
        shardio.convert(Given(boxes), tmp_path / "out")
    assert (shardio.open(tmp_path / "out")[0]["boxes"] == np.array(boxes, np.float32)).all()


def test_keys_of_few_samples_are_told(tmp_path: Path) -> None:
    """A key that no sample had that was looked at is left out, and the last note counts the images that have it."""
    rows = [{"objects": [{"bbox": BOXES[0]} | ({"occluded": 1} if number == 100 else {})]} for number in range(200)]
    options = {"boxes": "objects", "box_format": "xywh"}
    with pytest.warns(SourceWarning, match="instances of 1 image have keys"):
        shardio.convert(listed(tmp_path, rows), tmp_path / "out", converter="filelist", converter_options=options)
    assert {*shardio.open(tmp_path / "out").fields} == {"key", "image", "boxes"}


def test_points_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    """Points beyond an edge are stored unchanged, and a warning counts them; unlabelled ones are no such points."""
    points = [[50, 2], [3, -1], [40, 20]]
    with pytest.warns(SourceWarning, match="2 points beyond an edge of their image: stored as they are"):
        shardio.convert(Given([], points=points), tmp_path / "out")
    assert shardio.open(tmp_path / "out")[0]["points"].reshape(-1, 2).tolist() == points
    labelled = Given([], points=[[0, 0, 0], [-1, -1, 0], [5, 5, 2]])
    labelled.fields = Given.fields | {"points": Field("array", "float32", (None, 1, 3), role="points", on="image")}
    assert shardio.convert(labelled, tmp_path / "labelled").notes == ()
