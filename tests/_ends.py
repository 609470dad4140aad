"""Run a Python script; fail unless its process group is destroyed after its models and leaves no threads.

Threads that outlive the group may abort the process at exit; a model that outlives it may keep the process from ending.
"""

import gc
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed
from torch.nn.parallel import DistributedDataParallel


def watched(destroy: Callable[..., None]) -> Callable[..., None]:
    """Wrap `destroy_process_group` to check first that no model is left."""

    def checked(*args: Any, **options: Any) -> None:
        if any(type(value) is DistributedDataParallel for value in gc.get_objects()):
            raise AssertionError("a process group is destroyed before the model that uses it")
        destroy(*args, **options)

    return checked


def watch() -> None:
    """Check each call of `destroy_process_group`."""
    torch.distributed.destroy_process_group = watched(torch.distributed.destroy_process_group)


def fail_if_threads_stay() -> None:
    """Exit with a message if Gloo threads still run."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    if left := [name for name in names if "gloo" in name]:
        sys.exit(f"threads of the process group stay: {left}")


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    watch()
    runpy.run_path(sys.argv[0], run_name="__main__")
    fail_if_threads_stay()
