"""Files that a list or a table names in a column which the user has chosen for that."""

import os
from pathlib import Path

from shardio.errors import BadSample
from shardio.foreign.files import open_regular
from shardio.foreign.image_files import check_image_size
from shardio.foreign.names import printable
from shardio.source import Field, probe_image


def read_file(root: Path, path: str, field: Field) -> bytes:
    """The file at `path`, which may be absolute or leave `root`; BadSample if it cannot be read, or is no image."""
    data = read_bytes(root, path, image=field.kind == "image")
    if field.kind == "image":
        try:
            probe_image(data)
        except BadSample as error:
            raise BadSample(f"{printable(root / path)}: {error}") from error
    return data


def read_bytes(root: Path, path: str, most: int = -1, *, image: bool = False) -> bytes:
    """The file's first `most` bytes, or all; BadSample if it cannot be read, or is too large for an image."""
    place = root / path
    try:
        with open(place, "rb", opener=open_regular) as file:
            if image:
                check_image_size(os.fstat(file.fileno()).st_size, place)
            return file.read(most)
    except OSError as error:
        raise BadSample(f"{printable(place)}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadSample(f"{printable(place)!r}: not a valid path: {error}") from error
