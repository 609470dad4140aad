"""The weights that a training begins with: of a ResNet-18 of torchvision or timm, of a run of shardio, of your own."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError, Message, MissingDependency, Option
from ..system import optional
from ..system.local_path import local_path
from ..system.regular_files import open_regular
from .checkpoint import check_sizes
from .model import ResNet

_MOST_NAMED = 5
_TORCHVISION = re.compile(r"(?:layer([1-4])\.([01])\.)?(conv1|bn1|conv2|bn2|downsample|fc)\.(.+)")
IN_BLOCK = {"conv1": "body.0", "bn1": "body.1", "conv2": "body.3", "bn2": "body.4", "downsample": "shortcut"}
OUTSIDE = {"conv1": "stem.0", "bn1": "stem.1", "fc": "head"}


def load_pretrained(model: nn.Module, path: str) -> str:
    """Load weights into a model; return what was done, in a line. No code in the file is run.

    It is a file of torch.save with a state dict, alone or under `state_dict`, a checkpoint of `shardio train`, or a
    file of safetensors. Where the last layer of the model has another number of outputs than that of the file, or the
    file has none, it keeps its random weights. All other weights must fit.

    Raises ConfigError with their names if weights do not fit, or if the file cannot be read; MissingDependency for a
    file of safetensors without that package.
    """
    own = model.state_dict()
    found = _read(path)
    if isinstance(model, ResNet) and not model.small:
        found = {_own_name(name): weight for name, weight in found.items()}
    last = [name for name, module in model.named_modules() if [*module.parameters(recurse=False)]][-1]
    wrong, anew = [f"{name}, which the model lacks" for name in found if name not in own], list[str]()
    for name, weight in own.items():
        there = found.get(name)
        is_last = name.rpartition(".")[0] == last
        if there is None and not is_last and not name.endswith("num_batches_tracked"):  # which old files lack
            wrong.append(f"{name}, which the file lacks")
        elif is_last and (there is None or (there.shape[1:] == weight.shape[1:] and there.shape != weight.shape)):
            anew.append(name)
        elif there is not None and there.shape != weight.shape:
            wrong.append(f"{name} of shape {list(there.shape)}, in the model {list(weight.shape)}")
    if wrong:
        more = f" and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
        small = isinstance(model, ResNet) and model.small
        advice = Message("; with {}, small images take ResNet-18 as well", Option("image_size", 224)) if small else ""
        told = "{pretrained}: {} does not fit the model: {}{}{}"
        raise ConfigError(told, path, "; ".join(wrong[:_MOST_NAMED]), more, advice)
    model.load_state_dict(own | {name: weight for name, weight in found.items() if name not in anew})
    random = f"; {' and '.join(anew)} begin at random, with {len(own[anew[0]])} outputs" if anew else ""
    return f"begins with the weights of {path}{random}"


def _read(path: str) -> dict[str, Tensor]:
    try:
        if path.endswith(".safetensors"):
            library = optional.load("safetensors.torch", purpose=f"reading {path}", extra="train")
            content: Any = library.load_file(local_path(path))
        else:
            with open(local_path(path), "rb", opener=open_regular) as file:
                check_sizes(file)
                content = torch.load(file, map_location="cpu", weights_only=True)
    except (ConfigError, MissingDependency):
        raise
    except OSError as error:
        raise ConfigError("{pretrained}: {} cannot be read: {}", path, error.strerror or error) from error
    except Exception as error:  # torch, zipfile and safetensors raise many kinds, with advice to run code in the file
        raise ConfigError("{pretrained}: {} is no file of weights, or holds more than weights", path) from error
    for key in ("state_dict", "average", "model"):
        if isinstance(content, Mapping) and isinstance(inner := content.get(key), Mapping) and inner:
            content = inner
            break
    weights = content if isinstance(content, Mapping) else {}
    named = {name.removeprefix("module."): weight for name, weight in weights.items() if isinstance(name, str)}
    named.pop("n_averaged", None)
    if not named or not all(isinstance(weight, Tensor) for weight in named.values()):
        raise ConfigError("{pretrained}: {} must hold a state dict: tensors by name", path)
    return named


def _own_name(name: str) -> str:
    """Return the name that shardio's ResNet-18 has for a weight which may have torchvision's."""
    found = _TORCHVISION.fullmatch(name)
    if found is None:
        return name
    stage, block, part, rest = found.groups()
    if stage is None:
        return f"{OUTSIDE[part]}.{rest}" if part in OUTSIDE else name
    return f"stages.{2 * int(stage) - 2 + int(block)}.{IN_BLOCK[part]}.{rest}" if part in IN_BLOCK else name
