"""Folders of video files, one folder per class."""

import os
from collections.abc import Iterable

from shardio.foreign.files import Sort
from shardio.source import Field

from ._class_folders import listed_folder
from .filelist import FileList

EXTENSIONS = ("avi", "flv", "m2ts", "m4v", "mkv", "mov", "mp4", "mpeg", "mpg", "ts", "webm", "wmv")


def videofolder(
    src: str | os.PathLike[str],
    *,
    extensions: str | Iterable[str] | None = None,
    allow_empty: bool = False,
    hidden: bool | None = None,
    nested: bool | None = None,
    sort: Sort = "name",
) -> FileList:
    """A folder of class folders of videos, or a flat folder of videos.

    The classes are the sorted names of the folders in `src`, and a class's position among them is its label, as for
    `imagefolder`. Files are stored as they are, beside a table of their packets: a Loader reads and decodes the packets
    of a clip alone.

    Args:
        src: the folder.
        extensions: the suffixes of the files to take, a list or text such as "mp4,mkv", in any case. Without it: avi,
            flv, m2ts, m4v, mkv, mov, mp4, mpeg, mpg, ts, webm and wmv.
        allow_empty: take class folders without videos as classes without samples.
        hidden: take folders whose names begin with a dot, `__MACOSX` and `@eaDir`. By default they are left out; a note
            names them.
        nested: take videos in folders within class folders. By default they are taken; a note says if a class has
            several such folders, and no other videos.
        sort: `natural` sorts videos and class folders by the numbers in their names, so that v_2 comes before v_10.

    Example:
        shardio convert videofolder actions data/actions
        shardio convert videofolder actions data/small --resize-shorter 256 --keyframes 12
        shardio convert videofolder actions data/slow --fps 10 --codec hevc --crf 26 --keep-audio
        shardio convert videofolder actions data/few --extensions mp4 --allow-empty --no-hidden --nested

    Raises:
        SourceError: `src` or a folder below it cannot be read, `src` holds no videos, or a class folder holds none
            without `allow_empty`.
        ConfigError: `extensions` names no suffix.
    """
    found = listed_folder(
        src, EXTENSIONS if extensions is None else extensions, "video",
        allow_empty=allow_empty, hidden=hidden, nested=nested, sort=sort,
    )  # fmt: skip
    files = {"video": Field("video")}
    paths = {"video": found.paths}
    return FileList(
        found.root, paths, found.columns, found.classes, files, found.remarks, found.hints, source="videofolder"
    )
