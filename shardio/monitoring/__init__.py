"""Watching a loader while it trains: its rates in files, dashboards and words."""

from .monitor import InputFigures as InputFigures
from .monitor import Monitor as Monitor
from .monitor import monitor as monitor
