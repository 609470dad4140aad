"""What is in a dataset, as one figure: stored sizes, classes or values, image sizes and levels of each field."""

import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigError
from ...system.optional import load
from .figures import Channel, Classes, Contents, Grid, Histogram
from .report import name_of, shown_by_class

MOST_PANELS = 24
_COLUMNS = 3
_PANEL = (4.6, 3.4)  # inches
_DPI = 120
_NAMED = 30  # classes that have room for their names
_LONGEST_NAME = 24
_FILL, _INKS = "#1f6f8b", ("#c0392b", "#27823f", "#2456a8")

Panel = Callable[[Any], None]
"""Draws on matplotlib's axes, with a title and the names of both axes."""


def check(path: Path) -> None:
    """ConfigError or MissingDependency if no figure can be drawn to `path`: told before the work, not after it."""
    if path.suffix.lower() != ".png":
        raise ConfigError(f"the figure is a PNG: its name must end in .png, got {str(path)!r}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path}: there is no such folder to write to")
    _figure_module()


def draw(contents: Contents, path: Path) -> None:
    """Writes a PNG with a panel for each thing there is to show, at most `MOST_PANELS`."""
    check(path)
    panels = list(_panels(contents))
    shown = panels[:MOST_PANELS]
    columns = min(_COLUMNS, max(1, len(shown)))
    rows = max(1, math.ceil(len(shown) / columns))
    size = (columns * _PANEL[0], rows * _PANEL[1] + 0.5)
    figure = _figure_module().Figure(figsize=size, dpi=_DPI, layout="constrained")
    left_out = f", {len(panels) - len(shown)} further panels left out" if len(panels) > len(shown) else ""
    figure.suptitle(_plain(f"{Path(contents.path).name}: {contents.samples:,} samples{left_out}"))
    for number, panel in enumerate(shown, start=1):
        panel(figure.add_subplot(rows, columns, number))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # of a name: drawn as a box
        figure.savefig(path, format="png")


def _figure_module() -> Any:
    return load("matplotlib.figure", purpose="a picture of the statistics", extra="report")


def _panels(contents: Contents) -> Iterator[Panel]:
    for name, field in contents.fields.items():
        if field.sizes is not None and field.sizes.min != field.sizes.max:
            yield partial(_histogram, f"{name}: stored size", "bytes", field.sizes.histogram, "samples")
        if (images := field.images) is not None:
            if images.sizes > 1:
                yield partial(_grid, f"{name}: sizes of images", images.grid)
            if images.channels:
                yield partial(_levels, f"{name}: levels of {sum(images.encodings.values()):,} images", images.channels)
        if field.classes is not None and shown_by_class(name, field):
            yield partial(_classes, f"{name}: samples of each class", field.classes)
        elif field.spread is not None:
            yield partial(_histogram, f"{name}: values", "value", field.spread.histogram, "samples")
        if field.lengths is not None:
            yield partial(_histogram, f"{name}: lengths", "characters", field.lengths.histogram, "sampled texts")


def _label(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(_plain(title), fontsize=10)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)


def _whole(*all_axes: Any) -> None:
    """No ticks between whole numbers."""
    for axis in all_axes:
        axis.set_major_locator(_ticker().MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))


def _ticker() -> Any:
    return load("matplotlib.ticker", purpose="a picture of the statistics", extra="report")


def _histogram(title: str, unit: str, histogram: Histogram, counted: str, axes: Any) -> None:
    edges = np.array(histogram.edges, np.float64)
    widths = np.diff(edges)
    growing = len(widths) > 1 and edges[0] > 0 and widths[-1] > 4 * widths[0]
    if growing:
        axes.set_xscale("log")
    if len(widths) == 1:  # one value: a bar of no width would not show
        edges, widths = edges[:1] - 0.5, np.ones(1)
    axes.bar(
        edges[: len(widths)], histogram.counts, widths, align="edge", color=_FILL, edgecolor="white", linewidth=0.3
    )
    if unit == "bytes":
        axes.xaxis.set_major_formatter(_ticker().EngFormatter())
    _whole(axes.yaxis)
    _label(axes, title, unit + (", on a log scale" if growing else ""), counted)


def _grid(title: str, grid: Grid, axes: Any) -> None:
    counts = np.array(grid.counts, np.float64)
    counts[counts == 0] = np.nan  # left white
    mesh = axes.pcolormesh(grid.widths, grid.heights, counts, cmap="viridis_r", vmin=0)
    bar = axes.figure.colorbar(mesh, ax=axes)
    bar.set_label("images", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    _whole(axes.xaxis, axes.yaxis)
    _label(axes, title, "width, pixels", "height, pixels")


def _levels(title: str, channels: tuple[Channel, ...], axes: Any) -> None:
    names = ("R", "G", "B") if len(channels) > 1 else ("grey",)
    for channel, name, ink in zip(channels, names, _INKS if len(channels) > 1 else ("#333333",), strict=True):
        label = f"{name}: mean {channel.mean:.4f}, std {channel.std:.4f}"
        axes.step(range(len(channel.levels)), np.array(channel.levels) * 100, where="mid", color=ink, lw=1, label=label)
    axes.legend(fontsize=7)
    _label(axes, title, "level, 0 to 255", "pixels, %")


def _classes(title: str, classes: Classes, axes: Any) -> None:
    count = len(classes.values)
    _whole(axes.yaxis)
    if count > _NAMED:
        axes.fill_between(range(count), sorted(classes.counts, reverse=True), step="mid", color=_FILL)
        axes.set_ylim(bottom=0)
        _label(axes, title, f"{count:,} classes, the largest first", "samples")
        return
    axes.bar(range(count), classes.counts, color=_FILL)
    names = [_plain(name_of(classes, place)[:_LONGEST_NAME]) for place in range(count)]
    turned = count > 10 or max(map(len, names)) > 8
    axes.set_xticks(range(count), names, rotation=90 if turned else 0)
    _label(axes, title, "class", "samples")


def _plain(name: str) -> str:
    """A name as it is: matplotlib takes what stands between dollars for a formula."""
    return name.replace("$", r"\$")
