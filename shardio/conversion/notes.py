"""Notes on a source before it is converted: what it leaves out, and options that its fields may need."""

import contextlib
import math
from collections.abc import Collection, Sequence

from ..containers import hdf5
from ..containers.chunk_cache import CHUNKS
from ..containers.hdf5_index import Layout
from ..containers.zarr import ZarrReader
from ..errors import ConfigError, Message, MissingDependency, Option, ShardCorrupt, SourceError
from ..format.fields import Field, describe
from ..format.unwritten import Unwritten
from .source import Hdf5Names, Source, ZarrIndexes, merged_with

_SMALLEST_SIDE = 16
"""Arrays with a shorter side hardly hold pixels."""
_FEW_TIMES = 4
"""Decompressing up to so many times the bytes that are used takes little of a loader's time."""
_MOST_BLOCKS = 16  # in a window, as is the loader's default


def hints(source: Source, as_image: Collection[str], squeeze: Collection[str]) -> list[str]:
    """Return the source's own hints, and those on fields of unfit kinds.

    Args:
        source: the source to convert.
        as_image, squeeze: the fields that the user has already named in these options.
    """
    found = [*source.hints]
    for name, field in source.fields.items():
        single = field.kind == "array" and field.fixed and math.prod(field.row_shape) == 1
        if name == "label" and single and name not in squeeze:
            told = "field 'label' is {}; {} stores numbers, which training needs"
            found.append(Message(told, describe(field), Option("squeeze", [name])))
        if name not in as_image and _looks_like_pixels(field):
            told = "field {!r} is {}; if its values are pixels, {} stores images"
            found.append(Message(told, name, describe(field), Option("as_image", [name])))
    return found


def find_chunk_hints(source: Source) -> list[str]:
    """Return a hint if random reads of rows of adopted arrays decompress many times the bytes of the rows.

    Args:
        source: the source, whose first file or store is looked at.

    Raises SourceError if the file holds values that cannot be adopted.
    """
    adoption = source.adoption
    if not isinstance(adoption, (Hdf5Names, ZarrIndexes)):
        return []
    fields = {name: field for name, field in source.fields.items() if field.kind != "scalar"}
    path, merged = source.files[0], merged_with(source, 0)
    try:
        reader: hdf5.Hdf5Reader | ZarrReader
        if isinstance(adoption, ZarrIndexes):
            reader = ZarrReader(path, fields, adoption.index(0, listed=False), merged)
        else:
            reader = hdf5.Hdf5Reader(path, fields, Layout(adoption.names, files=adoption.in_file), merged)
        with contextlib.closing(reader):
            spans = reader.chunk_spans()
    except (ShardCorrupt, MissingDependency):
        return []  # the adoption itself says what is wrong
    once = sum(fields[name].row_bytes for name in spans)
    size = sum(span.size for span in spans.values())
    kept, room = all(span.kept for span in spans.values()), CHUNKS.most
    if size < _FEW_TIMES * max(1, once) or (kept and once * int(adoption.starts[-1]) <= room):
        return []
    rows = max(span.rows for span in spans.values())
    named = f"fields {', '.join(map(repr, spans))} are" if len(spans) > 1 else f"field {next(iter(spans))!r} is"
    # A block begins anywhere, so that it reaches into two chunks; and where windows meet, both are read.
    window = min(_MOST_BLOCKS, room // (2 * size) - 1) if kept else 0
    blocks = f', or load them with shuffle="block", block={rows}, window={window} (about 2 times)' if window > 0 else ""
    return [
        f"{named} in chunks of {rows} samples, each read and decompressed whole: in random order, loading decompresses "
        f"{size / once:.0f} times the bytes that it uses; convert the files{blocks}"
    ]


def unwritten_chunks(found: Sequence[Unwritten], chosen: str | None) -> tuple[list[str], list[str]]:
    """Return remarks and hints on missing chunks, for each field that lacks some.

    Files may leave out what is all fill values, so this is a hint. It is a remark where something speaks for a loss: an
    array has none of its chunks, no field has chunks from some row on, or there are chunks under other names.

    Args:
        found: what is known of each field in each file.
        chosen: `Source.missing_chunks`.

    Raises SourceError if an array has chunks under other names alone, or with `"refuse"`.
    """
    remarks, hints = list[str](), list[str]()
    if chosen not in (None, "fill", "refuse"):
        raise ConfigError("{missing_chunks} must be fill or refuse, got {!r}", chosen)
    if chosen == "fill":
        return remarks, hints
    tails: dict[int, int] = {}  # by file, from which row on no field has chunks; -1 if one has
    for one in found:
        before = tails.setdefault(one.number, one.tail)
        tails[one.number] = max(before, one.tail) if min(before, one.tail) >= 0 else -1
    fields: dict[tuple[str, str], list[Unwritten]] = {}
    for one in found:
        if one.lacking:
            fields.setdefault((one.name, one.what), []).append(one)
    known = {key: sum(one.count for one in found if (one.name, one.what) == key) for key in fields}
    for (name, what), parts in fields.items():
        first, lacking = parts[0], sum(part.lacking for part in parts)
        template = "field {!r}: {} of {} {} are not there, the first is {} of {}: their values are the fill value, {}"
        told = Message(template, name, lacking, known[name, what], what, first.first, first.file, first.fill)
        loss = next(filter(None, (_sign_of_loss(part, tails[part.number]) for part in parts)), "")
        alone = next((part for part in parts if part.misnamed and part.lacking == part.count), None)
        if chosen is not None or alone:
            advice = "" if chosen else "; correct its metadata, or take fill values by {missing_chunks:fill}"
            raise SourceError("{}{}" + advice, told, loss)
        way = "; {missing_chunks:fill} takes these, {missing_chunks:refuse} none"
        (remarks if loss else hints).append(Message("{}{}" + way, told, loss))
    return remarks, hints


def _sign_of_loss(one: Unwritten, tail: int) -> str:
    """Return why chunks may be lost rather than left out as fill values, in words; "" if nothing says so."""
    if one.misnamed:
        return f"; {one.file} has chunks under other names, such as {one.misnamed}"
    if one.lacking == one.count:
        return f"; {one.file} has none"
    return f"; in {one.file} no field has any from row {tail} on" if tail >= 0 else ""


def remarks_of(source: Source, others: Sequence[str] = (), *, strict: bool) -> list[str]:
    """Return `others`, and the source's remarks on what it leaves out or renames.

    Raises SourceError if there are some, with `strict`.
    """
    remarks = [*others, *source.remarks]
    check_strict(remarks, strict=strict)
    return remarks


def check_strict(remarks: Sequence[str], *, strict: bool) -> None:
    """Raise SourceError if there are remarks on what is left out or renamed, with `strict`."""
    if strict and remarks:
        told = Message("; ".join(["{}"] * len(remarks)), *remarks)
        raise SourceError("{strict} allows nothing to be left out or renamed: {}", told)


def _looks_like_pixels(field: Field) -> bool:
    """Return whether a field holds uint8 arrays [h, w], [h, w, 1 or 3] or [1 or 3, h, w], of at least 16 a side."""
    shape = field.row_shape
    sides = shape[1:] if len(shape) == 3 and shape[0] in (1, 3) else shape[:2]
    channels = len(shape) == 2 or (len(shape) == 3 and (shape[0] in (1, 3) or shape[2] in (1, 3)))
    return field.kind == "array" and field.dtype == "uint8" and channels and min(sides) >= _SMALLEST_SIDE
