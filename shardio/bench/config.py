"""The configuration of a measurement."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from ..dataset.opening import Place
from ..dataset.store_access import StoreAccess
from ..engines.fused_images import Decode, EngineName
from ..loader.batch.quarantine import OnBadSample
from ..system.rules import Count, Positive, Range, check_fields
from .accelerators import Accelerator, accelerator

DEFAULT_SIZE = 224  # pixels
_DETECTOR_SIZE = 800  # of MLPerf Training's RetinaNet


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """The configuration of a measurement.

    Attributes:
        dataset: a dataset or a view, or its path or URL.
        batch_size: samples per rank and step. By default, those of `emulate`, or 256; `shardio bench` takes fewer of
            a dataset that has no 256 for each rank.
        epochs: whole epochs to measure, after one to three that warm up.
        seconds: measure so many seconds instead of whole epochs.
        warmup: seconds before `seconds` begin; 0 also leaves out the warm-up of `epochs`.
        ranks: number of processes, each with its own loader.
        barrier: whether ranks wait for each other after each step, as for an allreduce.
        transforms: what becomes of images: none, train (random crop and flip), evaluate (centre crop), detect (random
            crop by the boxes, flip and resize, with boxes end to end), or your own as MODULE:NAME, a list or a function
            that returns one. By default, train if `image_size` is given, else none; `shardio bench` takes detect if
            `emulate` is a retinanet and the dataset has boxes.
        image_size: side of the square images of train, evaluate and detect, in pixels; 224 by default, of detect 800.
        floats: deliver float32 NCHW instead of uint8 NHWC.
        map: a function of your own, as MODULE:NAME, which workers apply.
        map_by: what `map` takes at a time.
        decode: how images are decoded.
        shuffle: order of the samples.
        threads: worker threads per rank; auto divides the cores among the ranks.
        prefetch: batches made ahead.
        isolate: use worker processes instead of threads.
        emulate: stand in for a model on an accelerator, by MLPerf Storage v3.0 (mlcommons/storage ce28a98); the result
            is MLPerf-style. Closed and open workloads are unet3d-b200, retinanet-b200 and retinanet-mi355; the others
            are what-if.
        step_time: seconds of computation to simulate per step. With `emulate`, replaces that accelerator's.
        seed: seed of the order and the crops.
        engine: what decodes and transforms images.
        device: device to deliver batches on, such as cuda. Each step then waits until its batch has arrived.
        hw_decoder_load: share of the images that the GPU's JPEG decoder gets, 0 to 1.
        on_bad_sample: what to do at a bad sample. raise: end the run. replace, mask: go on, and count it.
        cache, cache_size, store_options: for a dataset given as a path or URL, as for `shardio.open`.

    Raises ConfigError for a value that breaks a rule.
    """

    dataset: Place
    batch_size: Count | None = None
    epochs: Count = 3
    seconds: Positive | None = None
    warmup: Annotated[float, Range()] = 2.0
    ranks: Count = 1
    barrier: bool = True
    transforms: str | None = None
    image_size: Count | None = None
    floats: bool = False
    map: str | None = None
    map_by: Literal["batch", "sample"] = "batch"
    decode: Decode = "exact"
    shuffle: Literal["global", "block"] | None = "global"
    threads: int | Literal["auto"] = "auto"
    prefetch: int | Literal["auto"] = "auto"
    isolate: bool = False
    emulate: str | None = None
    step_time: Annotated[float, Range()] = 0.0
    seed: int = 0
    engine: EngineName = "auto"
    device: str | None = None
    hw_decoder_load: float | None = None
    on_bad_sample: OnBadSample = "raise"
    cache: str | None = None
    cache_size: int | str | None = None
    store_options: Mapping[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.emulate is not None:
            accelerator(self.emulate)

    def resolved(self) -> "BenchConfig":
        """Return this configuration with the batch size, transforms and image size that None stands for."""
        transforms = self.transforms or ("none" if self.image_size is None else "train")
        usual = {"train": DEFAULT_SIZE, "evaluate": DEFAULT_SIZE, "detect": _DETECTOR_SIZE}.get(transforms)
        image_size = usual if self.image_size is None else self.image_size
        return replace(self, batch_size=self.samples_per_step, transforms=transforms, image_size=image_size)

    @property
    def access(self) -> StoreAccess:
        """The access to a dataset at a URL."""
        return StoreAccess(self.cache, self.cache_size, self.store_options)

    @property
    def accelerator(self) -> Accelerator | None:
        """The accelerator that each rank stands in for; None if it does not compute."""
        if self.emulate is not None:
            known = accelerator(self.emulate)
            step_seconds = self.step_time or known.step_seconds
            return replace(known, batch_size=self.samples_per_step, step_seconds=step_seconds)
        if self.step_time:
            return Accelerator("step time", self.samples_per_step, self.step_time, 0.90)
        return None

    @property
    def follows(self) -> str | None:
        """The release of MLPerf Storage that `emulate` follows, and its divisions; None without `emulate`."""
        return None if self.accelerator is None else self.accelerator.follows

    @property
    def samples_per_step(self) -> int:
        """Samples per rank and step."""
        if self.batch_size is not None:
            return self.batch_size
        return accelerator(self.emulate).batch_size if self.emulate is not None else 256
