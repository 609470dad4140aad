"""How each field of a dataset becomes part of a batch, and the memory that batches are made in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from ...dataset.mixture import Readable
from ...engines.choice import Engine, choose
from ...engines.cpu import CpuEngine
from ...errors import ConfigError
from ...format.fields import Field
from ...order.plan import Order, PlanSlice
from ...system.timing import StageClock
from ...transforms import ArrayRecipe, Mixer, Transform
from ...transforms.recipe import Recipe
from .bad_samples import OnBadSample
from .buffer_pool import BufferPool
from .host_batch import SMALLEST
from .job import BatchJob
from .map_function import MapFunction
from .mixing import MixingSpec
from .spec import ArraySpec, BatchSpec, ImageSpec

JOB_COST = 1 << 23  # bytes; cheap batches are made several at a time, for what a job costs by itself
MOST_STEPS = 16
TASK_COST = (1 << 20, 1 << 22)  # bytes; less, and a task's overhead shows; more, and threads wait for one another
IMAGE_COST = 1 << 16  # what decoding takes, as bytes that could be copied in a fraction of that time
VALUE_COST = 1 << 12


HOST = torch.device("cpu")


@final
@dataclass(frozen=True, slots=True)
class Target:
    """Where batches are to be, and in what form.

    Attributes:
        device: where.
        engine: what makes images.
        channels_last: floats of images by pixel, not by channel.
        leaves: whether batches go to another process first.
        straight: whether large arrays are read from their files to the device.
    """

    device: torch.device = HOST
    engine: Engine = "cpu"
    channels_last: bool = False
    leaves: bool = False
    straight: bool = False


@final
class Collator:
    """Knows how each field of a dataset becomes part of a batch, and owns the memory that batches are made in.

    Args:
        dataset: where samples come from.
        transforms: a list for the one image field, or {field: list}.
        batch_size: samples in each batch.
        fields: the fields to deliver; None is all.
        threads: workers that share the tasks.
        pin: page-lock that memory.
        mapping: the user's own function.
        mixing: MixUp or CutMix, or several.
        on_bad: what is done with a bad sample.
        verify: compare each sample's checksum.
        single: make one batch at a time, however cheap.
        target: where batches are to be, and in what form.
    """

    def __init__(
        self,
        dataset: Readable,
        transforms: Sequence[Transform] | Mapping[str, Sequence[Transform]] | None,
        batch_size: int,
        *,
        fields: Sequence[str] | None,
        threads: int,
        pin: bool,
        mapping: MapFunction | None = None,
        mixing: Mixer | Sequence[Mixer] | None = None,
        on_bad: OnBadSample = "raise",
        verify: bool = False,
        single: bool = False,
        target: Target | None = None,
    ) -> None:
        target = target or Target()
        chosen = _chosen(dataset, fields)
        by_field = _transforms_by_field(dataset, chosen, transforms)
        why_not = "map" if mapping is not None else "isolate" if target.leaves else None
        images = _images(chosen, by_field, target, why_not)
        arrays = {name: field for name, field in chosen.items() if field.kind == "array" and field.fixed}
        later = target.device.type != "cpu" and why_not is None
        volumes = {
            name: ArraySpec(ArrayRecipe.of(by_field[name], field.row_shape), later)
            for name, field in arrays.items()
            if name in by_field
        }
        large = (name for name, field in arrays.items() if target.straight and field.row_bytes >= SMALLEST)
        straight = frozenset(large)
        here = not later and not any(how.whole for how in images.values())
        mixes = MixingSpec.of(mixing, chosen, {name: how.recipe for name, how in images.items()}, here=here)
        if mixes is not None and mapping is not None:
            raise ConfigError("mixing and map do not go together: mix in the map function, or in the training loop")
        # Whatever is made in whole batches is made one batch at a time.
        single = single or any(how.whole for how in images.values())
        cost = batch_size * cost_of(chosen)
        self.steps = 1 if single else min(MOST_STEPS, max(1, JOB_COST // max(1, cost)))
        tasks = task_samples(chosen, batch_size * self.steps, threads)
        self.making = BatchSpec(
            *(dataset, chosen, images, volumes, straight, batch_size, tasks),
            *(mapping, mixes, on_bad, verify, target.channels_last),
        )
        self._pools: dict[str, BufferPool] = {}
        for name, field in chosen.items():
            shape, dtype = field.row_shape, field.row_dtype if field.fixed else np.dtype(np.uint8)
            if field.kind == "image":
                how = images[name]
                if how.recipe.size is None or how.whole:
                    continue
                numbers = how.engine.numbers
                shape, dtype = numbers.shape(how.recipe.size), numbers.dtype
            elif not field.fixed or name in straight:
                continue
            elif name in volumes and not volumes[name].later:
                shape = volumes[name].recipe.out_shape
            self._pools[name] = BufferPool((batch_size * self.steps, *shape), dtype, pin=pin)
        self.job_bytes = sum(pool.size for pool in self._pools.values())

    def keep(self, jobs: int) -> None:
        """Keeps the memory of so many jobs for the next use."""
        for pool in self._pools.values():
            pool.keep(jobs)

    @property
    def slots(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of each array that a job's batches are made in."""
        return {name: (pool.shape, pool.dtype) for name, pool in self._pools.items()}

    def job(
        self,
        plan: Order,
        part: PlanSlice,
        pad: bool,
        clock: StageClock,
        arrays: dict[str, NDArray[Any]] | None = None,
    ) -> BatchJob:
        """The work that makes the batches of `part`, at most `steps` of them; with `pad` they get a `valid`.

        They are made in `arrays`, which are as `slots` has them, or in this collator's own memory.
        """
        own = {name: pool.lend() for name, pool in self._pools.items()} if arrays is None else arrays
        return BatchJob(self.making, plan, part, pad, clock, own)


def _images(
    fields: Mapping[str, Field],
    transforms: Mapping[str, Sequence[Transform]],
    target: Target,
    why_not: str | None,
) -> dict[str, ImageSpec]:
    """How the image fields become pixels."""
    recipes = {
        name: Recipe.of(transforms.get(name, ()), channels=field.channels or 3, size=_image_size(field))
        for name, field in fields.items()
        if field.kind == "image"
    }
    name = choose(target.engine, target.device, list(recipes.values()), why_not=why_not)
    # A quarter of the bytes to copy, or half, and the GPU is quicker at it.
    bare = name == "cpu" and target.device.type != "cpu" and why_not is None
    made = {}
    for field, recipe in recipes.items():
        later = bare and recipe.size is not None and recipe.affine is not None
        here, channels = recipe.bytes() if later else recipe, fields[field].channels or 3
        cpu = CpuEngine(here, channels=channels, channels_last=target.channels_last)
        made[field] = ImageSpec(recipe, cpu, None if name == "cpu" else name)
    return made


def cost_of(fields: Mapping[str, Field]) -> int:
    """What a sample costs, in bytes that could be copied in the same time."""
    kinds = {"image": IMAGE_COST}
    return sum(field.row_bytes if field.fixed else kinds.get(field.kind, VALUE_COST) for field in fields.values())


def task_samples(fields: Mapping[str, Field], count: int, threads: int) -> int:
    """How many of a job's `count` samples a task takes: two tasks a thread, if they are neither tiny nor huge then."""
    low, high = (max(1, limit // max(1, cost_of(fields))) for limit in TASK_COST)
    wanted = min(high, max(low, count // (2 * threads)))
    return -(-count // max(1, round(count / wanted)))  # of equal size


def _image_size(field: Field) -> tuple[int, int] | None:
    return None if field.shape is None else (field.shape[0], field.shape[1])


def _chosen(dataset: Readable, names: Sequence[str] | None) -> dict[str, Field]:
    chosen = list(dataset.fields if names is None else names)
    if reserved := ({"index", "valid", "source"} if dataset.sources else {"index", "valid"}) & set(chosen):
        raise ConfigError(
            f"{dataset.path}: field {reserved.pop()!r} clashes with the loader's own; choose others by fields="
        )
    for name in chosen:
        if name not in dataset.fields:
            raise ConfigError(f"{dataset.path}: no field {name!r}; there are {', '.join(dataset.fields)}")
    return {name: dataset.fields[name] for name in chosen}


def _transforms_by_field(
    dataset: Readable,
    fields: Mapping[str, Field],
    transforms: Sequence[Transform] | Mapping[str, Sequence[Transform]] | None,
) -> Mapping[str, Sequence[Transform]]:
    if transforms is None:
        return {}
    pictures = [name for name, field in fields.items() if field.kind == "image"]
    arrays = [name for name, field in fields.items() if field.kind == "array" and field.fixed]
    if not isinstance(transforms, Mapping | Sequence):
        raise ConfigError(f"transforms must be a list, or a dict of lists by field, got {transforms!r}")
    if isinstance(transforms, Mapping):
        for name in transforms:
            if name not in pictures + arrays:
                raise ConfigError(
                    f"transforms for {name!r}, but the image fields of {dataset.path} are {pictures}, its fields of "
                    f"arrays of one shape {arrays}"
                )
        return transforms
    candidates = pictures or arrays
    if len(candidates) != 1:
        raise ConfigError(
            f"a list of transforms needs exactly one image field, or one of arrays; {dataset.path} has {candidates}: "
            "give a dict"
        )
    return {candidates[0]: transforms}
