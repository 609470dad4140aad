"""The choice of a loader's engine, by what is installed, the batches' device and their transforms."""

import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, get_args

import torch

from ..errors import ConfigError, EngineWarning
from ..transforms.recipe import Recipe
from .base import BatchEngine
from .fused_images import Decode, EngineName

_MODULES = {"dali": "nvidia.dali", "nvimgcodec": "nvidia.nvimgcodec"}
_NOT_IN_DALI = {"box", "hamming"}  # filters


def choose_engine(
    engine: EngineName, device: torch.device, recipes: Sequence[Recipe], *, decode: Decode, why_not: str | None
) -> str:
    """Return `"cpu"` or the name of a whole-batch engine.

    `"auto"` chooses a whole-batch engine only for a GPU: DALI if it is installed and has the filters of all resizes,
    else nvImageCodec if that is installed. It then warns (EngineWarning) if `decode` asks for exact pixels, which those
    engines do not give.

    Args:
        engine: the user's choice.
        device: the device of the batches.
        recipes: the recipes of the image fields.
        decode: how images are to be decoded.
        why_not: what the loader does that only the CPU engine supports; None if there is no such thing.

    Raises:
        ConfigError: if the engine is unknown, or the user chose one that does not support what the loader does.
    """
    if engine not in get_args(EngineName):
        raise ConfigError("{engine} must be one of {}, got {!r}", ", ".join(get_args(EngineName)), engine)
    if any(recipe.size is None for recipe in recipes):
        why_not = why_not or "images of different sizes: add a transform that gives all of them one size"
    if engine in _MODULES:
        if why_not is not None:
            raise ConfigError(f"the engine {engine!r} makes whole batches and does not support {why_not}")
        return engine if recipes else "cpu"
    if engine == "cpu" or device.type != "cuda" or why_not is not None or not recipes:
        return "cpu"
    able = (name for name in _MODULES if name != "dali" or _filters(recipes).isdisjoint(_NOT_IN_DALI))
    name = next((name for name in able if _is_installed(_MODULES[name])), "cpu")
    if name != "cpu" and decode == "exact":
        warnings.warn(
            f"the engine {name!r}, chosen for the GPU, decodes other pixels than Pillow, if only slightly: choose it "
            "or decode='fast' to silence this warning, or engine='cpu' for the exact pixels",
            EngineWarning,
            stacklevel=2,
        )
    return name


def make_engine(name: str, recipe: Recipe, *, batch_size: int, **options: Any) -> BatchEngine:
    """Create the whole-batch engine `name` for one image field; for the arguments, see the engine."""
    if name == "dali":
        from .dali import DaliEngine

        return DaliEngine(recipe, batch_size=batch_size, **options)
    from .nvimgcodec import NvImageCodecEngine

    return NvImageCodecEngine(recipe, **options)


def _filters(recipes: Sequence[Recipe]) -> set[str]:
    """Return the filters of all resizes."""
    return {getattr(transform, "interpolation", "bilinear") for recipe in recipes for transform in recipe.transforms}


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package above it is missing
        return False
