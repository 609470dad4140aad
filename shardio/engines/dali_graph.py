"""A recipe's steps as a graph of DALI's operators. Only the DALI engine imports this module.

The graph has one input for the encoded files and one for each array of each step. Its structure follows the steps'
types, the same for all batches of a recipe; each batch feeds its own arrays.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, math, pipeline_def, types
from nvidia.dali.pipeline import do_not_convert
from nvidia.dali.tensors import TensorCPU

from ..errors import ConfigError
from ..system.types import Buffer
from ..transforms.recipe import Recipe
from ..transforms.steps import (
    GREY_WEIGHTS,
    MEAN_GREY,
    OWN_GREY,
    SMOOTHING_WEIGHTS,
    AutoContrast,
    Blend,
    Blur,
    Crop,
    Equalize,
    Erase,
    Flip,
    Hue,
    Posterize,
    Scale,
    Sharpen,
    Sizes,
    Solarize,
    Step,
    Warp,
)
from .base import clip_boxes, step_arrays
from .fused_images import Decode

Node: TypeAlias = Any
Arrays: TypeAlias = dict[str, NDArray[Any]]

F = TypeVar("F", bound=Callable[..., Any])


_plain_python: Callable[[F], F] = do_not_convert
"""Keeps DALI from converting a function's conditions into conditions per sample."""
FILES = "files"
"""The name of the input for encoded files."""
_RESIZE = {
    "nearest": types.INTERP_NN,
    "bilinear": types.INTERP_LINEAR,
    "bicubic": types.INTERP_CUBIC,
    "lanczos": types.INTERP_LANCZOS3,
}
_DTYPES = {"float32": types.FLOAT, "float16": types.FLOAT16}


def tensors(files: Sequence[Buffer]) -> list[Any]:
    """Return files as DALI's tensors, which keep them alive. `feed_input` makes these too, in five times the time."""
    return list(map(TensorCPU, files))


def inputs(steps: Sequence[Step], sizes: Sizes, channels: int) -> Arrays:
    """Return the graph's inputs for the steps of a batch, by name: arrays with a row per image.

    Args:
        steps: the steps, with a row per image.
        sizes: the heights and widths of the encoded images, int32 [B, 2].
        channels: 3 for RGB, 1 for grey.
    """
    arrays_by_name: Arrays = {}
    for number, step in enumerate(steps):
        arrays = _arrays(step, number == 0, sizes, channels)
        arrays_by_name |= {f"{number}.{name}": np.ascontiguousarray(array) for name, array in arrays}
        if isinstance(step, Crop | Scale):
            sizes = step.boxes[:, 2:] if isinstance(step, Crop) else step.sizes
    return arrays_by_name


def _arrays(step: Step, first: bool, sizes: Sizes, channels: int) -> Iterator[tuple[str, NDArray[Any]]]:
    match step:
        case Crop(boxes, known_inside) if first:
            # The decoder accepts only regions inside the image; a slice after it adds what is outside.
            regions = clip_boxes(boxes, sizes)
            yield from (("start", regions[:, :2]), ("shape", regions[:, 2:]))
            if not known_inside:
                yield from (("offset", boxes[:, :2] - regions[:, :2]), ("size", boxes[:, 2:]))
        case Crop(boxes):
            yield from (("offset", boxes[:, :2]), ("size", boxes[:, 2:]))
        case Scale():
            yield "size", step.sizes.astype(np.float32)
        case Flip():
            yield "mask", step.mask.astype(np.int32)
        case Warp():
            yield from (("mask", step.mask), ("matrices", step.matrices.astype(np.float32)))
        case Blend():
            rest = 1 - step.factors
            own, mean = (np.where(step.bases == base, rest, 0) for base in (OWN_GREY, MEAN_GREY))
            yield from (("mask", step.mask), ("mean", mean.astype(np.float32)))
            if channels == 1:
                yield "pixel", (step.factors + own).astype(np.float32)
            else:
                pixel = step.factors[:, None, None] * np.eye(3)
                grey = own[:, None, None] * np.array(GREY_WEIGHTS) / 65536
                yield "matrices", (pixel + grey).astype(np.float32)
        case Hue() if channels == 1:
            pass  # a grey image has no hue
        case Hue():
            yield from (("mask", step.mask), ("turns", step.turns.astype(np.float32)))
        case Sharpen():
            kernel = np.array(SMOOTHING_WEIGHTS, np.float32) / 13
            yield from (("mask", step.mask), ("factors", step.factors))
            yield "kernels", np.broadcast_to(kernel, (len(step.mask), 3, 3))
        case Erase():
            yield "anchor", step.boxes[:, :2].astype(np.float32)
            yield "shape", (step.boxes[:, 2:] * step.mask[:, None]).astype(np.float32)
        case _:
            yield from step_arrays(step).items()


def check(recipe: Recipe) -> None:
    """Raise ConfigError for an interpolation that DALI does not have."""
    for transform in recipe.transforms:
        if (name := getattr(transform, "interpolation", "bilinear")) not in _RESIZE:
            raise ConfigError(f"the engine 'dali' has no interpolation {name!r}: choose {', '.join(_RESIZE)}, or 'cpu'")


def build(
    recipe: Recipe,
    steps: Sequence[Step],
    *,
    channels: int,
    channels_last: bool,
    batch_size: int,
    threads: int,
    decode: Decode,
    device_id: int | None,
    hw_decoder_load: float,
    depth: int,
) -> Any:
    """Build the DALI pipeline.

    Args:
        recipe: the field's transforms.
        steps: the recipe's steps for any batch.
        channels: 3 for RGB, 1 for grey.
        channels_last: whether floats are stored as HWC rather than CHW.
        batch_size: the largest number of images in a batch.
        threads: the number of DALI's threads.
        decode: `"exact"` or `"fast"`.
        device_id: the number of the GPU; None for the CPU.
        hw_decoder_load: the fraction of images for the GPU's hardware JPEG decoder.
        depth: how many batches DALI works on at once.
    """
    gpu = device_id is not None
    example = inputs(steps, np.ones((1, 2), np.int32), channels)

    @_plain_python
    def external_inputs() -> tuple[Node, dict[int, dict[str, Node]]]:
        files = fn.external_source(name=FILES, dtype=types.UINT8, ndim=1, no_copy=True)
        nodes: dict[int, dict[str, Node]] = {number: {} for number in range(len(steps))}
        for name, array in example.items():
            number, _, field = name.partition(".")
            kind = types.to_dali_type(array.dtype.name)
            nodes[int(number)][field] = fn.external_source(name=name, dtype=kind, ndim=array.ndim - 1)
        return files, nodes

    @_plain_python
    def decoded(files: Node, nodes: dict[int, dict[str, Node]]) -> tuple[Node, list[tuple[Step, dict[str, Node]]]]:
        rest = [(step, nodes[number]) for number, step in enumerate(steps)]
        first = rest.pop(0)[1] if steps and isinstance(steps[0], Crop) else None
        images = _decode(
            files, first, channels=channels, gpu=gpu, exact=decode == "exact", hw_decoder_load=hw_decoder_load
        )
        if first is not None and "offset" in first:
            images = _crop(images, first, steps[0])
        return images, rest

    def graph() -> Node:
        files, nodes = external_inputs()
        images, rest = decoded(files, nodes)
        ends = len(rest) - recipe.erasings
        # The conversion to floats flips for free: it takes over a flip directly before it.
        last = rest[ends - 1][0] if ends > 0 and recipe.normalization is not None else None
        flip = isinstance(last, Flip) and not last.vertical
        for step, arrays in rest[: ends - flip]:
            images = _step(images, step, arrays, channels, gpu)
        images = _to_floats(images, recipe, channels_last, rest[ends - 1][1]["mask"] if flip else 0)
        for step, arrays in rest[ends:]:
            images = _step(images, step, arrays, channels, gpu)
        return images

    pipeline = pipeline_def(
        batch_size=batch_size,
        num_threads=threads,
        device_id=device_id,
        prefetch_queue_depth=depth,
        enable_conditionals=True,
    )(graph)()
    pipeline.build()
    return pipeline


@_plain_python
def _decode(
    files: Node, box: dict[str, Node] | None, *, channels: int, gpu: bool, exact: bool, hw_decoder_load: float
) -> Node:
    options: dict[str, Any] = {
        "output_type": types.RGB if channels == 3 else types.GRAY,
        "adjust_orientation": False,
        "jpeg_fancy_upsampling": exact,
        "use_fast_idct": False,
    }
    options |= {"device": "mixed", "hw_decoder_load": hw_decoder_load} if gpu else {"device": "cpu"}
    if box is None:
        return fn.decoders.image(files, **options)
    return fn.decoders.image_slice(files, box["start"], box["shape"], axes=[0, 1], **options)


@_plain_python
def _crop(images: Node, arrays: dict[str, Node], step: Step) -> Node:
    where = {"start": arrays["offset"], "shape": arrays["size"], "axes": [0, 1]}
    fill = list(step.fill) if isinstance(step, Crop) and step.fill else 0
    return fn.slice(images, **where, out_of_bounds_policy="pad", fill_values=fill)


@_plain_python
def _to_floats(images: Node, recipe: Recipe, channels_last: bool, mirror: Node) -> Node:
    if recipe.normalization is None:
        return images
    means, stds = 255 * recipe.normalization.T.astype(np.float64)
    return fn.crop_mirror_normalize(
        images,
        mirror=mirror,
        dtype=_DTYPES[recipe.dtype],
        output_layout="HWC" if channels_last else "CHW",
        mean=means.tolist(),
        std=stds.tolist(),
    )


def _step(images: Node, step: Step, arrays: dict[str, Node], channels: int, gpu: bool) -> Node:
    change = _change(step, arrays, channels, gpu)
    mask = _mask(step, arrays)
    if mask is None:
        return change(images)
    return _where(mask, images, change)


def _where(mask: Node, images: Node, change: Callable[[Node], Node]) -> Node:
    if mask:
        result = change(images)
    else:
        result = images
    return result


@_plain_python
def _mask(step: Step, arrays: dict[str, Node]) -> Node | None:
    """Return the mask of the images that change; None for a step that encodes it in its other inputs."""
    return None if isinstance(step, Crop | Scale | Flip | Erase) else arrays.get("mask")


@_plain_python
def _change(step: Step, arrays: dict[str, Node], channels: int, gpu: bool) -> Callable[[Node], Node]:
    return _plain_python(lambda images: _changed(images, step, arrays, channels, gpu))


def _changed(images: Node, step: Step, arrays: dict[str, Node], channels: int, gpu: bool) -> Node:
    def on_device(name: str) -> Node:
        return arrays[name].gpu() if gpu else arrays[name]

    match step:
        case Crop():
            return _crop(images, arrays, step)
        case Scale(_, interpolation, antialias):
            kind = _RESIZE[interpolation]
            return fn.resize(images, size=arrays["size"], interp_type=kind, antialias=antialias)
        case Flip():
            return fn.flip(images, **{"horizontal": 0, "vertical" if step.vertical else "horizontal": arrays["mask"]})
        case Warp():
            options = {"matrix": arrays["matrices"], "fill_value": 0, "inverse_map": True}
            if not step.bilinear:
                return fn.warp_affine(images, interp_type=types.INTERP_NN, **options)
            return _cut_off(fn.warp_affine(images, interp_type=types.INTERP_LINEAR, dtype=types.FLOAT, **options))
        case Blend():
            return _blend(images, arrays, channels, on_device)
        case Hue():
            return images if channels == 1 else _to_uint8(_hue(images, on_device("turns")))
        case Posterize():
            return fn.reinterpret(images & on_device("bits"), layout="HWC")
        case Solarize():
            inverted = fn.cast(images >= on_device("thresholds"), dtype=types.UINT8) * types.Constant(np.uint8(255))
            return fn.reinterpret(images ^ inverted, layout="HWC")
        case AutoContrast():
            low, high = (
                fn.cast(f(images, axes=(0, 1), keep_dims=True), dtype=types.FLOAT)
                for f in (fn.reductions.min, fn.reductions.max)
            )
            flat = fn.cast(low == high, dtype=types.FLOAT)
            return _cut_off((images - low) * ((255 * (1 - flat) + flat) / (high - low + flat)) + low * flat)
        case Equalize():
            return fn.equalize(images)
        case Sharpen():
            smooth = fn.cast(fn.filter(images, on_device("kernels"), border="reflect_101"), dtype=types.FLOAT)
            return _cut_off(smooth + on_device("factors") * (images - smooth))
        case Blur():
            return fn.gaussian_blur(images, sigma=arrays["sigmas"], window_size=list(step.kernel))
        case Erase():
            return _erase(images, step, arrays)


def _blend(images: Node, arrays: dict[str, Node], channels: int, on_device: Callable[[str], Node]) -> Node:
    weights = np.array(GREY_WEIGHTS if channels == 3 else (65536,), np.float32) / 65536
    means = fn.reductions.mean(images, axes=(0, 1), keep_dims=True)
    grey = fn.reductions.sum(means * types.Constant(weights), axes=(2,), keep_dims=True)
    shift = fn.cast(fn.cast(grey, dtype=types.UINT8), dtype=types.FLOAT) * on_device("mean")
    if channels == 1:
        return _cut_off(images * on_device("pixel") + shift)
    return _cut_off(fn.coord_transform(images, M=arrays["matrices"], dtype=types.FLOAT) + shift)


def _hue(images: Node, turns: Node) -> Node:
    """The arithmetic of `native/colors.c` in floats and without branches: a condition is a factor of 0 or 1."""
    r, g, b = (fn.cast(images[:, :, c : c + 1], dtype=types.FLOAT) for c in range(3))
    high, low = math.max(math.max(r, g), b), math.min(math.min(r, g), b)
    span = high - low
    is_r = fn.cast(high == r, dtype=types.FLOAT)
    is_g = fn.cast(high == g, dtype=types.FLOAT) * (1.0 - is_r)
    sixths = is_r * (g - b) + is_g * (2.0 * span + b - r) + (1.0 - is_r - is_g) * (4.0 * span + r - g)
    sixths = sixths + 6.0 * span * fn.cast(sixths < 0.0, dtype=types.FLOAT)
    hue = math.floor(42.5 * sixths / math.max(span, 1.0) + 0.001) + turns
    hue = _wrapped(hue, 256.0)
    saturation = math.floor(255.0 * span / math.max(high, 1.0) + 0.001)
    planes = []
    for place in (425.0, 255.0, 85.0):
        k = _wrapped(2.0 * hue + place, 510.0)
        planes.append(high - high * saturation * math.clamp(math.min(k, 340.0 - k), 0.0, 85.0) / 21675.0)
    return fn.cat(*planes, axis=2)


def _wrapped(values: Node, period: float) -> Node:
    """Wrap values below two periods."""
    return values - period * fn.cast(values >= period, dtype=types.FLOAT)


def _cut_off(images: Node) -> Node:
    """Convert to uint8 without rounding up. Whole numbers stay: they are less than a half away from themselves."""
    return _to_uint8(images - 0.498)


def _to_uint8(images: Node) -> Node:
    return fn.reinterpret(fn.cast(images, dtype=types.UINT8), layout="HWC")


@_plain_python
def _erase(images: Node, step: Erase, arrays: dict[str, Node]) -> Node:
    return fn.erase(
        images, anchor=arrays["anchor"], shape=arrays["shape"], axis_names="HW", fill_value=list(step.value)
    )
