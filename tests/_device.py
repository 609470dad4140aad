"""A device whose tensors a test can read: the host's memory, to which batches are copied as they are to a GPU."""

import pytest
import torch

from shardio.loader.device.copier import DeviceCopier


class NearCopier(DeviceCopier):
    """Copies to the host, one batch ahead."""

    is_elsewhere = True

    def __init__(self, *_: object) -> None:
        super().__init__(torch.device("cpu"))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of that device."""
    monkeypatch.setattr("shardio.loader.device.prefetcher.copier_to", NearCopier)
    return "meta"
