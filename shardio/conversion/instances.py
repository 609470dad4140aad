"""Boxes and points as sources state them, made fields: float32, left, top, right and bottom, in stored pixels.

A source states the instances of an image in one value of JSON: a list of objects, an object of lists, or a list of
boxes. An EXIF orientation rotates what viewers show, and with it what people annotate, so annotations of such images
are compared with both sizes.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, final, get_args

import numpy as np
from numpy.typing import NDArray

from ..engines.orientation import Orientations, upright_sizes, upright_steps
from ..errors import BadSample, ConfigError, SourceError
from ..foreign.names import field_name
from ..format.fields import Field, Missing, as_fields, describe_fields, is_missing
from ..format.images import orientation, probe
from ..system import strict_json
from ..system.types import Sample
from ..transforms.coordinates import PlaceStep, move_boxes, move_points
from ..transforms.steps import Sizes
from .image_counts import OTHERS, TURNED
from .shard_tasks import throughout
from .source import AnnotatedPixels, BoxFormat, InstanceMembers, Source, Tally, WrappedSource

BOXES = Field("array", "float32", (None, 4), role="boxes", on="image")
"""The field of boxes."""
_SNIFFED = 64  # samples that tell which members instances have
_BOX_KEYS = ("", "bbox", "bboxes", "boxes", "box")
_LABEL_KEYS = ("category", "categories", "label", "labels", "class", "class_id", "category_id")
_BESIDE = (*_LABEL_KEYS, "area", "iscrowd")
"""The fields that hold a list with a value for each box, where boxes are lists of 4 numbers."""
_NAMES = {"id": "annotation_id", **dict.fromkeys(("crowd", "crowded", "is_crowd"), "iscrowd")}
"""The fields of members that go by other names."""


def per_instance(dtype: str) -> Field:
    """Return a field with a number for each box."""
    return Field("array", dtype, (None,), per="boxes")


@final
class InstanceSource(WrappedSource):
    """The samples of a source with fields of the instances that one of its fields states.

    Args:
        source: the source, with images as files.
        stated: the field that states them, of JSON, of text that is JSON, or of boxes.
        box_format: what the four numbers of a box are.
        annotations: which pixels were annotated, where an EXIF tag rotates an image; None compares sizes with the
            fields `height` and `width`, if there are such.
        members: by field to make, the key of its values and the field; the key is "" where values are boxes and no
            objects. None finds numbers, boxes and labels in some samples.
        labels: the labels in the order of their numbers; None takes labels as they are, if they are integers.
        classes: their names, for the metadata; or the names of classes by key.
        defaults: by field, the value of an instance that states none.
        hidden: the fields that are left out, beside `stated`.

    Raises:
        ConfigError: `box_format` or `annotations` is none of its words, `stated` is no such field, there isn't exactly
            one image, a field would have the name of another, or labels are strings without `classes`.
        SourceError: no boxes are found.
    """

    def __init__(
        self,
        source: Source,
        stated: str,
        box_format: BoxFormat,
        annotations: AnnotatedPixels | None = None,
        *,
        members: InstanceMembers | None = None,
        labels: Sequence[Any] | None = None,
        classes: Sequence[str] | Mapping[str, Sequence[str]] = (),
        defaults: Mapping[str, Any] | None = None,
        hidden: Collection[str] = (),
    ) -> None:
        super().__init__(source)
        self.tally: Tally = source.tally or Tally()
        if box_format not in get_args(BoxFormat):
            raise ConfigError("{box_format} must be one of {}, got {!r}", ", ".join(get_args(BoxFormat)), box_format)
        if annotations not in (None, *get_args(AnnotatedPixels)):
            raise ConfigError("{annotations} must be upright or stored, got {!r}", annotations)
        images = [name for name, field in source.fields.items() if field.kind == "image" and field.role is None]
        if stated not in source.fields or len(images) != 1:
            told = "{boxes} takes a field beside exactly one image, got {!r}; there are {}"
            raise ConfigError(told, stated, describe_fields(source.fields))
        (self._image,), self._stated, self._format, self._annotations = images, stated, box_format, annotations
        lists = (name for name, field in source.fields.items() if field.ragged or field.kind == "json")
        found: Mapping[str, list[Any]] = {}
        self._beside = [] if members else [name for name in lists if name in _BESIDE and name != stated]
        if members is None:
            found = self._some_values()
            if "" not in found:  # objects hold all that there is of an instance
                self._beside, found = [], {key: values for key, values in found.items() if key not in self._beside}
            members, left_out, texts = _find_members(found, stated, self._image)
            if isinstance(classes, Mapping):
                classes = classes.get(members["labels"][0] if "labels" in members else "", ())
            if texts and not classes:
                told = "labels in {!r} are strings, such as {!r}: {classes} names all of them"
                raise ConfigError(told, stated, texts)
            labels = (classes if texts else range(len(classes))) if classes else None
            self.remarks = (*source.remarks, *(f"left out {key!r} of {stated!r}: no numbers" for key in left_out))
        self._members, self._defaults = dict(members), dict(defaults or {})
        self._known = frozenset(found)
        self._labels = None if labels is None else {label: number for number, label in enumerate(labels)}
        self._classes = tuple(classes)
        kept = {name: field for name, field in source.fields.items() if name not in (stated, *self._beside, *hidden)}
        if both := kept.keys() & members.keys():
            raise ConfigError("{!r} makes the field {!r}, which there is already: rename one", stated, min(both))
        self.fields = as_fields({**kept, **{name: field for name, (_, field) in members.items()}})

    @property
    def metadata(self) -> Mapping[str, Any]:
        """See `Source.metadata`: with the names of labels."""
        key = "classes.labels" if "classes" in self.source.metadata else "classes"
        return {**self.source.metadata, **({key: list(self._classes)} if self._classes else {})}

    @property
    def changes(self) -> Mapping[str, Any]:
        """See `Source.changes`: all that decides on coordinates, in case it changes none of a few samples."""
        chosen = [self._stated, self._format, self._annotations, *self._members]
        return {**self.source.changes, "instances": chosen}

    def column(self, name: str) -> NDArray[Any] | Sequence[str] | None:
        return self.source.column(name) if name in self.fields and name not in self._members else None

    def _some_values(self) -> Mapping[str, list[Any]]:
        """Return values of the instances in some samples throughout, by key."""
        found: dict[str, list[Any]] = {}
        for number in throughout(len(self.source.sizes()), _SNIFFED):
            with suppress(BadSample):
                for key, values in self._columns(self.source[number]).items():
                    found.setdefault(key, []).extend(value for value in values if value is not None)
        return found

    def _columns(self, sample: Sample) -> Mapping[str, Sequence[Any]]:
        """Return the values of a sample's instances by key."""
        beside = {name: np.asarray(sample[name]).tolist() for name in self._beside if not is_missing(sample[name])}
        return {**stated_columns(sample[self._stated]), **beside}

    def __getitem__(self, index: int) -> Sample:
        return self._with_instances(self.source[index], index)

    def block(self, numbers: NDArray[np.int64]) -> Iterator[Sample | BadSample]:
        """See `Source.block`."""
        for index, sample in zip(numbers.tolist(), self.source.block(numbers), strict=True):
            try:
                yield sample if isinstance(sample, BadSample) else self._with_instances(sample, index)
            except BadSample as error:
                yield error

    def _with_instances(self, sample: Sample, index: int) -> Sample:
        given, file = sample[self._stated], sample[self._image]
        kept = {name: value for name, value in sample.items() if name in self.fields}
        if is_missing(given) or is_missing(file):
            null = Missing(f"field {self._stated if is_missing(given) else self._image!r}: null")
            reason = next((one for one in (given, file) if isinstance(one, Missing)), null)
            return {**kept, **dict.fromkeys(self._members, reason)}
        try:
            columns = self._columns(sample)
            if self._known and not columns.keys() <= self._known:
                self.tally.counts[OTHERS] += 1
            values = {name: self._values(name, columns) for name in self._members}
            return {**kept, **(self._in_stored_pixels(values, sample, bytes(file)) if len(values["boxes"]) else values)}
        except BadSample as error:
            key = f" (key {sample['key']})" if isinstance(sample.get("key"), str) else ""
            told = "sample {} of the source{}, field {!r}: {}"
            raise BadSample(told, index, key, self._stated, error) from error

    def _values(self, name: str, columns: Mapping[str, Sequence[Any]]) -> Any:
        """Return the values of all instances for one field."""
        key, field = self._members[name]
        default = self._defaults.get(name)
        count = max(map(len, columns.values()), default=0)
        given = columns.get(key, [None] * count)
        found = [default if value is None or (value == [] and default) else value for value in given]
        if field.kind == "json":
            return found
        if not found:
            return np.zeros((0, *field.entry_shape), field.row_dtype)
        if None in found:
            raise BadSample(f"instance {found.index(None)} has no {key or 'box'!r}")
        if name == "labels" and self._labels is not None:
            if other := [
                label for label in found if not isinstance(label, str | int | float) or label not in self._labels
            ]:
                known = ", ".join(map(str, [*self._labels][:20]))
                raise BadSample(f"label {other[0]!r} is none of {len(self._labels)}: {known}")
            found = [self._labels[label] for label in found]
        dtype: Any = field.row_dtype if field.row_dtype.kind == "f" else None
        dtype = np.float64 if field.role else dtype  # coordinates are rounded once they are corners
        try:
            return np.asarray(found, dtype).reshape(len(found), *field.entry_shape)
        except (ValueError, TypeError, OverflowError) as error:
            raise BadSample(f"the values of {key or 'boxes'!r} are no numbers of shape {field.entry_shape}") from error

    def _in_stored_pixels(self, values: dict[str, Any], sample: Sample, image: bytes) -> dict[str, Any]:
        """Return the values with boxes and points as float32 in pixels of the image as it is stored."""
        info, tag = probe(image), np.array([orientation(image)], np.uint8)
        stored = np.array([[info.height, info.width]], np.int32)
        size = self._annotated_size(stored, tag, sample)
        with np.errstate(over="ignore"):  # infinities are bad samples
            values["boxes"] = as_corners(values["boxes"], self._format, size).astype(np.float32)
        steps = () if size is stored else upright_steps(tag)[::-1]
        for name, (_, field) in self._members.items():
            if field.role:
                values[name] = moved(field, values[name], size, steps)
        if steps:
            self.tally.counts[TURNED] += 1
        return values

    def _annotated_size(self, stored: Sizes, tag: Orientations, sample: Sample) -> Sizes:
        """Return the height and width of the annotated image, [1, 2]: `stored` itself where no pixel is moved.

        Raises BadSample if they aren't those that the sample states, or don't tell which pixels were annotated.
        """
        upright = stored if tag[0] == 1 else upright_sizes(stored, tag).copy()
        said = [sample.get("height"), sample.get("width")]
        known = not any(map(is_missing, said))
        choices = {"upright": [upright], "stored": [stored], None: [upright, stored]}[self._annotations]
        fitting = [size for size in choices if not known or size[0].tolist() == said]
        if not fitting:
            sizes = " or ".join(dict.fromkeys(" x ".join(map(str, size[0])) for size in choices))
            raise BadSample(f"the annotated image has {said[0]} x {said[1]} pixels (height x width), this one {sizes}")
        if len(fitting) > 1 and tag[0] != 1:
            told = (
                "an EXIF tag rotates or flips the image (orientation {}), and no size tells whether upright or stored "
                "pixels are annotated: {annotations:upright} or {annotations:stored} says so"
            )
            raise BadSample(told, int(tag[0]))
        return fitting[0]


def moved(field: Field, values: NDArray[Any], sizes: Sizes, steps: Sequence[PlaceStep]) -> NDArray[np.float32]:
    """Return the boxes or points of a field on an image of this height and width, [1, 2], after steps."""
    move = move_boxes if field.role == "boxes" else move_points
    return move(values.astype(np.float32), np.zeros(len(values), np.intp), sizes, steps)


def stated_columns(given: Any) -> Mapping[str, Sequence[Any]]:
    """Return the values of instances by key, "" for boxes that are no objects; BadSample for anything else."""
    if isinstance(given, str):
        try:
            given = strict_json.parse(given, foreign=True)
        except ValueError as error:
            raise BadSample(f"not JSON: {error}") from error
    given = given.tolist() if isinstance(given, np.ndarray) else given
    if isinstance(given, Mapping):
        columns = {key: values for key, values in given.items() if isinstance(values, list)}
        if given and len(columns) < len(given):
            other = min(given.keys() - columns.keys())
            raise BadSample(f"{other!r} must be a list with a value per instance, got {given[other]!r:.40}")
        return columns
    if not isinstance(given, list):
        raise BadSample(f"expected a list of objects or boxes, or an object of lists, got {given!r:.40}")
    if all(isinstance(one, Mapping) for one in given):
        keys = dict.fromkeys(key for one in given for key in one)
        return {key: [one.get(key) for one in given] for key in keys}
    return {"": given}


def as_corners(boxes: NDArray[np.float64], box_format: BoxFormat, size: Sizes) -> NDArray[np.float64]:
    """Return edges in pixels, xyxy, of boxes [n, 4] on an image of this height and width, [1, 2]."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if box_format == "cxcywhn":
        first, second = first * size[:, ::-1], second * size[:, ::-1]
    if box_format == "xyxy":
        return boxes
    low = first if box_format == "xywh" else first - second / 2
    return np.concatenate((low, low + second), axis=1)


def _find_members(found: Mapping[str, list[Any]], stated: str, image: str) -> tuple[InstanceMembers, list[str], str]:
    """Return the members of instances with some values, the keys of others, and one of the labels if these are strings.

    Raises SourceError if none are boxes.
    """
    boxes, label = (next((key for key in keys if found.get(key)), None) for keys in (_BOX_KEYS, _LABEL_KEYS))
    if boxes is None:
        told = "{boxes}: some samples throughout have no boxes in {!r}: lists of 4 numbers, or a key {}; there are {}"
        raise SourceError(told, stated, ", ".join(_BOX_KEYS[1:]), ", ".join(found) or "none")
    members, left_out, text = {"boxes": (boxes, replace(BOXES, on=image))}, list[str](), ""
    for key, values in found.items():
        kinds = {type(value) for value in values}
        if key == boxes or not kinds:
            continue
        if key == label and kinds <= {int, float, str}:
            members["labels"] = (key, per_instance("int64"))
            text = next((value for value in values if isinstance(value, str)), "")
        elif kinds <= {int, float, bool}:
            dtype = "bool" if kinds == {bool} else "float32" if float in kinds else "int64"
            members[_NAMES.get(key, field_name(key))] = (key, per_instance(dtype))
        else:
            left_out.append(key)
    return members, left_out, text
