"""Where a monitor's figures go: JSON lines, TensorBoard, Prometheus, OpenTelemetry."""

from __future__ import annotations

import errno
import json
import os
from typing import Any, Protocol, final

from ..errors import ConfigError, MissingDependency
from ..system.os_errors import naming
from .figures import InputFigures

_GAUGES = ("samples_per_second", "bytes_per_second", "starved", "threads", "prefetch")
_HIGHEST_PORT = 65535


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
        """Write a line."""
        self._file.write(json.dumps(figures.to_dict()) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@final
class TensorBoard:
    """Adds scalars `input/...` to a `SummaryWriter`, or to one of its own in a folder, over the samples delivered."""

    def __init__(self, target: Any, rank: int, world_size: int) -> None:
        self._owns = isinstance(target, (str, os.PathLike))
        if self._owns:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise MissingDependency("TensorBoard needs: pip install 'shardio-data[train]'") from error
            target = SummaryWriter(os.fspath(target))
        check_methods(target, "tensorboard", "a SummaryWriter or a folder", "add_scalar")
        self._writer = target
        self._prefix = "input" if world_size == 1 else f"input/rank{rank}"

    def write(self, figures: InputFigures) -> None:
        """Add the scalars."""
        for name in _GAUGES:
            self._writer.add_scalar(f"{self._prefix}/{name}", getattr(figures, name), figures.total_samples)

    def close(self) -> None:
        """Close the writer, if it is this object's own."""
        if self._owns:
            self._writer.close()


@final
class Prometheus:
    """Sets gauges and counters `shardio_...` with the label `rank`, served at a port or in a registry that is given."""

    def __init__(self, target: Any) -> None:
        try:
            import prometheus_client as client
        except ImportError as error:
            raise MissingDependency("Prometheus needs: pip install 'shardio-data[prometheus]'") from error
        self._server: Any = None
        registry = target
        if isinstance(target, int) and not isinstance(target, bool) and 0 <= target <= _HIGHEST_PORT:
            registry = client.CollectorRegistry()
            self._server, self._thread = _serve(client, target, registry)
        check_methods(registry, "prometheus", f"a port from 0 to {_HIGHEST_PORT} or a registry", "register")
        label = ["rank"]
        self._gauges = {
            name: client.Gauge(f"shardio_{name}", f"{name} of the last interval", label, registry=registry)
            for name in _GAUGES
        }
        self._samples = client.Counter("shardio_samples", "samples delivered", label, registry=registry)
        self._bytes = client.Counter("shardio_read_bytes", "stored bytes read", label, registry=registry)
        self._waited = client.Counter("shardio_wait_seconds", "seconds waited for input", label, registry=registry)
        self._stages = client.Counter(
            "shardio_stage_seconds", "workers' seconds by stage", [*label, "stage"], registry=registry
        )

    def write(self, figures: InputFigures) -> None:
        """Set the gauges, and raise the counters."""
        rank = str(figures.rank)
        for name, gauge in self._gauges.items():
            gauge.labels(rank).set(getattr(figures, name))
        self._samples.labels(rank).inc(figures.samples)
        self._bytes.labels(rank).inc(figures.bytes)
        self._waited.labels(rank).inc(max(0.0, figures.wait_seconds))
        for stage, seconds in figures.stage_seconds.items():
            self._stages.labels(rank, stage).inc(max(0.0, seconds))

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


def _serve(client: Any, port: int, registry: Any) -> tuple[Any, Any]:
    """Serve a registry at a port; an OSError names the port, and what to do where another process has it."""
    try:
        served: tuple[Any, Any] = client.start_http_server(port, registry=registry)
    except OSError as error:
        advice = (
            "; each process of a machine needs a port of its own, such as prometheus=9400 + loader.world.local_rank"
            if error.errno == errno.EADDRINUSE
            else ""
        )
        raise OSError(error.errno, f"Prometheus cannot be served at port {port}: {error.strerror}{advice}") from error
    return served


@final
class OpenTelemetry:
    """Records gauges and counters `shardio.input....` with a meter, or that of the global provider."""

    def __init__(self, target: Any) -> None:
        try:
            from opentelemetry import metrics
        except ImportError as error:
            raise MissingDependency("OpenTelemetry needs: pip install 'shardio-data[opentelemetry]'") from error
        meter = metrics.get_meter("shardio") if target is True else target
        check_methods(meter, "opentelemetry", "True or a meter", "create_gauge", "create_counter")
        self._gauges = {name: meter.create_gauge(f"shardio.input.{name}") for name in _GAUGES}
        self._samples = meter.create_counter("shardio.input.samples", unit="{sample}")
        self._bytes = meter.create_counter("shardio.input.bytes", unit="By")
        self._waited = meter.create_counter("shardio.input.wait", unit="s")

    def write(self, figures: InputFigures) -> None:
        """Record an interval."""
        rank = {"rank": figures.rank}
        for name, gauge in self._gauges.items():
            gauge.set(getattr(figures, name), rank)
        self._samples.add(figures.samples, rank)
        self._bytes.add(figures.bytes, rank)
        self._waited.add(max(0.0, figures.wait_seconds), rank)

    def close(self) -> None:
        """Do nothing: the provider sends what it has."""
