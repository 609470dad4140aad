"""Which engine makes the images of a loader: by what is installed, where batches go, and what is done to them."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias, get_args

import torch

from ..errors import ConfigError
from ..transforms.recipe import Recipe
from .base import BatchEngine

Engine: TypeAlias = Literal["auto", "cpu", "dali", "nvimgcodec"]

_MODULES = {"dali": "nvidia.dali", "nvimgcodec": "nvidia.nvimgcodec"}


def choose(engine: Engine, device: torch.device, recipes: Sequence[Recipe], *, why_not: str | None) -> str:
    """`"cpu"`, or the engine for whole batches.

    `"auto"` takes one of those only for a GPU: DALI where it is installed, else nvImageCodec.

    Args:
        engine: what is asked for.
        device: where batches are to be.
        recipes: of the image fields.
        why_not: what the loader does that only the CPU engine can serve.

    Raises ConfigError where the engine that is asked for cannot do it.
    """
    if engine not in get_args(Engine):
        raise ConfigError(f"engine must be one of {', '.join(get_args(Engine))}, got {engine!r}")
    if any(recipe.size is None for recipe in recipes):
        why_not = why_not or "images of different sizes: end the transforms with one that gives all the same"
    if engine in _MODULES:
        if why_not is not None:
            raise ConfigError(f"the engine {engine!r} makes whole batches, and cannot serve {why_not}")
        return engine if recipes else "cpu"
    if engine == "cpu" or device.type != "cuda" or why_not is not None or not recipes:
        return "cpu"
    return next((name for name, module in _MODULES.items() if _there(module)), "cpu")


def make(
    name: str,
    recipe: Recipe,
    *,
    channels: int,
    batch_size: int,
    device: torch.device,
    threads: int,
    channels_last: bool,
    options: Mapping[str, Any],
) -> BatchEngine:
    """The engine for whole batches of that name, for one image field."""
    if name == "dali":
        from .dali import DaliEngine

        return DaliEngine(
            recipe,
            channels=channels,
            batch_size=batch_size,
            device=device,
            threads=threads,
            channels_last=channels_last,
            options=options,
        )
    from .nvimgcodec import NvImageCodecEngine

    return NvImageCodecEngine(
        recipe, channels=channels, device=device, threads=threads, channels_last=channels_last, options=options
    )


def _there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package above it
        return False
