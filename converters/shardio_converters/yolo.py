"""Images and text files of boxes as YOLO's trainers read them, listed by a YAML file.

The format is described at https://docs.ultralytics.com/datasets/detect/.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from shardio.errors import BadSample, ConfigError, SourceError
from shardio.foreign.names import bad_samples_at, printable, source_errors
from shardio.foreign.string_array import StringArray
from shardio.source import AnnotatedPixels, Field, Sample, Source, load_optional, local_path, with_instances
from shardio.system import did_you_mean
from shardio.system.units import counted

from ._fields import decode_utf8
from ._files import read_file, read_source
from .filelist import ImageFiles, file_sizes
from .imagefolder import EXTENSIONS

_SUBSETS = ("train", "val", "test")
_BOX = "class, center x, center y, width, height"


def yolo(
    src: str | os.PathLike[str],
    *,
    subset: str | None = None,
    root: str | os.PathLike[str] | None = None,
    annotations: AnnotatedPixels | None = None,
) -> Source:
    """Images and text files of boxes, as a data.yaml of YOLO lists them.

    The labels of `images/a.jpg` are in `labels/a.txt`, a line `class x y width height` per box: its center and size,
    divided by those of the image. An image without such a file has no boxes. The fields are `image`, `key` (its path),
    `boxes` (left, top, right and bottom edges in pixels) and `labels`.

    Args:
        src: the YAML file, with `names` and at least one of `train`, `val` and `test`: a folder of images, a text file
            that lists some, or several of these.
        subset: the images to take if there are several such: "train", "val" or "test".
        root: the folder that these paths start from. Without it: the one that the file calls `path`, or else its own.
        annotations: which pixels are annotated where an EXIF tag rotates or flips an image: those that viewers show,
            `upright`, or the `stored` ones. Without it such an image with boxes is a bad sample.

    Example:
        shardio convert yolo coco8/data.yaml data/train --subset train
        shardio convert yolo coco8/data.yaml data/val --subset val --root coco8 --annotations upright

    Raises:
        SourceError: the file or a folder can't be read, is no such YAML, or holds no images.
        ConfigError: `subset` is needed, or one that the file does not have.
        MissingDependency: PyYAML is not installed.
    """
    path = local_path(src).absolute()
    place = printable(path)
    library = load_optional("yaml", purpose="the converter 'yolo'", extra="yolo")
    with source_errors(path, library.YAMLError, ValueError):
        stated = library.safe_load(read_source(path))
    if not isinstance(stated, Mapping) or not isinstance(names := stated.get("names"), list | Mapping):
        raise SourceError(f"{place} must be a mapping with names, and train, val or test")
    classes = list(names.values()) if isinstance(names, Mapping) else names
    if isinstance(names, Mapping) and list(names) != list(range(len(names))):
        raise SourceError(f"{place}: names must number the classes from 0, got {', '.join(map(str, names))[:80]}")
    subsets = [name for name in _SUBSETS if stated.get(name)]
    chosen = subsets[0] if subset is None and len(subsets) == 1 else subset
    if chosen not in subsets:
        known = ", ".join(subsets) or "none of train, val, test"
        raise ConfigError("{} has {}; {subset} must be one of these, got {!r}", place, known, subset)
    folder = path.parent / str(stated.get("path") or "") if root is None else Path(root).absolute()
    listed = stated[chosen]
    paths = StringArray(
        os.path.relpath(image, folder)
        for entry in (listed if isinstance(listed, list) else [listed])
        for image in _images(_found(folder, str(entry)))
    )
    if not len(paths):
        raise SourceError(f"{place}: {chosen} holds no images; suffixes: {', '.join(EXTENSIONS)}")
    missing = sum(not os.path.exists(_labels_of(f"{folder}/{image}")) for image in paths)
    hints = (f"{counted(missing, 'image')} of {len(paths)} without a file of labels: no boxes",) if missing else ()
    source = Yolo(folder, {"image": paths}, {}, tuple(map(str, classes)), file_sizes(folder, paths), hints)
    members = {
        "boxes": ("box", Field("array", "float32", (None, 4), role="boxes", on="image")),
        "labels": ("class", Field("array", "int64", (None,), per="boxes")),
    }
    return with_instances(source, "instances", "cxcywhn", annotations, members=members, labels=range(len(classes)))


@final
@dataclass(frozen=True, eq=False)
class Yolo(ImageFiles):
    """Images with the lines of their files of labels, which are read with them."""

    hints: tuple[str, ...] = ()
    source = "yolo"

    @property
    def _other_fields(self) -> dict[str, Field]:
        return {**super()._other_fields, "instances": Field("json")}

    def _others(self, index: int) -> Sample:
        place = _labels_of(f"{self.root}/{self.paths['image'][index]}")
        with bad_samples_at(printable(place)):
            text = decode_utf8(read_file(place)) if os.path.exists(place) else ""
            lines = [_box(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        return {**super()._others(index), "instances": lines}


def _box(number: int, line: str) -> dict[str, Any]:
    words = line.split()
    try:
        label, *box = map(float, words)
    except ValueError as error:
        raise BadSample(f"line {number}: expected {_BOX}, got {line[:80]!r}") from error
    if len(box) != 4 or not label.is_integer():
        raise BadSample(f"line {number}: expected {_BOX} (no polygons), got {len(words)} numbers, the first {label:g}")
    return {"class": int(label), "box": box}


def _found(folder: Path, entry: str) -> Path:
    """Return the path of an entry; Roboflow writes `../train` for what lies beside the file."""
    path = folder / entry
    return path if path.exists() or not entry.startswith("../") else folder / entry.removeprefix("../")


def _images(path: Path) -> Iterator[str]:
    """Yield the paths of the images below a folder, or that a text file lists, sorted or as listed."""
    with source_errors(path, UnicodeDecodeError):
        if not path.exists():
            told = "{} is missing{}; {root} names the folder that paths start from"
            raise SourceError(told, printable(path), did_you_mean.near_path(path))
        if path.is_dir():
            yield from sorted(str(one) for one in path.rglob("*") if one.suffix.lower()[1:] in EXTENSIONS)
        else:
            lines = read_source(path).decode().splitlines()
            yield from (str(path.parent / line.strip()) for line in lines if line.strip())


def _labels_of(image: str) -> str:
    """Return the path of the file of an image's labels: in `labels` instead of the last folder called `images`."""
    before, images, name = image.rpartition("/images/")
    return os.path.splitext(f"{before}/labels/{name}" if images else image)[0] + ".txt"
