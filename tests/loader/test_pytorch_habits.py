"""What users of PyTorch give by habit is taken, or refused with what to use instead, and that advice works."""

import inspect
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import _datasets
import pytest
import torch
from _builders import jpeg
from _datasets import packed
from _jobs import Around
from _time_limit import wait_until
from torch.utils import data

import shardio
from shardio import ConfigError
from shardio.system.did_you_mean import did_you_mean

INDICES = [5, 2, 11]


class Squares(data.Dataset[tuple[torch.Tensor, int]]):
    """A map-style Dataset of tensors with labels."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < 12:
            raise IndexError(index)
        return torch.full((2, 2), index), index * index


class Stream(data.IterableDataset[dict[str, int]]):
    """A Dataset whose samples come one by one."""

    def __iter__(self) -> Iterator[dict[str, int]]:
        return iter({"n": n} for n in range(12))


photos = partial(_datasets.photos, 12, classes=12)
load = partial(_datasets.load, batch_size=3, threads=1, shuffle=None)


def column(dataset: Any, name: str) -> list[Any]:
    """A field of all samples, as a loader delivers them."""
    return [value for batch in load(dataset) for value in batch[name].tolist()]


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (lambda: data.Subset(Squares(), INDICES), r"shardio\.convert\(samples, OUT, converter='torch'\)"),
        (Squares, r"got Squares: shardio\.convert\(samples, OUT, converter='torch'\)"),
        (Stream, r"shardio\.create\(OUT\)"),
        (lambda: iter([{"n": 1}]), r"shardio\.from_samples\(samples\)"),
        (lambda: [photos(), photos()], r"got list: shardio\.mix\({'a': \.\.\., 'b': \.\.\.}\)"),
        (lambda: ["a.tar", "b*.tar"], r"`shardio index a.tar 'b\*.tar' -o OUT` makes one dataset of tar files"),
        (lambda: [__file__], rf"`shardio index {__file__} -o OUT` makes"),
        (lambda: ["part-*.parquet"], "`shardio convert parquet SRC OUT` makes one dataset of Parquet files"),
        (lambda: {"one": photos()}, r"shardio\.mix"),
        (lambda: data.DataLoader(Squares()), "takes the place of a DataLoader"),
        (lambda: None, "got None$"),
    ],
)
def test_what_is_no_dataset(given: Callable[[], Any], advice: str) -> None:
    """Datasets in other forms are refused with what to use, by Loader and by TorchDataset."""
    for refuses in (load, shardio.TorchDataset):
        with pytest.raises(ConfigError, match=rf"dataset must be a path, a dataset or a view, .*{advice}"):
            refuses(given())


def test_the_advice_on_datasets(tmp_path: Path) -> None:
    """What the errors name makes datasets of the same samples."""
    shardio.convert(Squares(), tmp_path / "squares", converter="torch", workers=1)
    assert column(tmp_path / "squares", "label") == [n * n for n in range(12)]
    shardio.convert(data.Subset(Squares(), INDICES), tmp_path / "part", converter="torch", workers=1)
    assert column(tmp_path / "part", "label") == [25, 4, 121]
    assert column(shardio.from_samples(Stream()), "n") == list(range(12))
    packed(tmp_path / "stream", Stream())
    assert column(tmp_path / "stream", "n") == list(range(12))
    mixed = shardio.mix({"a": tmp_path / "squares", "b": tmp_path / "part"})
    assert column(mixed, "label") == [n * n for n in range(12)] + [25, 4, 121]


def negative(image: torch.Tensor) -> torch.Tensor:
    return 255 - image


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ToTensor", r"shardio\.ToFloat takes its place"),
        ("Compose", "a Loader's transforms= takes a list"),
        ("RandomSolarize", "it is torchvision's.* map=f, map_by='sample'"),
        ("Nonsense", "$"),
    ],
)
def test_a_transform_that_shardio_has_not_is_told(name: str, hint: str) -> None:
    """The AttributeError says what to use in place of a transform of torchvision."""
    with pytest.raises(AttributeError, match=f"module 'shardio' has no attribute '{name}'(: .*)?{hint}"):
        getattr(shardio, name)


def test_the_names_of_transforms_are_told_apart() -> None:
    """No name counts as one that shardio lacks if shardio has it."""
    assert not [name for name in shardio.__all__ if did_you_mean(name, "transform")]


def of_torchvision(name: str) -> Any:
    """An object with the name of one of torchvision's transforms."""
    return type(name, (), {"__module__": "torchvision.transforms.v2._x", "__call__": lambda self, image: image})()


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ([shardio.CenterCrop(8), negative], r"transform 1 must be one of shardio's, got <function negative.*map="),
        (negative, "transforms must be a list, or a dict of lists by field, got <function negative.* map="),
        ({"image": [torch.nn.Identity()]}, r"got Identity\(\): give a function of your own to a Loader's map="),
        ([of_torchvision("ToTensor")], r"shardio\.ToFloat takes its place"),
        ([of_torchvision("Lambda")], "give a function of your own to a Loader's map="),
        (of_torchvision("Compose"), "give what it holds one by one, as a list of shardio's; a function of your own"),
        (torch.nn.Sequential(), "give what it holds one by one, as a list of shardio's"),
        ([of_torchvision("RandomSolarize")], r"it is torchvision's.* map=f, map_by='sample', isolate"),
        ([shardio.ToFloat], r"a class: give an instance of it, as in ToFloat\(\.\.\.\)"),
        ({"image": shardio.CenterCrop(8)}, "transforms for 'image' must be a list, got CenterCrop.*put it into a list"),
        ([3], "transform 0 must be one of shardio's, got 3$"),
        ([shardio.MixUp(12)], "MixUp goes to mixing="),
    ],
)
def test_what_is_no_transform(transforms: Any, message: str) -> None:
    """Functions, and transforms of torchvision, are refused with what to use."""
    with pytest.raises(ConfigError, match=message):
        load(photos(), transforms=transforms)


@pytest.mark.parametrize(
    ("keyword", "value", "instead"),
    [
        ("sampler", None, r"shardio\.TorchDataset"),
        ("resampled", True, "every sample comes once"),
        ("handler", None, "on_bad_sample="),
        ("cache_dir", "/tmp", "cache= takes its place"),
        ("where", "label == 1", r"shardio\.open\(path\)\.where"),
        ("world_size", 2, r"world=shardio\.World"),
        ("transfroms", [], r"did you mean transforms\?"),
    ],
)
def test_keywords_of_others(keyword: str, value: Any, instead: str) -> None:
    """Keywords of DataLoader and webdataset, and misspelled ones, are refused with the Loader's own."""
    with pytest.raises(ConfigError, match=rf"a Loader has no {keyword}: .*{instead}"):
        load(photos(), **{keyword: value})
    with pytest.raises(TypeError, match="unexpected keyword argument 'xyz'"):
        load(photos(), xyz=2)


def test_every_keyword_of_a_dataloader_is_known() -> None:
    """Each of DataLoader's keywords is one of a Loader, or refused in words; `help` shows the Loader's own."""
    own = inspect.signature(shardio.Loader).parameters
    assert {"dataset", "batch_size", "tail", "timeout"} < own.keys()
    for keyword in inspect.signature(data.DataLoader).parameters.keys() - own.keys():
        with pytest.raises(ConfigError, match=f"a Loader has no {keyword}: "):
            load(photos(), **{keyword: None})


def test_the_advice_on_transforms_of_torchvision() -> None:
    """The function that the error shows gives a transform its [C, H, W], and delivers what it returns."""

    def flip(image: torch.Tensor) -> torch.Tensor:
        assert image.shape == (3, 6, 8)
        return image.flip(-1)

    def flipped(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "image": flip(sample["image"].permute(2, 0, 1))}

    dataset, crop = photos(), [shardio.CenterCrop((6, 8))]
    mapped = load(dataset, transforms=crop, map=flipped, map_by="sample")
    for plain, given in zip(load(dataset, transforms=crop), mapped, strict=True):
        assert torch.equal(given["image"], plain["image"].permute(0, 3, 1, 2).flip(-1))
        assert torch.equal(given["label"], plain["label"])


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_loader_needs_no_dataloader(workers: int) -> None:
    """A DataLoader around a Loader is refused with what to use instead."""
    for options in ({}, {"batch_size": None}, {"shuffle": True}):
        with pytest.raises(TypeError, match=r"loop over it.* there is shardio\.TorchDataset"):
            next(iter(data.DataLoader(load(photos()), num_workers=workers, **options)))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_loader_in_a_worker_of_a_dataloader_is_refused() -> None:
    """There every worker would deliver all samples; without workers a DataLoader passes the batches on."""
    around = Around(load(photos(), shuffle="global"))
    with pytest.raises(ConfigError, match=r"every worker would deliver all samples.*TorchDataset"):
        next(iter(data.DataLoader(around, batch_size=None, num_workers=2, multiprocessing_context="fork")))
    epochs = [[n for batch in data.DataLoader(around, None) for n in batch["index"].tolist()] for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(12))


def test_accelerate_leaves_resuming_to_the_loader(tmp_path: Path) -> None:
    """`prepare` takes a Loader as it is, skipping batches is refused with the way that works, and that way works."""
    accelerate = pytest.importorskip("accelerate")
    accelerator, loader = accelerate.Accelerator(cpu=True), load(photos(), batch_size=2, shuffle="global")
    assert accelerator.prepare(loader) is loader
    for wraps in (lambda: accelerate.skip_first_batches(loader, 2), lambda: accelerator.prepare_data_loader(loader)):
        with pytest.raises(AttributeError, match=r"resumes with load_state_dict\(state\)"):
            wraps()
    assert not hasattr(loader, "sampler")
    accelerator.register_for_checkpointing(loader)
    batches = iter(loader)
    next(batches), next(batches)
    accelerator.save_state(str(tmp_path))
    rest = [batch["index"].tolist() for batch in batches]
    assert len(rest) == 4
    accelerator.load_state(str(tmp_path))
    assert [batch["index"].tolist() for batch in loader] == rest


def test_accelerate_counts_each_sample_once_by_valid() -> None:
    """Of 405 samples in batches of 20, `gather_for_metrics` counts 420; `valid`, gathered with the rest, says which."""
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True)
    numbers = shardio.from_samples([{"label": n} for n in range(405)])
    padded, counted = 0, []
    for batch in load(numbers, batch_size=20, tail="pad", device=accelerator.device):
        padded += len(accelerator.gather_for_metrics(batch["label"]))
        label, valid = accelerator.gather((batch["label"], batch["valid"]))
        counted += label[valid].tolist()
    assert padded == 420
    assert counted == list(range(405))


@pytest.mark.parametrize("by", ["sample", "batch"])
def test_map_may_write_in_place_and_decides_what_is_delivered(by: str) -> None:
    """What a function writes into an image is delivered, in every epoch once; a field that it leaves out is not."""

    def darker(given: dict[str, Any]) -> dict[str, Any]:
        given["image"] //= 2
        return {"image": given["image"]}

    crop = [shardio.CenterCrop(8)]
    loader = load(photos(), transforms=crop, map=darker, map_by=by)
    for _ in range(3):
        for plain, mapped in zip(load(photos(), transforms=crop), loader, strict=True):
            assert torch.equal(mapped["image"], plain["image"] // 2)
            assert set(mapped) == {"image", "index"}


def test_small_batches_are_made_together() -> None:
    """Batches of few images are made up to 16 at a time, those of 128 one by one, whatever `prefetch` is.

    An epoch begins with one batch, and then twice as many at a time, so that the first one comes soon.
    """
    dataset = shardio.from_samples([{"image": jpeg(8, 8)} for _ in range(1600)])
    calls: list[int] = []

    def count(batch: dict[str, Any]) -> dict[str, Any]:
        calls.append(len(batch["index"]))
        return batch

    for batch_size, together in ((2, 16), (16, 4), (128, 1)):
        calls.clear()
        jobs = [min(2**number, together) for number in range(9)]
        batches = iter(load(dataset, batch_size=batch_size, prefetch=1, map=count, device="cpu"))
        for taken in range(1, together + 1):
            next(batches)
            # Two jobs are open at a time, and one more begins for each whose batches the consumer has come to.
            come_to = next(number for number in range(1, 9) if sum(jobs[:number]) >= taken)
            made = sum(jobs[: come_to + 2])
            wait_until(lambda made=made: len(calls) >= made, f"{made} batches were not made")
            time.sleep(0.01)
            assert len(calls) == made
