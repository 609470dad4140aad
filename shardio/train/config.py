"""The configuration and the result of a training run."""

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import torch

from ..dataset.classes import Classes
from ..dataset.store_access import without_secrets
from ..errors import ConfigError
from ..system.units import shown
from .optimizers import OptimizerName
from .schedule import Curve, Scaling

Precision: TypeAlias = Literal["float32", "bf16", "fp16"]
TaskName: TypeAlias = Literal["classification", "regression"]
Hook: TypeAlias = Literal["none", "fp16", "bf16", "powersgd"]

BadSamples: TypeAlias = Literal["raise", "replace"]
_CHOICES: dict[str, Any] = {
    "task": TaskName,
    "on_bad_sample": BadSamples,
    "optimizer": OptimizerName,
    "lr_scaling": Scaling,
    "lr_schedule": Curve,
    "precision": Precision,
    "hook": Hook,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The configuration of a training run, the same on every rank; a wrong value raises ConfigError.

    Attributes:
        train: path or URL of the training set. For classification it has an `image` field and an integer `label`
            field, for regression a field of volumes [C, D, H, W] and one of targets, all floats.
        val: path or URL of the validation set; None trains without one.
        classes: what the labels of the validation set mean where its classes differ from the training set's; None
            refuses such sets. `"union"` numbers classes by name: those of training keep their numbers, and those that
            only validation has follow, so that the model has an output for each. `"ignore"` takes labels as they are.
        output: directory for checkpoints, `log.jsonl`, `metrics.jsonl` and `result.json`, shared by all ranks.
        epochs: number of passes over the training set.
        batch_size: number of samples per rank and step.
        accumulate: number of batches per rank whose gradients are summed before a step; the global batch is
            `batch_size` times ranks times `accumulate`.
        optimizer: `"sgd"`, `"adam"`, `"adamw"`, `"lars"`, `"larc"` or `"lamb"`, see `make_optimizer`.
        lr: learning rate for a global batch of `lr_reference_batch`.
        lr_reference_batch: the global batch that `lr` is meant for.
        lr_scaling: how the peak grows with the global batch: `"linear"`, `"sqrt"` or `"none"`, see `scaled_rate`.
        lr_schedule: how the rate falls after the warm-up: `"cosine"`, `"polynomial"`, `"step"`, `"exponential"`,
            `"inverse-time"` or `"constant"`, see `Decay`.
        lr_decay_epochs: the epochs after which `"step"`, `"exponential"` and `"inverse-time"` have left
            `lr_decay_factor` of the rate; None takes a third of `epochs`.
        lr_decay_factor: what is left of the rate after `lr_decay_epochs`.
        lr_power: the exponent of `"polynomial"`.
        momentum: momentum of SGD (Nesterov's), LARS and LARC; the first beta of Adam, AdamW and LAMB.
        weight_decay: weight decay of weights; biases and normalization parameters have none.
        trust_coefficient: of LARS and LARC: the share of a weight's norm that a step may change.
        clip_norm: the largest norm of all gradients together; None does not limit it.
        warmup_epochs: epochs over which the learning rate rises to its peak, possibly a fraction, at most `epochs`.
        label_smoothing: share of the target that is spread over all classes.
        ema: decay per step of a moving average of the weights, which is validated in their place; None keeps none.
        precision: `"float32"`; or `"bf16"` or `"fp16"`, to which autocast converts what is safe in it.
        compile: compile the model with torch.compile.
        channels_last: keep images and weights with channels last, which GPUs prefer with `"bf16"` and `"fp16"`.
        sync_batchnorm: normalize over the batches of all ranks together; on GPUs only.
        bucket_mb: MiB of gradients that are added over the ranks in one message (DDP's bucket).
        hook: how gradients are sent: `"none"`, as they are; `"fp16"`, `"bf16"`; or `"powersgd"` (Vogels et al. 2019,
            arXiv:1905.13727).
        powersgd_rank: the rank of PowerSGD's approximation.
        powersgd_start: the step from which gradients are approximated.
        local_sgd_period: number of steps that ranks take on their own between averages of their weights (local SGD);
            None exchanges the gradients of every step.
        local_sgd_start: the step from which they do; gradients of earlier ones are exchanged (post-local SGD).
        local_sgd_node_period: number of steps between averages among the ranks of a node, a divisor of
            `local_sgd_period`; 1 exchanges gradients within nodes at every step, None averages over all ranks only.
        measure_noise_scale: measure the gradient noise scale, which tells how large a batch may be; on two ranks or
            more.
        seed: seed of the initial weights, the order of the samples and the augmentation.
        task: `"classification"` of images, or `"regression"` of targets from volumes.
        input_field: the field of the volumes; None takes the only one there is. Images are in the field `image`.
        target_field: the field of the targets; None takes the only one there is. Classes are in the field `label`.
        model: `"resnet"` for images, `"cnn3d"` for volumes, or `"module:function"`, called with `num_classes=` or
            `num_targets=`, and with `channels=`; None takes the one that suits the task.
        num_classes: number of classes; None takes it from the `classes` of the metadata, or else the largest label + 1.
        image_size: side in pixels or voxels of the crops. None keeps images of one size of up to 64 pixels at that
            size, crops all others to 224 pixels, and takes whole volumes.
        threads: worker threads of the loader, per rank.
        on_bad_sample: `"raise"` ends the run at a sample that cannot be read or decoded. `"replace"` trains on another
            sample in its place, leaves it out of validation, and lists it in `bad.jsonl` in `output`.
        max_bad: bad samples allowed per rank and epoch: a count, or below 1 a share of the rank's samples.
        resume: None starts a new run, in an `output` without a checkpoint; `"auto"` resumes from the last checkpoint in
            `output` if there is one, or from the one before it if that is damaged; otherwise the path of a checkpoint
            to resume from.
        checkpoint_every_steps: number of steps between checkpoints; one is also written at the end of each epoch.
        keep_checkpoints: number of last checkpoints that are kept, beside the best one.
        log_every: seconds between lines of progress if the output is not a terminal.
        metrics_every_steps: number of steps between lines of `metrics.jsonl`, and between looks for slow ranks.
        tensorboard: also write what `metrics.jsonl` and `log.jsonl` hold for TensorBoard, into `output/tensorboard`.
        monitor_seconds: seconds between lines about each rank's input in `output/input.jsonl`, or with several ranks in
            `input-00000.jsonl` and so on; None for none. See `shardio.monitor`.
        profile: write a trace of ten steps of each rank by the profiler of torch, `output/trace-rank0.json` and so on.
        synthetic: before training, measure the throughput on one batch in memory, the most that any input allows.
        timeout: seconds that a rank waits for the others before it ends the run with an error.
        device: `"cpu"` or `"cuda"`; None takes CUDA if it is available.
        cache, cache_size, store_options: for datasets given as URLs, as for `shardio.open`.
    """

    train: str
    output: str
    val: str | None = None
    classes: Classes | None = None
    epochs: int = 5
    batch_size: int = 128
    accumulate: int = 1
    optimizer: OptimizerName = "sgd"
    lr: float = 0.1
    lr_reference_batch: int = 256
    lr_scaling: Scaling = "linear"
    lr_schedule: Curve = "cosine"
    lr_decay_epochs: float | None = None
    lr_decay_factor: float = 0.1
    lr_power: float = 2.0
    momentum: float = 0.9
    weight_decay: float = 5e-4
    trust_coefficient: float = 0.001
    clip_norm: float | None = None
    warmup_epochs: float = 1.0
    label_smoothing: float = 0.0
    ema: float | None = None
    precision: Precision = "float32"
    compile: bool = False
    channels_last: bool = False
    sync_batchnorm: bool = False
    bucket_mb: float = 25.0
    hook: Hook = "none"
    powersgd_rank: int = 2
    powersgd_start: int = 100
    local_sgd_period: int | None = None
    local_sgd_start: int = 0
    local_sgd_node_period: int | None = None
    measure_noise_scale: bool = False
    seed: int = 0
    task: TaskName = "classification"
    input_field: str | None = None
    target_field: str | None = None
    model: str | None = None
    num_classes: int | None = None
    image_size: int | None = None
    threads: int | Literal["auto"] = "auto"
    on_bad_sample: BadSamples = "raise"
    max_bad: float = 0.01
    resume: str | None = None
    checkpoint_every_steps: int | None = None
    keep_checkpoints: int = 2
    log_every: float = 10.0
    metrics_every_steps: int = 20
    monitor_seconds: float | None = None
    tensorboard: bool = False
    profile: bool = False
    synthetic: bool = False
    timeout: float = 600.0
    device: str | None = None
    cache: str | None = None
    cache_size: int | str | None = None
    store_options: Mapping[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("train", "output", "val", "resume"):
            self._check_path(name, optional=name in ("val", "resume"))
        for name in ("model", "input_field", "target_field"):
            if (value := getattr(self, name)) is not None and (not isinstance(value, str) or not value):
                raise ConfigError(f"{name} must be a name, got {value!r}")
        for name in ("input_field", "target_field"):
            if self.task == "classification" and getattr(self, name) is not None:
                raise ConfigError(f"{name} is for regression: classification takes the fields 'image' and 'label'")
        for name, default in (("num_classes", None), ("label_smoothing", 0.0), ("classes", None)):
            if self.task == "regression" and getattr(self, name) != default:
                raise ConfigError(f"{name} is for classification, got {getattr(self, name)!r} for regression")
        positive = ("epochs", "batch_size", "lr_reference_batch", "accumulate", "powersgd_rank")
        for name in (*positive, "keep_checkpoints", "metrics_every_steps"):
            self._check_integer(name, 1)
        self._check_integer("powersgd_start", 2)  # DDP rebuilds its buckets after the first step
        self._check_integer("local_sgd_start", 0)
        for name, minimum in (
            ("num_classes", 2),
            ("image_size", 1),
            ("checkpoint_every_steps", 1),
            ("local_sgd_period", 2),
            ("local_sgd_node_period", 1),
        ):
            if getattr(self, name) is not None:
                self._check_integer(name, minimum)
        if self.threads != "auto":
            self._check_integer("threads", 1)
        for name, kind in _CHOICES.items():
            self._check_choice(name, get_args(kind))
        if self.classes is not None:
            self._check_choice("classes", get_args(Classes))
        self._check_number("max_bad", 0, math.inf)
        self._check_integer("seed", 0)
        if self.seed >= 1 << 63:  # the most that torch takes
            raise ConfigError(f"seed must be below 2^63, got {shown(self.seed)}")
        self._check_number("lr", 0, math.inf, open_low=True)
        self._check_number("momentum", 0, 1)
        self._check_number("weight_decay", 0, math.inf)
        for name in ("trust_coefficient", "bucket_mb", "lr_power"):
            self._check_number(name, 0, math.inf, open_low=True)
        for name in ("clip_norm", "lr_decay_epochs"):
            if getattr(self, name) is not None:
                self._check_number(name, 0, math.inf, open_low=True)
        self._check_number("lr_decay_factor", 0, 1, open_low=True)
        if self.ema is not None:
            self._check_number("ema", 0, 1)
        self._check_number("label_smoothing", 0, 1)
        self._check_number("log_every", 0, math.inf, open_low=True)
        self._check_number("timeout", 0.1, 1e6)
        self._check_number("warmup_epochs", 0, math.inf)
        if self.warmup_epochs > self.epochs:
            raise ConfigError(f"warmup_epochs must be at most epochs ({self.epochs}), got {self.warmup_epochs!r}")
        self._check_device()
        self._check_local_sgd()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as a checkpoint stores them."""
        return without_secrets(asdict(self))

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

    def _check_choice(self, name: str, choices: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in choices:
            *most, last = map(repr, choices)
            raise ConfigError(f"{name} must be {', '.join(most)} or {last}, got {value!r}")

    def _check_number(self, name: str, low: float, high: float, *, open_low: bool = False) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not (low < value if open_low else low <= value) or not value < high:
            interval = f"{'(' if open_low else '['}{low}, {high})"
            raise ConfigError(f"{name} must be a number in {interval}, got {value!r}")

    def _check_local_sgd(self) -> None:
        period, nodes = self.local_sgd_period, self.local_sgd_node_period
        if period is None:
            if nodes is not None:
                raise ConfigError(f"local_sgd_node_period needs local_sgd_period, got {nodes} without one")
            return
        if nodes is not None and (nodes >= period or period % nodes):
            raise ConfigError(
                f"local_sgd_node_period must be a divisor of local_sgd_period ({period}) below it, got {nodes}"
            )
        # Ranks would scale their losses differently; hooks and the noise scale are about gradients of every step.
        for name, allowed in (("hook", "none"), ("measure_noise_scale", False)):
            if (value := getattr(self, name)) != allowed:
                raise ConfigError(f"local_sgd_period goes with {name}={allowed!r} only, got {value!r}")
        if self.precision == "fp16":
            raise ConfigError("local_sgd_period goes with precision='float32' or 'bf16', got 'fp16'")

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
        metric: what the score is: `"accuracy"`, the share of correct samples, 0 to 1; or in regression `"explained"`,
            the share of the targets' variance that the model explains, at most 1.
        score: score of the final model on the validation set; None without one.
        best_score: score of the best epoch, including epochs before a resume.
        samples_per_second_per_rank: training throughput, without validation; 0 if nothing was left to train.
        starved: share of the training time spent waiting for input, on the rank that waited longest, 0 to 1.
        synthetic_samples_per_second_per_rank: throughput on one batch in memory; None unless `synthetic` measured it.
        epochs: number of epochs that the model has been trained for.
        checkpoint: path of the last checkpoint.
    """

    metric: str
    score: float | None
    best_score: float | None
    samples_per_second_per_rank: float
    starved: float
    synthetic_samples_per_second_per_rank: float | None
    epochs: int
    checkpoint: str
