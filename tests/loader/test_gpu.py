"""On a GPU: batches arrive while the model works, keep their values, and equal the host's."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from _builders import jpeg

import shardio
from shardio import World

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ROWS = 192
IMAGES = [jpeg(40 + number % 7, 50 + number % 5) for number in range(ROWS)]
CROP = [shardio.RandomResizedCrop(32), shardio.RandomHorizontalFlip()]
BUSY = 20_000_000
"""Clock cycles that the consumer's stream works before it reads a batch: about 10 ms."""


def dataset() -> shardio.Dataset:
    random = np.random.default_rng(3)
    volumes = random.integers(-900, 900, (ROWS, 3, 12, 16, 16)).astype(np.int16)
    rows = [
        {"image": image, "volume": volumes[number], "tokens": np.arange(number % 9, dtype=np.uint16), "label": number}
        for number, image in enumerate(IMAGES)
    ]
    fields = {
        "image": shardio.Field("image"),
        "volume": shardio.Field("array", "int16", (3, 12, 16, 16)),
        "tokens": shardio.Field("array", "uint16", (None,)),
        "label": shardio.Field("scalar", "int64"),
    }
    return shardio.from_samples(rows, fields=fields, shard_samples=50)


def loader(device: str | None, **options: Any) -> shardio.Loader:
    transforms: dict[str, Any] = {
        "image": [*CROP, shardio.Normalize(0.5, 0.25, dtype="float16")],
        "volume": [
            shardio.RandomSpatialCrop(8),
            shardio.RandomAxisFlip(0.5, axes=(-3, -2, -1)),
            shardio.RandomRotate90(axes=(-2, -1)),
            shardio.Normalize((1, 2, 3), (120, 85, 40), dtype="bfloat16"),
        ],
        "tokens": [shardio.ToInt64(), shardio.PadTo()],
    }
    given: dict[str, Any] = {"transforms": transforms, "seed": 4, "threads": 3, "engine": "cpu", "world": World()}
    return shardio.Loader(dataset(), 8, device=device, **(given | options))


@pytest.mark.parametrize("own_stream", [False, True])
@pytest.mark.parametrize("held", [0, 1, 6])
def test_batches_keep_their_values_behind_a_busy_stream(held: int, own_stream: bool) -> None:
    """Work that is queued on the consumer's stream reads each batch's own values, also of batches that it keeps."""
    wanted = list(loader("cpu"))
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    kept: list[dict[str, Any]] = []
    copies: list[dict[str, Any]] = []
    with torch.cuda.stream(stream):
        for batch in loader("cuda"):
            kept.append(batch)
            torch.cuda._sleep(BUSY)
            if len(kept) > held:
                copies.append({name: value + 0 for name, value in kept.pop(0).items()})
        copies += [{name: value + 0 for name, value in batch.items()} for batch in kept]
        del kept, batch
    torch.cuda.synchronize()
    assert len(copies) == len(wanted) == ROWS // 8
    for ours, theirs in zip(copies, wanted, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            assert value.is_cuda
            assert value.dtype == theirs[name].dtype
            assert torch.equal(value.cpu(), theirs[name]), name


@pytest.mark.parametrize("engine", ["dali", "nvimgcodec"])
@pytest.mark.parametrize("own_stream", [False, True])
def test_engines_hand_out_finished_images(engine: str, own_stream: bool) -> None:
    """Images of an engine on the GPU are whole when the consumer's stream reads them, and stay as they are."""
    options: dict[str, Any] = {"transforms": {"image": CROP}, "fields": ["image", "label"]}
    wanted = list(loader("cpu", **options))
    with torch.cuda.stream(torch.cuda.Stream() if own_stream else torch.cuda.current_stream()):
        kept = []
        for batch in loader("cuda", **options, engine=engine):
            torch.cuda._sleep(BUSY)
            kept.append((batch, batch["image"] + 0))
        for (batch, copy), theirs in zip(kept, wanted, strict=True):
            assert batch["label"].tolist() == theirs["label"].tolist()
            assert torch.equal(batch["image"], copy)
            assert (copy.cpu().double() - theirs["image"].double()).abs().mean() < 2


def test_a_loop_that_is_left_and_resumed() -> None:
    """A state counts what was handed out, not what is on its way to the GPU."""
    whole = [batch["label"].tolist() for batch in loader("cpu")]
    first = loader("cuda")
    begun = [batch["label"].tolist() for batch in islice(first, 5)]
    second = loader("cuda")
    second.load_state_dict(first.state_dict())
    assert begun + [batch["label"].tolist() for batch in second] == whole


def test_a_mixed_batch_is_mixed_on_the_gpu() -> None:
    """MixUp and CutMix on the GPU draw as on the host, and differ in the last bits of sums at most."""
    options: dict[str, Any] = {
        "fields": ["image", "label"],
        "transforms": {"image": [*CROP, shardio.ToFloat()]},
        "mixing": [shardio.MixUp(num_classes=ROWS, alpha=0.4), shardio.CutMix(num_classes=ROWS)],
    }
    for ours, theirs in zip(loader("cuda", **options), loader("cpu", **options), strict=True):
        assert ours["image"].is_cuda
        torch.testing.assert_close(ours["image"].cpu(), theirs["image"], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(ours["label"].cpu(), theirs["label"], atol=1e-6, rtol=1e-6)
