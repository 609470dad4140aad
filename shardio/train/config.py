"""The configuration and the result of a training run."""

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from ..dataset.opening import Place
from ..dataset.store_access import without_secrets
from ..errors import ConfigError, Message, Option
from ..system.rules import Count, Positive, Range, Share, check_fields
from ..system.units import shown
from ..views.classes import Classes
from ..views.view import BaseDataset

OptimizerName: TypeAlias = Literal["sgd", "adam", "adamw", "lars", "larc", "lamb"]
Scaling: TypeAlias = Literal["linear", "sqrt", "none"]
"""The growth of the peak rate with the global batch."""
Curve: TypeAlias = Literal["cosine", "polynomial", "step", "exponential", "inverse-time", "constant"]
"""The fall of the rate after warm-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The configuration of a training run, the same on every rank; a wrong value raises ConfigError.

    Each field is an option of `shardio train` as well, whose help is the text here.

    Attributes:
        train: the training set: a dataset or a view, or its path or URL. Classification needs an `image` field and an
            integer `label` field, regression a field of volumes [C, D, H, W] and one of targets, all floats.
        val: the validation set, given alike. By default, nothing is validated.
        classes: what validation labels mean where `val` has other classes than `train`. `"union"`: number classes by
            name; those of `train` keep their numbers, the others follow, and the model has an output for each.
            `"ignore"`: take labels as they are. By default, such a `val` is an error.
        output: directory for checkpoints and logs; all ranks must share it.
        epochs: epochs to train.
        batch_size: samples per rank and step.
        accumulate: batches per rank to accumulate before each step. The global batch is `batch_size` times ranks times
            `accumulate`.
        optimizer: optimizer. lars, larc and lamb are for large batches.
        lr: peak learning rate for a global batch of `lr_reference_batch`; `lr_scaling` scales it to yours. The default
            is for sgd: start with 0.001 for adam and adamw.
        lr_reference_batch: the global batch that `lr` is meant for.
        lr_scaling: how the learning rate grows with the global batch.
        lr_schedule: how the learning rate decays after warm-up.
        lr_decay_epochs: epochs after which step, exponential and inverse-time have left `lr_decay_factor` of the rate.
            By default, a third of all.
        lr_decay_factor: the share of the rate that is left after `lr_decay_epochs`.
        lr_power: exponent of the polynomial schedule.
        momentum: momentum of sgd (Nesterov's), lars and larc; the first beta of adam, adamw and lamb.
        weight_decay: weight decay; biases and normalization layers have none.
        trust_coefficient: trust coefficient of lars and larc.
        clip_norm: clip the norm of all gradients together to this.
        warmup_epochs: epochs of linear warm-up, at most `epochs`; may be a fraction.
        label_smoothing: label smoothing: the share of the target that is spread over all classes.
        ema: decay per step of a moving average of the weights; validation uses the average.
        precision: compute precision; bf16 and fp16 use autocast.
        compile: compile the model with torch.compile.
        channels_last: use the channels-last memory format, which GPUs prefer with bf16 and fp16.
        sync_batchnorm: normalize over the batches of all ranks; GPUs only.
        bucket_mb: MiB of gradients per allreduce (DDP's bucket).
        hook: DDP's communication hook, which compresses gradients before they are sent.
        powersgd_rank: rank of PowerSGD's approximation (Vogels et al. 2019, arXiv:1905.13727).
        powersgd_start: first step that approximates gradients by PowerSGD.
        local_sgd_period: local SGD: steps that each rank takes on its own between averages of the weights. Excludes
            `hook`.
        gradient_lag: 1: each step applies the mean gradient of the step before, which is sent while it computes
            (Kurth et al. 2018, arXiv:1810.01993). Excludes PowerSGD and local SGD.
        local_sgd_start: first step of local SGD (post-local SGD).
        local_sgd_overlap: steps that ranks go on for while an average is under way. By default, they wait for it.
        outer_optimizer: the optimizer whose gradient is the mean change of the weights between averages (DiLoCo,
            Douillard et al. 2023, arXiv:2311.08105). none: weights become their mean.
        outer_lr: learning rate of the outer optimizer.
        outer_momentum: momentum of the outer optimizer.
        measure_noise_scale: measure the gradient noise scale, which bounds the useful batch size; needs two ranks or
            more.
        seed: seed of weights, order and augmentation.
        task: what to learn: classification of images, or regression of numbers from volumes.
        input_field: regression's field of volumes. By default, the only one that fits.
        target_field: regression's field of targets. By default, the only one that fits.
        model: model: resnet for images, cnn3d for volumes, or your own as module:function, called with `num_classes=`
            or `num_targets=`, and `channels=`. By default, the one that suits the task.
        pretrained: file of weights to begin with, `.pt`, `.pth` or `.safetensors`: of torchvision's or timm's ResNet-18
            for images of more than 64 pixels, of a checkpoint, or a state dict of your own model. The last layer begins
            at random where it has another number of outputs.
        num_classes: number of classes. By default, that of the metadata's `classes`, or else the largest label + 1.
        image_size: side of the crops in pixels or voxels. By default, images of one size of up to 64 pixels keep it,
            all others are cropped to 224 pixels, and volumes stay whole.
        threads: input workers per rank; auto divides the cores among the ranks.
        on_bad_sample: what to do at a sample that can't be read or decoded. raise: end the run. replace: train on
            another sample in its place, leave it out of validation, and list it in `bad.jsonl` in `output`.
        max_bad: with `on_bad_sample="replace"`: bad samples allowed per rank and epoch, a count, or below 1 a share.
        resume: checkpoint to resume from: its path; or auto for the newest intact one in `output`, or a new run if
            there is none, so you can always pass it. By default, an `output` that holds a run is an error.
        checkpoint_every_steps: steps between checkpoints; one is also written after each epoch.
        keep_checkpoints: number of last checkpoints to keep, in addition to the best one.
        log_every: seconds between lines of progress if the output is not a terminal.
        metrics_every_steps: steps between lines of `metrics.jsonl`, and between checks for slow ranks.
        monitor_seconds: seconds between lines about each rank's input in `input.jsonl`. By default, there are none. See
            `shardio.monitor`.
        tensorboard: also write the metrics for TensorBoard, into a folder of their own in `output`.
        profile: write a trace of ten steps of each rank with torch's profiler.
        synthetic: first measure the throughput on one batch in memory; the difference is what input costs.
        timeout: seconds that a rank waits for the others before it ends the run.
        device: device: cpu or cuda. By default, a GPU if there is one.
        cache, cache_size, store_options: for datasets given as paths or URLs, as for `shardio.open`.
    """

    train: Place
    output: str
    val: Place | None = None
    classes: Classes | None = None
    epochs: Count = 5
    batch_size: Count = 128
    accumulate: Count = 1
    optimizer: OptimizerName = "sgd"
    lr: Positive = 0.1
    lr_reference_batch: Count = 256
    lr_scaling: Scaling = "linear"
    lr_schedule: Curve = "cosine"
    lr_decay_epochs: Positive | None = None
    lr_decay_factor: Annotated[float, Range(0, 1, above=True)] = 0.1
    lr_power: Positive = 2.0
    momentum: Share = 0.9
    weight_decay: Annotated[float, Range(0)] = 5e-4
    trust_coefficient: Positive = 0.001
    clip_norm: Positive | None = None
    warmup_epochs: Annotated[float, Range(0)] = 1.0
    label_smoothing: Share = 0.0
    ema: Share | None = None
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    compile: bool = False
    channels_last: bool = False
    sync_batchnorm: bool = False
    bucket_mb: Positive = 25.0
    hook: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    powersgd_rank: Count = 2
    powersgd_start: Annotated[int, Range(2)] = 100  # DDP rebuilds its buckets after the first step
    local_sgd_period: Annotated[int, Range(2)] | None = None
    gradient_lag: Annotated[int, Range(0, 2)] = 0
    local_sgd_start: Annotated[int, Range(0)] = 0
    local_sgd_overlap: Annotated[int, Range(0)] = 0
    outer_optimizer: Literal["none", "sgd", "nesterov"] = "none"
    outer_lr: Positive = 0.7
    outer_momentum: Share = 0.9
    measure_noise_scale: bool = False
    seed: Annotated[int, Range(0)] = 0
    task: Literal["classification", "regression"] = "classification"
    input_field: str | None = None
    target_field: str | None = None
    model: str | None = None
    pretrained: str | None = None
    num_classes: Annotated[int, Range(2)] | None = None
    image_size: Count | None = None
    threads: Count | Literal["auto"] = "auto"
    on_bad_sample: Literal["raise", "replace"] = "raise"
    max_bad: Annotated[float, Range(0)] = 0.01
    resume: str | None = None
    checkpoint_every_steps: Count | None = None
    keep_checkpoints: Count = 2
    log_every: Positive = 10.0
    metrics_every_steps: Count = 20
    monitor_seconds: float | None = None
    tensorboard: bool = False
    profile: bool = False
    synthetic: bool = False
    timeout: Annotated[float, Range(0.1, 1e6)] = 600.0
    device: str | None = None
    cache: str | None = None
    cache_size: int | str | None = None
    store_options: Mapping[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("train", "output", "val", "resume", "pretrained"):
            value = getattr(self, name)
            if isinstance(value, BaseDataset) and name in ("train", "val"):
                continue
            if value is not None or name in ("train", "output"):
                if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
                    raise ConfigError("{} must be a path, got {!r}", Option(name), value)
                object.__setattr__(self, name, os.fspath(value))
        for name in ("model", "input_field", "target_field"):
            if (value := getattr(self, name)) is not None and (not isinstance(value, str) or not value):
                raise ConfigError("{} must be a name, got {!r}", Option(name), value)
        check_fields(self)
        for name in ("input_field", "target_field"):
            if self.task == "classification" and getattr(self, name) is not None:
                raise ConfigError(
                    "{} is for regression: classification takes the fields 'image' and 'label'", Option(name)
                )
        for name, default in (("num_classes", None), ("label_smoothing", 0.0), ("classes", None)):
            if self.task == "regression" and (value := getattr(self, name)) != default:
                raise ConfigError("{} is for classification, got {!r} for regression", Option(name), value)
        if self.seed >= 1 << 63:  # the most that torch takes
            raise ConfigError("{seed} must be below 2^63, got {}", shown(self.seed))
        if self.warmup_epochs > self.epochs:
            raise ConfigError(
                "{warmup_epochs} must be at most {epochs} ({}), got {!r}", self.epochs, self.warmup_epochs
            )
        if self.device is not None and not re.fullmatch(r"(cpu|cuda)(:\d{1,3})?", str(self.device)):
            raise ConfigError("{device} must be 'cpu', 'cuda' or None, got {!r}", self.device)
        if self.gradient_lag:
            # PowerSGD adds its errors to the next gradients; the noise scale compares gradients of one step.
            self._go_only_with("gradient_lag", measure_noise_scale=False)
            if self.hook == "powersgd":
                raise ConfigError(Message("{gradient_lag} goes with {hook:none}, 'fp16' or 'bf16', got 'powersgd'"))
        if self.local_sgd_period is None:
            for name, unused in (("local_sgd_overlap", 0), ("outer_optimizer", "none")):
                if getattr(self, name) != unused:
                    raise ConfigError("{} needs {local_sgd_period}, got None", Option(name))
            return
        if self.local_sgd_overlap >= self.local_sgd_period:
            told = "{local_sgd_overlap} must be below {local_sgd_period} ({}), got {}"
            raise ConfigError(told, self.local_sgd_period, self.local_sgd_overlap)
        if self.outer_optimizer == "nesterov" and not self.outer_momentum:
            raise ConfigError(Message("{outer_optimizer:nesterov} needs an {outer_momentum} above 0, got 0"))
        # Ranks would scale their losses differently; hooks and the noise scale are about gradients of every step.
        self._go_only_with("local_sgd_period", hook="none", measure_noise_scale=False, gradient_lag=0)
        if self.precision == "fp16":
            raise ConfigError(Message("{local_sgd_period} goes with {precision:float32} or 'bf16', got 'fp16'"))

    def _go_only_with(self, option: str, **allowed: object) -> None:
        """Raise ConfigError if options have other values than those that an option goes with."""
        for name, value in allowed.items():
            if (found := getattr(self, name)) != value:
                raise ConfigError("{} goes with {} only, got {!r}", Option(option), Option(name, value), found)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as a checkpoint stores them."""
        return without_secrets(asdict(self))


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
