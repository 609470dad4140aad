"""A folder of class folders of photos as a dataset: a copy in the user's cache, made once for each state of the folder.

```text
CACHE/folders/NAME-PATH/STATE    a dataset; PATH and STATE are checksums
```

The state is of the paths, sizes and modification times of all photos, and of how the copy is made.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

from ..cache.location import given_folder
from ..cache.private_folder import private_folder, private_place
from ..errors import BadSample
from ..format.manifest import FILE_NAME
from . import source as sources
from .api import convert
from .notes import remarks_of
from .pack import OnError
from .runners import Progress

_IMAGE_SIDE = 224
"""The side of the crops that a model takes, in pixels, unless the caller says so."""


def keep_dataset(
    folder: Path,
    cache: str | os.PathLike[str] | None,
    *,
    image_size: int | None,
    on_error: OnError,
    max_bad: float,
    tell: Callable[[str], None],
    progress: Progress,
) -> tuple[Path, int]:
    """Return the dataset of a folder of class folders, and the most pixels of the shorter side of its photos.

    Photos are stored upright, and shrunk to about twice the size of the crops that a model takes: those of a telephone
    take most of an epoch to decode. A copy that is there already is taken if no photo has changed since; if some have,
    it is replaced.

    Args:
        folder: the folder.
        cache: the folder of the cache; None takes the user's.
        image_size: the side of the crops, in pixels; None takes 224.
        on_error, max_bad, progress: as in `convert`.
        tell: called with each remark on data that is left out.

    Raises what `convert` raises, and CacheError if the cache cannot be used.
    """
    shorter = 2 * (image_size or _IMAGE_SIDE)
    source: Any = sources.find("imagefolder")(folder)
    root = folder.absolute()
    state = xxhash.xxh3_64(repr((shorter, on_error)).encode())
    for key, size in zip(source.column("key"), source.sizes().tolist(), strict=True):
        changed = 0
        with suppress(OSError):  # of a name that is not UTF-8
            changed = os.stat(root / key).st_mtime_ns
        state.update(repr((key, size, changed)).encode())
    place = private_place(given_folder(cache))
    private_folder(place)
    versions = place / "folders" / f"{root.name}-{xxhash.xxh3_64_hexdigest(os.fsencode(root))}"
    made = versions / state.hexdigest()
    if not (made / FILE_NAME).is_file():
        for remark in remarks_of(source, strict=False):
            tell(remark)
        try:
            convert(
                source, made, resize_shorter=shorter, orient=True, workers=None, on_error=on_error, max_bad=max_bad,
                resume=True, progress=progress, tell=lambda hint: None,
            )  # fmt: skip
        except BadSample as error:
            raise BadSample("{}; {on_bad_sample:replace} leaves out such photos", error) from error
        for version in versions.iterdir():
            if version != made:
                shutil.rmtree(version)
    return made, shorter
