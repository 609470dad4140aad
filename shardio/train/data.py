"""The two loaders of a run, and what it learns from them."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ..dataset.opening import as_dataset
from ..dataset.store_access import StoreAccess
from ..loader.loader import Loader
from ..transforms import Transform
from .config import TrainConfig
from .distributed import Job
from .image_classification import ImageClassification, check_images
from .volume_regression import VolumeRegression

BAD_SAMPLES_FILE = "bad.jsonl"

Task: TypeAlias = ImageClassification | VolumeRegression
"""The task of a model: the fields that it takes and predicts, their preparation, and the loss."""


@dataclass(frozen=True, slots=True)
class Data:
    """The data of a run.

    Attributes:
        train: loader of the training set.
        val: loader of the validation set, with each sample `valid` once; None without such a set.
        task: what is learned.
    """

    train: Loader
    val: Loader | None
    task: Task


def open_data(config: TrainConfig, job: Job) -> Data:
    """Open the datasets and create their loaders. All ranks must call it.

    Raises ConfigError if a dataset lacks a field or the two disagree, and what `shardio.open` raises.
    """
    access = StoreAccess.of(
        config.train, config.val, cache=config.cache, cache_size=config.cache_size, store_options=config.store_options
    )
    train = as_dataset(config.train, access)
    val = None if config.val is None else as_dataset(config.val, access)
    task: Task
    if config.task == "classification":
        train, val = check_images(config, train, val)
        task = ImageClassification.of(config, train, val, job)
    else:
        task = VolumeRegression.of(config, train, val, job)
    train_transforms, val_transforms = task.transforms()
    listed: dict[str, Any] = {"max_bad": config.max_bad}
    if config.on_bad_sample != "raise":
        Path(config.output).mkdir(parents=True, exist_ok=True)
        listed["quarantine_file"] = Path(config.output, BAD_SAMPLES_FILE)
    given: dict[str, Any] = {"seed": config.seed, "on_bad_sample": config.on_bad_sample}
    loader = _loader(config, job, task, train, train_transforms, **given, **listed)
    if val is None:
        return Data(loader, None, task)
    # Only readable samples are validated.
    given = {"shuffle": None, "on_bad_sample": "raise" if config.on_bad_sample == "raise" else "mask"}
    return Data(loader, _loader(config, job, task, val, val_transforms, **given, **listed), task)


def first_batch(config: TrainConfig, job: Job, data: Data) -> dict[str, Any]:
    """Return a batch of the training set, by a loader of its own, so that the run's is not touched."""
    given: dict[str, Any] = {"on_bad_sample": config.on_bad_sample, "max_bad": config.batch_size}
    loader = _loader(config, job, data.task, data.train.dataset, data.task.transforms()[0], **given)
    with closing(iter(loader)) as batches:
        return next(batches)


def _loader(
    config: TrainConfig, job: Job, task: Task, dataset: Any, transforms: Sequence[Transform], **given: Any
) -> Loader:
    return Loader(
        dataset,
        config.batch_size,
        transforms={task.inputs: transforms},
        world=job.world,
        tail="pad",  # every sample counts once: the last step is smaller
        threads=config.threads,
        device=job.device,
        fields=(task.inputs, task.targets),
        **given,
    )
