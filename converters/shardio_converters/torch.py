"""Map-style Datasets of PyTorch, torchvision's among them: any object with a length, and samples by number.

They are described at https://pytorch.org/docs/stable/data.html#map-style-datasets.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, ConfigError, SourceError
from shardio.foreign.names import bad_samples_at, field_name
from shardio.source import Field, Sample, check_index, infer_fields, label_as_int64, probe_image, sniff_image

from ._fields import rename_remarks
from ._files import parse_json
from ._source_base import PicklesFields
from ._torch_samples import check_finite, default_names, is_encoded_here, parts, storable
from ._user_code import ObjectName, as_dataset, run_user_code


def torch(
    src: Any,
    *,
    options: str | Mapping[str, Any] | None = None,
    names: str | Iterable[str] | None = None,
) -> "MapStyle":
    """A map-style PyTorch Dataset, module:object or path/to/file.py:object. This runs the code that you name.

    The object is a Dataset, or a class or function that returns one. Modules are searched in the working directory
    first. Each worker process imports the code and makes the Dataset anew, so a sample must depend on its number only.

    The first sample decides the fields. The keys of a dict are fields; the parts of a tuple or list are `image` and
    `label` if there are two, else `field0`, `field1`, ...; a lone value is named after its kind, such as `array`.
    Tensors and arrays become arrays or scalars, without a fixed shape where the first and the last sample differ. PIL
    images are stored as PNG; bytes become an image if they begin like one; lists and dicts become json.

    A transform of the Dataset is applied now, once and for all: leave out random crops and flips, and what makes
    floats of images, and give them to the Loader.

    Args:
        src: the object's name; in Python also the Dataset itself, which must then be picklable.
        options: keyword arguments for the class or function, as JSON.
        names: names for the parts of a sample that is a tuple, a list or a lone value, as in "image,label".

    Example:
        shardio convert torch my/data.py:train_set data/train --names image,mask
        shardio convert torch my/data.py:Waves data/waves --options '{"count": 100}'

    Raises:
        SourceError: the object does not exist, its code fails, it is not a map-style Dataset, or it is empty; the first
            sample cannot be read or stored.
        ConfigError: `options` is not a JSON object, or `names` do not fit the first sample.
    """
    given = _parsed(options)
    if isinstance(src, (str, os.PathLike)):
        origin: Any = ObjectName(os.fspath(src), Path.cwd(), given)
        name, dataset = origin.name, origin.load()
    else:
        name = type(src).__name__
        origin = dataset = as_dataset(name, src, given)
    return map_style(origin, name, dataset, names)


def map_style(
    origin: Any, name: str, dataset: Any, names: str | Iterable[str] | None, source: str = "torch"
) -> "MapStyle":
    """The samples of a Dataset as a source.

    Args:
        origin: the Dataset, or its name, for workers.
        name: its name in messages.
        dataset: the Dataset.
        names: names for the parts of a sample, see `torch`.
        source: the name of the converter.

    Raises SourceError and ConfigError as `torch` does.
    """
    count = _length(name, dataset)
    first = run_user_code(f"{name}, sample 0", lambda: dataset[0])
    own = _names(name, first, _listed(names))
    values = run_user_code(f"{name}, sample 0", lambda: _values(first, own))
    try:
        last = run_user_code(name, lambda: _values(dataset[count - 1], own), BadSample)
    except BadSample:  # reported when the conversion reaches it
        last = values
    fields = _fields(name, parts(first, own), values, last)
    size = run_user_code(f"{name}, sample 0", lambda: sum(_size(field, values[part]) for part, field in fields.items()))
    keys = () if own else map(str, first)
    remarks = rename_remarks(None, {field_name(key): key for key in keys})
    hints = _hints(fields, parts(first, own), values) if source == "torch" else ()
    found = MapStyle(origin, name, own, fields, count, size, _classes(name, dataset, fields), remarks, hints, source)
    vars(found)["_dataset"] = dataset  # fills the cached property: making it may have taken long
    return found


@final
@dataclass(frozen=True, eq=False)
class MapStyle(PicklesFields):
    """The samples of a Dataset. It pickles the Dataset's name, from which each worker makes it anew, or the Dataset.

    Attributes:
        origin: the Dataset, or its name.
        name: its name in messages.
        names: the names of the parts of a tuple; () where samples are dicts.
        fields: the fields of every sample.
        count: the number of samples.
        size: the stored bytes of the first sample.
        classes: the class names, where they are known.
        remarks, hints: see `shardio.source.HasRemarks`, `HasHints`; workers do not need them.
        source: the name of the converter.
    """

    origin: Any
    name: str
    names: tuple[str, ...]
    fields: Mapping[str, Field]
    count: int
    size: int
    classes: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    source: str = "torch"

    @cached_property
    def _dataset(self) -> Any:
        return self.origin.load() if isinstance(self.origin, ObjectName) else self.origin

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The converter's name, and the class names where the Dataset has an attribute `classes`."""
        return {"source": self.source, **({"classes": list(self.classes)} if self.classes else {})}

    def sizes(self) -> NDArray[np.int64]:
        """The stored bytes of the first sample, repeated for each, `[n]`."""
        return np.full(self.count, self.size, np.int64)

    def __getitem__(self, index: int) -> Sample:
        check_index(index, self.count)
        dataset = self._dataset
        return run_user_code(f"{self.name}, sample {index}", lambda: self._sample(dataset[index]), BadSample)

    def _sample(self, sample: Any) -> Sample:
        values = _values(sample, self.names)
        for name, field in self.fields.items():
            if field.channels == 1 and name in values and probe_image(values[name]).channels != 1:
                raise BadSample(f"field {name!r}: expected a grey image, as the first and the last are")
            if field.kind == "json" and name in values:
                with bad_samples_at(f"field {name!r}"):
                    check_finite(values[name])
        return values


def _size(field: Field, value: Any) -> int:
    if field.kind == "json":
        try:
            check_finite(value)
        except BadSample:  # reported when the conversion reaches it
            return 0
    return len(field.encode(value))


def _parsed(options: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    try:
        found = parse_json(options) if isinstance(options, str) else options or {}
    except ValueError as error:
        raise ConfigError("{options} must be a JSON object, got {!r}: {}", options, error) from error
    if not isinstance(found, Mapping):
        raise ConfigError("{options} must be a JSON object, got {!r}", options)
    return found


def _listed(names: str | Iterable[str] | None) -> tuple[str, ...]:
    found = tuple(name.strip() for name in (names.split(",") if isinstance(names, str) else names or ()))
    if len(set(found)) < len(found) or "" in found:
        raise ConfigError("{names} must be different names, got {!r}", names)
    return found


def _values(sample: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The values of a sample by field; BadSample if a part cannot be stored."""
    found = {}
    for name, part in parts(sample, names).items():
        try:
            found[name] = storable(part)
        except BadSample as error:
            raise BadSample(f"field {name!r}: {error}") from error
    return found


def _length(name: str, dataset: Any) -> int:
    from torch.utils.data import IterableDataset  # imported on use: it takes seconds

    lacks = [method for method in ("__len__", "__getitem__") if not hasattr(dataset, method)]
    if isinstance(dataset, IterableDataset) or lacks:
        raise SourceError(
            f"{name} must be a map-style Dataset, with a length and samples by number; it is iterable or not a Dataset:"
            f" {type(dataset).__name__}"
        )
    count = run_user_code(f"the length of {name}", lambda: len(dataset))
    if not count:
        raise SourceError(f"{name} holds no samples")
    return count


def _names(name: str, first: Any, chosen: tuple[str, ...]) -> tuple[str, ...]:
    usual = run_user_code(f"{name}, sample 0", lambda: default_names(first))
    if chosen and len(chosen) != len(usual):
        reason = f"has {len(usual)} parts" if usual else "is a dict, which has its own"
        raise ConfigError("{names} must name each part of a sample, the first {}; got {}", reason, ", ".join(chosen))
    return chosen or usual


def _fields(name: str, raw: Mapping[str, Any], first: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, Field]:
    """The fields of the first sample, given raw and as stored; a shape is left open where the last sample's differs."""
    try:
        fields = infer_fields(first)
    except ConfigError as error:
        raise SourceError(f"{name}, sample 0: {error}") from error
    for own, field in fields.items():
        if field.kind == "array" and field.shape != np.shape(last.get(own, first[own])):
            field = replace(field, shape=None)
        if field.kind == "image" and is_encoded_here(raw[own]) and _is_grey(first[own]) and _is_grey(last.get(own)):
            field = replace(field, channels=1)
        fields[own] = label_as_int64(own, field)
    return fields


def _hints(fields: Mapping[str, Field], raw: Mapping[str, Any], first: Mapping[str, Any]) -> tuple[str, ...]:
    """Return advice if the first sample, given raw and as stored, holds an image in a costly form."""
    hints = []
    for name, field in fields.items():
        if field.kind == "array" and field.row_dtype.kind == "f" and _is_image_shape(np.shape(first[name])):
            hints.append(
                f"field {name!r} holds floats, {list(np.shape(first[name]))}; if these are images, the Dataset's "
                "transform is applied now, once and for all, random crops and flips too: convert the Dataset without "
                "it, and give a Loader the transforms"
            )
        elif field.kind == "image" and is_encoded_here(raw[name]):
            hints.append(
                f"field {name!r} holds PIL images, which are stored as PNG; where they come from image files, the "
                "converters imagefolder and filelist copy these as they are, which is mostly smaller and faster"
            )
    return tuple(hints)


def _is_image_shape(shape: tuple[int, ...]) -> bool:
    """Whether arrays of this shape may be images: [1 or 3, h, w] or [h, w, 1 or 3], of at least 16 a side."""
    if len(shape) != 3:
        return False
    return (shape[0] in (1, 3) and min(shape[1:]) >= 16) or (shape[2] in (1, 3) and min(shape[:2]) >= 16)


def _is_grey(image: Any) -> bool:
    return isinstance(image, bytes) and bool(sniff_image(image)) and probe_image(image).channels == 1


def _classes(name: str, dataset: Any, fields: Mapping[str, Field]) -> tuple[str, ...]:
    """The class names that torchvision's Datasets have as `classes`."""
    found = run_user_code(f"the classes of {name}", lambda: getattr(dataset, "classes", None))
    if not isinstance(found, (list, tuple)) or not all(isinstance(own, str) for own in found):
        return ()
    return tuple(found) if fields.get("label") == Field("scalar", dtype="int64") else ()
