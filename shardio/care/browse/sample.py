"""The page of one sample: where it is stored, and the value of every field."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ...foreign.tokenizer import TextEncoder
from ...format import images
from ...format.fields import Field, describe, length_column
from ...system import helper_process
from ...system.html import WIDTH, escaped, histogram
from ...system.units import format_size
from ...views.classes import class_name, names_by_field
from ...views.readable import ReadableDataset, decoded
from ..marks import Mark
from ..values import missing, number_text, stored_marks, stored_value, video_facts, video_text
from . import arrays
from .arrays import Empty, Part, asked_cut, is_tokens, usual_cut
from .grid import Samples, progress
from .page import error, framed, hidden, link, step
from .pictures import FRAMES, SECONDS, grey, image, inline_png, with_marks
from .scan import Scans

_MOST_TEXT = 20_000  # characters
_MOST_PARSED = 1 << 20  # bytes of JSON; more is shown as it is stored
_MOST_HEX = 512  # bytes
_MOST_NUMBERS = 256
_MOST_STORED = 1 << 25  # bytes of a value of any size
_MOST_WHOLE = 1 << 24  # bytes of an array whose figures are of all its numbers
_MOST_IMAGES = 32  # of a list
_BINS = 40


@dataclass(frozen=True, slots=True)
class _Shown:
    """A sample, with what its page was asked for, and what links on it keep."""

    dataset: ReadableDataset
    number: int
    query: Mapping[str, str]
    keep: Mapping[str, str]
    tokenizer: TextEncoder | None


def sample(
    dataset: ReadableDataset, scans: Scans, number: int, query: Mapping[str, str], tokenizer: TextEncoder | None
) -> str:
    """Return the page of a sample. `query` has `where`, `field`, and for each array field `at.NAME`, its slice.

    Raises IndexError for a number that no sample has.
    """
    if not 0 <= number < dataset.numbers:
        raise IndexError(f"there are samples 0 to {dataset.numbers - 1:,}, got {number}")
    condition, field = query.get("where", "").strip(), query.get("field", "")
    samples = Samples(dataset, scans, condition)
    before, after = samples.around(number)
    keep = {"where": condition, "field": field}
    shown = _Shown(dataset, number, query, keep, tokenizer)

    def to(number: int | None, text: str, rel: str) -> str:
        return step(None if number is None else link(f"/sample/{number}", **keep), text, rel)

    parts = [
        f'<p class="pager">{to(before, "◀ previous", "prev")} {step(link("/", **keep), "all samples", "up")} '
        f"{to(after, 'next ▶', 'next')}</p>",
        f"<h1>Sample {number:,}</h1>",
        _place(dataset, number),
        error(samples.error) if samples.error else "",
        progress(samples.scan, "Looking for its neighbours", True, where=condition),
    ]
    for name, kind in dataset.fields.items():
        joined = "" if (place := dataset.joined_from(name)) is None else f", joined from {place}"
        parts.append(
            f'<section id="{escaped(name)}"><h2>{escaped(name)} <small>{escaped(describe(kind) + joined)}</small></h2>'
            f"{_value(shown, name, kind)}</section>"
        )
    return framed(f"Sample {number}", "\n".join(parts))


def _place(dataset: ReadableDataset, number: int) -> str:
    """Return where a sample is stored, as HTML."""
    try:
        place = dataset.locate(number)
    except Exception as failed:  # noqa: BLE001  # a page shows whatever a sample holds
        return error(failed)
    key = "" if place.key is None else f"<dt>key</dt><dd><bdi>{escaped(place.key, 400)}</bdi></dd>"
    return (
        f'<dl class="facts"><dt>shard</dt><dd>{escaped(place.shard, 400)}</dd><dt>row</dt><dd>{place.row:,}</dd>'
        f"{key}<dt>dataset</dt><dd>{escaped(dataset.path, 400)}</dd></dl>"
    )


def _value(shown: _Shown, name: str, field: Field) -> str:
    """Return a value as HTML, or why it cannot be shown."""
    dataset, number = shown.dataset, shown.number
    try:
        if missing(dataset, name, number):
            return '<p class="soft">This sample has no value.</p>'
        if field.kind == "array":
            return _array(shown, name, field)
        if field.is_image:
            return _image(dataset, name, field, number)
        if field.kind == "video":
            return _video(dataset, name, number)
        with helper_process.time_limit(SECONDS):
            stored = stored_value(dataset, name, number, _MOST_STORED)
            if field.fixed:
                return _scalar(dataset, name, field, stored.item())
            if field.kind == "bytes":
                return _bytes(bytes(stored[:_MOST_HEX]), len(stored))
            if field.kind == "json" and len(stored) > _MOST_PARSED:
                return _text(bytes(stored[: 4 * _MOST_TEXT]).decode(errors="replace"), f"{len(stored):,} bytes")
            (value,) = decoded(dataset, name, [stored], np.array([number]))
        if field.kind == "images":
            figures = "".join(
                f'<figure><img loading="lazy" alt="" src="{link(f"/image/{name}/{number}", n=place)}">'
                f"<figcaption>{place}: {_header(file)}</figcaption></figure>"
                for place, file in enumerate(value[:_MOST_IMAGES])
            )
            more = f'<p class="soft">{len(value) - _MOST_IMAGES} more</p>' if len(value) > _MOST_IMAGES else ""
            return f'<p class="soft">{len(value)} images</p><div class="images">{figures}</div>{more}'
        if field.kind == "text":
            return _text(value, f"{len(value):,} characters")
        return _text(_indented(value), f"{len(stored):,} bytes")
    except Empty as empty:
        return f'<p class="soft">{escaped(empty)}</p>'
    except Exception as failed:  # noqa: BLE001  # a page shows whatever a sample holds
        return error(f"{failed}" or type(failed).__name__)


def _image(dataset: ReadableDataset, name: str, field: Field, number: int) -> str:
    value = image(dataset, name, number)
    facts = _header(value) if isinstance(value, bytes) else f"{value.shape[0]} x {value.shape[1]}, stored as pixels"
    if isinstance(value, bytes):
        images.check_pixels(value, _MOST_STORED)
    source = link(f"/image/{name}/{number}")
    shown = "its numbers of classes in colours" if field.role == "mask" else f"{escaped(name)}, as it is stored"
    picture, marks, failure = f'<img class="whole" alt="{shown}" src="{source}">', list[Mark](), ""
    try:
        marks = stored_marks(dataset, name, number)
    except Exception as failed:  # noqa: BLE001  # a page shows whatever a sample holds
        failure = error(failed)
    if marks:
        picture = with_marks(picture, marks, _size(value))
    return f'<p class="soft">{facts}</p>{failure}<a href="{source}">{picture}</a>'


def _video(dataset: ReadableDataset, name: str, number: int) -> str:
    """Return frames of a video, and what is known of it, as HTML."""
    size = int(dataset.selection(np.array([number])).column(length_column(name))[0])
    facts = f"{video_text(video_facts(dataset, name, number))}, {format_size(size)}"
    return (
        f'<p class="soft">{escaped(facts)}</p><figure><img class="whole" loading="lazy" alt="{FRAMES} frames" '
        f'src="{link(f"/frames/{name}/{number}")}"><figcaption>{FRAMES} frames, from the middle of equal parts'
        "</figcaption></figure>"
    )


def _size(value: Any) -> tuple[int, int]:
    """Return the stored height and width of an image, a file or pixels."""
    if isinstance(value, np.ndarray):
        return value.shape[0], value.shape[1]
    info = images.probe(value)
    return info.height, info.width


def _header(file: bytes) -> str:
    """Return what an image file's header states, as HTML."""
    try:
        info = images.probe(file)
        channels = {1: "grey", 3: "RGB", 4: "4 channels"}.get(info.channels, f"{info.channels} channels")
        facts = [info.format.upper(), f"{info.height} x {info.width}", channels, format_size(len(file))]
        if info.format == "jpeg":
            coding = images.jpeg_coding(file)
            process = {0: "baseline", 1: "extended", 2: "progressive"}.get(coding.process, f"process {coding.process}")
            facts.append(f"{process}, {coding.bits} bits, {coding.colors}")
            facts.append(f"blocks of {coding.unit[0]} x {coding.unit[1]}")
            if coding.restart_interval:
                facts.append(f"restart markers every {coding.restart_interval} blocks")
        if (orientation := images.orientation(file)) != 1:
            facts.append(f"EXIF orientation {orientation}")
        return escaped(", ".join(facts))
    except Exception as failed:  # noqa: BLE001  # a page shows whatever a sample holds
        return f'<em class="error">{escaped(failed, 300)}</em>'


def _scalar(dataset: ReadableDataset, name: str, field: Field, value: Any) -> str:
    classes = names_by_field(dataset.metadata, dataset.fields).get(name, ())
    known = class_name(value, classes)
    words = "" if known is None else f": <b><bdi>{escaped(known, 400)}</bdi></b>"
    units = (field.attributes or {}).get("units")
    unit = f' <span class="soft">{escaped(units, 80)}</span>' if isinstance(units, str) else ""
    return f'<p class="scalar">{escaped(value)}{unit}{words}</p>'


def _indented(value: Any) -> str:
    """Return the beginning of a value as JSON: of deep ones the indents would take most of the memory."""
    text = io.StringIO()
    for part in json.JSONEncoder(ensure_ascii=False, indent=2).iterencode(value):
        if text.write(part) and text.tell() > _MOST_TEXT:
            break
    return text.getvalue()


def _text(text: str, size: str) -> str:
    more = f", of which the first {_MOST_TEXT:,} characters are shown" if len(text) > _MOST_TEXT else ""
    return f'<p class="soft">{size}{more}</p><pre dir="auto">{escaped(text, _MOST_TEXT)}</pre>'


def _bytes(data: bytes, size: int) -> str:
    lines = []
    for first in range(0, len(data), 16):
        part = data[first : first + 16]
        letters = "".join(chr(code) if 32 <= code < 127 else "." for code in part)
        lines.append(f"{first:08x}  {part.hex(' '):<47}  {letters}")
    more = f", of which the first {len(data)} are shown" if size > len(data) else ""
    return f'<p class="soft">{size:,} bytes{more}</p><pre>{escaped(chr(10).join(lines))}</pre>'


def _array(shown: _Shown, name: str, field: Field) -> str:
    dataset, number = shown.dataset, shown.number
    asked = shown.query.get(f"at.{name}", "").strip()
    parts = []
    try:
        part = arrays.read(dataset, name, number, asked_cut(asked) if asked else usual_cut)
    except ConfigError as wrong:
        parts.append(error(wrong))
        part = arrays.read(dataset, name, number, usual_cut)
    parts.append(f'<p class="soft">shape {_shape(part.shape)}, {escaped(field.row_dtype.name)}</p>')
    if part.shape:
        parts.append(_form(name, part, number, shown.keep))
    if shown.tokenizer is not None and is_tokens(field):
        parts.append(f'<pre dir="auto">{escaped(shown.tokenizer.decode(part.values[:_MOST_TEXT]), _MOST_TEXT)}</pre>')
    classes = names_by_field(dataset.metadata, dataset.fields).get(name, ()) if field.per else ()
    parts.append(_drawn(name, field, part, classes))
    every = arrays.whole(dataset, name, number, _MOST_WHOLE)
    of = "of the whole array" if every is not None or part.values.size == np.prod(part.shape) else "of what is shown"
    parts.append(_figures(part.values if every is None else every, of))
    return "".join(parts)


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{size:,}" for size in shape) or "none: one number"


def _form(name: str, part: Part, number: int, keep: Mapping[str, object]) -> str:
    """Return the form that chooses a slice, with links to its neighbours along each axis that is not shown."""
    cut, place = part.cut, f"/sample/{number}"

    def to(axis: int, at: int, text: str) -> str:
        there = 0 <= at < part.shape[axis]
        other = f"{link(place, **keep, **{f'at.{name}': cut.moved(axis, at)})}#{escaped(name)}"
        return step(other if there else None, text)

    steps = []
    for axis, length in enumerate(part.shape):
        if axis in cut.kept or length == 1:
            continue
        at = cut.begins[axis]
        steps.append(f"<span>axis {axis}: {to(axis, at - 1, '◀')} {at:,} of {length:,} {to(axis, at + 1, '▶')}</span>")
    return (
        f'<form action="{place}#{escaped(name)}" class="slice">{hidden(**keep)}<label>slice '
        f'<input name="at.{escaped(name)}" value="{escaped(cut)}" spellcheck="false" '
        f'title="a number for each axis, : or 10:20 along one or two"></label><button>Show</button> {" ".join(steps)}'
        "</form>"
    )


def _drawn(name: str, field: Field, part: Part, classes: Sequence[str]) -> str:
    """Return a part of an array as a picture, a line or numbers, with the names of classes that these have."""
    values = part.values
    if field.on is not None and values.ndim == 2:
        lines = [" ".join(map(number_text, row)) for row in values[:_MOST_NUMBERS].tolist()]
        more = f"\n… ({len(values) - len(lines):,} more)" if len(values) > len(lines) else ""
        return f"<pre>{escaped(chr(10).join(lines))}{more}</pre>"
    if values.ndim == 2:
        pixels = grey(values)
        fewer = (
            "" if pixels.shape == values.shape else f", every {-(-values.shape[0] // pixels.shape[0])}th row or column"
        )
        size = "small" if max(values.shape) < 320 else ""
        label = f"{name}[{part.cut}]"
        return f'{inline_png(pixels, label, f"numbers {size}")}<p class="soft">{escaped(label)}{fewer}</p>'
    if values.ndim == 0:
        return f'<p class="scalar">{escaped(values.item())}</p>'
    listed = values[:_MOST_NUMBERS].tolist()
    more = f" … ({values.size - len(listed):,} more)" if values.size > len(listed) else ""
    names = [class_name(number, classes) for number in listed]
    numbers = " ".join(
        number_text(number) if known is None else f"{number} ({known})"
        for number, known in zip(listed, names, strict=True)
    )
    drawn = "" if is_tokens(field) or values.size < 2 else _line(values, f"{name}[{part.cut}]")
    return f'{drawn}<pre class="wrapped">{escaped(numbers)}{more}</pre>'


def _line(values: NDArray[Any], label: str) -> str:
    """Return numbers along one axis as a line."""
    every = -(-len(values) // WIDTH)
    heights = _real(values[::every]).astype(np.float64)
    finite = np.isfinite(heights)
    if not finite.any():
        return ""
    heights /= np.abs(heights[finite]).max() or 1  # so that no difference overflows
    low, high = heights[finite].min(), heights[finite].max()
    across = WIDTH / max(1, len(heights) - 1)
    path, pen = [], "M"
    for place, (height, there) in enumerate(zip(heights.tolist(), finite.tolist(), strict=True)):
        if there:
            path.append(f"{pen}{place * across:.1f} {116 - 112 * (height - low) / ((high - low) or 1):.1f}")
        pen = "L" if there else "M"
    return (
        f'<svg viewBox="0 0 {WIDTH} 120" role="img" aria-label="{escaped(label)}">'
        f'<path class="line" d="{"".join(path)}"/></svg>'
    )


def _real(values: NDArray[Any]) -> NDArray[Any]:
    return np.abs(values) if values.dtype.kind == "c" else values


def _figures(values: NDArray[Any], of: str) -> str:
    """Return smallest, largest, mean and a histogram of numbers, without those that are NaN or infinite."""
    flat = _real(values).reshape(-1)
    numbers = flat.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    nan, infinite = int(np.isnan(numbers).sum()), int(np.isinf(numbers).sum())
    facts = {"numbers": f"{numbers.size:,}", "NaN": f"{nan:,}", "infinite": f"{infinite:,}"}
    drawn = ""
    if finite.size:
        low, high = flat[np.isfinite(numbers)].min().item(), flat[np.isfinite(numbers)].max().item()
        facts |= {"min": number_text(low), "max": number_text(high)}
        with np.errstate(all="ignore"):
            facts |= {"mean": f"{finite.mean():.6g}"}
            if np.isfinite(finite.max() - finite.min()):
                counts, edges = np.histogram(finite, _BINS)
                titles = [
                    f"{count:,} from {a:.4g} to {b:.4g}"
                    for count, a, b in zip(counts.tolist(), edges.tolist(), edges[1:].tolist(), strict=False)
                ]
                drawn = histogram(counts.tolist(), titles, facts["min"], facts["max"], label="histogram of the numbers")
    listed = "".join(f"<dt>{name}</dt><dd>{escaped(value)}</dd>" for name, value in facts.items())
    return f'<details open><summary>Figures {of}</summary><dl class="facts">{listed}</dl>{drawn}</details>'
