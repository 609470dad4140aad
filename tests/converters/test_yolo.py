"""Images and text files of boxes, as a data.yaml of YOLO lists them."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import jpeg, tiff, with_exif, write_files

import shardio
from shardio import SourceWarning
from shardio.errors import BadSample, ConfigError, SourceError
from shardio_converters.yolo import yolo

YAML = "train: images/train\nval: images/val\nnames:\n  0: cat\n  1: dog\n"


def write(folder: Path, yaml: str = YAML, **labels: str) -> Path:
    """Three photos of 20 x 40 pixels for training and one for validation, with the text of some labels."""
    photos = {f"images/train/{name}.jpg": jpeg(20, 40, seed=number) for number, name in enumerate("abc")}
    files: dict[str, bytes | str] = {**photos, "images/val/d.png": jpeg(20, 40, seed=4), "data.yaml": yaml}
    given = {"a": "1 0.5 0.5 0.25 0.5\n0 0.25 0.5 0.5 1\n", "b": "", "d": "0 0.5 0.5 1 1", **labels}
    for name, text in given.items():
        files[f"labels/{'val' if name == 'd' else 'train'}/{name}.txt"] = text
    write_files(folder, files)
    return folder / "data.yaml"


def converted(place: Path, out: Path, subset: str | None = "train", **own: Any) -> shardio.Dataset:
    """Convert the photos of one subset, and open the dataset."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SourceWarning)
        shardio.convert(place, out, converter="yolo", converter_options={"subset": subset, **own})
    return shardio.open(out)


def test_boxes_are_corners_in_pixels(tmp_path: Path) -> None:
    """Each image is a sample with its boxes; an empty file of labels and a missing one mean none."""
    data = converted(write(tmp_path), tmp_path / "out")
    assert [data[number]["key"] for number in range(3)] == [f"images/train/{name}.jpg" for name in "abc"]
    assert data[0]["boxes"].tolist() == [[15, 5, 25, 15], [0, 0, 20, 20]]
    assert data[0]["labels"].tolist() == [1, 0]
    assert data[1]["boxes"].shape == data[2]["boxes"].shape == (0, 4)
    assert dict(data.metadata) == {"source": "yolo", "classes": ["cat", "dog"]}
    assert set(data.fields) == {"image", "key", "boxes", "labels"}


def test_images_without_labels_are_counted(tmp_path: Path) -> None:
    """A note says how many images have no file of labels."""
    source = yolo(write(tmp_path), subset="train")
    assert list(source.hints) == ["1 image of 3 without a file of labels: no boxes"]


def test_the_subset_is_chosen(tmp_path: Path) -> None:
    """Where there are several subsets, one must be named; a single one is taken."""
    place = write(tmp_path)
    with pytest.raises(ConfigError, match=r"has train, val; subset must be one of these, got None"):
        yolo(place)
    with pytest.raises(ConfigError, match=r"got 'test'"):
        yolo(place, subset="test")
    assert converted(place, tmp_path / "val", "val")[0]["boxes"].tolist() == [[0, 0, 40, 20]]
    place.write_text("train: images/train\nnames: [cat, dog]\n")
    assert len(converted(place, tmp_path / "only", None)) == 3


@pytest.mark.parametrize(
    "yaml",
    [
        "train: [images/train]\nnames: [cat, dog]\n",  # a list of folders
        "train: train.txt\nnames: [cat, dog]\n",  # a text file of paths
        "train: ../images/train\nnames: [cat, dog]\n",  # as Roboflow writes it
        "path: .\ntrain: images/train\nnames: [cat, dog]\nval:\n",  # an empty subset is none
    ],
)
def test_ways_to_list_images(yaml: str, tmp_path: Path) -> None:
    """All ways of listing images that trainers read give the same dataset."""
    expected = converted(write(tmp_path / "one"), tmp_path / "expected")
    place = write(tmp_path / "other", yaml)
    (place.parent / "train.txt").write_text("".join(f"./images/train/{name}.jpg\n" for name in "abc"))
    assert converted(place, tmp_path / "found", None).digest == expected.digest


def test_paths_start_from_the_root(tmp_path: Path) -> None:
    """The option `root` replaces the folder that the file names, as on another machine."""
    place = write(tmp_path / "set", f"path: /nowhere/at/all\n{YAML}")
    with pytest.raises(SourceError, match="/nowhere/at/all/images/train is missing"):
        yolo(place, subset="train")
    assert len(converted(place, tmp_path / "out", root=place.parent)) == 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2 0.5 0.5 0.5 0.5", "label 2 is none of 2"),  # a class that has no name
        ("-1 0.5 0.5 0.5 0.5", "label -1 is none of 2"),
        ("0 0.5 0.5 0.5", "line 1: expected class, center x, center y, width, height (no polygons), got 4 numbers"),
        (
            "\n1 0 0 1 0 1 1 0 1",
            "line 2: expected class, center x, center y, width, height (no polygons), got 9 numbers",
        ),  # a polygon
        ("0.5 0.5 0.5 0.5 0.5", "the first 0.5"),
        ("cat 0.5 0.5 0.5 0.5", "got 'cat 0.5 0.5 0.5 0.5'"),
        ("0 nan 0.5 0.5 0.5", "number 0 is not finite"),
        ("0 0.5 0.5 -0.5 0.5", "no left, top, right and bottom edge"),
    ],
)
def test_other_labels_are_bad_samples(text: str, told: str, tmp_path: Path) -> None:
    """A line that is no box of a known class is a bad sample, which names the image or the file and line."""
    with pytest.raises(BadSample, match=r"a\.(txt|jpg)") as bad:
        converted(write(tmp_path, a=text), tmp_path / "out")
    assert told in str(bad.value)


@pytest.mark.parametrize(
    ("yaml", "told"),
    [
        ("names: [", "cannot be read"),
        ("[1, 2]", "must be a mapping with names"),
        ("train: images/train", "must be a mapping with names"),
        ("train: images/train\nnames: {1: cat}", "names must number the classes from 0, got 1"),
        ("train: images/nowhere\nnames: [cat]", "images/nowhere is missing"),
        ("train: labels\nnames: [cat]", "train holds no images"),
    ],
)
def test_other_yaml_is_refused(yaml: str, told: str, tmp_path: Path) -> None:
    """A file that lists no images or classes is refused with the reason."""
    with pytest.raises(SourceError) as refused:
        yolo(write(tmp_path, yaml), subset="train")
    assert told in str(refused.value)


def test_yaml_makes_no_objects(tmp_path: Path) -> None:
    """A tag that would make an object of Python is refused."""
    with pytest.raises(SourceError, match="could not determine a constructor"):
        yolo(write(tmp_path, "names: !!python/object/apply:os.getcwd []"))


@pytest.mark.parametrize(("said", "box"), [("stored", [15, 5, 25, 15]), ("upright", [10, 10, 30, 10 + 0.0])])
def test_rotated_images_need_a_word(said: str, box: list[float], tmp_path: Path) -> None:
    """Relative boxes tell no size: an image that a tag rotates is bad until the option says what was annotated."""
    place = write(tmp_path, a="1 0.5 0.5 0.25 0.5", d="")
    (tmp_path / "images/train/a.jpg").write_bytes(with_exif(jpeg(20, 40), tiff(6)))
    with pytest.raises(BadSample, match=r"a\.jpg.*no size tells whether upright or stored pixels are annotated"):
        converted(place, tmp_path / "bad")
    found = converted(place, tmp_path / "out", annotations=said)[0]["boxes"][0]
    upright = np.array([7.5, 10, 12.5, 30])  # of 40 x 20 pixels
    expected = box if said == "stored" else [upright[1], 20 - upright[2], upright[3], 20 - upright[0]]
    assert found.tolist() == list(expected)
