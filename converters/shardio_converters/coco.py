"""COCO's JSON of instances or keypoints, and a folder of images.

The format is described at https://cocodataset.org/#format-data.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import msgspec
import numpy as np

from shardio.errors import ConfigError, SourceError
from shardio.foreign.names import printable, source_errors
from shardio.foreign.string_array import StringArray
from shardio.foreign.text_tables import Column
from shardio.source import AnnotatedPixels, Field, InstanceMembers, Source, local_path, with_instances
from shardio.system.units import counted

from ._files import read_source
from .filelist import ImageFiles, file_sizes

_NOTHING = msgspec.Raw()
_TAKEN = {"id", "image_id", "category_id", "bbox", "area", "iscrowd", "segmentation", "keypoints", "num_keypoints"}
"""The keys of annotations that fields hold; `num_keypoints` counts those of the others."""


class _Image(msgspec.Struct):
    id: int
    file_name: str
    height: int | None = None
    width: int | None = None


class _Category(msgspec.Struct):
    id: int
    name: str
    keypoints: list[str] = []
    skeleton: list[list[int]] = []


class _Annotation(msgspec.Struct):
    """The part of an annotation that decides on fields; the rest is read where it is converted."""

    id: int
    image_id: int
    area: msgspec.Raw = _NOTHING
    segmentation: msgspec.Raw = _NOTHING
    keypoints: list[Any] | None = None


class _File(msgspec.Struct):
    images: list[_Image]
    annotations: list[msgspec.Raw] = []
    categories: list[_Category] = []


def coco(
    src: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    annotations: AnnotatedPixels | None = None,
) -> Source:
    """COCO's JSON of instances or keypoints, with the folder of its images.

    Each image is a sample, also one without annotations. The fields are `image`, `key` (its `file_name`), `image_id`,
    and per annotation `boxes` (left, top, right and bottom edges in pixels), `labels` (numbers from 0, in the order of
    the categories' ids), `category_id`, `area`, `iscrowd` and `annotation_id`, and if there are some, `keypoints` (x,
    y, visibility). Polygons and run-length codes stay as they are, in a list `segmentation`. Crowds are taken and
    marked in `iscrowd`.

    Args:
        src: the JSON file.
        images: the folder that file names start from. Without it: the folder of the JSON file.
        annotations: which pixels are annotated where an EXIF tag rotates or flips an image: those that viewers show,
            `upright`, or the `stored` ones. Without it: those of the height and width in the JSON file; an image that
            has the same size either way is a bad sample.

    Example:
        shardio convert coco annotations/instances_train2017.json data/train --images train2017
        shardio convert coco annotations/person_keypoints_val2017.json data/people --images val2017
        shardio convert coco phones.json data/phones --images photos --annotations upright

    Raises:
        SourceError: the file can't be read, is no such JSON, lists no images, or an id of an image or a category twice.
        ConfigError: `images` is no folder.
    """
    path = local_path(src).absolute()
    with source_errors(path, msgspec.MsgspecError, UnicodeDecodeError):
        file = msgspec.json.decode(read_source(path), type=_File)
    place, root = printable(path), path.parent if images is None else Path(images).absolute()
    if not root.is_dir():
        raise ConfigError("{images} must be a folder, got {}", printable(root))
    numbers = _numbers((image.id for image in file.images), f"{place}: images")
    categories = sorted(file.categories, key=lambda category: category.id)
    _numbers((category.id for category in categories), f"{place}: categories")
    if not numbers:
        raise SourceError(f"{place} lists no images")
    paths = StringArray(_inside(image.file_name, place) for image in file.images)
    columns = {"image_id": _integers([image.id for image in file.images])}
    columns["height"] = _integers([image.height for image in file.images])
    columns["width"] = _integers([image.width for image in file.images])
    grouped, remarks, stated = _by_image(file.annotations, numbers, place)
    texts = StringArray(f"[{','.join(grouped.pop(number, ()))}]" for number in range(len(numbers)))
    names = next((category.keypoints for category in categories if category.keypoints), [])
    if any(category.keypoints not in ([], names) for category in categories):
        raise SourceError(f"{place}: categories must have the same keypoints")
    points = len(names) or stated.get("keypoints", 0)
    ids = [category.id for category in categories]
    about: dict[str, Any] = {"classes": [category.name for category in categories], "category_ids": ids}
    if names:
        skeleton = next(category.skeleton for category in categories if category.keypoints)
        about |= {"keypoints": names, "skeleton": skeleton}
    columns["annotations"] = Column(Field("json"), texts)
    source = Coco(root, {"image": paths}, columns, about, file_sizes(root, paths), remarks)
    members, defaults = _members(stated, points, names), {"iscrowd": 0, "keypoints": [0] * 3 * points}
    known: dict[str, Any] = {"members": members, "labels": ids, "defaults": defaults, "hidden": ("height", "width")}
    return with_instances(source, "annotations", "xywh", annotations, **known)


@final
@dataclass(frozen=True, eq=False)
class Coco(ImageFiles):
    """The images of COCO's JSON, each with its annotations."""

    remarks: tuple[str, ...] = ()
    source = "coco"


def _members(stated: Collection[str], points: int, names: Sequence[str]) -> InstanceMembers:
    """Return the fields of annotations of which some state these keys, see `shardio.source.InstanceMembers`."""
    numbers = Field("array", "int64", (None,), per="boxes")
    members = {
        "boxes": ("bbox", Field("array", "float32", (None, 4), role="boxes", on="image")),
        "labels": ("category_id", numbers),
        "category_id": ("category_id", numbers),
        "iscrowd": ("iscrowd", numbers),
        "annotation_id": ("id", numbers),
    }
    if "area" in stated:
        members["area"] = "area", Field("array", "float32", (None,), per="boxes")
    if points:
        others = {number: name.replace("left", "right") for number, name in enumerate(names) if "left" in name}
        pairs = [[number, names.index(other)] for number, other in others.items() if other in names]
        attributes = {"flip_pairs": pairs} if names else None
        members["keypoints"] = (
            "keypoints",
            Field("array", "float32", (None, points, 3), role="points", on="image", per="boxes", attributes=attributes),
        )
    if "segmentation" in stated:
        members["segmentation"] = "segmentation", Field("json")
    return members


def _by_image(
    annotations: Sequence[msgspec.Raw], numbers: Mapping[int, int], place: str
) -> tuple[dict[int, list[str]], tuple[str, ...], dict[str, int]]:
    """Return annotations as JSON by the number of their image, remarks, and the number of values of keys that occur."""
    decoder, keys = msgspec.json.Decoder(_Annotation), msgspec.json.Decoder(dict[str, msgspec.Raw])
    grouped, stated = defaultdict[int, list[str]](list), dict[str, int]()
    ids, strays, others = Counter[int](), list[_Annotation](), set[str]()
    for raw in annotations:
        try:
            one = decoder.decode(raw)
            others |= keys.decode(raw).keys() - _TAKEN
        except msgspec.MsgspecError as error:
            raise SourceError(f"{place}: the annotation {bytes(raw)[:80].decode(errors='replace')}: {error}") from error
        ids[one.id] += 1
        if one.image_id not in numbers:
            strays.append(one)
            continue
        grouped[numbers[one.image_id]].append(bytes(raw).decode())
        for key, value in (("area", one.area), ("segmentation", one.segmentation)):
            if key not in stated and bytes(value) not in (b"", b"null", b"[]"):
                stated[key] = 1
        if one.keypoints:
            stated.setdefault("keypoints", len(one.keypoints) // 3)
    remarks = [f"left out {', '.join(map(repr, sorted(others)))} of annotations"] if others else []
    if strays:
        first = f"the first is annotation {strays[0].id} of image {strays[0].image_id}"
        remarks.append(f"left out {counted(len(strays), 'annotation')} of images that are not listed, {first}")
    if twice := [number for number, count in ids.items() if count > 1]:
        several = f"{counted(len(twice), 'id')} of annotations, such as {twice[0]}, stand for several: all are taken"
        remarks.append(several)
    return grouped, tuple(remarks), stated


def _numbers(ids: Iterable[int], what: str) -> dict[int, int]:
    """Return the number of each id, in order; SourceError for one that occurs twice."""
    numbers: dict[int, int] = {}
    for one in ids:
        if one in numbers:
            raise SourceError(f"{what} must have different ids, {one} occurs twice")
        numbers[one] = len(numbers)
    return numbers


def _inside(name: str, place: str) -> str:
    """Return the name of an image; SourceError for a path that may lead out of the folder."""
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise SourceError(f"{place}: the file_name {name!r} leads out of the folder of images")
    return name


def _integers(values: Sequence[int | None]) -> Column:
    missing = np.array([value is None for value in values])
    return Column(Field("scalar", dtype="int64"), np.array([value or 0 for value in values], np.int64), missing=missing)
