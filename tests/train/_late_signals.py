"""Run the command line: a run stops at its third step, and gets signals later. POINT SIGNAL,... ARGUMENT...

The signals come 3 s apart by the clock of the run, at one of these points: when the checkpoint is written, when the
StopRequest has ended, or as the last thing before the interpreter's own end.
"""

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import shardio.cli
from shardio.train import distributed
from shardio.train.checkpoint import Checkpoints
from shardio.train.learner import Learner


def main() -> None:
    point, names, *sys.argv[1:] = sys.argv[1:]
    now, left, steps, step = 0.0, names.split(","), iter(range(1, 1000)), Learner.step

    def send() -> None:
        nonlocal now, left
        while left:
            name = left.pop(0)
            now += 3
            os.kill(os.getpid(), getattr(signal, name))
            time.sleep(0.001)  # for the handler to be called

    def signalled(self: Learner, batch: Any, **options: Any) -> Any:
        if next(steps) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, batch, **options)

    def sending(function: Callable[..., Any]) -> Callable[..., Any]:
        def send_and_call(*arguments: Any) -> Any:
            send()
            return function(*arguments)

        return send_and_call

    Learner.step = signalled  # type: ignore[method-assign]  # as a user's signal may come in any step
    distributed.time = SimpleNamespace(monotonic=lambda: now)  # type: ignore[attr-defined]  # its clock
    match point:
        case "checkpoint":
            Checkpoints.wait = sending(Checkpoints.wait)  # type: ignore[method-assign]  # once the ranks have agreed
        case "handlers":
            end = distributed.StopRequest.__exit__
            distributed.StopRequest.__exit__ = lambda *given: (end(*given), send())[0]  # type: ignore[method-assign]
        case "exit":
            atexit.register(send)  # before the command line's own
    shardio.cli.main()


if __name__ == "__main__":
    main()
