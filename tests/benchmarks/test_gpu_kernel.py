"""The kernel that `benchmarks/gpu.py` tries, compiled as C: its pixels are those of shardio's own operations."""

import shutil
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from _builders import jpeg

import shardio
from shardio.engines.base import BatchEngine
from shardio.loader.device import prefetcher
from shardio.transforms.steps import Scale

pytest.importorskip("nvidia.nvimgcodec")
from benchmarks import _gpu_kernel

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LEVEL = 1 / 255 / min(STD)
CROP = [shardio.RandomResizedCrop((24, 40)), shardio.RandomHorizontalFlip()]
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


def batches(engine: Any, files: list[bytes], transforms: Any = CROP, **options: Any) -> list[Any]:
    """The batches of a Loader whose engine for whole batches is `engine`."""
    options = {"dtype": "float32", "channels_last": False} | options
    normalize = shardio.Normalize(MEAN, STD, dtype=options.pop("dtype"))
    data = shardio.from_samples([{"image": file} for file in files], fields={"image": "image"})
    made = {"transforms": [*transforms, normalize], "engine": "nvimgcodec", "seed": 3, "threads": 2, **options}
    with mock.patch.object(prefetcher, "make_engine", engine):
        return list(shardio.Loader(data, 8, world=shardio.World(), **made))


def two_decoders(_name: str, recipe: Any, **options: Any) -> BatchEngine:
    return _gpu_kernel.TwoDecoders(recipe, **options)


@needs_gcc
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "transforms",
    [
        CROP,
        [shardio.Resize(30), shardio.CenterCrop((24, 28))],  # a window of what was resized
        [shardio.RandomResizedCrop(90)],  # larger than the images
    ],
)
def test_pixels_are_those_of_the_engine(transforms: Any, dtype: str, channels_last: bool) -> None:
    """Crops, resizes, flips and normalization give the engine's values to within a level, in its memory format."""
    files = [jpeg(40 + 9 * number, 90 - 7 * number, seed=number) for number in range(8)] * 3
    how: dict[str, Any] = {"transforms": transforms, "dtype": dtype, "channels_last": channels_last}
    for own, other in zip(
        batches(prefetcher.make_engine, files, **how), batches(two_decoders, files, **how), strict=True
    ):
        assert own["index"].tolist() == other["index"].tolist()
        ours, theirs = own["image"], other["image"]
        assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        differences = (ours.float() - theirs.float()).abs()
        assert differences.max() <= 1.01 * LEVEL
        assert (differences > 0).float().mean() < 0.001


@needs_gcc
def test_an_image_that_does_not_decode_is_reported() -> None:
    """Its neighbours stay right, and so does the next batch, for which there are no whole images to decode into."""
    made: list[_gpu_kernel.TwoDecoders] = []

    def kept(_name: str, recipe: Any, **options: Any) -> BatchEngine:
        made.append(_gpu_kernel.TwoDecoders(recipe, decoders=1, **options))
        return made[0]

    files = [jpeg(60, 80, seed=number) for number in range(8)]
    batches(kept, files)
    sizes = np.full((8, 2), (60, 80), np.int32)
    steps = [Scale(np.full((8, 2), (24, 40), np.int32), "bilinear", antialias=True)]
    for given in (files, [*files[:3], files[3][:-200], *files[4:]], files):
        made[0].begin(given, sizes, steps)
    (first, none), (second, failed), (third, _) = (made[0].end() for _ in range(3))
    assert (list(none), list(failed)) == ([], [3])
    good = [row for row in range(8) if row != 3]
    assert torch.equal(first[good], second[good])
    assert torch.equal(first, third)
    assert torch.allclose(second[3], -torch.tensor(MEAN)[:, None, None] / torch.tensor(STD)[:, None, None])


@pytest.mark.parametrize("dtype", list(_gpu_kernel.FORMATS))
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_the_source_is_cuda(dtype: str, tmp_path: Path) -> None:
    """NVIDIA's compiler takes it, for a Hopper GPU."""
    (tmp_path / "kernel.cu").write_text(_gpu_kernel.source_of(dtype))
    subprocess.run(["nvcc", "-cubin", "-arch=sm_90", "-o", tmp_path / "k", tmp_path / "kernel.cu"], check=True)
    assert (tmp_path / "k").stat().st_size > 1000
