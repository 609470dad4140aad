"""Copies to a device: slow copies change nothing, and one batch is always copied ahead."""

import ctypes
import threading
import time
from collections import deque
from functools import partial
from typing import Any

import _datasets
import pytest
import torch
from _builders import jpeg, spoiled
from _datasets import tensors
from _device import device as device
from _jobs import samples

import shardio
from shardio.errors import BadSample
from shardio.loader.device.copier import DeviceCopier
from shardio.loader.device.prefetcher import MOST_HELD


class LateCopier(DeviceCopier):
    """A copier whose copies happen as late as possible: when the host waits for them, which a consumer that works on
    the device never does.
    """

    def __init__(self) -> None:
        super().__init__(torch.device("meta"))
        # Addresses: like a device's copy, they keep no memory alive.
        self.pending: deque[tuple[int, torch.Tensor]] = deque()
        self.begun = self.over = 0
        self.most = 0
        self.working = threading.Lock()

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        made = torch.full_like(tensor, 0)
        assert tensor.is_contiguous()
        self.pending.append((tensor.data_ptr(), made))
        self.begun += 1
        return made

    def mark(self) -> int:
        """The number of copies that have begun."""
        self.most = max(self.most, self.begun - self.over)
        return self.begun

    def _work(self, mark: int) -> None:
        with self.working:  # the consumer and the loader's threads may both ask for it
            while self.over < mark:
                source, target = self.pending.popleft()
                ctypes.memmove(target.data_ptr(), source, target.nbytes)
                self.over += 1

    def finish(self) -> None:
        self._work(self.begun)

    def done(self, mark: int, *, block: bool) -> bool:
        """Perform copies only if `block`."""
        if block:
            self._work(mark)
        return self.over >= mark


@pytest.fixture
def copier(monkeypatch: pytest.MonkeyPatch) -> LateCopier:
    late = LateCopier()
    monkeypatch.setattr("shardio.loader.device.prefetcher.copier_to", lambda device: late)
    return late


load = partial(_datasets.load, batch_size=6, seed=3)


@pytest.mark.parametrize("options", [{}, {"isolate": True, "threads": 1}, {"prefetch": 1}])
def test_memory_is_not_used_again_before_its_copy_is_over(copier: LateCopier, options: dict[str, Any]) -> None:
    """A batch is right however late it is copied."""
    data = tensors()
    for _ in range(3):
        kept = list(load(data, **options))
        copier.finish()
        assert len(kept) == 10
        for batch in kept:
            assert (batch["array"] == batch["label"][:, None]).all()
            assert batch["index"].tolist() == batch["label"].tolist()
        assert sorted(samples(kept)) == list(range(60))


def test_few_copies_are_under_way(copier: LateCopier) -> None:
    """The number of batches that hold pinned memory is limited."""
    tensors_of_a_batch = 3
    for _ in load(tensors(120)):
        pass
    assert 0 < copier.most <= tensors_of_a_batch * (MOST_HELD + 1)


def test_one_batch_is_ahead(copier: LateCopier) -> None:
    """When a batch is delivered and the next one is ready, the next one's copy has begun."""
    loader = load(tensors(60), threads=1)
    batches = iter(loader)
    for number in range(4):
        next(batches)
        assert copier.begun >= 3 * (number + 1)
    time.sleep(0.5)  # the next batch becomes ready
    before = copier.begun
    next(batches)
    assert copier.begun >= before + 3
    assert loader.state_dict()["position"] == 5 * 6  # the batch ahead does not count


def test_an_error_comes_in_its_turn(copier: LateCopier) -> None:
    """Batches before the failing one are delivered, although they are still being copied when it fails."""
    rows = [{"image": spoiled(jpeg(20, 24)) if n == 21 else jpeg(20, 24), "label": n} for n in range(40)]
    crop = [shardio.RandomResizedCrop(8)]
    loader = load(shardio.from_samples(rows), batch_size=5, transforms=crop, shuffle=None)
    seen: list[torch.Tensor] = []
    with pytest.raises(BadSample, match="sample 21"):
        seen.extend(batch["label"] for batch in loader)
    copier.finish()
    assert [labels.tolist() for labels in seen] == [list(range(n, n + 5)) for n in (0, 5, 10, 15)]
    assert loader.state_dict()["position"] == 20


def test_a_loop_that_is_left_leaves_nothing(copier: LateCopier) -> None:
    """After an abandoned loop, the next one begins with its own first batch."""
    loader, wanted = load(tensors()), load(tensors())
    next(iter(loader))
    for number, _ in enumerate(loader):
        if number == 1:
            break
    wanted.set_epoch(1)
    found = [list(batches) for batches in (loader, wanted)]
    copier.finish()
    assert [b["index"].tolist() for b in found[0]] == [b["index"].tolist() for b in found[1]]


@pytest.mark.parametrize(("dtype", "channels_last"), [("float32", False), ("float16", True), ("bfloat16", False)])
def test_floats_are_made_on_the_device(dtype: Any, channels_last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copier gets uint8, and the device makes floats of the requested dtype and layout. torch's `meta` device
    shows shape, dtype and layout.
    """
    rows = [{"image": jpeg(20 + n % 3, 24), "label": n} for n in range(8)]
    transforms = [
        shardio.RandomResizedCrop(8),
        shardio.Normalize(0.5, 0.5, dtype=dtype),
        shardio.RandomErasing(1.0, value=1.0),
    ]
    copied: list[tuple[Any, ...]] = []
    copy = DeviceCopier.copy
    monkeypatch.setattr(
        DeviceCopier, "copy", lambda self, tensor: copied.append((tensor.dtype, tensor.dim())) or copy(self, tensor)
    )
    options = {"device": "meta", "channels_last": channels_last, "engine": "cpu"}
    loader = load(shardio.from_samples(rows), batch_size=4, transforms=transforms, **options)
    for batch in loader:
        image = batch["image"]
        assert image.device.type == batch["label"].device.type == "meta"
        assert (image.shape, image.dtype) == ((4, 3, 8, 8), getattr(torch, dtype))
        layout = torch.channels_last if channels_last else torch.contiguous_format
        assert image.is_contiguous(memory_format=layout)
    assert [dtype for dtype, dims in copied if dims == 4] == [torch.uint8] * 2


NUMBERS = [
    shardio.RandomResizedCrop(8),
    shardio.Normalize((0.4, 0.5, 0.6), 0.25),
    shardio.RandomErasing(0.5, value=(1.0, 2.0, 3.0)),
]


@pytest.mark.parametrize("mixing", [None, shardio.MixUp(30), shardio.CutMix(30)], ids=["plain", "mixup", "cutmix"])
@pytest.mark.parametrize("bad", [(), (3, 11)], ids=["good", "masked"])
def test_the_device_makes_what_the_host_makes(device: str, bad: tuple[int, ...], mixing: Any) -> None:
    """The device normalizes, erases, mixes and masks with the host's results."""
    rows = [{"image": (spoiled if n in bad else bytes)(jpeg(20 + n % 3, 24, seed=n)), "label": n} for n in range(24)]
    data = shardio.from_samples(rows)
    options = {"transforms": NUMBERS, "on_bad_sample": "mask", "max_bad": 9, "engine": "cpu", "mixing": mixing}
    masked = 0
    for ours, theirs in zip(load(data, **options), load(data, device=device, **options), strict=True):
        assert ours["index"].tolist() == theirs["index"].tolist()
        assert torch.equal(ours["image"], theirs["image"])
        assert torch.equal(ours["label"], theirs["label"])
        blank = ~theirs["valid"]
        masked += int(blank.sum())
        assert not theirs["image"][blank].any()
        assert not theirs["label"][blank].any()
    assert masked == len(bad)


def test_a_label_that_is_no_class_is_a_bad_sample(device: str) -> None:
    """A label outside the classes is a bad sample, raised or masked on the host and for a device."""
    rows = [{"image": jpeg(20, 24, seed=n), "label": -1 if n == 13 else n % 5} for n in range(24)]
    data = shardio.from_samples(rows)
    options = {"transforms": NUMBERS, "mixing": shardio.MixUp(5), "engine": "cpu"}
    for where in (None, device):
        with pytest.raises(BadSample, match=r"sample 13.*field 'label': mixing needs labels from 0 to 4, got -1"):
            list(load(data, device=where, **options))
        loader = load(data, device=where, on_bad_sample="replace", max_bad=2, **options)
        assert len(list(loader)) == 4
        assert [one.location.index for one in loader.quarantine()] == [13]
