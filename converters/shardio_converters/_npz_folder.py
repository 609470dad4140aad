"""Folders of .npz files of one sample each, as the DLIO benchmark writes them for its model unet3d."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, SourceError
from shardio.foreign.files import order_hints
from shardio.foreign.locations import scan_files
from shardio.foreign.names import bad_samples_at, printable
from shardio.source import Field, Sample, check_index, label_as_int64

from ._fields import (
    array_field,
    check_characters,
    choose_fields,
    decode_utf8,
    dtype_in_words,
    rename_remarks,
    shortened,
)
from ._files import file_size
from ._npy import NpyArray, read_npz, read_npz_headers
from ._source_base import PicklesFields
from ._string_array import StringArray

_Headers: TypeAlias = Mapping[str, NpyArray]
"""The arrays in a file, by name."""


def npz_folder(root: Path, paths: Sequence[Path], fields: str | Mapping[str, str] | None) -> "NpzFolder":
    """The files at `paths` as samples, whose fields are chosen by `fields` among the arrays of the first.

    Raises:
        SourceError: no file can be read, or no field holds one of the arrays.
        ConfigError: `fields` names an array that the first file does not have.
    """
    scanned = scan_files(paths, _try_headers)
    headers: list[_Headers] = [found for found in scanned if not isinstance(found, SourceError)]
    if not headers:
        raise scanned[0]
    first = headers[0]
    if not first:
        raise SourceError(f"{printable(paths[0])} holds no arrays")
    refused = {} if fields is not None else {name: why for name, array in first.items() if (why := _refusal(array))}
    usual = {name: array for name, array in first.items() if name not in refused} or first
    names = choose_fields(fields, usual, printable(root))
    chosen = {name: label_as_int64(name, _field([h[own] for h in headers if own in h])) for name, own in names.items()}
    lost = [f"left out {name!r}: it {why}" for name, why in refused.items()]
    lost += [] if fields is not None else _left_out(headers)
    remarks = (
        *shortened(lost, "arrays are left out"),
        *rename_remarks(fields, names),
        *_missing(names, paths, scanned),
    )
    folder = Path(os.path.commonpath([path.parent for path in paths]))
    hints = (*_odd_shapes(names, headers), *order_hints(paths))
    return NpzFolder(
        folder, StringArray(str(path.relative_to(folder)) for path in paths), names, chosen, remarks, hints
    )


@final
@dataclass(frozen=True, eq=False)
class NpzFolder(PicklesFields):
    """The .npz files in a folder, by number.

    Attributes:
        root: the folder.
        paths: the files' paths below it.
        names: the array of each field.
        arrays: the fields of the arrays.
        remarks, hints: see `shardio.source.HasRemarks`, `HasHints`; workers do not need them.
    """

    root: Path
    paths: StringArray
    names: Mapping[str, str]
    arrays: Mapping[str, Field]
    remarks: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    threads = True
    plain_values = True
    metadata = {"source": "numpy"}

    @property
    def fields(self) -> Mapping[str, Field]:
        """A field for each array, and `key`, the name of the file, unless an array has this name."""
        return {"key": Field("text")} | dict(self.arrays)

    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each file, `[n]`; 0 for one that is missing."""
        return np.array(scan_files([self.root / path for path in self.paths], file_size), np.int64)

    def __getitem__(self, index: int) -> Sample:
        check_index(index, len(self.paths))
        path = self.root / self.paths[index]
        try:
            found = read_npz(path, self.names.values())
        except SourceError as error:
            raise BadSample(str(error)) from error
        sample: dict[str, Any] = {"key": printable(self.paths[index])}
        for name, own in self.names.items():
            with bad_samples_at(printable(path)):
                if own not in found:
                    raise BadSample(f"it has no array {own!r}")
            with bad_samples_at(f"{printable(path)}, {own}"):
                sample[name] = _value(found[own], self.arrays[name])
        return sample


def _try_headers(path: Path) -> "_Headers | SourceError":
    try:
        return read_npz_headers(path)
    except SourceError as error:  # reported as a bad sample when the conversion reaches it
        return error


def _field(arrays: Sequence[NpyArray]) -> Field:
    """The field for an array that several files have: of the first one's type, of one shape if all agree."""
    first, shapes = arrays[0], {array.shape for array in arrays}
    if first.dtype.hasobject:
        raise SourceError(f"{first} holds Python objects, which are pickles and never loaded")
    found = _own_field(first)
    if found is None or (found.kind == "text" and len(shapes) > 1):
        raise SourceError(f"{first} {_unheld(first)}; others can be chosen with fields")
    return found if len(shapes) == 1 else Field("array", dtype=found.dtype)


def _own_field(array: NpyArray) -> Field | None:
    """The field for one array; None if there is none."""
    if array.dtype.kind in "SU":
        return None if array.shape else Field("text")
    return array_field(array.dtype, array.shape)


def _refusal(array: NpyArray) -> str:
    """The reason why no field holds an array; empty if one does, and for Python objects, which are refused."""
    return "" if array.dtype.hasobject or _own_field(array) else _unheld(array)


def _unheld(array: NpyArray) -> str:
    return f"holds {list(array.shape)} of {dtype_in_words(array.dtype)}, which no field holds"


def _left_out(headers: Sequence[_Headers]) -> list[str]:
    """A remark for each array that the first file lacks and another has."""
    where: dict[str, NpyArray] = {}
    for found in headers:
        where |= {name: array for name, array in found.items() if name not in headers[0] and name not in where}
    reason = "which the first file lacks"
    return [f"left out {name!r}, {reason}: {printable(a.path)} is the first that has it" for name, a in where.items()]


def _missing(
    names: Mapping[str, str], paths: Sequence[Path], scanned: Sequence[_Headers | SourceError]
) -> tuple[str, ...]:
    """A remark for each chosen array that later files lack, whose samples are bad."""
    remarks = []
    for own in names.values():
        lacking = [
            path
            for path, found in zip(paths, scanned, strict=True)
            if not isinstance(found, SourceError) and own not in found
        ]
        if lacking:
            first, several = printable(lacking[0]), len(lacking) > 1
            remarks.append(
                f"{len(lacking)} files lack {own!r}, which makes them bad samples: {first}, ..."
                if several
                else f"a file lacks {own!r}, which makes it a bad sample: {first}"
            )
    return shortened(remarks, "arrays are missing in some files")


def _odd_shapes(names: Mapping[str, str], headers: Sequence[_Headers]) -> tuple[str, ...]:
    """A hint for each array that has one shape in most files and another in few: one file may be a mistake."""
    hints = []
    for name, own in names.items():
        arrays = [found[own] for found in headers if own in found]
        shape, count = Counter(array.shape for array in arrays).most_common(1)[0]
        odd = [array for array in arrays if array.shape != shape]
        if odd and count > len(arrays) / 2:
            several = f"{len(odd)} files hold" if len(odd) > 1 else "one file holds"
            hints.append(
                f"field {name!r} is stored without a fixed shape: {count} files hold {list(shape)}, and {several} "
                f"another shape, first {printable(odd[0].path)}, {list(odd[0].shape)}"
            )
    return shortened(hints, "fields are stored without a fixed shape")


def _value(array: NDArray[Any], field: Field) -> Any:
    """An array as the value of a field; BadSample if it is another kind of value."""
    if (array.dtype.kind in "SU") != (field.kind == "text") or (field.kind in ("text", "scalar") and array.shape):
        raise BadSample(f"expected {field.kind}, got {list(array.shape)} of {array.dtype}")
    if field.kind == "text":
        (element,) = check_characters(array.reshape(1))
        return decode_utf8(bytes(element)) if array.dtype.kind == "S" else str(element)
    return array.item() if field.kind == "scalar" else array.astype(array.dtype.newbyteorder("="), copy=False)
