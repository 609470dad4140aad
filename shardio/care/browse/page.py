"""Parts of every page: its frame, links with the state of the page in them, and errors as text."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote, urlencode

from ...system.html import escaped


def framed(title: str, body: str, *, again: bool = False) -> str:
    """Return a whole page; with `again`, browsers without scripts load it anew in a while."""
    links = "".join(
        f'<a href="{place}">{name}</a>'
        for name, place in (("Samples", "/"), ("Classes", "/classes"), ("Batches", "/batches"))
    )
    refresh = '<noscript><meta http-equiv="refresh" content="3"></noscript>' if again else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escaped(title, 200)}</title>'
        f'<link rel="stylesheet" href="/static/browse.css">{refresh}'
        f'<script src="/static/browse.js" defer></script></head><body>\n<nav>{links}</nav>\n{body}\n</body></html>\n'
    )


def link(path: str, **query: object) -> str:
    """Return the address of a page, with the values that are not None or "", as text for an attribute."""
    rest = urlencode({name: value for name, value in query.items() if value not in (None, "")}, errors="replace")
    return escaped(f"{quote(path)}{'?' * bool(rest)}{rest}")


def step(place: str | None, text: str, rel: str = "") -> str:
    """Return a link to a page nearby, whose address `link` made; its text alone if there is no such page."""
    if place is None:
        return f'<span class="soft">{text}</span>'
    mark = f' rel="{rel}"' if rel else ""
    return f'<a{mark} href="{place}">{text}</a>'


def error(words: object) -> str:
    """Return the text of an error as HTML."""
    return f'<p class="error" role="alert">{escaped(words, 2000)}</p>'


def hidden(**values: object) -> str:
    """Return values that a form sends on."""
    return "".join(
        f'<input type="hidden" name="{name}" value="{escaped(value)}">'
        for name, value in values.items()
        if value not in (None, "")
    )


def choice(name: str, values: Sequence[str], chosen: str, label: str, texts: Sequence[str] | None = None) -> str:
    """Return a menu of a form that shows each value as it is or as its text."""
    options = "".join(
        f'<option value="{escaped(value)}"{" selected" * (value == chosen)}>{escaped(text, 60)}</option>'
        for value, text in zip(values, texts or values, strict=True)
    )
    return f'<label>{label} <select name="{name}">{options}</select></label>'


def as_integer(text: str, usual: int, most: int = 1 << 62) -> int:
    """Return the number that part of an address is, between 0 and `most`; `usual` if it is no number."""
    return min(int(text), most) if text.isascii() and text.isdigit() and len(text) < 20 else usual
