"""Pieces of HTML that pages share: text that stays text, the look of a page, and a histogram as a drawing."""

import html
from collections.abc import Sequence
from importlib.resources import files

STYLE = files(__package__).joinpath("page.css").read_text()
"""The look of every page: colours by day and by night, headings, tables, drawings."""

WIDTH = 900
"""The width of a drawing, in its own units; it is as wide as its place on the page."""

_LINES = "\t\n"
_SEEN = {code: 0x2400 + code for code in range(0x20) if chr(code) not in _LINES} | {0x7F: 0x2421}
_SEEN |= dict.fromkeys([*range(0x80, 0xA0), 0xFFFE, 0xFFFF], 0xFFFD)  # which XML refuses, or HTML reads as others


def escaped(value: object, most: int | None = None) -> str:
    """Return text for HTML and SVG, cut off after `most` characters.

    Control characters become pictures of them, and halves of characters question marks.
    """
    text = str(value)
    shown = f"{text[:most]}{'…' * (most is not None and len(text) > most)}"
    return html.escape(shown.encode(errors="replace").decode().translate(_SEEN))


def histogram(counts: Sequence[int], titles: Sequence[str], low: str, high: str, *, label: str) -> str:
    """Return a histogram as SVG: a bar for each count, with its title; the texts stand beneath its ends."""
    height, scale, most = 120, WIDTH / len(counts), max(1, *counts)
    bars = "".join(
        f'<rect class="bar" x="{n * scale + 1:.1f}" width="{scale - 2:.1f}" y="{height * (1 - count / most):.1f}" '
        f'height="{height * count / most:.1f}"><title>{escaped(title)}</title></rect>'
        for n, (count, title) in enumerate(zip(counts, titles, strict=True))
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {height + 18}" role="img" aria-label="{escaped(label)}">{bars}'
        f'<text x="0" y="{height + 14}">{escaped(low)}</text>'
        f'<text x="{WIDTH}" y="{height + 14}" text-anchor="end">{escaped(high)}</text></svg>'
    )
