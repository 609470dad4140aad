"""Counts of images that a conversion reports at its end: rotated by a tag, or unlike the mask in their sample."""

from collections import Counter
from collections.abc import Iterable, Mapping

from ..errors import Message, Option
from ..format.fields import Field
from ..format.images import is_deep, orientation
from ..output.shard_writer import Encoded
from ..system.units import counted

ROTATED, DEEP = "rotated by a tag", "of 16 bits: "
SIZE, AXES, TAG = "pairs: size", "pairs: turn", "pairs: tag"
"""How an image and its mask differ: in size, by a rotation by 90 degrees alone, in their orientation tags."""

_WORDS = {
    SIZE: "of different sizes",
    AXES: "equal in size but for a rotation by 90 degrees",
    TAG: "with different orientation tags, which {orient:True} applies, as Loader(orient=True) does",
}


def count(sample: Encoded, fields: Mapping[str, Field], counts: Counter[str]) -> None:
    """Count a sample's images that a tag rotates, those of 16 bits, and its masks that differ from its only image."""
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
