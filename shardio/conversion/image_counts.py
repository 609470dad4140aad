"""Checks and counts of masks, boxes and points on images, and counts of images and videos that are turned."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from ..errors import BadSample, Message, Option
from ..format.fields import Field, present_column
from ..format.images import is_deep, orientation
from ..output.shard_writer import Encoded
from ..system.units import counted

ROTATED, DEEP = "rotated by a tag", "of 16 bits: "
SIZE, AXES, TAG = "pairs: size", "pairs: turn", "pairs: tag"
"""How an image and its mask differ: in size, by a rotation by 90 degrees alone, in their orientation tags."""

OUTSIDE, ACROSS, EMPTY = "boxes: outside", "boxes: across an edge", "boxes: empty"
"""Boxes that don't lie on their image, reach beyond it, or have no area."""
AWAY = "points: beyond an edge"
TURNED, OTHERS = "annotations turned", "other keys"
"""Points that don't lie on their image; images whose annotations are turned from upright to stored pixels, or whose
instances state more than those of the samples that told what instances have."""
_ROUNDING = 0.05  # pixels by which coordinates of few digits may leave the image

_WORDS = {
    SIZE: "of different sizes",
    AXES: "equal in size but for a rotation by 90 degrees",
    TAG: "with different orientation tags, which {orient:True} applies, as Loader(orient=True) does",
}


def check_instances(sample: Encoded, fields: Mapping[str, Field]) -> None:
    """Raise BadSample for NaN, infinities, edges in the wrong order, and fields of unequal length per instance."""
    for name, field in fields.items():
        if sample.stored.get(present_column(name)) == b"\0" or (field.on, field.per) == (None, None):
            continue
        values = field.entries(sample.stored[name])
        if field.per is not None and len(values) != (whole := fields[field.per].length_of(sample.stored[field.per])):
            raise BadSample(f"field {name!r} has {len(values)} values, field {field.per!r} has {whole}")
        if field.on is None:
            continue
        rows = values.reshape(len(values), math.prod(field.entry_shape))
        finite = np.isfinite(rows).all(axis=1)
        ordered = (rows[:, 2:] >= rows[:, :2]).all(axis=1) if field.role == "boxes" else finite
        for good, told in ((finite, "not finite"), (ordered, "no left, top, right and bottom edge")):
            if not good.all():
                row = int(good.argmin())
                raise BadSample(f"field {name!r}: number {row} is {told}: {rows[row].tolist()}")


def _count_places(sample: Encoded, fields: Mapping[str, Field], counts: Counter[str]) -> None:
    for name, field in fields.items():
        if field.on is None:
            continue
        if (size := sample.image_shapes.get(field.on, fields[field.on].image_size)) is None:
            continue
        places, ends = field.entries(sample.stored[name]), np.array(size[::-1])
        if field.role == "points":
            away = ((places[..., :2] < -_ROUNDING) | (places[..., :2] > ends + _ROUNDING)).any(axis=2)
            counts[AWAY] += int((away & (places[..., 2:] > 0).all(axis=2)).sum())  # but unlabelled ones
            continue
        low, high = places[:, :2], places[:, 2:]
        empty = (high <= low).any(axis=1)
        outside = ((high <= 0) | (low >= ends)).any(axis=1) & ~empty
        across = ((low < -_ROUNDING) | (high > ends + _ROUNDING)).any(axis=1) & ~empty & ~outside
        for kind, found in ((EMPTY, empty), (OUTSIDE, outside), (ACROSS, across)):
            if number := int(found.sum()):
                counts[kind] += number


def count(sample: Encoded, fields: Mapping[str, Field], counts: Counter[str]) -> None:
    """Count a sample's images that a tag rotates, those of 16 bits, and what lies on an image and doesn't fit it."""
    _count_places(sample, fields, counts)
    sizes = sample.image_shapes
    tags = {name: orientation(sample.stored[name]) for name in sizes}
    if rotated := sum(tag != 1 for tag in tags.values()):
        counts[ROTATED] += rotated
    masks = [name for name in sizes if fields[name].role == "mask"]
    for name in sizes:
        if name not in masks and is_deep(sample.stored[name]):
            counts[DEEP + name] += 1
    if not masks or len(sizes) != len(masks) + 1:
        return
    image = next(name for name in sizes if name not in masks)
    for mask in masks:
        if how := _difference(sizes[image], tags[image], sizes[mask], tags[mask]):
            counts[how] += 1


def pair_remarks(counts: Mapping[str, int]) -> list[str]:
    """Return a remark on images and masks that differ, if there are any."""
    told = [Message("{} " + words, counted(counts[how], "pair")) for how, words in _WORDS.items() if counts.get(how)]
    return [Message("among images and their masks are " + "; ".join(["{}"] * len(told)), *told)] if told else []


def box_notes(counts: Mapping[str, int]) -> list[str]:
    """Return notes on what doesn't fit its image, and on annotations that are turned to stored pixels."""
    notes: list[str] = []
    kinds = {ACROSS: "beyond an edge of their image", OUTSIDE: "wholly outside of it", EMPTY: "without area"}
    if found := [f"{counts[kind]} {words}" for kind, words in kinds.items() if counts.get(kind)]:
        told = (
            "boxes don't fit their image and are stored as they are: {}; SanitizeBoundingBoxes() leaves out those that "
            "no crop of a Loader has brought within the image"
        )
        notes.append(Message(told, ", ".join(found)))
    if away := counts.get(AWAY):
        notes.append(Message("{} beyond an edge of their image: stored as they are", counted(away, "point")))
    if others := counts.get(OTHERS):
        told = "the instances of {} have keys that those of the first samples looked at lack: these are left out"
        notes.append(Message(told, counted(others, "image")))
    if turned := counts.get(TURNED):
        told = (
            "an EXIF tag rotates or flips {} whose upright pixels are annotated: boxes and points are turned to the "
            "stored pixels, and Loader(orient=True) turns both back"
        )
        notes.append(Message(told, counted(turned, "image")))
    return notes


def deep_notes(counts: Mapping[str, int]) -> list[str]:
    """Return a note for each field with images of 16 bits, which are counted by `DEEP` and the field."""
    told = (
        "field {!r} holds {} of 16 bits, of which a Loader takes 8 as Pillow does: levels of grey are cut off at 255, "
        "colours lose their lower bits; {} keeps the numbers of masks, and `shardio convert arrayfolder` keeps all "
        "bits, as arrays"
    )
    deep = {key.removeprefix(DEEP): count for key, count in counts.items() if key.startswith(DEEP)}
    return [Message(told, name, counted(count, "PNG"), Option("mask", [name])) for name, count in deep.items()]


def rotated_notes(counts: Mapping[str, int], source: str, advice: str = "", *, pixels: bool = False) -> list[str]:
    """Return a note if an orientation tag rotates some images of a source; `advice` says what to do here.

    Args:
        counts: counts of images.
        source: the converter's name.
        advice: what to do here.
        pixels: whether pixels are stored, without the tag.
    """
    if not (count := counts.get(ROTATED, 0)):
        return []
    others = "datasets does not" if source == "huggingface" else "torchvision does"
    told = "an EXIF tag rotates or flips {}, which a Loader ignores, as {}: {}Loader(orient=True) rotates them"
    if pixels:
        told = "an EXIF tag rotates or flips {}, and pixels have no tag: {orient:True} stores them upright"
    return [Message(told, counted(count, "image"), others, advice)]


def total(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Return the sum of counts."""
    return sum(map(Counter, counts), Counter[str]())


def _difference(size: tuple[int, int], tag: int, other: tuple[int, int], other_tag: int) -> str:
    if tag != other_tag:
        upright, other_upright = (one[::-1] if kind >= 5 else one for one, kind in ((size, tag), (other, other_tag)))
        return TAG if size == other or upright == other_upright else SIZE
    return "" if size == other else AXES if size == other[::-1] else SIZE
