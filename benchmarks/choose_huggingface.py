"""Choosing with Hugging Face datasets, map style, split over nodes, and read by torchdata's StatefulDataLoader."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import bench_huggingface
from benchmarks._choosing import (
    ADDED,
    APPENDED,
    BESIDE,
    CHOSEN,
    CLASS_SIZES,
    MIXED,
    PER_CLASS,
    REST,
    SAMPLES,
    SHARES,
    SOURCES,
    TRAIN,
    Feed,
    LoaderFeed,
    Place,
    is_wanted,
    row,
)

REQUIREMENTS = (*bench_huggingface.REQUIREMENTS, "torchdata==0.11.0")
VERSIONS = ("datasets", "torchdata", "torch")
IMPORTS = ("datasets", "torchdata.stateful_dataloader")
ENVIRONMENT = bench_huggingface.ENVIRONMENT
HOW = {
    "all": "shuffle",
    "where": "filter",
    "select": "select",
    "repeat": "shuffle, repeat(3), select",
    "balanced": "interleave_datasets of a filter per class, all_exhausted, then select",
    "mix": "interleave_datasets with probabilities",
    "grow": "concatenate_datasets",
    "column": "add_column",
    "relabel": "select_columns, add_column",
    "features": "map(num_proc=...) with as many processes as ranks",
    "three": "shuffle",
    "five": "shuffle",
    "split": "train_test_split(stratify_by_column=...)",
}


def prepare(folder: Path) -> None:
    """Write a dataset per source."""
    for name, numbers in zip("abc", SOURCES, strict=True):
        _write(folder / name, numbers)


def grow(folder: Path) -> None:
    """Write the new samples next to the others."""
    _write(folder / "new", APPENDED)


def _write(path: Path, numbers: range) -> None:
    import datasets

    features = datasets.Features(
        {
            "id": datasets.Value("int64"),
            "label": datasets.ClassLabel(num_classes=len(CLASS_SIZES)),
            "score": datasets.Value("float64"),
            "patient": datasets.Value("int64"),
        }
    )
    datasets.Dataset.from_list([row(number) for number in numbers], features=features).save_to_disk(str(path))


def derive(place: Place, name: str, compute: Callable[[int], int]) -> None:
    """Map the dataset with as many processes as ranks, and save it."""
    import datasets

    if not place.rank:
        data = datasets.load_from_disk(str(place.folder / "a"))
        processes = place.world if place.world > 1 else None
        data.map(partial(_with_feature, compute), num_proc=processes).save_to_disk(str(place.folder / name))


def _with_feature(compute: Callable[[int], int], sample: dict[str, Any]) -> dict[str, int]:
    return {"feature": compute(sample["id"])}


def derived(folder: Path, name: str) -> list[tuple[int, int]]:
    """Read what was saved."""
    import datasets

    return [(row["id"], row["feature"]) for row in datasets.load_from_disk(str(folder / name))]


def feed(task: str, place: Place) -> Feed:
    """A loader for a task."""
    from datasets.distributed import split_dataset_by_node
    from torchdata.stateful_dataloader import StatefulDataLoader

    data = split_dataset_by_node(_dataset(task, place.folder), rank=place.rank, world_size=place.world)
    return LoaderFeed(StatefulDataLoader(data, batch_size=place.batch_size, num_workers=0), task)


def _dataset(task: str, folder: Path) -> Any:
    """Samples in the order of the epoch."""
    import datasets

    data = datasets.load_from_disk(str(folder / "a"))
    if task in ("all", "three", "five"):
        return data.shuffle(seed=0)
    if task == "where":
        return data.filter(is_wanted, keep_in_memory=True).shuffle(seed=0)
    if task == "select":
        return data.select(CHOSEN).shuffle(seed=0)
    if task == "repeat":
        return data.shuffle(seed=0).repeat(3).select(range(SAMPLES * 5 // 2))
    if task == "balanced":
        parts = [
            data.filter(_is_of, fn_kwargs={"number": number}, keep_in_memory=True).shuffle(seed=0)
            for number in range(len(CLASS_SIZES))
        ]
        every = datasets.interleave_datasets(parts, stopping_strategy="all_exhausted")
        return every.select(range(PER_CLASS * len(CLASS_SIZES)))
    if task == "mix":
        parts = [datasets.load_from_disk(str(folder / name)).shuffle(seed=0) for name in "abc"]
        probabilities = [share / sum(SHARES) for share in SHARES]
        every = datasets.interleave_datasets(parts, probabilities, seed=0, stopping_strategy="all_exhausted")
        return every.select(range(MIXED))
    if task in BESIDE:
        others = [name for name in data.column_names if name != BESIDE[task]]
        return data.select_columns(others).add_column(BESIDE[task], ADDED).shuffle(seed=0)
    if task == "grow":
        if (folder / "new").is_dir():
            data = datasets.concatenate_datasets([data, datasets.load_from_disk(str(folder / "new"))])
        return data.shuffle(seed=0)
    parts = data.train_test_split(train_size=TRAIN, stratify_by_column="label", seed=0)
    return parts["test" if task.endswith(REST) else "train"]


def _is_of(sample: dict[str, Any], number: int) -> bool:
    return bool(sample["label"] == number)
