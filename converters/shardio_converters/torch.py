"""Map-style Datasets of PyTorch, torchvision's among them: any object with a length, and samples by number.

They are described at https://pytorch.org/docs/stable/data.html#map-style-datasets.
"""

import importlib
import importlib.util
import io
import math
import operator
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, ConfigError, ShardioError, SourceError
from shardio.foreign.names import bad_samples_at, field_name
from shardio.source import (
    Field,
    Sample,
    check_index,
    infer_fields,
    label_as_int64,
    listed_names,
    local_path,
    probe_image,
    sniff_image,
)

from ._fields import rename_remarks, shape_of_all
from ._files import parse_json
from ._source_base import DataclassSource

_BYTES = (bytes, bytearray, memoryview)
_PLAIN = (*_BYTES, str, bool, int, float, np.generic, type(None))

T = TypeVar("T")


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
    Tensors and arrays become arrays or scalars; where the first and the last sample differ, the first axis has any
    length if no other differs, else the arrays have any shape. PIL images are stored as PNG; bytes become an image if
    they begin like one; lists and dicts become json.

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
    try:
        given: Any = parse_json(options) if isinstance(options, str) else options or {}
    except ValueError as error:
        raise ConfigError("{options} must be a JSON object, got {!r}: {}", options, error) from error
    if not isinstance(given, Mapping):
        raise ConfigError("{options} must be a JSON object, got {!r}", options)
    if isinstance(src, (str, os.PathLike)):
        if "://" in os.fspath(src):
            local_path(src)  # which says that it cannot be a URL
        origin: Any = ObjectName(os.fspath(src), Path.cwd(), given)
        name, dataset = origin.name, origin.load()
    else:
        name = type(src).__name__
        origin = dataset = _as_dataset(name, src, given)
    return map_style(origin, name, dataset, names)


def map_style(
    origin: Any, name: str, dataset: Any, names: str | Iterable[str] | None, source: str = "torch"
) -> "MapStyle":
    """Return the samples of a Dataset as a source.

    Args:
        origin: the Dataset, or its name, for workers.
        name: its name in messages.
        dataset: the Dataset.
        names: names for the parts of a sample, see `torch`.
        source: the name of the converter.

    Raises SourceError and ConfigError as `torch` does.
    """
    count = _length(name, dataset)
    first = _run(f"{name}, sample 0", lambda: dataset[0])
    own = _names(name, first, listed_names(names))
    values = _run(f"{name}, sample 0", lambda: _values(first, own))
    last = values
    with suppress(BadSample):  # reported when the conversion reaches it
        last = _run(name, lambda: _values(dataset[count - 1], own), BadSample)
    fields = _fields(name, _parts(first, own), values, last)
    size = _run(f"{name}, sample 0", lambda: sum(_size(field, values[part]) for part, field in fields.items()))
    keys = () if own else map(str, first)
    remarks = rename_remarks(None, {field_name(key): key for key in keys})
    hints = _hints(fields, _parts(first, own), values) if source == "torch" else ()
    found = MapStyle(origin, name, own, fields, count, size, _classes(name, dataset, fields), remarks, hints, source)
    vars(found)["_dataset"] = dataset  # fills the cached property: making it may have taken long
    return found


@final
@dataclass(frozen=True, eq=False)
class MapStyle(DataclassSource):
    """The samples of a Dataset. It pickles the Dataset's name, so that each worker makes it anew, or the Dataset.

    Attributes:
        origin: the Dataset, or its name.
        name: its name in messages.
        names: the names of the parts of a tuple; () where samples are dicts.
        fields: the fields of every sample.
        count: the number of samples.
        size: the stored bytes of the first sample.
        classes: the class names, where they are known.
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

    def sizes(self) -> NDArray[np.int64]:
        """Return the stored bytes of the first sample, repeated for each, `[n]`."""
        return np.full(self.count, self.size, np.int64)

    def __getitem__(self, index: int) -> Sample:
        check_index(index, self.count)
        dataset = self._dataset
        return _run(f"{self.name}, sample {index}", lambda: self._sample(dataset[index]), BadSample)

    def _sample(self, sample: Any) -> Sample:
        values = _values(sample, self.names)
        for name, field in self.fields.items():
            if field.channels == 1 and name in values and probe_image(values[name]).channels != 1:
                raise BadSample(f"field {name!r}: expected a grey image, as the first and the last are")
            if field.kind == "json" and name in values:
                with bad_samples_at(f"field {name!r}"):
                    _check_finite(values[name])
        return values


def _size(field: Field, value: Any) -> int:
    if field.kind == "json":
        try:
            _check_finite(value)
        except BadSample:  # reported when the conversion reaches it
            return 0
    return len(field.encode(value))


def _length(name: str, dataset: Any) -> int:
    from torch.utils.data import IterableDataset  # imported on use: it takes seconds

    lacks = [method for method in ("__len__", "__getitem__") if not hasattr(dataset, method)]
    if isinstance(dataset, IterableDataset) or lacks:
        raise SourceError(
            f"{name} must be a map-style Dataset, with a length and samples by index; it is iterable or not a Dataset:"
            f" {type(dataset).__name__}"
        )
    count = _run(f"the length of {name}", lambda: len(dataset))
    if not count:
        raise SourceError(f"{name} holds no samples")
    return count


def _names(name: str, first: Any, chosen: Sequence[str]) -> tuple[str, ...]:
    usual = _run(f"{name}, sample 0", lambda: _default_names(first))
    if chosen and len(chosen) != len(usual):
        reason = f"has {len(usual)} parts" if usual else "is a dict, which has its own"
        raise ConfigError("{names} must name each part of a sample, the first {}; got {}", reason, ", ".join(chosen))
    if len(set(chosen)) < len(chosen):
        raise ConfigError("{names} must be different names, got {}", ", ".join(chosen))
    return tuple(chosen) or usual


def _fields(name: str, raw: Mapping[str, Any], first: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, Field]:
    """Return the fields of the first sample, given raw and as stored; the last sample shows which axes vary."""
    try:
        fields = infer_fields(first)
    except ConfigError as error:
        raise SourceError(f"{name}, sample 0: {error}") from error
    for own, field in fields.items():
        if field.kind == "array":
            shapes = np.shape(first[own]), np.shape(last.get(own, first[own]))
            field = replace(field, shape=shape_of_all(shapes))
        if (
            field.kind == "image"
            and not isinstance(raw[own], _BYTES)
            and _is_grey(first[own])
            and _is_grey(last.get(own))
        ):
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
        elif field.kind == "image" and not isinstance(raw[name], _BYTES):
            hints.append(
                f"field {name!r} holds PIL images, which are stored as PNG; where they come from image files, the "
                "converters imagefolder and filelist copy these as they are, which is mostly smaller and faster"
            )
    return tuple(hints)


def _is_image_shape(shape: tuple[int, ...]) -> bool:
    """Return whether arrays of this shape may be images: [1 or 3, h, w] or [h, w, 1 or 3], of at least 16 a side."""
    if len(shape) != 3:
        return False
    return (shape[0] in (1, 3) and min(shape[1:]) >= 16) or (shape[2] in (1, 3) and min(shape[:2]) >= 16)


def _is_grey(image: Any) -> bool:
    return isinstance(image, bytes) and bool(sniff_image(image)) and probe_image(image).channels == 1


def _classes(name: str, dataset: Any, fields: Mapping[str, Field]) -> tuple[str, ...]:
    """Return the class names that torchvision's Datasets have as `classes`."""
    found = _run(f"the classes of {name}", lambda: getattr(dataset, "classes", None))
    if not isinstance(found, (list, tuple)) or not all(isinstance(own, str) for own in found):
        return ()
    return tuple(found) if fields.get("label") == Field("scalar", dtype="int64") else ()


# Samples taken apart into named values that a field can hold.


def _default_names(sample: Any) -> tuple[str, ...]:
    """Return the default names for the parts of a sample; () for a mapping, whose keys are the names."""
    if isinstance(sample, Mapping):
        return ()
    if not isinstance(sample, (tuple, list)):
        return (infer_fields({"value": _storable(sample)})["value"].kind,)
    return ("image", "label") if len(sample) == 2 else tuple(f"field{number}" for number in range(len(sample)))


def _parts(sample: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The parts of a sample by field: the values of a mapping; or those of a tuple or list, or a lone value, by name.

    Raises BadSample if the number of parts differs from the number of names, or two keys would give one field.
    """
    if isinstance(sample, Mapping):
        found = {field_name(str(key)): value for key, value in sample.items()}
        if len(found) < len(sample):
            raise BadSample(f"two keys would be one field: {', '.join(map(str, sample))}")
        return found
    values = sample if isinstance(sample, (tuple, list)) else (sample,)
    if len(values) != len(names):
        raise BadSample(f"it has {len(values)} parts, for {len(names)} names: {', '.join(names)}")
    return dict(zip(names, values, strict=True))


def _values(sample: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the values of a sample by field; BadSample if a part cannot be stored."""
    found = {}
    for name, part in _parts(sample, names).items():
        try:
            found[name] = _storable(part)
        except BadSample as error:
            raise BadSample(f"field {name!r}: {error}") from error
    return found


def _storable(value: Any) -> Any:
    """Convert a part of a sample to a value that a field holds; BadSample if none does."""
    value = _array_of(value)
    if isinstance(value, np.ndarray):
        native = value.astype(value.dtype.newbyteorder("="), copy=False)
        return native[()] if native.ndim == 0 else native
    if hasattr(value, "save") and hasattr(value, "mode"):  # a PIL image, known without PIL
        stream = io.BytesIO()
        value.save(stream, format="PNG")
        return stream.getvalue()
    if isinstance(value, (Mapping, list, tuple)):
        return _json(value)
    if not isinstance(value, _PLAIN):
        raise BadSample(f"no field holds a {type(value).__name__}")
    return value


def _array_of(value: Any) -> Any:
    from torch import Tensor, bfloat16  # imported on use: it takes seconds

    if not isinstance(value, Tensor):
        return value
    if value.dtype == bfloat16:  # NumPy has no such dtype; float32 holds all its values
        value = value.float()
    found: NDArray[Any] = value.numpy(force=True)
    return found


def _json(value: Any) -> Any:
    """Convert nested lists and mappings to JSON's types, and tensors and arrays within them to lists."""
    value = _array_of(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(part) for part in value]
    return value


def _check_finite(value: Any) -> None:
    """Raise BadSample if a value of JSON's types holds NaN or an infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        raise BadSample(f"{value} is not JSON")
    if isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            _check_finite(part)


# The user's code, which runs when its objects are loaded.


@final
@dataclass(frozen=True, slots=True)
class ObjectName:
    """The name that lets another process load an object.

    Attributes:
        name: `module:object` or `path/to/file.py:object`.
        folder: the folder where relative paths start, and that is searched first for modules.
        options: keyword arguments for an object that is a class or a function.
    """

    name: str
    folder: Path
    options: Mapping[str, Any]

    def load(self) -> Any:
        """Load the object, and call it if it is a class or a function; SourceError for any failure."""
        module, _, path = self.name.rpartition(":")
        if not module or not path:
            raise SourceError(f"src must be module:object or path/to/file.py:object, got {self.name!r}")
        loaded = _run(self.name, lambda: _imported(module, self.folder))
        try:
            found = operator.attrgetter(path)(loaded)
        except AttributeError as error:  # whose text has the module's own name, which of a file is not the user's
            raise SourceError(f"{self.name}: {module} has no {path!r}") from error
        return _as_dataset(self.name, found, self.options)


def _as_dataset(name: str, loaded: Any, options: Mapping[str, Any]) -> Any:
    """Return `loaded` itself if it has samples by number, else the result of calling it with `options`."""
    if isinstance(loaded, type) or (callable(loaded) and not hasattr(loaded, "__getitem__")):
        return _run(name, lambda: loaded(**options))
    if options:
        raise ConfigError(f"options are for a class or a function, {name} is an instance of {type(loaded).__name__}")
    return loaded


def _run(place: str, call: Callable[[], T], kind: type[ShardioError] = SourceError) -> T:
    """Call the user's code; raise any error of it as `kind`, with `place` in the message."""
    try:
        return call()
    except Exception as error:  # it is the user's code: it may raise anything
        reason = str(error) if isinstance(error, ShardioError) else f"{type(error).__name__}: {error}"
        raise kind(f"{place}: {reason}") from error


def _imported(module: str, folder: Path) -> ModuleType:
    path = (folder / module).absolute()
    is_file = module.endswith(".py")
    # Permanently, because the code may import more when it is used; beside a file are the modules that it can import.
    if sys.path[:1] != [first := str(path.parent if is_file else folder)]:
        sys.path.insert(0, first)
    importlib.invalidate_caches()
    if not is_file:
        return importlib.import_module(module)
    # A unique name: `data.py` or `random.py` must not be mistaken for a module that is already imported.
    name = f"{path.stem}_{zlib.crc32(str(path).encode('utf-8', 'surrogateescape')):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    sys.modules[name] = found = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(found)
    except BaseException:
        del sys.modules[name]
        raise
    return found
