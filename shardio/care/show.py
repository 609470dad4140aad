"""Samples in one picture: batches as a Loader delivers them, and a dataset's contact sheet."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ..errors import ConfigError, Option
from ..format.fields import Field, describe_fields, presence
from ..loader.batch.collate import geometry_names, length_name, offsets_name
from ..loader.batch.field_names import FieldNames
from ..loader.batch.instances import InstanceGroup, instance_groups
from ..loader.loader import Loader
from ..loader.targets import by_sample
from ..order.world import World
from ..system.os_errors import naming
from ..system.units import counted
from ..transforms import Transform
from ..views.classes import KEY, class_name, names_by_field, names_in
from ..views.readable import ReadableDataset
from .marks import Mark, marking_fields, marks_of
from .sheet import Block, Card, sheet
from .values import number_text
from .video_frames import few_frames

MOST_BATCHES = 16
"""The batches, and so the ranks of one step, that a picture shows at most."""

_MOST_PICTURES, _MOST_LINES = 4, 4  # of a sample
_FRAMES = 4  # of a clip
_MOST_NUMBERS = 8  # of a vector that is shown as text

Batch: TypeAlias = Mapping[str, Any]


def show(
    batches: Loader | Batch | Sequence[Loader | Batch],
    path: str | os.PathLike[str],
    *,
    steps: int = 1,
    samples: int = 32,
    columns: int = 8,
) -> int:
    """Write a PNG that shows batches as training gets them, so that you can look before you train.

    Each sample comes with its pictures, after all transforms: images, whose normalization is undone, with the boxes and
    points on them and the names of their classes; masks in colours; four frames of each clip; a grey slice of arrays of
    two and more axes, from the smallest to the largest number. Beneath are its index, its label and the label's class,
    its source, numbers and texts. A red frame marks samples that are not `valid`.

    Args:
        batches: a Loader, whose next batches are shown without moving it; or a batch, such as one that a `map` or a
            loop of your own made. Or several of these, such as the Loaders of all ranks of a job. A batch alone has no
            class names, no boxes and no normalization: labels are numbers, and floats that aren't in [0, 1] are shown
            from the smallest to the largest.
        path: the path of the PNG.
        steps: the number of batches to show of each Loader.
        samples: the most samples to show. They are the first of each batch, equally many of each.
        columns: the number of samples per row.

    Returns:
        The number of samples shown. The picture says what is left out; only the first 16 batches are shown.

    Raises ConfigError for a number below 1, for a file whose name does not end in .png, and without a batch.
    """
    _check(path, steps=steps, samples=samples, columns=columns)
    listed = list(batches) if isinstance(batches, Sequence) else [batches]
    for given in listed:
        if not isinstance(given, Loader | Mapping):
            raise ConfigError(
                "show takes a Loader, such as shardio.Loader(data, 32), a batch, or a list of these, got "
                f"{type(given).__name__}"
            )
    used = listed[:MOST_BATCHES]
    at_once = min(steps, max(1, MOST_BATCHES // max(1, len(used))))
    most = max(1, samples // max(1, len(used) * at_once))
    blocks = [_blocks(given, at_once, most) for given in used]
    drawn = [block for step in itertools.zip_longest(*blocks) for block in step if block is not None]
    if not drawn:
        raise ConfigError("there is no batch to show")
    if (left_out := len(listed) * steps - len(used) * at_once) > 0:
        drawn.append(Block(f"batches not drawn: {left_out:,}", ()))
    _write(path, drawn, columns)
    return sum(len(block.cards) for block in drawn)


def contact_sheet(
    dataset: ReadableDataset,
    path: str | os.PathLike[str],
    *,
    samples: int = 32,
    columns: int = 8,
    transforms: Mapping[str, Sequence[Transform]] | None = None,
    seed: int = 0,
) -> int:
    """Write a PNG that shows random samples of a dataset, each with its index and label beneath.

    Args:
        dataset: a dataset with an image field; with several, the first that is no mask is drawn. Without any, frames of
            the first field of videos are.
        path: the path of the PNG.
        samples: the number of samples to show, at most as many as the dataset holds.
        columns: the number of samples per row.
        transforms: the transforms by field; without any, complete images are shown, and frames from all of a video.
        seed: the seed of the choice of samples and of their transforms.

    Returns:
        The number of samples shown.

    Raises ConfigError if the dataset has no field of images or videos, for fewer than 1 sample or column, and unless
    the name of the file ends in .png.
    """
    _check(path, samples=samples, columns=columns)
    images = [n for n, f in dataset.fields.items() if f.is_image]
    videos, clips = [n for n, f in dataset.fields.items() if f.kind == "video"], few_frames(dataset.fields, _FRAMES)
    name = next((n for n in images if dataset.fields[n].role is None), next(iter([*images, *videos]), None))
    if name is None:
        there = describe_fields(dataset.fields)
        raise ConfigError(
            "{}: a contact sheet draws images and videos, and no field holds them: {}; {} draws arrays, too",
            dataset.path,
            there,
            Option("batches", True),
        )
    marking = marking_fields(dataset.fields, names_by_field(dataset.metadata, dataset.fields), name)
    loader = Loader(
        dataset,
        min(samples, len(dataset)),
        transforms={name: (transforms or {}).get(name, clips.get(name, ()))},
        seed=seed,
        world=World(),
        fields=[name, *marking, *(["label"] if "label" in dataset.fields else [])],
        threads=2,
        prefetch=1,
    )
    with closing(iter(loader)) as batches:
        cards, _ = cards_of(next(batches), Context.of(loader.dataset, loader.normalized, loader.field_names), samples)
    _write(path, [Block("", cards)], columns)
    return len(cards)


def ranks_at(
    dataset: ReadableDataset,
    *,
    world: int = 1,
    batch_size: int = 32,
    epoch: int = 0,
    step: int = 0,
    transforms: Mapping[str, Sequence[Transform]] | None = None,
    **order: Any,
) -> list[Loader]:
    """Return the Loaders of a job's ranks, at most the first 16, each about to deliver a step of an epoch.

    Args:
        dataset: the dataset.
        world: the number of ranks.
        batch_size: samples per rank and step.
        epoch: the epoch.
        step: the step in the epoch, from 0.
        transforms: the transforms by field.
        order: the Loader's arguments on which the order depends, such as `seed` and `shuffle`.

    Raises ConfigError for an argument that breaks a rule.
    """
    if world < 1:
        raise ConfigError("{world} must be at least 1, got {}", world)
    first = Loader(dataset, batch_size, world=World(0, world), fields=[], threads=1, **order)
    first.set_epoch(epoch)
    if not 0 <= step < len(first):
        raise ConfigError("{step} must be in [0, {}), the steps of an epoch, got {}", len(first), step)
    # The state of every rank at the step, without the turns of a mixture's sources: its weights have not changed.
    state = first.state_dict() | {"sources": "", "turns": [], "since": 0}
    state["position"] = step * state["global_batch"]
    loaders = []
    for rank in range(min(world, MOST_BATCHES)):
        place = World(rank, world)
        transforms = few_frames(dataset.fields, _FRAMES) | dict(transforms or {})
        loaders.append(Loader(dataset, batch_size, transforms=transforms, world=place, threads=2, prefetch=1, **order))
        loaders[-1].load_state_dict(state)
    return loaders


@dataclass(frozen=True, slots=True)
class Context:
    """The facts that a batch lacks: the fields, the names of classes and sources, and normalizations by field.

    Attributes:
        fields: the stored fields.
        classes: the names of the classes of `label`.
        id_columns: by column that says where a sample comes from, the names that its numbers stand for.
        normalized: see `Loader.normalized`.
        names: the stored field of each delivered name.
        groups: the delivered names that follow an image.
        classes_of: the names of classes by stored field.
    """

    fields: Mapping[str, Field] = field(default_factory=dict)
    classes: Sequence[str] = ()
    id_columns: Mapping[str, Sequence[str]] = field(default_factory=lambda: {"index": ()})
    normalized: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    names: FieldNames = field(default_factory=lambda: FieldNames({}))
    groups: Sequence[InstanceGroup] = ()
    classes_of: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, dataset: ReadableDataset, normalized: Mapping[str, NDArray[np.float32]], names: FieldNames) -> Context:
        fields, metadata = dataset.fields, dataset.metadata
        groups, classes_of = instance_groups(fields, names, {}), names_by_field(metadata, fields)
        classes = names_in(metadata.get(KEY))
        return cls(fields, classes, dataset.id_columns, normalized, names, groups, classes_of)


def _check(path: str | os.PathLike[str], **counts: int) -> None:
    if Path(path).suffix.lower() != ".png":
        raise ConfigError(f"the picture is a PNG: its name must end in .png, got {str(path)!r}")
    for name, count in counts.items():
        if count < 1:
            raise ConfigError("{} must be at least 1, got {}", Option(name), count)


def _write(path: str | os.PathLike[str], blocks: Sequence[Block], columns: int) -> None:
    drawing = Image.fromarray(sheet(blocks, columns))
    with naming(Path(path)):
        drawing.save(path, "PNG")


def _blocks(given: Loader | Batch, steps: int, most: int) -> list[Block]:
    """Return a block for each of the next batches of a Loader, or for a batch."""
    if isinstance(given, Loader):
        return list(_delivered(given, steps, most))
    cards, left_out = cards_of(given, Context(), most)
    return [Block(f"{_extent(len(cards), _rows(given))}{left_out}", cards)]


def _delivered(loader: Loader, steps: int, most: int) -> Iterator[Block]:
    context, world = Context.of(loader.dataset, loader.normalized, loader.field_names), loader.world
    loader = copy.copy(loader)  # which begins where the other one stands, and does not move it
    if not loader.steps_left:
        loader.set_epoch(loader.epoch + 1)
    first, epoch = len(loader) - loader.steps_left, loader.epoch
    with closing(iter(loader)) as batches:
        for step, batch in enumerate(itertools.islice(batches, steps), first):
            cards, left_out = cards_of(batch, context, most)
            place = f"epoch {epoch}, step {step} of {len(loader)}, rank {world.rank} of {world.size}"
            yield Block(f"{place}: {_extent(len(cards), _rows(batch))}{left_out}", cards)


def _extent(drawn: int, samples: int) -> str:
    return counted(samples, "sample", ",") if drawn == samples else f"{drawn} of {samples:,} samples"


def _rows(batch: Batch) -> int:
    return len(batch["index"] if "index" in batch else next(iter(batch.values()), ()))


def cards_of(batch: Batch, context: Context, most: int, frames: int = _FRAMES) -> tuple[list[Card], str]:
    """Return a card for each of the first samples of a batch, and in words the fields that they do not show.

    A card has at most so many frames of a clip.
    """
    rows, batch = range(min(most, _rows(batch))), _by_sample(batch, context)
    marking = {name for group in context.groups for name in group.names if name in _marking(group, context)}
    own = {*context.id_columns, "label", "valid", *map(presence, batch), *marking}
    pictures, texts = dict[str, list[list[tuple[str, NDArray[Any] | None]]]](), {}
    for name in (name for name in batch if name not in own):
        values = [_value(batch, name, row) for row in rows]
        drawn = [_pictures(name, value, context, frames) for value in values]
        if any(drawn):
            count = max(map(len, drawn))
            pictures[name] = [[*own, *[(name, None)] * (count - len(own))] for own in drawn]
        elif any(words := [_words(value) for value in values]):
            texts[name] = [f"{name} {word}" if word else "" for word in words]
    captions = [[_caption(batch, row, context), *_origin(batch, row, context)] for row in rows]
    shown = [*itertools.islice(pictures, _MOST_PICTURES)]
    told = [*itertools.islice(texts, _MOST_LINES - max(map(len, captions), default=0))]
    cards = []
    for row in rows:
        lines = [*captions[row], *(texts[name][row] for name in told)]
        drawn_on = _marks(batch, row, context)
        own_pictures = [picture for name in shown for picture in pictures[name][row]]
        cards.append(Card(own_pictures, lines, not _valid(batch, row), drawn_on))
    lacking = [name for name in batch if name not in {*own, *shown, *told}]
    return cards, f"; not drawn: {', '.join(lacking)}" if lacking else ""


def _by_sample(batch: Batch, context: Context) -> Batch:
    """Return a batch whose fields per instance have a value per sample, without the columns that count and place."""
    found = dict(batch)
    for group in context.groups:
        names = [name for name in group.names if name in batch]
        columns = (*names, *map(offsets_name, names), *map(length_name, names))
        own = {name: found.pop(name) for name in columns if name in batch}
        found |= by_sample(own, names)
    for name in context.names.stored:
        for column in geometry_names(name):
            found.pop(column, None)
    return found


def _marking(group: InstanceGroup, context: Context) -> dict[str, str]:
    """Return the stored field of each name of a group that is drawn on the group's image."""
    stored = context.names.stored
    marking = marking_fields(context.fields, context.classes_of, stored[group.image])
    return {n: stored[n] for n in group.names if stored[n] in marking and n not in context.names.beside}


def _marks(batch: Batch, row: int, context: Context) -> dict[str, list[Mark]]:
    """Return the boxes and points of a sample, by the name of their image."""
    marks: dict[str, list[Mark]] = {}
    for group in context.groups:
        drawn = [
            (stored, _value(batch, name, row)) for name, stored in _marking(group, context).items() if name in batch
        ]
        values = {stored: None if value is None else value.numpy() for stored, value in drawn}
        marks.setdefault(group.image, []).extend(marks_of(values, context.fields, context.classes_of))
    return marks


def _value(batch: Batch, name: str, row: int) -> Any:
    """Return a sample's value: an array as a tensor of the host, None if the sample has no value, or what it is."""
    there = batch.get(presence(name))
    value = batch[name][row] if there is None or there[row] else None
    if isinstance(value, np.ndarray | np.generic):
        value = torch.as_tensor(value)
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def _valid(batch: Batch, row: int) -> bool:
    return "valid" not in batch or bool(batch["valid"][row])


def _caption(batch: Batch, row: int, context: Context) -> str:
    index = f"#{int(batch['index'][row])}" if "index" in batch else ""
    label = _value(batch, "label", row) if "label" in batch else None
    words = [index, *([] if label is None else [_label(label, context.classes, alone=not index)])]
    return " ".join(filter(None, [*words, "" if _valid(batch, row) else "(not valid)"]))


def _label(label: Any, classes: Sequence[str], *, alone: bool) -> str:
    """Return a label as text, by the name of its class if it has one; of a mixed label the two largest shares."""
    if isinstance(label, torch.Tensor) and label.ndim == 1 and label.is_floating_point():
        shares, numbers = label.topk(min(2, len(label)))
        pairs = zip(shares.tolist(), numbers.tolist(), strict=True)
        return ", ".join(f"{class_name(number, classes) or number} {share:.2f}" for share, number in pairs if share)
    number = label.item() if isinstance(label, torch.Tensor) and label.ndim == 0 else None
    if (known := class_name(number, classes)) is not None:
        return known
    return f"{'' if alone else ' '}label {_words(label)}"


def _origin(batch: Batch, row: int, context: Context) -> list[str]:
    """Return the line that says where a sample comes from: the column, and a name or number; [] if nothing does."""
    words = []
    for column, names in context.id_columns.items():
        if column != "index" and column in batch:
            number = int(batch[column][row])
            words.append(f"{column} {names[number] if names else number}")
    return [", ".join(words)] if words else []


def _words(value: Any) -> str:
    """Return numbers and strings as text, "" for other values."""
    if isinstance(value, torch.Tensor):
        if value.ndim == 1 and len(value) <= _MOST_NUMBERS:
            return f"[{', '.join(number_text(each, 4) for each in value.tolist())}]"
        return number_text(value.item(), 4) if value.ndim == 0 else ""
    return "" if value is None or isinstance(value, bytes) else str(value)


def _pictures(name: str, value: Any, context: Context, frames: int) -> list[tuple[str, NDArray[Any]]]:
    """Return the picture of a value and its name, or those of at most so many frames of a clip; [] if there is none."""
    stored = context.fields.get(context.names.stored.get(name, name))
    if stored is None or stored.kind != "video" or not isinstance(value, torch.Tensor) or value.ndim != 4:
        picture = _picture(name, value, context)
        return [] if picture is None else [picture]
    places = np.unique(np.linspace(0, max(0, len(value) - 1), min(frames, len(value))).astype(np.int64)).tolist()
    found = [(place, _picture(name, value[place], context)) for place in places]
    return [(f"{name}[{place}]", picture[1]) for place, picture in found if picture is not None]


def _picture(name: str, value: Any, context: Context) -> tuple[str, NDArray[Any]] | None:
    """Return the picture of a value and its name, which says which slice it is; None if it cannot be drawn."""
    if not isinstance(value, torch.Tensor) or value.ndim < 2 or not value.numel():
        return None
    array = value.numpy()
    if name not in context.fields or context.fields[name].is_image or context.fields[name].kind == "video":
        if array.ndim == 2 and array.dtype.kind in "iu" and array.dtype != np.uint8:
            return name, array
        if array.ndim == 3 and array.dtype == np.uint8 and array.shape[2] in (1, 3):
            return name, array
        if array.ndim == 3 and array.dtype.kind == "f" and array.shape[0] in (1, 3):
            return name, _pixels(array.transpose(1, 2, 0), context.normalized.get(name))
    place = [0] * (array.ndim - 3) + [array.shape[-3] // 2] if array.ndim > 2 else []
    return f"{name}{place or ''}", stretched(array[tuple(place)])[..., None]


def _pixels(values: NDArray[Any], normalization: NDArray[np.float32] | None) -> NDArray[np.uint8]:
    """Return floats [height, width, channels] as pixels."""
    if normalization is not None:
        values = values * normalization[:, 1] + normalization[:, 0]
    elif not (values.min() >= 0 and values.max() <= 1):
        return stretched(values)
    pixels: NDArray[np.uint8] = np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)
    return pixels


def stretched(numbers: NDArray[Any]) -> NDArray[np.uint8]:
    """Return numbers, or the sizes of complex ones, as bytes from 0 to 255 for the largest; what is not finite is 0."""
    values = (np.abs(numbers) if numbers.dtype.kind == "c" else numbers).astype(np.float64)
    finite = np.isfinite(values)
    low, high = (values[finite].min(), values[finite].max()) if finite.any() else (0.0, 0.0)
    shares = np.where(finite, values - low, 0) / ((high - low) or 1.0)
    stretched: NDArray[np.uint8] = np.rint(shares * 255).astype(np.uint8)
    return stretched
