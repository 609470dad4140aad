"""`shardio.monitor`: a thread that looks at a loader's statistics now and then, and passes them on."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import fields
from types import TracebackType
from typing import Any, final

from ..errors import ConfigError
from ..loader.arguments import time_limit, whole_number
from ..loader.batch.quarantine import report_path
from ..loader.loader import Loader
from .figures import InputFigures
from .sinks import JsonLines, OpenTelemetry, Prometheus, Sink, TensorBoard, check_methods

_LOG = logging.getLogger("shardio")


@final
class Monitor:
    """Watches a loader until it is closed; `shardio.monitor` starts one.

    Attributes:
        latest: the figures of the last interval; None before it.
    """

    def __init__(
        self, loader: Loader, *, every: float, sinks: Sequence[Sink], warn_starved: float, patience: int
    ) -> None:
        self.latest: InputFigures | None = None
        self._loader, self._every, self._sinks = loader, every, sinks
        self._warn_starved, self._patience = warn_starved, patience
        self._before, self._begun = loader.stats(all_epochs=True), time.monotonic()
        self._total = self._starved_for = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shardio monitor", daemon=True)
        self._thread.start()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Pass on the interval under way, and end; may be called twice."""
        if not self._end.is_set():
            self._end.set()
            self._thread.join()
            for sink in self._sinks:
                sink.close()

    def _run(self) -> None:
        over = False
        while not over:
            over = self._end.wait(self._every)
            try:
                self._look()
            except Exception:  # noqa: BLE001  # training must not end because a disk is full or a server is gone
                _LOG.exception("the monitor of a Loader failed, and has ended")
                return

    def _look(self) -> None:
        stats, now = self._loader.stats(all_epochs=True), time.monotonic()
        part, setting = stats - self._before, self._loader.setting
        measured: dict[str, Any] = {figure.name: getattr(part, figure.name) for figure in fields(part)}
        seconds, self._before, self._begun = now - self._begun, stats, now
        self._total += part.samples
        self.latest = figures = InputFigures(
            **measured | {"seconds": seconds},
            rank=self._loader.world.rank,
            epoch=self._loader.epoch,
            total_samples=self._total,
            threads=setting.threads,
            prefetch=setting.prefetch,
        )
        for sink in self._sinks:
            sink.write(figures)
        self._watch(figures)

    def _watch(self, figures: InputFigures) -> None:
        """Warn when training has been starved for some intervals in a row, and say when that is over."""
        if figures.starved > self._warn_starved:
            self._starved_for += 1
            if self._starved_for == self._patience:
                stage = max(figures.stage_seconds, key=lambda name: figures.stage_seconds[name], default="nothing")
                _LOG.warning(
                    "rank %d has waited for input for %.0f %% of the last %.0f s: its workers spend most time with %r; "
                    "`shardio bench` names what to change",
                    figures.rank,
                    100 * figures.starved,
                    self._patience * self._every,
                    stage,
                )
        else:
            if self._starved_for >= self._patience:
                _LOG.warning("rank %d waits less for input again: %.0f %%", figures.rank, 100 * figures.starved)
            self._starved_for = 0


def monitor(
    loader: Loader,
    *,
    every: float = 30.0,
    jsonl: str | os.PathLike[str] | None = None,
    tensorboard: Any = None,
    prometheus: Any = None,
    opentelemetry: Any = None,
    sinks: Sequence[Sink] = (),
    warn_starved: float = 0.2,
    patience: int = 3,
) -> Monitor:
    """Watch a loader while it trains: rates, waits and stages, at intervals, from a thread of its own.

    Use it as a context manager around the training loop, or call `close` at the end. The loop is not touched.

    Args:
        loader: the loader.
        every: the length of an interval in seconds.
        jsonl: a file to which each interval adds a line of JSON. In a job of several ranks each rank writes its own
            file, such as `input-00003.jsonl` for `input.jsonl`.
        tensorboard: a `SummaryWriter`, or the folder of a new one: scalars `input/...` over the samples delivered.
        prometheus: the port to serve metrics at, 0 for any, or a registry of `prometheus_client`.
        opentelemetry: a meter, or True for that of the global provider.
        sinks: objects of your own with `write(figures)` and `close()`; see `InputFigures`.
        warn_starved: the share of the time, above which the loop counts as starved.
        patience: the number of intervals in a row after which a warning is logged (logger `shardio`).

    Raises ConfigError for an argument that breaks a rule, MissingDependency if a package is missing, OSError if the
    file cannot be opened, or the port is in use.
    """
    if not isinstance(loader, Loader):
        raise ConfigError(f"a monitor watches a shardio.Loader, got {loader!r}")
    time_limit(every, "every")
    if not isinstance(warn_starved, (int, float)) or not 0 < warn_starved <= 1:
        raise ConfigError(f"warn_starved must be a share above 0, at most 1, got {warn_starved!r}")
    if whole_number(patience, "patience") < 1:
        raise ConfigError(f"patience must be at least 1 interval, got {patience}")
    rank, size = loader.world.rank, loader.world.size
    for sink in sinks:
        check_methods(sink, "sinks", "a list of objects with write(figures) and close()", "write", "close")
    chosen = list(sinks)
    with ExitStack() as opened:  # where one cannot be opened, those before it are closed
        if jsonl is not None:
            chosen.append(opened.enter_context(closing(JsonLines(report_path(jsonl, "jsonl", rank, size)))))
        if tensorboard is not None:
            chosen.append(opened.enter_context(closing(TensorBoard(tensorboard, rank, size))))
        if opentelemetry:
            chosen.append(opened.enter_context(closing(OpenTelemetry(opentelemetry))))
        if prometheus is not None:
            chosen.append(opened.enter_context(closing(Prometheus(prometheus))))
        opened.pop_all()
    return Monitor(loader, every=every, sinks=chosen, warn_starved=warn_starved, patience=patience)
