"""Requests to stop: signals of schedulers before they end a job, and Ctrl-C, on which all ranks have to agree."""

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, final

import torch
import torch.distributed as dist

from .distributed import Job

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
"""The signals that ask a run to save a checkpoint and end: Slurm's at preemption, that of `sbatch --signal`, Ctrl-C."""

SAME_INTERRUPT = 1.0
"""Seconds in which a second SIGINT is the same Ctrl-C: torchrun sends its ranks what the terminal has sent them."""
_INTERRUPTED = b"\nshardio: saving a checkpoint after this step; Ctrl-C again ends the run without one\n"


@final
class StopRequest:
    """Whether any rank has been asked to stop. In the `with` block the signals do nothing else, but for a second
    Ctrl-C, which raises KeyboardInterrupt.

    Only some ranks may get a signal, and not at the same step. So the ranks ask one another at each step, and read the
    answer at the next one, when it has long arrived: no step waits for it.

    Args:
        job: this process's place in the job.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._got = 0
        self._interrupted: float | None = None
        self._handlers: dict[signal.Signals, Any] = {}
        # Through host memory, so that a GPU is not waited for.
        self._group = dist.new_group(backend="gloo", timeout=job.timeout) if job.world.size > 1 else None
        self._answer = torch.zeros(1, dtype=torch.int32)
        self._work: dist.Work | None = None

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if error is None:
            self._finish()  # else another rank may be gone, and its answer never come
        self._group = self._work = None  # nothing may outlive the process group

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._got = number
        if number != signal.SIGINT:
            return
        if self._interrupted is None:
            self._interrupted = time.monotonic()
            if self._job.leads:
                os.write(2, _INTERRUPTED)  # a signal may come while another line is printed
        elif time.monotonic() - self._interrupted > SAME_INTERRUPT:
            raise KeyboardInterrupt

    def agreed(self) -> signal.Signals | None:
        """Return the signal that some rank had got by the last call. All ranks must call it, and get the same."""
        if self._group is None:
            found = self._got
        else:
            found = self._finish()
            self._answer.fill_(self._got)
            self._work = dist.all_reduce(self._answer, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return signal.Signals(found) if found else None

    def _finish(self) -> int:
        if self._work is None:
            return 0
        self._work.wait()
        self._work = None
        return int(self._answer)
