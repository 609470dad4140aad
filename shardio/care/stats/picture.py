"""The figures of a dataset as a PNG: stored sizes, classes or values, image sizes and pixel levels of each field."""

import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigError
from ...system.optional import load
from .figures import Channel, Classes, DatasetStats, Grid, Histogram
from .report import class_name, lists_classes

MOST_PANELS = 24
_COLUMNS = 3
_PANEL_SIZE = (4.6, 3.4)  # inches
_DPI = 120
_MOST_NAMED = 30  # classes that have room for their names
_LONGEST_NAME = 24
_FILL, _RGB, _GREY = "#1f6f8b", ("#c0392b", "#27823f", "#2456a8"), ("#333333",)

Panel = Callable[[Any], None]
"""Draws on matplotlib's axes, with a title and a name for both axes."""


def check(path: Path) -> None:
    """Raise ConfigError or MissingDependency if nothing can be drawn to `path`, so that it is known before the work."""
    if path.suffix.lower() != ".png":
        raise ConfigError(f"the figure is a PNG: its name must end in .png, got {str(path)!r}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path}: there is no such folder to write to")
    _matplotlib("figure")


def draw(stats: DatasetStats, path: Path) -> None:
    """Write a PNG with one panel for each thing that there is to show, at most `MOST_PANELS`."""
    check(path)
    panels = list(_panels(stats))
    shown = panels[:MOST_PANELS]
    columns = min(_COLUMNS, max(1, len(shown)))
    rows = max(1, math.ceil(len(shown) / columns))
    size = (columns * _PANEL_SIZE[0], rows * _PANEL_SIZE[1] + 0.5)
    figure = _matplotlib("figure").Figure(figsize=size, dpi=_DPI, layout="constrained")
    left_out = f", {len(panels) - len(shown)} further panels left out" if len(panels) > len(shown) else ""
    figure.suptitle(_literal(f"{Path(stats.path).name}: {stats.samples:,} samples{left_out}"))
    for number, panel in enumerate(shown, start=1):
        panel(figure.add_subplot(rows, columns, number))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # such a character is drawn as a box
        figure.savefig(path, format="png")


def _matplotlib(module: str) -> Any:
    return load(f"matplotlib.{module}", purpose="a picture of the statistics", extra="report")


def _panels(stats: DatasetStats) -> Iterator[Panel]:
    for name, field in stats.fields.items():
        if field.sizes is not None and field.sizes.min != field.sizes.max:
            yield partial(_histogram, f"{name}: stored size", "bytes", field.sizes.histogram, "samples")
        if (images := field.images) is not None:
            if images.sizes > 1:
                yield partial(_grid, f"{name}: sizes of images", images.grid)
            if images.channels:
                yield partial(_levels, f"{name}: levels of {sum(images.encodings.values()):,} images", images.channels)
        if field.classes is not None and lists_classes(name, field):
            yield partial(_classes, f"{name}: samples of each class", field.classes)
        elif field.spread is not None:
            yield partial(_histogram, f"{name}: values", "value", field.spread.histogram, "samples")
        if field.lengths is not None:
            yield partial(_histogram, f"{name}: lengths", "characters", field.lengths.histogram, "sampled texts")


def _label(axes: Any, title: str, x: str, y: str, *, integers: str) -> None:
    """Label a panel; the axes named in `integers` get ticks at integers only."""
    axes.set_title(_literal(title), fontsize=10)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    for name in integers:
        ticks = _matplotlib("ticker").MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True)
        getattr(axes, f"{name}axis").set_major_locator(ticks)


def _histogram(title: str, unit: str, histogram: Histogram, counted: str, axes: Any) -> None:
    edges = np.array(histogram.edges, np.float64)
    widths = np.diff(edges)
    growing = len(widths) > 1 and edges[0] > 0 and widths[-1] > 4 * widths[0]
    if growing:
        axes.set_xscale("log")
    if len(widths) == 1:  # a single value: a bar without width would not show
        edges, widths = edges[:1] - 0.5, np.ones(1)
    axes.bar(edges[: len(widths)], histogram.counts, widths, align="edge", color=_FILL, edgecolor="white", lw=0.3)
    if unit == "bytes":
        axes.xaxis.set_major_formatter(_matplotlib("ticker").EngFormatter())
    _label(axes, title, unit + (", on a log scale" if growing else ""), counted, integers="y")


def _grid(title: str, grid: Grid, axes: Any) -> None:
    counts = np.array(grid.counts, np.float64)
    counts[counts == 0] = np.nan  # leaves the cell white
    mesh = axes.pcolormesh(grid.widths, grid.heights, counts, cmap="viridis_r", vmin=0)
    bar = axes.figure.colorbar(mesh, ax=axes)
    bar.set_label("images", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    _label(axes, title, "width, pixels", "height, pixels", integers="xy")


def _levels(title: str, channels: tuple[Channel, ...], axes: Any) -> None:
    names, colors = (("R", "G", "B"), _RGB) if len(channels) > 1 else (("grey",), _GREY)
    for channel, name, color in zip(channels, names, colors, strict=True):
        label = f"{name}: mean {channel.mean:.4f}, std {channel.std:.4f}"
        axes.step(
            range(len(channel.levels)), np.array(channel.levels) * 100, where="mid", color=color, lw=1, label=label
        )
    axes.legend(fontsize=7)
    _label(axes, title, "level, 0 to 255", "pixels, %", integers="")


def _classes(title: str, classes: Classes, axes: Any) -> None:
    count = len(classes.values)
    if count > _MOST_NAMED:
        axes.fill_between(range(count), sorted(classes.counts, reverse=True), step="mid", color=_FILL)
        axes.set_ylim(bottom=0)
        _label(axes, title, f"{count:,} classes, the largest first", "samples", integers="y")
        return
    axes.bar(range(count), classes.counts, color=_FILL)
    names = [_literal(class_name(classes, position)[:_LONGEST_NAME]) for position in range(count)]
    axes.set_xticks(range(count), names, rotation=90 if count > 10 or max(map(len, names)) > 8 else 0)
    _label(axes, title, "class", "samples", integers="y")


def _literal(text: str) -> str:
    """Escape text for matplotlib, which takes what stands between dollar signs for a formula."""
    return text.replace("$", r"\$")
