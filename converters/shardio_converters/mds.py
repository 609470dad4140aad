"""MosaicML Streaming's datasets, MDS, in a local directory; `shardio.foreign.mds` reads them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from shardio.errors import BadSample, SourceError
from shardio.foreign import json_text
from shardio.foreign import mds as foreign
from shardio.foreign.locations import LocatedSource, ValueLocations, scan_files
from shardio.foreign.names import bad_samples_at, printable
from shardio.source import Field, Sample, check_index, encode_png, label_as_int64, local_path, probe_image

from ._fields import array_field, choose_fields, decode_utf8, image_or_bytes, rename_remarks

_FIXED = {
    "str": Field("text"),
    "str_int": Field("scalar", dtype="int64"),
    "str_float": Field("scalar", dtype="float64"),
    "str_decimal": Field("text"),
    "bytes": Field("bytes"),
    "jpeg": Field("image"),
    "png": Field("image"),
    "pil": Field("image"),
    "json": Field("json"),
}


def mds(src: str | os.PathLike[str], *, fields: str | Mapping[str, str] | None = None) -> "Mds":
    """A local directory of MDS shards, which MosaicML Streaming wrote: of one split, with its index.json.

    Numbers become scalars, `ndarray` arrays, of fixed shape if the encoding states one, `str` and `str_decimal` text,
    and `json` JSON. `jpeg` and `png` become images, byte for byte, `pil` PNGs, and `bytes` images if they begin like
    one. Pickles are refused, and so are lists of images. Shards compressed with zstd (which needs pyarrow), gz or bz2
    are unpacked to unnamed temporary files in TMPDIR, unless they lie there unpacked as well. The package
    mosaicml-streaming is not needed.

    Args:
        src: the directory.
        fields: the columns to take, with names for their fields, as in "image=jpg,label". Without it: all.

    Example:
        shardio convert mds imagenet/train data/train --fields image,label=id
        shardio convert mds imagenet/train data/all --strict

    Raises:
        SourceError: the directory holds no MDS, a shard is missing, damaged or compressed otherwise, or no field holds
            a column.
        ConfigError: `fields` names a column that does not exist.
    """
    root = local_path(src).absolute()
    if not (root / foreign.INDEX).is_file() and (splits := sorted(p.parent.name for p in root.glob("*/index.json"))):
        raise SourceError(f"{printable(root)} holds the splits {', '.join(splits)}: name one of them")
    columns, shards = foreign.read_index(root)
    names = choose_fields(fields, [column.name for column in columns], printable(root))
    chosen = {}
    for field, name in names.items():
        number, column = next((n, column) for n, column in enumerate(columns) if column.name == name)
        chosen[field] = _Part(number, column.encoding, label_as_int64(field, _field(column, printable(root))))
    places = ValueLocations([shard.path for shard in shards], scan_files(shards, foreign.scan), foreign.open_mds)
    if not len(places):
        raise SourceError(f"{printable(root)} holds no samples")
    return Mds(places, columns, chosen, rename_remarks(fields, names)).measured()


@final
@dataclass(frozen=True, slots=True)
class _Part:
    """A field, and the number and encoding of its column."""

    column: int
    encoding: str
    field: Field


@final
class Mds(LocatedSource):
    """The samples of MDS shards.

    Args:
        places: where the samples are.
        columns: all columns, in the order of a sample's values.
        parts: those that are taken, by field.
        remarks: see `shardio.source.HasRemarks`.
    """

    def __init__(
        self,
        places: ValueLocations,
        columns: tuple[foreign.Column, ...],
        parts: Mapping[str, _Part],
        remarks: Sequence[str],
    ) -> None:
        super().__init__(places, remarks)
        self._columns, self._parts = columns, dict(parts)

    @property
    def fields(self) -> Mapping[str, Field]:
        """A field for each chosen column."""
        return {name: part.field for name, part in self._parts.items()}

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The converter's name."""
        return {"source": "mds"}

    def __getitem__(self, index: int) -> Sample:
        check_index(index, len(self._places))
        values = self._read(index)
        return {name: self._value(part, index, values[part.column]) for name, part in self._parts.items()}

    def measured(self) -> "Mds":
        """This source with the kinds of columns of bytes and arrays that their values in the first samples tell."""
        parts = {name: self._measured(part) for name, part in self._parts.items()}
        return Mds(self._places, self._columns, parts, self.remarks)

    def _measured(self, part: _Part) -> _Part:
        values = []
        for number in range(min(16, len(self._places))):
            try:
                values.append(self._read(number)[part.column])
            except BadSample:
                continue
        if part.encoding == "bytes":
            return replace(part, field=image_or_bytes(values))
        if part.encoding == "ndarray" and values:
            return replace(part, field=Field("array", dtype=foreign.array(values[0], part.encoding).dtype.name))
        return part

    def _read(self, index: int) -> list[bytes]:
        file, row, offset, size = self._places.locate(index)
        with bad_samples_at(f"{printable(file.path)}, sample {row}"):
            data = file.read(offset, size)
            if len(data) < size:
                raise BadSample(f"the file ends within it, after {len(data)} of {size} bytes")
            return foreign.split_sample(data, self._columns)

    def _value(self, part: _Part, index: int, data: bytes) -> Any:
        file, row, _, _ = self._places.locate(index)
        with bad_samples_at(f"{printable(file.path)}, sample {row}, column {self._columns[part.column].name!r}"):
            return _decoded(data, part)


def _field(column: foreign.Column, place: str) -> Field:
    """The field for a column; SourceError if none holds it."""
    encoding = column.encoding
    if encoding in foreign.NUMBERS:
        return Field("scalar", dtype=foreign.NUMBERS[encoding])
    if encoding in _FIXED:
        return _FIXED[encoding]
    reason = "pickles are never loaded" if encoding == "pkl" else "no field holds it"
    if encoding.partition(":")[0] == "ndarray":
        try:
            dtype, shape = foreign.array_type(encoding)
            found = array_field(np.dtype(dtype), shape) if shape else Field("array", dtype=dtype or "float32")
        except ValueError:
            found = None
        if found is not None:
            return found
    raise SourceError(f"{place}: the column {column.name!r} is {encoding!r}: {reason}; choose others with fields")


def _decoded(data: bytes, part: _Part) -> Any:
    """The value of a column; BadSample if it is damaged."""
    encoding, field = part.encoding, part.field
    if encoding.partition(":")[0] == "ndarray":
        return foreign.array(data, encoding)
    if encoding == "pil":
        return encode_png(foreign.pixels(data), "the image")
    if field.kind == "image":
        probe_image(data)
    if field.kind in ("image", "bytes"):
        return data
    try:
        if encoding == "json":
            return json_text.parse(data, nan=False)
        if encoding in foreign.NUMBERS:
            (number,) = np.frombuffer(data, np.dtype(foreign.NUMBERS[encoding]).newbyteorder("<")).tolist()
            return number
        text = decode_utf8(data)
        return {"str_int": int, "str_float": float}.get(encoding, str)(text)
    except ValueError as error:
        raise BadSample(f"not {encoding}: {error}") from error
