"""The two loaders of a run, and what it learns from them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..dataset.dataset import open as open_dataset
from ..dataset.store_access import StoreAccess
from ..loader.loader import Loader
from .config import TrainConfig
from .distributed import Job
from .image_classification import ImageClassification, check_images
from .task import Task
from .volume_regression import VolumeRegression

BAD_SAMPLES_FILE = "bad.jsonl"


@dataclass(frozen=True, slots=True)
class Data:
    """The data of a run.

    Attributes:
        train: loader of the training set.
        val: loader of the validation set, which marks each sample as valid once; None without one.
        task: what is learned.
    """

    train: Loader
    val: Loader | None
    task: Task


def open_data(config: TrainConfig, job: Job) -> Data:
    """Open the datasets and create their loaders. All ranks must call it.

    Raises ConfigError if a dataset lacks a field or the two disagree, and what `shardio.open` raises.
    """
    access = StoreAccess(config.cache, config.cache_size, config.store_options)
    access.check_needed(config.train, config.val)
    train = open_dataset(config.train, **access.keywords_for(config.train))
    val = None if config.val is None else open_dataset(config.val, **access.keywords_for(config.val))
    task: Task
    if config.task == "classification":
        train, val = check_images(config, train, val)
        task = ImageClassification.of(config, train, val, job)
    else:
        task = VolumeRegression.of(config, train, val, job)
    train_transforms, val_transforms = task.transforms()
    quarantine_file = None if config.on_bad_sample == "raise" else Path(config.output, BAD_SAMPLES_FILE)
    if quarantine_file is not None:
        quarantine_file.parent.mkdir(parents=True, exist_ok=True)
    common: dict[str, Any] = {
        "world": job.world,
        "tail": "pad",  # every sample counts once: the last step is smaller
        "threads": config.threads,
        "max_bad": config.max_bad,
        "quarantine_file": quarantine_file,
        "device": job.device,
        "fields": (task.inputs, task.targets),
    }
    loader = Loader(
        train,
        config.batch_size,
        transforms={task.inputs: train_transforms},
        seed=config.seed,
        on_bad_sample=config.on_bad_sample,
        **common,
    )
    val_loader = None
    if val is not None:
        val_loader = Loader(
            val,
            config.batch_size,
            transforms={task.inputs: val_transforms},
            shuffle=None,
            on_bad_sample="raise" if quarantine_file is None else "mask",  # only readable samples are validated
            **common,
        )
    return Data(loader, val_loader, task)
