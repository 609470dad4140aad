"""`shardio.monitor`: a thread that looks at a loader's statistics now and then, and passes them on.

They go to JSON lines, TensorBoard, Prometheus, OpenTelemetry, and to sinks of the user's own.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields
from typing import Any, Protocol, final

from ..errors import ConfigError
from ..loader.batch.quarantine import report_path
from ..loader.loader import Loader
from ..loader.stats import LoaderStats
from ..system.optional import load
from ..system.os_errors import naming
from ..system.rules import as_integer, time_limit

_LOG = logging.getLogger("shardio")
_GAUGES = ("samples_per_second", "bytes_per_second", "starved", "threads", "prefetch")
_HIGHEST_PORT = 65535


@dataclass(frozen=True, slots=True)
class InputFigures(LoaderStats):
    """The statistics of a loader during an interval, whose length is `seconds`, and its settings at the end of it.

    Attributes:
        rank: the rank.
        epoch: the epoch at the end of the interval.
        total_samples: samples delivered since the monitor began.
        threads: working threads at the end of the interval.
        prefetch: batches made ahead at the end of the interval.
    """

    rank: int = 0
    epoch: int = 0
    total_samples: int = 0
    threads: int = 0
    prefetch: int = 0

    def to_dict(self) -> dict[str, object]:
        """Return the figures as plain values."""
        return {
            "rank": self.rank,
            "epoch": self.epoch,
            "seconds": round(self.seconds, 3),
            "samples": self.samples,
            "samples_per_second": round(self.samples_per_second, 1),
            "bytes_per_second": round(self.bytes_per_second),
            "starved": round(self.starved, 4),
            "threads": self.threads,
            "prefetch": self.prefetch,
            "total_samples": self.total_samples,
            "stage_seconds": {name: round(spent, 3) for name, spent in self.stage_seconds.items()},
        }


class Sink(Protocol):
    """Takes the figures of each interval."""

    def write(self, figures: InputFigures) -> None:
        """Take the figures of an interval."""

    def close(self) -> None:
        """Write what is left; called once."""


def check_methods(target: Any, argument: str, expected: str, *methods: str) -> None:
    """Raise ConfigError, with what is `expected` of the argument, unless `target` has these methods."""
    if isinstance(target, type) or not all(callable(getattr(target, method, None)) for method in methods):
        raise ConfigError(f"{argument} must be {expected}, got {target!r}")


@final
class JsonLines:
    """Appends a line of JSON per interval to a file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with naming(path):
            self._file = open(path, "a", buffering=1)  # noqa: SIM115  # closed by `close`

    def write(self, figures: InputFigures) -> None:
        self._file.write(json.dumps(figures.to_dict()) + "\n")

    def close(self) -> None:
        self._file.close()


@final
class TensorBoard:
    """Adds scalars `input/...` to a `SummaryWriter`, or to one of its own in a folder, over the samples delivered."""

    def __init__(self, target: Any, rank: int, world_size: int) -> None:
        self._owns = isinstance(target, (str, os.PathLike))
        if self._owns:
            load("tensorboard", purpose="TensorBoard", extra="train")
            from torch.utils.tensorboard import SummaryWriter  # which imports it

            target = SummaryWriter(os.fspath(target))
        check_methods(target, "tensorboard", "a SummaryWriter or a folder", "add_scalar")
        self._writer = target
        self._prefix = "input" if world_size == 1 else f"input/rank{rank}"

    def write(self, figures: InputFigures) -> None:
        for name in _GAUGES:
            self._writer.add_scalar(f"{self._prefix}/{name}", getattr(figures, name), figures.total_samples)

    def close(self) -> None:
        if self._owns:
            self._writer.close()


@final
class Prometheus:
    """Sets gauges and counters `shardio_...` with the label `rank`, served at a port or in a registry that is given."""

    def __init__(self, target: Any) -> None:
        client: Any = load("prometheus_client", purpose="Prometheus", extra="prometheus")
        self._server: Any = None
        registry = target
        if isinstance(target, int) and not isinstance(target, bool) and 0 <= target <= _HIGHEST_PORT:
            registry = client.CollectorRegistry()
            try:
                self._server, self._thread = client.start_http_server(target, registry=registry)
            except OSError as error:
                advice = "each process of a machine needs a port of its own, such as 9400 + loader.world.local_rank"
                told = f"Prometheus cannot be served at port {target}: {error.strerror}; {advice}"
                raise OSError(error.errno, told) from error
        check_methods(registry, "prometheus", f"a port from 0 to {_HIGHEST_PORT} or a registry", "register")
        given: Any = {"labelnames": ["rank"], "registry": registry}
        self._gauges = {
            name: client.Gauge(f"shardio_{name}", f"{name} of the last interval", **given) for name in _GAUGES
        }
        self._samples = client.Counter("shardio_samples", "samples delivered", **given)
        self._bytes = client.Counter("shardio_read_bytes", "stored bytes read", **given)
        self._waited = client.Counter("shardio_wait_seconds", "seconds waited for input", **given)
        given["labelnames"] = ["rank", "stage"]
        self._stages = client.Counter("shardio_stage_seconds", "workers' seconds by stage", **given)

    def write(self, figures: InputFigures) -> None:
        rank = str(figures.rank)
        for name, gauge in self._gauges.items():
            gauge.labels(rank).set(getattr(figures, name))
        self._samples.labels(rank).inc(figures.samples)
        self._bytes.labels(rank).inc(figures.bytes)
        self._waited.labels(rank).inc(max(0.0, figures.wait_seconds))
        for stage, seconds in figures.stage_seconds.items():
            self._stages.labels(rank, stage).inc(max(0.0, seconds))

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


@final
class OpenTelemetry:
    """Records gauges and counters `shardio.input....` with a meter, or that of the global provider."""

    def __init__(self, target: Any) -> None:
        metrics: Any = load("opentelemetry.metrics", purpose="OpenTelemetry", extra="opentelemetry")
        meter = metrics.get_meter("shardio") if target is True else target
        check_methods(meter, "opentelemetry", "True or a meter", "create_gauge", "create_counter")
        self._gauges = {name: meter.create_gauge(f"shardio.input.{name}") for name in _GAUGES}
        self._samples = meter.create_counter("shardio.input.samples", unit="{sample}")
        self._bytes = meter.create_counter("shardio.input.bytes", unit="By")
        self._waited = meter.create_counter("shardio.input.wait", unit="s")

    def write(self, figures: InputFigures) -> None:
        rank = {"rank": figures.rank}
        for name, gauge in self._gauges.items():
            gauge.set(getattr(figures, name), rank)
        self._samples.add(figures.samples, rank)
        self._bytes.add(figures.bytes, rank)
        self._waited.add(max(0.0, figures.wait_seconds), rank)

    def close(self) -> None:
        """Do nothing: the provider sends what it has."""


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

    def __exit__(self, *_: object) -> None:
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
        jsonl: the file to append a line of JSON to for each interval. If there are several ranks, each writes its own
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
    if as_integer(patience, "patience") < 1:
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
