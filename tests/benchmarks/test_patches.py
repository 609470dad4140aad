"""The comparison of loaders of patches writes its layouts alike, and finds wrong patches."""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from benchmarks.patch_loaders import BATCH, LAYOUTS, NAME, PATCH, REPEATS, Patches, Place, check, rate
from benchmarks.patches import LIMIT, SHAPE, Runs, fields, names, write

ROWS = BATCH // REPEATS
"""As many as one batch has patches of."""

HERE = [(layout, name) for layout in LAYOUTS for name in ("shardio", "h5py DataLoader", "zarr DataLoader")]
"""Loaders that need no other library than this project's tests."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("patches") / "data"
    write(ROWS, made)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "name"), [one for one in HERE if one[1] in LAYOUTS[one[0]].loaders])
def test_patches_are_those_of_the_array(layout: str, name: str, folder: Path) -> None:
    """Each layout has the same values, and a run counts the samples and bytes that are delivered."""
    batches = LAYOUTS[layout].loaders[name](Place(folder, layout, workers=0))
    assert check(batches, Place(folder, layout)) == BATCH
    found = rate(batches, 0.01, warm_up=0)
    assert found["delivered"] == found["samples"] * PATCH * PATCH * 4 > 0
    assert found["samples"] % BATCH == 0


def test_wrong_patches_are_found(folder: Path) -> None:
    """A value of a batch that is not the array's ends the comparison."""
    place = Place(folder, "contiguous", workers=0)
    data = Patches(place, lambda path: h5py.File(path)[NAME])
    patches, places = (torch.stack(parts) for parts in zip(*(data[0] for _ in range(BATCH)), strict=True))
    assert check([(patches, places.numpy())], place) == BATCH
    patches[BATCH - 1, 0, 0] += 1
    with pytest.raises(ValueError, match="a patch of row 0 is not there"):
        check([(patches, places.numpy())], place)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_limit_decompresses_what_patches_touch(folder: Path, tmp_path: Path) -> None:
    """The C loop reads each layout's chunks: the whole row, or as many tiles as a patch meets."""
    runs = Runs(None, tmp_path, folder, 0.01)
    for layout, shape in LAYOUTS.items():
        if LIMIT not in names(shape):
            continue
        found = runs._limit(layout)()
        assert found["samples_per_second"] > 0
        assert found["sample_bytes"] == PATCH * PATCH * 4
        assert 1 < found["read"] < np.prod(SHAPE) / PATCH**2


def test_fields_compress_as_weather_does() -> None:
    """Fields are large waves with noise, and follow each other."""
    first, second = fields(2)
    assert first.dtype == np.float32
    assert first.shape == SHAPE
    assert 10 < first.std() < 30
    assert np.corrcoef(first.ravel(), second.ravel())[0, 1] > 0.99
