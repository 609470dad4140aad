"""Files of sound as fields: arrays of 16-bit samples at one rate."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, Message, Option, SourceError
from shardio.foreign import sound
from shardio.foreign.names import bad_samples_at, printable
from shardio.foreign.string_array import StringArray
from shardio.source import Field
from shardio.system.rules import at_least_one

from ._fields import evenly_spaced

_MEASURED = 8  # files that tell how their samples' size follows from theirs


def sound_field(paths: Sequence[str], rate: int | None, *, mono: bool) -> tuple[Field, tuple[str, ...]]:
    """Return the field of sounds in some files, and a hint if the first of them tells the rate.

    Args:
        paths: the files.
        rate: the samples per second; None for those of the first file that can be decoded.
        mono: whether to mix channels to one; else all files have as many as the first that can be decoded.

    Raises:
        ConfigError: `rate` is no integer of at least 1.
        SourceError: no file can be decoded.
    """
    given = None if rate is None else at_least_one(rate, "rate")
    wrong = None
    for path in paths:
        try:
            first = _decoded(path, given, mono=mono)
            break
        except BadSample as error:
            wrong = wrong or error
    else:
        raise SourceError(f"no sound can be decoded: {wrong}") from wrong
    channels = first.samples.shape[1]
    told = "sounds are stored with {} samples per second, as the first file has; {} would make 16,000"
    hints = (Message(told, first.rate, Option("rate", 16000)),) if given is None else ()
    shape = (None,) if channels == 1 else (None, channels)
    return Field("array", "int16", shape, attributes={"rate": first.rate} | ({"mono": True} if mono else {})), hints


def read_sound(path: str, field: Field) -> NDArray[np.int16]:
    """Return the samples of a file, at the field's rate; BadSample, naming the file, if that is not possible."""
    noted = field.attributes or {}
    found = _decoded(path, noted["rate"], mono=noted.get("mono", False))
    channels = found.samples.shape[1]
    if channels != (field.entry_shape or (1,))[0]:
        told = "{}: it has {} channels, others have {}: {mono:True} mixes them to one"
        raise BadSample(told, printable(path), channels, (field.entry_shape or (1,))[0])
    return found.samples if field.entry_shape else found.samples[:, 0]


def sound_sizes(root: Path, paths: StringArray, sizes: NDArray[np.int64], field: Field) -> NDArray[np.int64]:
    """Return about how many bytes the samples of each file take, int64 `[n]`: in proportion to the files' sizes."""
    before = after = 0
    for number in evenly_spaced(len(paths), _MEASURED):
        with suppress(BadSample):
            after += read_sound(os.path.join(root, paths[number]), field).nbytes
            before += int(sizes[number])
    return (sizes * (after / before)).astype(np.int64) if before else sizes


def _decoded(path: str, rate: int | None, *, mono: bool) -> sound.Sound:
    with bad_samples_at(printable(path)):
        return sound.decoded(path, rate, mono=mono)
