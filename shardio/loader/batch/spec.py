"""The specification of a loader's batches: everything that all of them have in common.

`batch_spec` builds a `BatchSpec` once from the loader's arguments. It determines how rows are read and decoded
(`make_rows`), how batches are assembled (`assemble`) and how work is cut into jobs (`job`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from ...dataset.opening import at_bottom
from ...engines.array_transforms import as_delivered, delivered_dtype
from ...engines.cpu import CpuEngine
from ...engines.factory import choose_engine
from ...engines.fused_images import Decode, EngineName
from ...engines.masks import MaskEngine
from ...engines.output_format import OutputFormat
from ...engines.video_frames import Matrix
from ...errors import ConfigError
from ...foreign.tokenizer import TextEncoder
from ...format.fields import (
    CHECKSUM,
    CLIPS,
    Field,
    describe_fields,
    frames_column,
    length_column,
    presence,
    present_column,
    shape_column,
    sum_column,
    table_columns,
)
from ...format.limits import Limits
from ...system.helper_process import READ_SECONDS
from ...system.rules import check_switches
from ...transforms import (
    ArrayRecipe,
    Collation,
    Mixer,
    MultiHot,
    PadImages,
    PadTo,
    RandomIoUCrop,
    RandomRow,
    RandomWindow,
    SanitizeBoundingBoxes,
    Transform,
)
from ...transforms.array_recipe import check_held
from ...transforms.arrays import ArrayCut, ArrayTransform, Size
from ...transforms.clips import Clip, split
from ...transforms.ragged import tokenizing
from ...transforms.recipe import Recipe
from ...views.readable import ReadableDataset
from .as_numpy import To, bfloat16
from .clip_lengths import without_short
from .collate import added_name, clip_names, geometry_names, missing_name, nested_names, offset_name, padding
from .field_names import FieldNames, Fields
from .field_warnings import (
    Pair,
    UnmarkedMasks,
    cropped_alike,
    drawn_alike,
    warn_of_flipped_points,
    warn_of_left_behind,
    warn_of_unpaired,
)
from .instances import InstanceGroup, boxes_of, instance_groups
from .map_function import MapFunction
from .memory import ArrayLayout, ScratchPool
from .mixing import MixingSpec, mixing_spec
from .pad_images import ImagePadder
from .quarantine import OnBadSample
from .transforms_by_field import Transforms, transforms_by_field

HOST = torch.device("cpu")

_P = ParamSpec("_P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The options that determine the content of a batch; `shardio.Loader` explains each."""

    fields: Fields = None
    transforms: Transforms = None
    decode: Decode = "exact"
    orient: bool = False
    untagged_matrix: Matrix = "bt601"
    geometry: bool = False
    mixing: Mixer | Sequence[Mixer] | None = None
    map_function: MapFunction | None = None
    on_bad_sample: OnBadSample = "raise"
    verify: bool = False
    limits: Limits = field(default_factory=Limits)
    read_limit: float = READ_SECONDS
    to: To = "torch"

    def __post_init__(self) -> None:
        check_switches(orient=self.orient, geometry=self.geometry, verify=self.verify)
        if self.untagged_matrix not in get_args(Matrix):
            choices = " or ".join(map(repr, get_args(Matrix)))
            raise ConfigError(f"untagged_matrix must be {choices}, got {self.untagged_matrix!r}")


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """The options that determine the device and the engine of batches; `shardio.Loader` explains each."""

    device: torch.device = HOST
    engine: EngineName = "cpu"
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    channels_last: bool = False

    def __post_init__(self) -> None:
        check_switches(channels_last=self.channels_last)
        if self.engine_options and self.engine == "cpu":
            raise ConfigError(f"the engine 'cpu' takes no engine_options, got {self.engine_options}")


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """The decoding and the transforms of one image field.

    Attributes:
        recipe: the field's transforms.
        cpu_engine: makes the images on workers. If the device finishes them, its recipe is only the part that produces
            uint8, or uint16 of masks.
        batch_engine: the engine for whole batches, if any; the CPU engine then makes the images that it refuses.
        watch: looks at the first image files in case they are masks; None if that would make no difference.
        collation: what a batch makes of lists of images; None for single images, and for lists that stay lists.
        padder: pads images of several sizes to one for their batch; None for other images.
        frames: the frames of a clip; 0 for images.
        clip: chooses these frames; None for images, and if a view has chosen them.
    """

    recipe: Recipe
    cpu_engine: CpuEngine | MaskEngine
    batch_engine: str | None
    watch: UnmarkedMasks | None = None
    collation: Collation | None = None
    padder: ImagePadder | None = None
    frames: int = 0
    clip: Clip | None = None

    @property
    def finished_on_device(self) -> bool:
        """Whether the device runs the last transforms of the images that the CPU engine makes."""
        made = self.cpu_engine.output_format if self.padder is None else self.padder.output
        return made.recipe is not self.recipe


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The transforms of one field of arrays or scalars: moves, a conversion of numbers, and what a batch makes of them.

    Attributes:
        recipe: the field's transforms.
        stored: the dtype of the arrays before the recipe.
        on_device: whether the device runs them; workers do otherwise.
        in_place: whether workers run them on the batch's own memory, as nothing moves values or changes their dtype.
        row_shape: the shape of the rows that workers write into one array; None if they make a list of arrays.
        fill: the number, or its bits, that replaces missing or masked values, and pads the others.
        encoder: makes the tokens of strings, or of one string of each JSON list.
        vocabulary: the number that all values must be below; None if there is none.
    """

    recipe: ArrayRecipe
    stored: np.dtype[Any]
    on_device: bool
    in_place: bool
    row_shape: Size | None
    fill: Any
    encoder: TextEncoder | None = None
    vocabulary: int | None = None

    @classmethod
    def of(
        cls, transforms: Sequence[Transform], kind: Field, *, on_device: bool, shared: bool, by_sample: bool = False
    ) -> "ArraySpec":
        """Return the specification for arrays, scalars or strings.

        They are `shared` if several names deliver them, and go `by_sample` if a function gets them before a batch is
        made of them. Raises ConfigError if the transforms do not suit them.
        """
        if kind.role == "segments" and transforms:
            raise ConfigError(f"lengths of segments take no transforms, got {[*transforms]}")
        transforms = [each.at_rate(kind.attributes) if isinstance(each, RandomWindow) else each for each in transforms]
        shape, stored, encoder = kind.shape if kind.kind == "array" else (), kind.row_dtype, None
        if kind.kind in ("text", "json"):
            transforms, encoder = tokenizing(transforms, listed=kind.kind == "json")
            shape, stored = (None,), np.dtype(np.int64)
        recipe = ArrayRecipe.of(transforms, shape, stored, leading=int(kind.window))
        dtype = delivered_dtype(recipe, stored)
        # Only workers can find the sample with a number that is too large.
        checked = kind.dtype == "uint64" and recipe.conversion is not None and recipe.conversion.dtype == "int64"
        on_device = on_device and kind.kind == "array" and kind.fixed and not checked and not recipe.takes_row
        in_place = kind.fixed and not recipe.transforms and dtype == stored and not on_device and not shared
        row_shape, rule, fill = recipe.out_size, recipe.collation, dtype.type(0)
        if isinstance(rule, PadTo):
            fill = padding(rule.value, as_delivered(np.empty(0, dtype), recipe).dtype)
            if rule.padded_length is not None and not by_sample:
                row_shape = (rule.padded_length, *recipe.out_entry)
        below = next((each.num_classes for each in recipe.transforms if isinstance(each, MultiHot)), kind.vocabulary)
        return cls(recipe, stored, on_device, in_place, row_shape, fill, encoder, below)


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """Everything that the batches of a loader have in common.

    Attributes:
        dataset: the dataset to read.
        options: what the user asked for.
        names: the stored fields of the names to deliver.
        fields: by delivered name, the fields; so are all that follow.
        images: the decoding and transforms of each image field.
        image_lists: those of each field of lists of images.
        clips: those of each field of clips, of videos or lists of images.
        clip_columns: by name of these, the columns that a batch has beside them.
        arrays: the transforms of each field of arrays of several shapes, and of each other field of arrays, scalars or
            strings that has some.
        drawn_alike: pairs of fields of one kind that draw the same random choices.
        pairs: the pairs of fields that draw the same crops, and so must fit.
        mixing: the mixing of images within each batch.
        channels_last: whether float images are stored pixel by pixel.
        scratch: memory for stored values.
        columns: the stored fields and hidden columns that making a batch reads.
        fixed_bytes: the stored bytes that are read of a sample's fields of one size.
        varying: the stored fields whose values differ in size.
        videos: the stored fields of videos.
        collations: what batches make of the fields whose values have several lengths, of those that don't become lists.
        marks: the columns that say which values were filled, by name of the field.
        offsets: the columns that say where crops begin in stored values, by name of the field.
        windowed: the stored fields of which only windows are read, as all their names begin with a window or row.
        groups: the fields of each instance axis that follow an image.
        cropped_for: by name of an image, the stored field of the boxes that its crops are drawn for.
        geometry: the images whose geometry batches tell.
        placed: the images whose steps other fields follow, or batches tell.
        roots: the stored boxes and points that making a batch reads whole.
    """

    dataset: ReadableDataset
    options: BatchOptions
    names: FieldNames
    fields: Mapping[str, Field]
    images: Mapping[str, ImageSpec]
    image_lists: Mapping[str, ImageSpec]
    clips: Mapping[str, ImageSpec]
    arrays: Mapping[str, ArraySpec]
    drawn_alike: tuple[tuple[str, str], ...]
    pairs: tuple[Pair, ...]
    mixing: MixingSpec | None
    channels_last: bool
    groups: tuple[InstanceGroup, ...] = ()
    cropped_for: Mapping[str, str] = field(default_factory=dict)
    geometry: tuple[str, ...] = ()
    placed: frozenset[str] = field(init=False)
    roots: frozenset[str] = field(init=False)
    scratch: ScratchPool = field(default_factory=ScratchPool, repr=False, compare=False)
    columns: tuple[str, ...] = field(init=False)
    fixed_bytes: int = field(init=False)
    varying: tuple[str, ...] = field(init=False)
    videos: tuple[str, ...] = field(init=False)
    collations: Mapping[str, Collation] = field(init=False)
    marks: Mapping[str, str] = field(init=False)
    offsets: Mapping[str, str] = field(init=False)
    windowed: tuple[str, ...] = field(init=False)
    clip_columns: Mapping[str, tuple[str, ...]] = field(init=False)

    def __post_init__(self) -> None:
        kinds = {stored: self.fields[names[0]] for stored, names in self.names.delivered.items()}
        verify = self.options.verify
        for stored in at_bottom(self.dataset) if verify else ():
            stored.field(CHECKSUM)  # says so if its samples have none
        roots = frozenset([*self.cropped_for.values(), *(group.root for group in self.groups)])
        object.__setattr__(self, "roots", roots)
        padded = [name for name, image in self.images.items() if image.recipe.padding and image.padder is None]
        placed = (*(group.image for group in self.groups), *self.cropped_for, *self.geometry, *padded)
        object.__setattr__(self, "placed", frozenset(placed))
        checked = {n: kind for n, kind in self.dataset.fields.items() if n in kinds or kind.kind != "video"}
        read = checked if verify else kinds | {root: self.dataset.fields[root] for root in sorted(roots)}
        shapes = [shape_column(stored) for stored, kind in kinds.items() if kind.is_image and not kind.fixed]
        present = [present_column(name) for name, kind in read.items() if kind.optional]
        videos = [column for n, kind in read.items() if kind.kind == "video" for column in table_columns(n)]
        lengths = [length_column(n) for n, kind in read.items() if kind.has_lengths and kind.kind != "video"]
        videos += [sum_column(n) for n, kind in self.dataset.fields.items() if verify and kind.kind == "video"]
        videos += [frames_column(stored) for stored, kind in kinds.items() if kind.window and kind.kind in CLIPS]
        object.__setattr__(
            self, "columns", (*read, *shapes, *lengths, *videos, *present, *([CHECKSUM] if verify else []))
        )
        fixed = [self._read_bytes(stored, kind) for stored, kind in kinds.items() if kind.fixed]
        object.__setattr__(self, "fixed_bytes", sum(fixed))
        object.__setattr__(self, "varying", tuple(n for n, kind in kinds.items() if not kind.fixed))
        object.__setattr__(self, "videos", tuple(n for n, kind in kinds.items() if kind.kind == "video"))
        windowed = (s for s, names in self.names.delivered.items() if all(map(self.reads_windows, names)))
        object.__setattr__(self, "windowed", tuple(windowed))
        rules = {name: array.recipe.collation for name, array in self.arrays.items()}
        rules |= {name: image.collation for name, image in self.image_lists.items()}
        object.__setattr__(self, "collations", {name: rule for name, rule in rules.items() if rule is not None})
        filled = [name for name, array in self.arrays.items() if array.recipe.filling and array.recipe.filling.mask]
        object.__setattr__(self, "marks", {name: missing_name(name) for name in filled})
        begun = [name for name, array in self.arrays.items() if array.recipe.offset is not None]
        object.__setattr__(self, "offsets", {name: offset_name(name) for name in begun})
        beside = {name: self._columns_of_clips(name) for name in self.clips}
        object.__setattr__(self, "clip_columns", beside)

    def _columns_of_clips(self, name: str) -> tuple[str, ...]:
        columns, clip = clip_names(name), self.clips[name].clip
        times = (columns["time"],) if self.fields[name].kind == "video" else ()
        return (*times, columns["valid"]) if clip is not None and clip.short == "pad" else times

    def counted(self, name: str) -> str:
        """Return the field whose column says how many entries the values of `name` have: one for all of a group."""
        group = next((group for group in self.groups if name in group.names), None)
        return name if group is None else next(each for each in group.names if each in self.collations)

    def added_name(self, name: str) -> str:
        """Return the name of the column that joining a field adds to a batch."""
        return added_name(self.counted(name), self.collations[name])

    @property
    def has_batch_engine(self) -> bool:
        """Whether an engine for whole batches makes some of the images."""
        return any(image.batch_engine for image in self.images.values())

    def place_of(self, index: int | np.integer[Any], stored: str | None = None) -> str:
        """Return the path of a sample's shard, with its row and key, for messages; also name one of its fields."""
        place = str(self.dataset.path / f"{self.dataset.locate(int(index))}")
        joined = None if stored is None else self.dataset.joined_from(stored)
        told = "" if joined is None else f", joined from {joined}"
        return place if stored is None else f"{place}, field {stored!r}{told}"

    def stacked(self, name: str) -> bool:
        """Return whether a batch has one tensor of a field's values, and not a list of them."""
        image, array = self.images.get(name), self.arrays.get(name)
        if image is not None:
            return image.recipe.size is not None or image.padder is not None
        if name in self.clips:
            return self.clips[name].recipe.size is not None
        stacked = self.fields[name].fixed if array is None else array.row_shape is not None
        return stacked or name in self.collations

    @property
    def stacks_images(self) -> bool:
        """Whether batches have no lists of images, whose memory isn't used again."""
        return not self.image_lists and all(map(self.stacked, (*self.images, *self.clips)))

    def with_mark(self, name: str) -> tuple[str, ...]:
        """Return the name of a field, and that of the column that says which of its values were filled, if any does."""
        return (name, self.marks[name]) if name in self.marks else (name,)

    def reads_windows(self, name: str) -> bool:
        """Return whether only windows of a ragged field are read: a random window or row comes first."""
        if self.options.verify or not self.fields[name].ragged:
            return False
        return isinstance(next(iter(self.arrays[name].recipe.transforms), None), RandomWindow | RandomRow)

    @property
    def reads_parts(self) -> bool:
        """Whether only blocks, windows or clips of the values of some fields are read."""
        return bool(self.videos or self.windowed) or any(map(self.reads_blocks, self.fields))

    def reads_blocks(self, name: str) -> bool:
        """Return whether only blocks of a field of one size are read: its transforms begin with a crop or window."""
        array = self.arrays.get(name)
        if self.options.verify or array is None or array.on_device or not self.fields[name].fixed:
            return False
        return isinstance(next(iter(array.recipe.transforms), None), ArrayCut)

    def _read_bytes(self, stored: str, kind: Field) -> int:
        """Return the bytes that are read of each value of a stored field of one size, for all its names."""
        recipes = [self.arrays[name].recipe for name in self.names.delivered[stored] if self.reads_blocks(name)]
        values = [math.prod(size or 0 for size in recipe.first_shape or ()) for recipe in recipes]
        whole = kind.row_bytes if len(recipes) < len(self.names.delivered[stored]) else 0
        return whole + sum(values) * kind.row_dtype.itemsize

    def delivers_blocks(self, name: str) -> bool:
        """Return whether a batch has the blocks that are read of a field's values, with nothing left to do."""
        recipe = self.arrays[name].recipe
        return len(recipe.transforms) == 1 and recipe.conversion is None and recipe.filling is None

    def holds_stored_values(self, name: str) -> bool:
        """Return whether a field of one size is read into the batch itself, as workers neither move nor convert it."""
        image, array = self.images.get(name), self.arrays.get(name)
        if image is not None:
            return image.cpu_engine.keeps_pixels
        return array is None or array.on_device or array.in_place

    def blank_value(self, name: str) -> Any:
        """Return the value of a masked sample in a field's list."""
        if name in self.marks.values():
            entry = next(self.arrays[each].recipe.out_entry for each, mark in self.marks.items() if mark == name)
            return np.zeros((0, *entry), np.bool_)
        kind, image, listed = self.fields[name], self.images.get(name), self.image_lists.get(name)
        if (clip := self.clips.get(name)) is not None:
            numbers = clip.cpu_engine.output_format
            blank = np.zeros((clip.frames, *numbers.shape(clip.recipe.size or (0, 0))), numbers.dtype)
            return numbers.tensor(blank)
        if listed is not None:
            numbers, size = listed.cpu_engine.output_format, listed.recipe.size
            return [] if size is None else np.zeros((0, *numbers.shape(size)), numbers.dtype)
        if image is not None:
            numbers = image.cpu_engine.output_format
            return numbers.tensor(np.zeros(numbers.shape(image.recipe.size or (0, 0)), numbers.dtype))
        if (array := self.arrays.get(name)) is not None:
            if kind.role == "segments":  # a masked row is one
                return np.array([(kind.attributes or {})["row_length"]], array.stored)
            return np.zeros((0, *array.recipe.out_entry), delivered_dtype(array.recipe, array.stored))
        return {"text": "", "bytes": b"", "images": []}.get(kind.kind)

    def fill(self, name: str) -> Any:
        """Return the number that takes the place of missing and masked values in a batch's array, or its bits."""
        array = self.arrays.get(name)
        return 0 if array is None else array.fill

    def tensor(self, name: str, values: NDArray[Any]) -> torch.Tensor:
        """Return rows of a field as the tensor to deliver."""
        image = self.images.get(name) or self.image_lists.get(name) or self.clips.get(name)
        array = self.arrays.get(name)
        if image is not None:
            return image.cpu_engine.output_format.tensor(values)
        return torch.from_numpy(values) if array is None or array.on_device else as_delivered(values, array.recipe)

    def array_layout(self, rows: int) -> ArrayLayout:
        """Return the shape and dtype, with `rows` rows, of each field that workers make as one array."""
        layout: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        for name, kind in self.fields.items():
            image, array = self.images.get(name), self.arrays.get(name)
            if (clip := self.clips.get(name)) is not None:
                if clip.recipe.size is not None:
                    numbers = clip.cpu_engine.output_format
                    layout[name] = ((rows, clip.frames, *numbers.shape(clip.recipe.size)), numbers.dtype)
                kinds = {clip_names(name)["time"]: np.float64, clip_names(name)["valid"]: np.bool_}
                layout |= {each: ((rows, clip.frames), np.dtype(kinds[each])) for each in self.clip_columns[name]}
            elif image is not None:
                if image.recipe.size is not None and image.batch_engine is None:
                    numbers = image.cpu_engine.output_format
                    layout[name] = ((rows, *numbers.shape(image.recipe.size)), numbers.dtype)
            elif kind.fixed and (array is None or array.on_device):
                layout[name] = ((rows, *kind.row_shape), kind.row_dtype)
            elif array is not None and array.row_shape is not None:
                layout[name] = ((rows, *array.row_shape), delivered_dtype(array.recipe, array.stored))
                if array.recipe.collation is not None:
                    layout[self.added_name(name)] = ((rows,), np.dtype(np.int64))
                if name in self.marks:
                    layout[self.marks[name]] = ((rows, *array.row_shape), np.dtype(np.bool_))
        for name, offset in self.offsets.items():
            layout[offset] = ((rows, self.arrays[name].recipe.offset_axes), np.dtype(np.int64))
        for name in self.geometry:
            maps, stored, delivered = geometry_names(name)
            layout[maps] = ((rows, 3, 3), np.dtype(np.float64))
            layout |= dict.fromkeys((stored, delivered), ((rows, 2), np.dtype(np.int32)))
        return layout


def batch_spec(
    dataset: ReadableDataset, options: BatchOptions, target: DeviceOptions, *, isolate: bool = False
) -> BatchSpec:
    """Build the specification of the batches; with `isolate`, processes make them instead of threads.

    Raises ConfigError for options that do not fit the dataset or one another.
    """
    names = FieldNames.of(dataset, options.fields)
    fields = {name: dataset.fields[stored] for name, stored in names.stored.items()}
    transforms = transforms_by_field(dataset, fields, names, options.transforms)
    groups = instance_groups(dataset.fields, names, transforms)
    sanitizes = any(isinstance(each, SanitizeBoundingBoxes) for listed in transforms.values() for each in listed)
    if sanitizes and not any(field.role == "boxes" for field in dataset.fields.values()):
        raise ConfigError(f"SanitizeBoundingBoxes needs role='boxes', got {describe_fields(dataset.fields)}")
    left = {group.image for group in groups if not group.rules and dataset.fields[group.root].role == "boxes"}
    kept = {group.kept: group.names[0] for group in groups if group.kept}
    names = replace(names, beside=kept)
    fields |= {column: Field("array", "int64", (None,), per=names.stored[column]) for column in kept}
    transforms = _for_instances(transforms, groups, fields)
    shown = {name: split(transforms.get(name, ())) for name, kind in fields.items() if kind.kind in CLIPS}
    # Workers must finish the values themselves if they pass them to the user's function or to another process.
    needs_host = "map" if options.map_function is not None else "isolate" if isolate else None
    images = _image_specs(fields, names, transforms, target, needs_host, options, len(dataset))
    lists = {
        name: _for_field(name, _image_list_spec, transforms.get(name, ()), options, target)
        for name, kind in fields.items()
        if kind.kind == "images" and not kind.window and shown[name][0] is None
    }
    finish_on_device = target.device.type != "cpu" and needs_host is None
    clips = {
        name: _for_field(name, _clip_spec, *each, fields[name], options, target, on_device=finish_on_device)
        for name, each in shown.items()
        if name not in lists
    }
    arrays = {
        name: _for_field(
            name,
            ArraySpec.of,
            transforms.get(name, ()),
            kind,
            on_device=finish_on_device,
            shared=len(names.delivered[names.stored[name]]) > 1,
            by_sample=options.map_function is not None and options.map_function.by == "sample",
        )
        for name, kind in fields.items()
        if name not in images | lists | clips and (name in transforms or (kind.kind == "array" and not kind.fixed))
    }
    recipes: dict[str, Recipe | ArrayRecipe] = {n: spec.recipe for n, spec in (images | lists | clips).items()}
    recipes |= {name: array.recipe for name, array in arrays.items()}
    warn_of_unpaired(recipes, names)
    warn_of_flipped_points(fields, groups, recipes)
    if options.map_function is None:
        warn_of_left_behind(fields, recipes)
    on_device = finish_on_device or any(image.batch_engine for image in images.values())
    image_recipes = {name: image.recipe for name, image in images.items()}
    mixing = mixing_spec(options.mixing, fields, image_recipes, on_device=on_device)
    if options.map_function is not None and options.map_function.by == "sample":
        for name in (name for name, image in images.items() if image.padder is not None):
            raise ConfigError(f"transforms for {name!r}: PadImages() pads batches, and map_by='sample' takes samples")
    if mixing is not None and options.map_function is not None:
        raise ConfigError("mixing and map cannot be combined: mix in the map function, or in the training loop")
    cropped_for = {
        name: root
        for name, image in images.items()
        if (root := _for_field(name, boxes_of, dataset.fields, image.recipe, sanitizes and name not in left))
        is not None
    }
    for name, root in cropped_for.items() if options.orient else ():
        if (image := dataset.fields[root].on) not in names.delivered:
            raise ConfigError(
                f"transforms for {name!r}: with orient=True RandomIoUCrop needs {image!r} among the delivered fields"
            )
    chosen = {name: each.clip for name, each in clips.items() if each.clip is not None}
    spec = BatchSpec(
        dataset=without_short(dataset, names.stored, chosen),
        options=options,
        names=names,
        fields=fields,
        images=images,
        image_lists=lists,
        clips=clips,
        arrays=arrays,
        drawn_alike=drawn_alike(fields, recipes, names),
        pairs=cropped_alike(recipes, names),
        mixing=mixing,
        channels_last=target.channels_last,
        groups=groups,
        cropped_for=cropped_for,
        geometry=tuple(images) if options.geometry else (),
    )
    _check_added(spec)
    _check_numpy(spec)
    return spec


def _for_instances(
    transforms: Mapping[str, Sequence[Transform]], groups: Sequence[InstanceGroup], fields: Mapping[str, Field]
) -> dict[str, Sequence[Transform]]:
    """Return the transforms without what groups have taken of them, and with one collation for all fields of a group.

    Raises ConfigError for transforms that boxes and points don't take, and for two collations in a group.
    """
    left: dict[str, Sequence[Transform]] = {
        name: [each for each in listed if not isinstance(each, SanitizeBoundingBoxes)]
        for name, listed in transforms.items()
    }
    for name, kind in fields.items():
        if len(left.get(name, ())) < len(transforms.get(name, ())) and not (kind.is_image or kind.on):
            raise ConfigError(
                f"transforms for {name!r}: SanitizeBoundingBoxes goes into the list of the boxes or of their image"
            )
        others = [each for each in left.get(name, ()) if not isinstance(each, Collation)]
        if kind.on is not None and others:
            raise ConfigError(
                f"transforms for {name!r}: {kind.role} follow {kind.on!r} and take only SanitizeBoundingBoxes, Ragged "
                f"and PadTo, got {others[0]!r}"
            )
    for group in groups:
        given = {name: [each for each in left.get(name, ()) if isinstance(each, Collation)] for name in group.names}
        shared = next(filter(None, given.values()), [])
        if any(isinstance(rule, PadTo) and rule.side == "left" for rule in shared):
            raise ConfigError(f"transforms for {group.root!r}: instances are padded at the right, got {shared[-1]!r}")
        for name, own in given.items():
            for each in left.get(name, ()):
                if isinstance(each, ArrayTransform) and not isinstance(each, MultiHot):
                    raise ConfigError(f"transforms for {name!r}: {each!r} would part it from {group.root!r}")
            rows = any(isinstance(each, MultiHot) for each in left.get(name, ()))  # of one length, not to be joined
            left[name] = [*left.get(name, ()), *([] if own or rows else shared)]
            if own and _shape_of(own[-1]) != _shape_of(shared[-1]):
                raise ConfigError(f"transforms for {name!r}: fields per instance take one rule, here {shared[-1]!r}")
    return left


def _shape_of(rule: Collation) -> Collation:
    return replace(rule, value=0) if isinstance(rule, PadTo) else rule


def _check_added(spec: BatchSpec) -> None:
    """Raise ConfigError if a column that transforms add has the name of another one."""
    fields = spec.fields
    taken = {*fields, *spec.dataset.id_columns, "valid", *(presence(n) for n, kind in fields.items() if kind.optional)}
    added_columns = [(name, type(rule).__name__, spec.added_name(name)) for name, rule in spec.collations.items()]
    added_columns += [(name, "geometry=True", added) for name in spec.geometry for added in geometry_names(name)]
    added_columns += [(name, "FillMissing", mark) for name, mark in spec.marks.items()]
    added_columns += [(name, "offset=True", offset) for name, offset in spec.offsets.items()]
    added_columns += [(name, "a clip", added) for name, columns in spec.clip_columns.items() for added in columns]
    for name, transform, added in added_columns:
        if added in taken:
            raise ConfigError(
                f"transforms for {name!r}: {transform} adds the column {added!r}, which the batch has "
                f"already: deliver {spec.names.stored[name]!r} under another name"
            )


def _check_numpy(spec: BatchSpec) -> None:
    """Raise ConfigError or MissingDependency if batches are to hold arrays, and NumPy has none for a field."""
    if spec.options.to != "numpy":
        return
    for name in nested_names(spec.collations):
        raise ConfigError(
            f"transforms for {name!r}: Ragged(nested=True) makes a nested tensor, which NumPy lacks: with to='numpy' "
            "take Ragged(), which delivers the values and their offsets"
        )
    shown = (*spec.images.values(), *spec.image_lists.values(), *spec.clips.values())
    images = [image.recipe.dtype for image in shown]
    arrays = [array.recipe.conversion.dtype for array in spec.arrays.values() if array.recipe.conversion is not None]
    if "bfloat16" in (*images, *arrays):
        bfloat16()


def _image_list_spec(listed: Sequence[Transform], options: BatchOptions, target: DeviceOptions) -> ImageSpec:
    """Return the specification for lists of images, which workers make whole; ConfigError if transforms don't suit."""
    rule = next((each for each in listed[-1:] if isinstance(each, Collation)), None)
    for transform in listed:
        if isinstance(transform, RandomIoUCrop | PadImages):
            raise ConfigError(f"{type(transform).__name__} takes single images, not lists of images")
    recipe = Recipe.of(listed if rule is None else listed[:-1], channels=3, size=None)
    if rule is not None and recipe.size is None:
        raise ConfigError(f"{type(rule).__name__} takes images of one size: crop or resize them to it before")
    if isinstance(rule, PadTo):
        check_held("PadTo's value", rule.value, recipe.dtype)
    return ImageSpec(recipe, _cpu_engine(recipe, 3, options, target), None, collation=rule)


def _clip_spec(
    clip: Clip | None,
    others: Sequence[Transform],
    kind: Field,
    options: BatchOptions,
    target: DeviceOptions,
    *,
    on_device: bool,
) -> ImageSpec:
    """Return the specification for clips, of which a device finishes floats; ConfigError if transforms don't suit."""
    if clip is None and not kind.window:
        raise ConfigError(
            "the first transform of a video must choose its frames, as RandomClip(16) does, got "
            f"{others[0] if others else 'no transforms'}"
        )
    if clip is not None and kind.window:
        raise ConfigError(f"a view has chosen the frames already, got {clip}: leave it out")
    if clip is not None and clip.in_seconds and kind.kind == "images":
        raise ConfigError(f"lists of images have no times, got {clip!r}")
    for transform in others:
        if isinstance(transform, Clip):
            raise ConfigError(f"only the first transform chooses frames, got {transform} after {clip}")
        if isinstance(transform, RandomIoUCrop | PadImages | Collation):
            raise ConfigError(f"{type(transform).__name__} takes single images, not clips")
    recipe = Recipe.of(others, channels=3, size=None)
    later = on_device and recipe.size is not None and recipe.dtype != "uint8"
    engine = _cpu_engine(recipe.uint8_part() if later else recipe, 3, options, target)
    return ImageSpec(recipe, engine, None, frames=clip.frames if clip else (kind.shape or (0,))[0] or 0, clip=clip)


def _cpu_engine(recipe: Recipe, channels: int, options: BatchOptions, target: DeviceOptions) -> CpuEngine | MaskEngine:
    max_pixels = options.limits.max_image_pixels
    if recipe.is_mask:
        return MaskEngine(recipe, max_pixels=max_pixels)
    how: Any = {"decode": options.decode, "channels_last": target.channels_last, "max_pixels": max_pixels}
    return CpuEngine(recipe, channels=channels, **how)


def _for_field(name: str, make: Callable[_P, T], *args: _P.args, **kwargs: _P.kwargs) -> T:
    """Call `make`, and have a ConfigError name the field."""
    try:
        return make(*args, **kwargs)
    except ConfigError as error:
        raise ConfigError(f"transforms for {name!r}: {error}") from error


def _image_specs(
    fields: Mapping[str, Field],
    names: FieldNames,
    transforms: Mapping[str, Sequence[Transform]],
    target: DeviceOptions,
    needs_host: str | None,
    options: BatchOptions,
    samples: int,
) -> dict[str, ImageSpec]:
    recipes = {}
    for name, kind in fields.items():
        if kind.is_image:
            size, listed = _image_size(kind, orient=options.orient), transforms.get(name, ())
            if kind.role == "mask":
                recipes[name] = _for_field(name, Recipe.of, listed, channels=1, size=size, mask=True)
            else:
                recipes[name] = Recipe.of(listed, channels=kind.channels or 3, size=size)
    files = [recipe for name, recipe in recipes.items() if fields[name].kind == "image" and not recipe.is_mask]
    chosen = choose_engine(target.engine, target.device, files, decode=options.decode, why_not=needs_host)
    # uint8 takes a quarter or half of the time that floats take to copy, and the GPU converts it faster.
    copy_bytes = target.device.type != "cpu" and needs_host is None
    specs, watched = {}, set[str]()
    for name, recipe in recipes.items():
        # Pixels need no decoder, and batch engines would make colours of masks.
        engine = chosen if fields[name].kind == "image" and not recipe.is_mask else "cpu"
        padded = recipe.padding is not None and recipe.size is None
        alike, channels = recipe.size is not None or padded, fields[name].channels or 3
        finished_on_device = copy_bytes and engine == "cpu" and alike and recipe.dtype != "uint8"
        bytes_recipe = recipe if recipe.dtype == "uint8" else recipe.uint8_part()
        cpu_engine = _cpu_engine(bytes_recipe if finished_on_device or padded else recipe, channels, options, target)
        watch, stored = None, names.stored[name]
        if fields[name].kind == "image" and recipe.interpolates and stored not in watched:
            watched.add(stored)
            watch = UnmarkedMasks(stored, channels, samples, options.limits.max_image_pixels)
        batch_engine = None if engine == "cpu" else engine
        padder = None
        if recipe.padding is not None and padded:
            delivered = OutputFormat(bytes_recipe if finished_on_device else recipe, channels, target.channels_last)
            padder = ImagePadder(recipe.padding, delivered)
        specs[name] = ImageSpec(recipe, cpu_engine, batch_engine, watch, padder=padder)
    return specs


def _image_size(kind: Field, *, orient: bool) -> tuple[int, int] | None:
    """Return the (height, width) of all images, if they have one size once they are upright."""
    size = kind.image_size
    return None if size is None or (orient and kind.kind == "image" and size[0] != size[1]) else size
