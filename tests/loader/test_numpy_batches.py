"""`to="numpy"`: the values of the tensors as NumPy arrays, in their memory, whatever a batch holds."""

import sys
from functools import partial
from typing import Any

import _datasets
import numpy as np
import pytest
import torch
from _builders import jpeg
from _datasets import packed
from _masks import grey_png
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio import ConfigError, Field, MissingDependency

ml_dtypes = pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.filterwarnings("ignore:field '.*' holds rows of torch.uint16")

load = partial(_datasets.load, device=None)  # arrays are on the host, wherever other tests' batches are
N = 20
FIELDS: dict[str, Any] = {
    "image": "image",
    "mask": Field("image", role="mask"),
    "frames": "images",
    "thumb": Field("pixels", shape=(4, 6), channels=3),
    "grid": ("float32", (3, 8)),
    "field": ("float32", (4, 6)),
    "points": Field("array", dtype="float64"),
    "track": ("float32", (None, 3)),
    "tokens": ("uint16", (None,)),
    "label": "int64",
    "good": "bool",
    "caption": "text",
    "blob": "bytes",
    "note": "json",
    "score": Field("scalar", dtype="float32", optional=True),
    "box": Field("array", dtype="float32", shape=(2, 3), optional=True),
}


def sample(number: int) -> dict[str, Any]:
    chance = np.random.default_rng(number)
    field = chance.random((4, 6), np.float32)
    field[number % 4] = np.nan
    return {
        "image": jpeg(20 + number % 3, 30, seed=number),
        "mask": grey_png(chance.integers(0, 9, (20 + number % 3, 30), np.uint8)),
        "frames": [jpeg(8, 8, seed=each) for each in range(number % 3)],
        "thumb": chance.integers(0, 256, (4, 6, 3), np.uint8),
        "grid": chance.random((3, 8), np.float32),
        "field": field,
        "points": chance.random((number % 4, 2)),
        "track": chance.random((number % 5, 3), np.float32),
        "tokens": chance.integers(0, 2**16, number % 6, np.uint16),
        "label": number,
        "good": number % 2 == 0,
        "caption": f"ü{number}",
        "blob": bytes([number]) * (number % 3),
        "note": {"n": number, "tags": ["a", None]},
        "score": None if number % 3 == 0 else number / 2,
        "box": None if number % 4 == 0 else np.full((2, 3), number, np.float32),
    }


DATA = packed(None, map(sample, range(N)), FIELDS)
CROP = [shardio.RandomResizedCrop(8), shardio.RandomHorizontalFlip()]
TRANSFORMS: dict[str, list[list[Any]]] = {
    "image": [[], CROP, [*CROP, shardio.Normalize(0.5, 0.25)], [*CROP, shardio.Normalize(0.5, 0.25, dtype="bfloat16")]],
    "mask": [[], CROP],
    "frames": [
        [],
        [shardio.CenterCrop(4), shardio.ToFloat(), shardio.PadTo()],
        [shardio.CenterCrop(4), shardio.Ragged()],
    ],
    "thumb": [[], [shardio.Normalize(0.5, 0.25, dtype="float16")]],
    "grid": [
        [],
        [shardio.RandomSpatialCrop((2, 3), offset=True)],
        [shardio.ToFloat(dtype="bfloat16")],
        [shardio.RandomRow()],
    ],
    "field": [[], [shardio.FillMissing(0.0, mask=True)]],
    "track": [[], [shardio.PadTo(value=-1)], [shardio.Ragged()], [shardio.RandomWindow(2), shardio.PadTo(4)]],
    "tokens": [[], [shardio.ToInt64(), shardio.PadTo(multiple_of=4)]],
}
"""The transforms to choose from for each field."""


def equal(tensors: Any, arrays: Any) -> bool:
    """Whether a batch of arrays has the values and dtypes of one of tensors, and holds no tensor."""
    if isinstance(tensors, torch.Tensor):
        as_bits = tensors.dtype == torch.bfloat16
        expected = tensors.view(torch.uint16).numpy().view(ml_dtypes.bfloat16) if as_bits else tensors.numpy()
        same = type(arrays) is np.ndarray and (arrays.dtype, arrays.shape) == (expected.dtype, expected.shape)
        return same and arrays.tobytes() == expected.tobytes()
    if type(tensors) is not type(arrays):
        return False
    if isinstance(tensors, dict):
        return [*tensors] == [*arrays] and all(equal(tensors[name], arrays[name]) for name in tensors)
    if isinstance(tensors, list):
        return len(tensors) == len(arrays) and all(map(equal, tensors, arrays))
    return bool(tensors == arrays)


def both(data: Any = DATA, **options: Any) -> list[list[dict[str, Any]]]:
    """The batches of an epoch as tensors, and as arrays; each list keeps all of them."""
    options = {"batch_size": 6, "seed": 3} | options
    return [list(load(data, to=to, **options)) for to in ("torch", "numpy")]


@given(
    chosen=st.fixed_dictionaries({name: st.sampled_from(lists) for name, lists in TRANSFORMS.items()}),
    tail=st.sampled_from(["drop", "pad"]),
    channels_last=st.booleans(),
    threads=st.integers(1, 3),
    on_bad_sample=st.sampled_from(["raise", "mask"]),
)
@settings(max_examples=25)
def test_arrays_have_the_values_of_tensors(chosen: dict[str, Any], **options: Any) -> None:
    """Fields of every kind, with any transforms, and the columns that they bring; all batches of an epoch are kept."""
    tensors, arrays = both(
        transforms={name: transforms for name, transforms in chosen.items() if transforms}, **options
    )
    assert equal(tensors, arrays)
    assert len(arrays) == (N // 6 if options["tail"] == "drop" else -(-N // 6))


def halved(batch: dict[str, Any]) -> dict[str, Any]:
    """A map of batches or samples that computes with whichever it gets, and brings arrays that no torch has."""
    half = np.asarray(batch["grid"])[..., ::-1] / 2
    return batch | {"half": half, "words": np.array(["a", "b"]), "was": type(batch["grid"]).__name__}


@pytest.mark.parametrize("by", ["batch", "sample"])
@pytest.mark.parametrize("isolate", [False, True])
def test_a_map_gets_and_returns_arrays(by: Any, isolate: bool) -> None:
    """`map` gets arrays, and what it returns is delivered as arrays; in processes, too."""
    fields = ["grid", "track", "caption"]
    transforms = {"grid": [shardio.ToFloat(dtype="bfloat16")], "track": [shardio.PadTo()]}
    plain, _ = both(fields=fields, transforms=transforms)
    options = {"map": halved, "map_by": by, "isolate": isolate, "threads": 1, "to": "numpy", "seed": 3}
    arrays = load(DATA, 6, fields=fields, transforms=transforms, **options)
    for expected, batch in zip(plain, arrays, strict=True):
        assert equal(expected, {name: value for name, value in batch.items() if name in expected})
        assert batch["half"].tolist() == (batch["grid"][..., ::-1] / 2).tolist()
        assert type(batch["half"]) is np.ndarray
        assert batch["was"] in ("ndarray", ["ndarray"] * 6)
        assert np.asarray(batch["words"]).tolist() in (["a", "b"], [["a", "b"]] * 6)


def test_mixing_mixtures_and_rows_of_documents() -> None:
    """Views and MixUp add sources, boundaries of documents, and labels as shares, which are NumPy arrays too."""
    mixer = shardio.MixUp(num_classes=N)
    crops = {"image": [shardio.CenterCrop(8), shardio.ToFloat()]}
    documents = DATA.packed("tokens", 16)
    for data, options in (
        (shardio.mix({"a": DATA, "b": DATA}, {"a": 2, "b": 1}), {"fields": ["label"]}),
        (DATA, {"fields": ["image", "label"], "transforms": crops, "mixing": mixer}),
        (documents, {"batch_size": 1}),
    ):
        tensors, arrays = both(data, **options)
        assert equal(tensors, arrays)
        assert arrays


def test_memory_is_the_batchs_and_is_lent() -> None:
    """An array is a view of the batch's memory, which serves another batch once the array is gone, and not before."""
    loader = load(DATA, 2, to="numpy", fields=["grid"], threads=1, prefetch=1)
    loader.set_epoch(0)
    kept, places = [], set()
    for batch in loader:
        assert not batch["grid"].flags.owndata
        kept.append((batch["grid"][1:], batch["grid"][1:].copy()))
    assert all(np.array_equal(view, copy) for view, copy in kept)
    del kept, batch
    for _ in range(10):
        for batch in loader:
            places.add(batch["grid"].ctypes.data)
            del batch
    # Of 100 batches: four sets of ten are kept, and one more was ahead while the first loop held all of its own.
    assert len(places) <= 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda"}, "to='numpy' delivers arrays in host memory: leave out device, which is 'cuda'"),
        ({"to": "jax"}, "to must be 'torch' or 'numpy', got 'jax'"),
        ({"transforms": {"track": [shardio.Ragged(nested=True)]}}, r"'track': Ragged\(nested=True\) .*take Ragged\(\)"),
    ],
)
def test_what_numpy_cannot_hold_is_refused(options: dict[str, Any], message: str) -> None:
    """A device, a word that is none, and nested tensors are refused when the loader is made."""
    with pytest.raises(ConfigError, match=message):
        load(DATA, **{"to": "numpy"} | options)


def test_bfloat16_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ml_dtypes, bfloat16 is refused with what to install, and all else works."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(MissingDependency, match="arrays of bfloat16 need ml_dtypes: pip install ml_dtypes"):
        load(DATA, to="numpy", transforms={"grid": [shardio.ToFloat(dtype="bfloat16")]})
    assert len(list(load(DATA, 5, to="numpy"))) == 4
