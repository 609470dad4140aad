"""A measurement as one HTML file with pictures that needs no script, font or network."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ..dataset.store_access import without_secrets
from ..system.html import STYLE, WIDTH, escaped, histogram
from .config import BenchConfig
from .result import BenchResult, Timeline
from .text import summary

_BINS = 300
_MOST_BARS = 20  # of rates; of more, every second, third, ... is drawn
_KINDS = {"wait": "waits for input", "compute": "computes", "barrier": "waits for other ranks"}


def page(result: BenchResult) -> str:
    """Return the report of a measurement as HTML."""
    config = result.config
    title = f"shardio bench: {escaped(f'{config.dataset}')}"
    change = "" if result.verdict.change is None else f"<br>Change: {escaped(str(result.verdict.change))}"
    stages = {name: (share, f"{share:.1%}") for name, share in result.verdict.shares.items()}
    parts = [
        f"<h1>{title}</h1>",
        f'<p class="soft">{config.ranks} rank(s) of {config.samples_per_step} samples per step</p>',
        f'<p class="verdict" id="verdict">{escaped(result.verdict.sentence)}{change}</p>',
        _section("Steps of each rank", _legend() + "".join(_strip(n, t) for n, t in enumerate(result.timelines))),
        _section("Where the workers' time went", _bars("stages", stages)),
        _section("Wait for a batch, per step", _histogram(result.timelines)),
        _section("Rate", _rates(result)),
        _section("All figures", f"<pre>{escaped(summary(result))}</pre>"),
        _section("Settings", _table(_settings(config))),
        _section("Machine", _table(result.machine)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _section(heading: str, body: str) -> str:
    return f"<section><h2>{heading}</h2>{body}</section>"


def _legend() -> str:
    keys = (f'<i class="{kind}"></i>{words}' for kind, words in _KINDS.items())
    return f'<p class="soft">{"".join(keys)}</p>'


def _strip(rank: int, timeline: Timeline) -> str:
    """Draw a rank's time from left to right: the share of each moment that it waited, computed, waited for others."""
    begun = np.array(timeline.begun) / 1000
    values = [np.array(getattr(timeline, kind)) / 1000 for kind in _KINDS]
    firsts = list(accumulate(values, initial=begun))  # and the end of each step
    total = float(firsts[-1][-1])
    edges = np.linspace(0, total, _BINS + 1)
    height, left = 44, 56
    shares = [_share(first, value, edges) for first, value in zip(firsts, values, strict=False)]
    scale = (WIDTH - left) / _BINS
    paths = []
    base = np.zeros(_BINS)
    for kind, share in zip(_KINDS, shares, strict=True):
        top = np.minimum(1.0, base + share)
        rectangles = "".join(
            f"M{left + scale * n:.1f} {height * (1 - t):.1f}h{scale:.1f}v{height * (t - b):.1f}h-{scale:.1f}z"
            for n, (b, t) in enumerate(zip(base.tolist(), top.tolist(), strict=True))
            if t > b
        )
        paths.append(f'<path class="{kind}" d="{rectangles}"/>')
        base = top
    counted = begun[min(timeline.counted_from, len(begun) - 1)] / total * (WIDTH - left) + left
    marks = f'<line class="axis" x1="{counted:.1f}" x2="{counted:.1f}" y1="0" y2="{height + 16}"/>'
    if timeline.counted_from:
        marks += f'<text x="{counted - 4:.1f}" y="{height + 14}" text-anchor="end">warm-up</text>'
    return (
        f'<svg viewBox="0 0 {WIDTH} {height + 20}" role="img" aria-label="steps of rank {rank}">'
        f'<text x="0" y="{height / 2 + 4:.0f}">rank {rank}</text>{"".join(paths)}{marks}'
        f'<text x="{WIDTH}" y="{height + 14}" text-anchor="end">{total:.1f} s</text></svg>'
    )


def _share(first: NDArray[np.float64], seconds: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of each bin that intervals fill; they begin at `first` and do not overlap."""
    moments = np.stack((first, first + seconds), 1).reshape(-1)
    filled = np.stack((np.cumsum(seconds) - seconds, np.cumsum(seconds)), 1).reshape(-1)
    return np.diff(np.interp(edges, np.maximum.accumulate(moments), filled)) / np.diff(edges)


def _bars(label: str, rows: dict[str, tuple[float, str]]) -> str:
    """Draw rows with a bar each: its length, of 1, and the text behind it."""
    bars = []
    for number, (name, (length, text)) in enumerate(rows.items()):
        y, width = 26 * number, (WIDTH - 230) * length
        bars.append(
            f'<text x="0" y="{y + 16}">{escaped(name)}</text><rect class="bar" x="110" y="{y + 3}" '
            f'width="{width:.1f}" height="18"/><text x="{116 + width:.1f}" y="{y + 16}">{text}</text>'
        )
    return f'<svg viewBox="0 0 {WIDTH} {26 * len(rows)}" role="img" aria-label="{label}">{"".join(bars)}</svg>'


def _histogram(timelines: Sequence[Timeline]) -> str:
    waits = np.concatenate([np.array(timeline.wait[timeline.counted_from :]) for timeline in timelines])
    low, high = max(float(waits.min()), 0.001), max(float(waits.max()), 0.01)
    edges = np.geomspace(low, max(high, 1.01 * low), 41)
    counts, _ = np.histogram(np.maximum(waits, low), edges)
    titles = [
        f"{c} steps of {a:.3g} to {b:.3g} ms"
        for c, a, b in zip(counts.tolist(), edges.tolist(), edges[1:].tolist(), strict=False)
    ]
    ends = f"{edges[0]:.3g} ms", f"{edges[-1]:.3g} ms (logarithmic)"
    return histogram(counts.tolist(), titles, *ends, label="histogram of waits")


def _rates(result: BenchResult) -> str:
    rows = {"median": result.samples_per_second.median}
    if result.enough_steps and len(result.rates) > 1:
        unit = "epoch" if result.config.seconds is None else "part"
        every = -(-len(result.rates) // _MOST_BARS)
        rows = {f"{unit} {n + 1}": result.rates[n] for n in range(0, len(result.rates), every)} | rows
    if result.ceiling is not None:
        rows["ceiling"] = result.ceiling
    most = max(rows.values())
    return _bars("rates", {name: (rate / most, f"{rate:,.0f} samples/s") for name, rate in rows.items()})


def _settings(config: BenchConfig) -> dict[str, object]:
    """Return the settings that were in use: given ones that no others replace."""
    unused = "seconds" if config.seconds is None else "epochs"
    given = without_secrets(asdict(config.resolved()) | {"shuffle": config.shuffle or "none"})
    return {name: value for name, value in given.items() if value is not None and name != unused}


def _table(values: dict[str, object]) -> str:
    rows = "".join(
        f"<tr><td>{escaped(str(name))}</td><td>{escaped(str(value))}</td></tr>"
        for outer, inner in values.items()
        for name, value in (inner if isinstance(inner, dict) else {outer: inner}).items()
    )
    return f'<div class="scroll"><table>{rows}</table></div>'
