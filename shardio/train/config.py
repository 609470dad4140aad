"""What a training run is asked for, and what it gives back."""

import math
import os
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from ..errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """A training run, the same on every rank. ConfigError if a value breaks a rule.

    Attributes:
        train: the training set: a dataset with an `image` and a whole-number `label` field.
        val: the validation set; None trains without one.
        output: directory for checkpoints, `log.jsonl` and `result.json`; all ranks must see the same one.
        epochs: passes over the training set.
        batch_size: samples per rank and step.
        lr: learning rate for a global batch of `lr_reference_batch`; the peak is proportional to the global batch
            (linear scaling rule, Goyal et al. 2017, arXiv:1706.02677).
        lr_reference_batch: see `lr`.
        momentum: of SGD, Nesterov's where it is above 0.
        weight_decay: on weights, not on biases and normalisation.
        warmup_epochs: epochs over which the learning rate rises to its peak; may be a fraction, at most `epochs`.
        label_smoothing: share of the target that is spread over all classes.
        seed: of the initial weights, the samples' order and the augmentation.
        model: `"resnet"`, or `"module:function"`, called with `num_classes=` and `channels=`.
        num_classes: None takes the metadata's `classes`, else the largest label + 1.
        image_size: pixels a side that images are cropped to. None keeps equal images of up to 64 pixels at their size,
            and is 224 for all others.
        threads: the loader's, per rank.
        on_bad_sample: `"raise"` ends the run at a sample that can't be read or decoded. `"replace"` trains on another
            one in its place and leaves it out of validation, and lists both in `bad.jsonl` in `output`.
        max_bad: such samples that a rank passes over in an epoch: a count, or below 1 a share of its samples.
        resume: None begins anew, in an `output` that holds no checkpoint yet; `"auto"` goes on from `output`'s last one
            if there is any; else the path of a checkpoint.
        checkpoint_every_steps: write a checkpoint every so many steps too, not only at each epoch's end.
        log_every: seconds between lines of progress where the output is no terminal.
        device: `"cpu"` or `"cuda"`; None takes CUDA where there is any.
    """

    train: str
    output: str
    val: str | None = None
    epochs: int = 5
    batch_size: int = 128
    lr: float = 0.1
    lr_reference_batch: int = 256
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup_epochs: float = 1.0
    label_smoothing: float = 0.0
    seed: int = 0
    model: str = "resnet"
    num_classes: int | None = None
    image_size: int | None = None
    threads: int | Literal["auto"] = "auto"
    on_bad_sample: Literal["raise", "replace"] = "raise"
    max_bad: float = 0.01
    resume: str | None = None
    checkpoint_every_steps: int | None = None
    log_every: float = 10.0
    device: str | None = None

    def __post_init__(self) -> None:
        for name in ("train", "output", "val", "resume"):
            self._path(name, optional=name in ("val", "resume"))
        if not isinstance(self.model, str) or not self.model:
            raise ConfigError(f"model must be 'resnet' or 'module:function', got {self.model!r}")
        for name in ("epochs", "batch_size", "lr_reference_batch"):
            self._whole(name, 1)
        for name, least in (("num_classes", 2), ("image_size", 1), ("checkpoint_every_steps", 1)):
            if getattr(self, name) is not None:
                self._whole(name, least)
        if self.threads != "auto":
            self._whole("threads", 1)
        if self.on_bad_sample not in ("raise", "replace"):
            raise ConfigError(f"on_bad_sample must be 'raise' or 'replace', got {self.on_bad_sample!r}")
        self._number("max_bad", 0, math.inf)
        self._whole("seed", 0)
        self._number("lr", 0, math.inf, open_low=True)
        self._number("momentum", 0, 1)
        self._number("weight_decay", 0, math.inf)
        self._number("label_smoothing", 0, 1)
        self._number("log_every", 0, math.inf, open_low=True)
        self._number("warmup_epochs", 0, math.inf)
        if self.warmup_epochs > self.epochs:
            raise ConfigError(f"warmup_epochs must be at most epochs ({self.epochs}), got {self.warmup_epochs!r}")
        self._check_device()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as a checkpoint keeps them."""
        return asdict(self)

    def _path(self, name: str, *, optional: bool) -> None:
        value = getattr(self, name)
        if value is None and optional:
            return
        if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
            raise ConfigError(f"{name} must be a path, got {value!r}")
        object.__setattr__(self, name, os.fspath(value))

    def _whole(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")

    def _number(self, name: str, low: float, high: float, *, open_low: bool = False) -> None:
        value = getattr(self, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not (low < value if open_low else low <= value) or not value < high:
            interval = f"{'(' if open_low else '['}{low}, {high})"
            raise ConfigError(f"{name} must be a number in {interval}, got {value!r}")

    def _check_device(self) -> None:
        if self.device is None:
            return
        try:
            kind = torch.device(self.device).type
        except (RuntimeError, TypeError) as error:
            raise ConfigError(f"device must be 'cpu', 'cuda' or None, got {self.device!r}") from error
        if kind not in ("cpu", "cuda"):
            raise ConfigError(f"device must be 'cpu', 'cuda' or None, got {self.device!r}")


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a run came to.

    Attributes:
        accuracy: share of the validation set that the last epoch's model gets right, 0 to 1; None without one.
        best_accuracy: of the best epoch, those before a resume included.
        samples_per_second_per_rank: of training alone, without validation; 0 if nothing was left to train.
        starved: share of that time that training waited for input, on the rank that waited longest, 0 to 1.
        epochs: epochs that the model has been trained.
        checkpoint: path of the last checkpoint.
    """

    accuracy: float | None
    best_accuracy: float | None
    samples_per_second_per_rank: float
    starved: float
    epochs: int
    checkpoint: str
