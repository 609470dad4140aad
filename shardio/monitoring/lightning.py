"""A callback for Lightning that watches the Loader which a Trainer trains with."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError, MissingDependency
from ..loader.loader import Loader
from .figures import InputFigures
from .monitor import Monitor, monitor

try:
    from lightning.pytorch import Callback
except ImportError as error:
    raise MissingDependency("the callback needs: pip install lightning") from error


class InputMonitor(Callback):  # type: ignore[misc,unused-ignore]  # lightning may be absent where types are checked
    """Logs the figures of `shardio.monitor` with the Trainer's loggers, as `input/...`, while it trains.

    Args:
        options: the arguments of `shardio.monitor`, but the loader.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options
        self._monitor: Monitor | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch; raise ConfigError unless the Trainer trains with a Loader."""
        loader = trainer.train_dataloader
        if not isinstance(loader, Loader):
            raise ConfigError(f"InputMonitor watches a shardio.Loader, the Trainer has a {type(loader).__name__}")
        sinks = [*self._options.get("sinks", ()), _Loggers(trainer)]
        self._monitor = monitor(loader, **(self._options | {"sinks": sinks}))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop watching."""
        self._stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop watching."""
        self._stop()

    def _stop(self) -> None:
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None


class _Loggers:
    """Passes figures to the loggers of a Trainer. They log on rank 0."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def write(self, figures: InputFigures) -> None:
        """Log the figures at the Trainer's step."""
        values = {
            "input/samples_per_second": figures.samples_per_second,
            "input/bytes_per_second": figures.bytes_per_second,
            "input/starved": figures.starved,
        }
        for logger in self._trainer.loggers:
            logger.log_metrics(values, step=self._trainer.global_step)

    def close(self) -> None:
        """Do nothing: the loggers are the Trainer's."""
