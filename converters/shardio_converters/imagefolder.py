"""Folders of image files, one folder per class: the layout that torchvision's ImageFolder reads."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from shardio.foreign.files import Sort

from ._class_folders import listed_folder
from .filelist import ImageFiles

EXTENSIONS = ("bmp", "jpeg", "jpg", "png", "webp")


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
    found = listed_folder(
        src, EXTENSIONS if extensions is None else extensions, "image",
        allow_empty=allow_empty, hidden=hidden, nested=nested, sort=sort,
    )  # fmt: skip
    return ImageFolder(
        found.root, {"image": found.paths}, found.columns, found.classes, found.sizes, found.remarks, found.hints
    )


@final
@dataclass(frozen=True, eq=False)
class ImageFolder(ImageFiles):
    """The image files below a folder, by number, class by class."""

    remarks: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    source = "imagefolder"
