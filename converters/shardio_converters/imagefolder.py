"""Folders of image files, one folder per class: the layout that torchvision's ImageFolder reads."""

import os
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from shardio.errors import ConfigError, Message, SourceError
from shardio.foreign.files import PARTS, Sort, order_hints, order_key
from shardio.foreign.names import printable
from shardio.source import Field, listed_names, local_path
from shardio.system import did_you_mean
from shardio.system.units import counted

from ._class_folders import find_class_folders, hidden_remarks
from ._string_array import StringArray
from ._text_tables import Column
from .filelist import ImageFiles

EXTENSIONS = ("bmp", "jpeg", "jpg", "png", "webp")
_SHOWN = 5  # the most kinds of files, or folders, that a message names


def imagefolder(
    src: str | os.PathLike[str],
    *,
    extensions: str | Iterable[str] | None = None,
    allow_empty: bool = False,
    hidden: bool | None = None,
    nested: bool | None = None,
    sort: Sort = "name",
) -> "ImageFolder":
    """A folder of class folders, or a flat folder of images.

    The classes are the sorted names of the folders in `src`; a class's position among them is its label. All images
    below a class folder belong to its class. Samples are ordered by class, then by path. Images next to the class
    folders belong to no class and are left out. Without class folders, the images in `src` itself are taken, without a
    label. Symbolic links are followed, except back to a folder that contains them. These are the rules of
    torchvision.datasets.ImageFolder, except that hidden folders are left out.

    Args:
        src: the folder.
        extensions: the suffixes of the files to take, a list or text such as "jpg,png", in any case. Without it: bmp,
            jpeg, jpg, png and webp.
        allow_empty: take class folders without images as classes without samples, as the same option of torchvision.
        hidden: take folders whose names begin with a dot, `__MACOSX` and `@eaDir`. By default they are left out; a note
            names them.
        nested: take images in folders within class folders. By default they are taken; a note says if a class has
            several such folders, and no other images.
        sort: `natural` sorts images and class folders by the numbers in their names, so that s_2 comes before s_10.

    Example:
        shardio convert imagefolder photos data/photos
        shardio convert imagefolder photos data/photos --extensions jpg,png
        shardio convert imagefolder photos data/photos --allow-empty --no-hidden --nested
        shardio convert imagefolder photos data/small --resize-shorter 256 --max-pixels 1000000 --quality 92
        shardio convert imagefolder photos data/upright --orient --recompress if-needed --max-image-pixels 100000000
        shardio convert imagefolder photos data/faster --jpeg-restarts --strip
        shardio convert imagefolder photos data/pixels --store-pixels --resize 64,64 --to hdf5
        shardio convert imagefolder icons data/icons --store-pixels --resize 32,32 --keep-alpha --to hdf5

    Raises:
        SourceError: `src` or a folder below it cannot be read, `src` holds no images, or a class folder holds none
            without `allow_empty`.
        ConfigError: `extensions` names no suffix.
    """
    named = {suffix.lower().lstrip(".") for suffix in listed_names(EXTENSIONS if extensions is None else extensions)}
    suffixes, key = tuple(f".{suffix}" for suffix in sorted(named - {""})), order_key(sort)
    if not suffixes:
        raise ConfigError("{extensions} must name at least one suffix, got {!r}", extensions)
    root = local_path(src).absolute()
    folder = find_class_folders(root, suffixes, key, "image files", hidden=bool(hidden))
    classes, beside, left_out = folder.classes, folder.beside, folder.left_out
    if not classes and not beside:
        none = f"{printable(root)} holds no images and no class folders; suffixes: {', '.join(suffixes)}"
        raise SourceError(f"{none}{did_you_mean.to_convert([root])}{did_you_mean.for_videos(left_out)}")
    paths, sizes, counts, empty, holding = StringArray(), array("q"), list[int](), list[str](), list[str]()
    for name, found in zip(classes or ("",), folder.files if classes else [beside], strict=True):
        if classes and nested is False:
            found = [one for one in found if one[0].count("/") == 1]
        if classes and nested is None and all(path.count("/") > 1 for path, _ in found):
            holding += [printable(name)] if len({path.rpartition("/")[0] for path, _ in found}) > 1 else []
        empty += [] if found else [printable(root / name)]
        for path, size in found:
            paths.append(path)
            sizes.append(size)
        counts.append(len(found))
    if empty and not (allow_empty and len(paths)):
        told = ", ".join(empty[:_SHOWN]) + (f" and {len(empty) - _SHOWN} more" if len(empty) > _SHOWN else "")
        videos = did_you_mean.for_videos(left_out)
        keep = (
            "" if videos else Message(": remove them, or keep them as classes without samples with {allow_empty:True}")
        )
        none = "class folders need images, there are none in {}; suffixes: {}{}"
        raise SourceError(none, told, ", ".join(suffixes), videos or keep)
    remarks = _remarks(suffixes, left_out, len(beside) if classes else 0)
    remarks += hidden_remarks(folder.hidden) if hidden is None else ()
    hints = order_hints(paths, "images")
    if not classes:
        unlabelled = "without class folders no sample gets a label; for labels, name the folder of the class folders"
        hints = (unlabelled, *hints)
    else:
        hints = (*order_hints(classes, "classes"), *hints)[:1]
        if all(name.lower() in PARTS for name in classes):
            parts = ", ".join(classes)
            remarks += (f"the classes are {parts}; if these are parts of a data set, convert them one by one",)
        elif holding:
            told = "class folders hold folders instead of images: {}; {nested:True} takes all in them as one class"
            remarks += (Message(told, ", ".join(holding[:_SHOWN]) + (", ..." if len(holding) > _SHOWN else "")),)
    labels = Column(Field("scalar", dtype="int64"), np.repeat(np.arange(len(counts)), counts))
    columns = {"label": labels} if classes else {}
    names, file_sizes = tuple(map(printable, classes)), np.frombuffer(sizes, np.int64)
    return ImageFolder(root, {"image": paths}, columns, names, file_sizes, remarks, hints)


@final
@dataclass(frozen=True, eq=False)
class ImageFolder(ImageFiles):
    """The image files below a folder, by number, class by class."""

    remarks: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    source = "imagefolder"


def _remarks(suffixes: tuple[str, ...], left_out: Mapping[str, int], beside: int) -> tuple[str, ...]:
    """Remarks on files with other suffixes, and on images outside of class folders."""
    found = []
    if left_out:
        kinds = [f"{kind} {count}" for kind, count in Counter(left_out).most_common(_SHOWN)]
        more = ["..."] if len(left_out) > _SHOWN else []
        description = f"{counted(sum(left_out.values()), 'file')} of other kinds than {', '.join(suffixes)}"
        arrays = any(did_you_mean.are_arrays(kind) for kind in left_out)
        advice = "; `shardio convert arrayfolder` takes files of arrays" if arrays else ""
        found.append(f"left out {description}: {', '.join(kinds + more)}{advice}")
    if beside:
        found.append(f"left out {counted(beside, 'image')} beside the class folders, of no class")
    return tuple(found)
