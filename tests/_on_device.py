"""Runs the tests of Loaders on a GPU: with `SHARDIO_TEST_DEVICE=cuda` every Loader that names no device delivers to it.

The batches are brought back to the host as they are handed out, so that tests compare them as always.
"""

import inspect
from dataclasses import replace

import torch
from torch import Tensor

import shardio
from shardio.loader.batch.host_batch import BatchResult
from shardio.loader.batch.nested import map_nested
from shardio.loader.device.prefetcher import DevicePrefetcher


def deliver_to(device: str) -> None:
    """Make Loaders deliver to this device, and with the CPU engine, unless they name others."""
    defaults = inspect.unwrap(shardio.Loader.__init__).__kwdefaults__
    defaults |= {"device": device, "engine": "cpu"}
    receive = DevicePrefetcher.receive

    def to_host(self: DevicePrefetcher) -> BatchResult:
        result = receive(self)
        if isinstance(result, Exception):
            return result
        return replace(result, batch=map_nested(result.batch, Tensor, _on_host))

    DevicePrefetcher.receive = to_host  # type: ignore[method-assign]  # of every Loader, however a test makes it


def _on_host(tensor: Tensor) -> Tensor:
    return tensor if tensor.device == torch.device("meta") else tensor.cpu()
