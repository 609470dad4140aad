"""Settings for all tests."""

import gc
import os
import re
import signal
import sys

import _forked
import pytest
from hypothesis import settings

settings.register_profile("shardio", deadline=None)  # the duration of an example depends on the machine
settings.load_profile("shardio")

pytest_plugins = ["_datasets", "_stores", "_missing"]  # their fixtures and hooks


APART = ("long", "attack", "cluster", "alone")
"""Marks of the tests that run only with `--all`, or with a `-m` that names the mark."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help=f"also run what is marked {', '.join(APART)}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked APART, and begin with long tests, so that no process is left with one at the end."""
    apart = [] if config.option.all else set(APART).difference(re.findall(r"\w+", config.option.markexpr))
    config.hook.pytest_deselected(items=[item for item in items if any(map(item.get_closest_marker, apart))])
    items[:] = [item for item in items if not any(map(item.get_closest_marker, apart))]
    items.sort(key=lambda item: not any(map(item.get_closest_marker, APART)))


def pytest_collection_finish() -> None:
    """Keep the collector off modules and tests, which stay for good: a pass over them takes a third of a second."""
    gc.collect()
    gc.freeze()


if "PYTEST_XDIST_WORKER" in os.environ:
    # The workers share the cores: torch's threads would wait for each other. Set before torch is imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# netCDF4-python points it to filters of its own otherwise, with which h5py can't write Blosc, here and in children.
os.environ.setdefault("HDF5_PLUGIN_PATH", "")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as after `nohup ... &`: tests interrupt themselves and others
    signal.signal(signal.SIGINT, signal.default_int_handler)
if sys.platform == "linux":
    _forked.fork_what_is_spawned()
os.fsync = lambda file: None  # no test is about power that fails, and waiting for the disk takes a tenth of the time
if device := os.environ.get("SHARDIO_TEST_DEVICE"):
    import _on_device  # imports torch

    _on_device.deliver_to(device)
