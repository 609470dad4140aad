"""The configuration and the result of a training run."""

import math
import os
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from ..errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The configuration of a training run, the same on every rank; a wrong value raises ConfigError.

    Attributes:
        train: path of the training set, a dataset with an `image` field and an integer `label` field.
        val: path of the validation set; None trains without one.
        output: directory for checkpoints, `log.jsonl` and `result.json`, shared by all ranks.
        epochs: number of passes over the training set.
        batch_size: number of samples per rank and step.
        lr: learning rate for a global batch of `lr_reference_batch`; the peak is proportional to the global batch
            (linear scaling rule, Goyal et al. 2017, arXiv:1706.02677).
        lr_reference_batch: the global batch that `lr` is meant for.
        momentum: momentum of SGD; above 0 it is Nesterov momentum.
        weight_decay: weight decay of weights; biases and normalization parameters have none.
        warmup_epochs: epochs over which the learning rate rises to its peak, possibly a fraction, at most `epochs`.
        label_smoothing: share of the target that is spread over all classes.
        seed: seed of the initial weights, the order of the samples and the augmentation.
        model: `"resnet"`, or `"module:function"`, called with `num_classes=` and `channels=`.
        num_classes: number of classes; None takes it from the `classes` of the metadata, or else the largest label + 1.
        image_size: side in pixels of the square crops. None keeps images of one size of up to 64 pixels at that size,
            and crops all others to 224 pixels.
        threads: worker threads of the loader, per rank.
        on_bad_sample: `"raise"` ends the run at a sample that cannot be read or decoded. `"replace"` trains on another
            sample in its place, leaves it out of validation, and lists it in `bad.jsonl` in `output`.
        max_bad: bad samples allowed per rank and epoch: a count, or below 1 a share of the rank's samples.
        resume: None starts a new run, in an `output` without a checkpoint; `"auto"` resumes from the last checkpoint in
            `output` if there is one, or from the one before it if that is damaged; otherwise the path of a checkpoint
            to resume from.
        checkpoint_every_steps: number of steps between checkpoints; one is also written at the end of each epoch.
        log_every: seconds between lines of progress if the output is not a terminal.
        device: `"cpu"` or `"cuda"`; None takes CUDA if it is available.
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
            self._check_path(name, optional=name in ("val", "resume"))
        if not isinstance(self.model, str) or not self.model:
            raise ConfigError(f"model must be 'resnet' or 'module:function', got {self.model!r}")
        for name in ("epochs", "batch_size", "lr_reference_batch"):
            self._check_integer(name, 1)
        for name, minimum in (("num_classes", 2), ("image_size", 1), ("checkpoint_every_steps", 1)):
            if getattr(self, name) is not None:
                self._check_integer(name, minimum)
        if self.threads != "auto":
            self._check_integer("threads", 1)
        if self.on_bad_sample not in ("raise", "replace"):
            raise ConfigError(f"on_bad_sample must be 'raise' or 'replace', got {self.on_bad_sample!r}")
        self._check_number("max_bad", 0, math.inf)
        self._check_integer("seed", 0)
        self._check_number("lr", 0, math.inf, open_low=True)
        self._check_number("momentum", 0, 1)
        self._check_number("weight_decay", 0, math.inf)
        self._check_number("label_smoothing", 0, 1)
        self._check_number("log_every", 0, math.inf, open_low=True)
        self._check_number("warmup_epochs", 0, math.inf)
        if self.warmup_epochs > self.epochs:
            raise ConfigError(f"warmup_epochs must be at most epochs ({self.epochs}), got {self.warmup_epochs!r}")
        self._check_device()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as a checkpoint stores them."""
        return asdict(self)

    def _check_path(self, name: str, *, optional: bool) -> None:
        value = getattr(self, name)
        if value is None and optional:
            return
        if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
            raise ConfigError(f"{name} must be a path, got {value!r}")
        object.__setattr__(self, name, os.fspath(value))

    def _check_integer(self, name: str, minimum: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise ConfigError(f"{name} must be a whole number of at least {minimum}, got {value!r}")

    def _check_number(self, name: str, low: float, high: float, *, open_low: bool = False) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not (low < value if open_low else low <= value) or not value < high:
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
    """The result of a training run.

    Attributes:
        accuracy: share of the validation set that the final model classifies correctly, 0 to 1; None without one.
        best_accuracy: accuracy of the best epoch, including epochs before a resume.
        samples_per_second_per_rank: training throughput, without validation; 0 if nothing was left to train.
        starved: share of the training time spent waiting for input, on the rank that waited longest, 0 to 1.
        epochs: number of epochs that the model has been trained for.
        checkpoint: path of the last checkpoint.
    """

    accuracy: float | None
    best_accuracy: float | None
    samples_per_second_per_rank: float
    starved: float
    epochs: int
    checkpoint: str
