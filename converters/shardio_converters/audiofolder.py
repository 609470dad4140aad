"""Folders of files of sound, one folder per class."""

import os
from collections.abc import Iterable

from shardio.foreign.files import Sort

from ._class_folders import listed_folder
from ._sounds import sound_field
from .filelist import FileList

EXTENSIONS = ("flac", "m4a", "mp3", "ogg", "opus", "wav")
_TRIED = 100  # the first files, of which one must be readable


def audiofolder(
    src: str | os.PathLike[str],
    *,
    rate: int | None = None,
    mono: bool = False,
    extensions: str | Iterable[str] | None = None,
    allow_empty: bool = False,
    hidden: bool | None = None,
    nested: bool | None = None,
    sort: Sort = "name",
) -> FileList:
    """A folder of class folders of sounds, or a flat folder of sounds.

    The classes are the sorted names of the folders in `src`, and a class's position among them is its label, as for
    `imagefolder`. Each file is decoded once, by FFmpeg, to the field `audio`: an int16 array `[n]`, or
    `[n, channels]`, whose attribute `rate` is the samples per second. A Loader reads it, or a window of it, without a
    decoder.

    Args:
        src: the folder.
        rate: the samples per second, to which FFmpeg resamples. Without it: that of the first file; a note says which.
        mono: mix all channels to one, with equal weights. Otherwise all files have as many channels as the first.
        extensions: the suffixes of the files to take, a list or text such as "wav,mp3", in any case. Without it: flac,
            m4a, mp3, ogg, opus and wav.
        allow_empty: take class folders without sounds as classes without samples.
        hidden: take folders whose names begin with a dot, `__MACOSX` and `@eaDir`. By default they are left out; a note
            names them.
        nested: take sounds in folders within class folders. By default they are taken; a note says if a class has
            several such folders, and no other sounds.
        sort: `natural` sorts sounds and class folders by the numbers in their names, so that s_2 comes before s_10.

    Example:
        shardio convert audiofolder words data/words --rate 16000 --mono
        shardio convert audiofolder words data/few --extensions wav --allow-empty --no-hidden --nested

    Raises:
        SourceError: `src` or a folder below it cannot be read, `src` holds no sounds, none of its first files can be
            decoded, or a class folder holds none without `allow_empty`.
        ConfigError: `extensions` names no suffix, or `rate` is no integer of at least 1.
    """
    found = listed_folder(
        src, EXTENSIONS if extensions is None else extensions, "sound",
        allow_empty=allow_empty, hidden=hidden, nested=nested, sort=sort,
    )  # fmt: skip
    first = [os.path.join(found.root, found.paths[row]) for row in range(min(_TRIED, len(found.paths)))]
    field, hints = sound_field(first, rate, mono=mono)
    paths = {"audio": found.paths}
    hints += found.hints
    files = {"audio": field}
    return FileList(found.root, paths, found.columns, found.classes, files, found.remarks, hints, source="audiofolder")
