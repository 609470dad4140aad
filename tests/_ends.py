"""Runs a Python script, and fails unless its process group ends well: after the models that use it, with its threads.

Threads that outlive the group may abort the process at its exit; a model that does may keep it from ending for ever.
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
    """`destroy_process_group`, which first looks whether a model is left."""

    def checked(*args: Any, **options: Any) -> None:
        if any(type(one) is DistributedDataParallel for one in gc.get_objects()):
            raise AssertionError("a process group is destroyed before the model that uses it")
        destroy(*args, **options)

    return checked


def watch() -> None:
    """Has every end of a process group looked at."""
    torch.distributed.destroy_process_group = watched(torch.distributed.destroy_process_group)


def fail_if_threads_stay() -> None:
    """Ends this process with a message if Gloo's threads still run."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    if left := [name for name in names if "gloo" in name]:
        sys.exit(f"threads of the process group stay: {left}")


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    watch()
    runpy.run_path(sys.argv[0], run_name="__main__")
    fail_if_threads_stay()
