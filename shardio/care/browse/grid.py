"""The pages of many samples: a grid of small pictures, and the classes with their counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ...errors import ConfigError, ShardioError
from ...format.fields import Field
from ...system.html import escaped
from ...views.classes import class_name, names_by_field
from ...views.readable import ReadableDataset
from ..values import missing, number_text, stored_value
from .page import as_integer, choice, error, framed, hidden, link, step
from .pictures import picturable
from .scan import Chosen, Counts, Scan, Scans

PER_PAGE = 60
WAIT = 1.5
"""Seconds that a page waits for a scan before it shows what there is."""

_CHIPS = 24
_CLASSES = 1000  # of a page
_MOST_TEXT = 1 << 16  # bytes of a text that a caption begins
_CAPTION = 80  # characters


class Samples:
    """The samples that pages show, in their order: all, or those that a condition chooses.

    Args:
        dataset: the dataset.
        scans: the scans that go on.
        condition: the condition, or "".

    Attributes:
        error: why there are none, or not all of them; or "".
    """

    def __init__(self, dataset: ReadableDataset, scans: Scans, condition: str) -> None:
        self._dataset, self.condition, self.error = dataset, condition, ""
        self._chosen: Chosen | None = None
        try:
            if condition:
                self._chosen = scans.get(("where", condition), lambda: Chosen(dataset, condition))
        except ConfigError as error:
            self.error = f"{error}"

    @property
    def scan(self) -> Scan | None:
        """The scan that still looks for samples; None if there is none."""
        return self._chosen if self._chosen is not None and not self._chosen.done else None

    def await_some(self, count: int) -> None:
        """Wait a little until so many samples are found."""
        if self._chosen is not None:
            self._chosen.ask(WAIT, lambda: self._chosen is not None and self._chosen.found >= count)
            self.error = self._chosen.error

    def __len__(self) -> int:
        """Return the number of samples, as far as they are known."""
        if self.condition:
            return 0 if self._chosen is None else self._chosen.found
        return len(self._dataset)

    def numbers(self, start: int, stop: int) -> list[int]:
        """Return the numbers of the samples at positions start..stop-1 of the pages, as far as there are some."""
        if self.condition:
            return [] if self._chosen is None else self._chosen.numbers(start, stop)
        positions = np.arange(min(start, len(self)), min(stop, len(self)))
        if self._dataset.orders_itself and len(positions):
            positions = self._dataset.plan(0, None, 1, 1).lookup(positions)[0]
        return [int(number) for number in positions]

    def around(self, number: int) -> tuple[int | None, int | None]:
        """Return the numbers of the samples before and after one; None at the ends, and where none is found yet."""
        if self._chosen is None:
            last = self._dataset.numbers - 1
            return (number - 1 if number > 0 else None), (number + 1 if number < last else None)
        self.await_some(len(self) or 1)
        place = self._chosen.before(number)
        before = self._chosen.numbers(place - 1, place) if place else []
        here = self._chosen.numbers(place, place + 2)
        after = [found for found in here if found != number]
        return next(iter(before), None), next(iter(after), None)


def told(scan: Scan, what: str) -> str:
    """Return how far a scan has come, as text that its page keeps up to date."""
    share = scan.seen / max(1, scan.count)
    return f"{what}: looked at {scan.seen:,} of {scan.count:,} samples ({share:.0%}) so far"


def progress(scan: Scan | None, what: str, full: bool, **query: object) -> str:
    """Return what a page says of a scan that goes on; "" for none. A page that is not full loads itself anew."""
    if scan is None:
        return ""
    fill = "" if full else " data-fill"
    return (
        f'<p class="soft" id="progress" data-url="{link("/progress", **query)}"{fill}>{escaped(told(scan, what))}</p>'
    )


def pictured_field(fields: Mapping[str, Field], asked: str) -> str | None:
    """Return which field a grid shows: the one asked for, or the first image that is no mask, or any picture."""
    names = [name for name, field in fields.items() if picturable(field)]
    usual = [name for name in names if fields[name].is_image and fields[name].role is None]
    return asked if asked in names else next(iter([*usual, *names]), None)


def grid(dataset: ReadableDataset, scans: Scans, query: Mapping[str, str]) -> str:
    """Return the page of many samples; `query` has `where`, `page` and `field`."""
    condition, page = query.get("where", "").strip(), as_integer(query.get("page", ""), 1) or 1
    samples, first = Samples(dataset, scans, condition), (page - 1) * PER_PAGE
    samples.await_some(first + PER_PAGE)
    scan, pages = samples.scan, max(1, -(-len(samples) // PER_PAGE))
    if scan is None and page > pages:
        page, first = pages, (pages - 1) * PER_PAGE
    numbers = samples.numbers(first, first + PER_PAGE)
    picture = pictured_field(dataset.fields, query.get("field", ""))
    shown = query.get("field") or None
    names = [name for name, field in dataset.fields.items() if picturable(field)]
    facts = f"{len(dataset):,} samples" + (f", {len(samples):,} chosen" if condition else "")
    menu = choice("field", names, picture or "", "picture") if len(names) > 1 else ""
    body = [
        f'<h1>{escaped(dataset.path, 300)}</h1><p class="soft">{escaped(facts)}</p>',
        f'<form action="/" class="filter"><label class="wide">where <input name="where" value="{escaped(condition)}" '
        'maxlength="4096" spellcheck="false" autocomplete="off" placeholder="label == 3 and &quot;val/&quot; in key">'
        f"</label>{menu}<button>Filter</button></form>",
        error(samples.error) if samples.error else "",
        _chips(dataset, scans, condition),
        progress(scan, "Filtering", len(numbers) == PER_PAGE, where=condition),
        f'<div class="grid">{"".join(_cards(dataset, numbers, picture, condition, shown))}</div>',
        '<p class="soft">No samples.</p>' if not numbers and scan is None and not samples.error else "",
        _pager("/", page, pages, open_end=scan is not None, where=condition, field=shown),
    ]
    return framed(f"{dataset.path}", "\n".join(body), again=scan is not None)


def _pager(path: str, page: int, pages: int, *, open_end: bool = False, **keep: str | None) -> str:
    def to(number: int, text: str, rel: str) -> str:
        there = 1 <= number <= pages and number != page
        return step(link(path, **keep, page=number) if there else None, text, rel)

    of = f"of {pages:,}{' so far' * open_end}"
    return (
        f'<form action="{path}" class="pager">{to(1, "« first", "first")} {to(page - 1, "◀ previous", "prev")} '
        f'{hidden(**keep)}<label>page <input name="page" inputmode="numeric" '
        f'size="{max(3, len(str(page)))}" value="{page}"></label> {of} {to(page + 1, "next ▶", "next")} '
        f"{to(pages, 'last »', 'last')}</form>"
    )


def _cards(
    dataset: ReadableDataset, numbers: list[int], picture: str | None, condition: str, field: str | None
) -> list[str]:
    captions = _captions(dataset, numbers, alone=picture is None)
    cards = []
    for number, lines in zip(numbers, captions, strict=True):
        image = (
            f'<img loading="lazy" decoding="async" alt="" src="{link(f"/small/{picture}/{number}")}">'
            if picture is not None
            else ""
        )
        words = "".join(f"<span>{line}</span>" for line in lines)
        place = link(f"/sample/{number}", where=condition, field=field)
        cards.append(f'<a class="card" href="{place}"><span class="picture">{image}</span>{words}</a>')
    return cards


def _captions(dataset: ReadableDataset, numbers: list[int], *, alone: bool) -> list[list[str]]:
    """Return the lines beneath each sample as HTML: its number, its classes, its key; more where no picture is."""
    classes = names_by_field(dataset.metadata, dataset.fields)
    named = [name for name in classes if dataset.fields[name].kind == "scalar"]
    scalars = [name for name, field in dataset.fields.items() if field.kind == "scalar"]
    texts = [name for name, field in dataset.fields.items() if field.kind == "text"]
    names = list(dict.fromkeys([*named, *(["label"] if "label" in scalars else [])]))[:3]
    names += [name for name in scalars if alone and name not in names][: 4 - len(names)]
    names += [name for name in texts if name == "key" or alone][:2]
    names = [name for name in names if name in dataset.fields]
    if not numbers or not names:
        return [[f"#{number}"] for number in numbers]
    # Of data in a store the whole page comes at once; what cannot be had is reported where it is read.
    lines = []
    selection = dataset.selection(np.array(numbers), _MOST_TEXT)
    with suppress(ShardioError, OSError), selection.fetch(names):
        pass
    for number in numbers:
        lines.append([f"#{number}", *(_value(dataset, name, number, classes.get(name, ())) for name in names)])
    return lines


def _value(dataset: ReadableDataset, name: str, number: int, classes: Sequence[str]) -> str:
    """Return a value in a caption as HTML, or why it cannot be read."""
    try:
        field = dataset.field(name)
        if missing(dataset, name, number):
            return f'<i class="soft">{escaped(name)}: none</i>'
        stored = stored_value(dataset, name, number, _MOST_TEXT)
        if field.fixed:
            if (known := class_name(stored.item(), classes)) is not None:
                return f"<b><bdi>{escaped(known, _CAPTION)}</bdi></b>"
            return f"{escaped(name)} {escaped(number_text(stored.item()))}"
        text = bytes(stored[: 8 * _CAPTION]).decode(errors="replace")
        return f"<bdi>{escaped(text, _CAPTION)}</bdi>"
    except Exception as error:  # noqa: BLE001  # a page shows whatever a sample holds
        return f'<em class="error">{escaped(f"{name}: {error}", 200)}</em>'


def counted_fields(dataset: ReadableDataset) -> list[str]:
    """Return the fields whose values can be counted: integers and bools, those with names of classes first."""
    named = names_by_field(dataset.metadata, dataset.fields)
    found = [n for n, field in dataset.fields.items() if field.kind == "scalar" and field.row_dtype.kind in "biu"]
    return sorted(found, key=lambda name: (name not in named, name != "label"))


def _condition(name: str, value: int, field: Field) -> str:
    """Return the condition that chooses a class: by its number, as its name may be any text."""
    return f"{name} == {bool(value) if field.row_dtype.kind == 'b' else value}"


def _chips(dataset: ReadableDataset, scans: Scans, condition: str) -> str:
    """Return links that filter by class, with counts once somebody had them counted; "" without names of classes."""
    named = names_by_field(dataset.metadata, dataset.fields)
    name = next((name for name in counted_fields(dataset) if name in named), None)
    if name is None or dataset.orders_itself:
        return ""
    scan = scans.peek(("counts", name))
    counts = scan.counts() if isinstance(scan, Counts) and scan.done else {}
    chips = []
    for number, words in enumerate(named[name][:_CHIPS]):
        own = _condition(name, number, dataset.fields[name])
        count = f' <span class="soft">{counts.get(number, 0):,}</span>' if counts else ""
        marked = ' aria-current="true"' if own == condition else ""
        chips.append(f'<a href="{link("/", where=own)}"{marked}><bdi>{escaped(words, 40)}</bdi>{count}</a>')
    if len(named[name]) > _CHIPS or not counts:
        chips.append(f'<a href="{link("/classes", field=name)}">{len(named[name]):,} classes, counted…</a>')
    return f'<p class="chips">{"".join(chips)}</p>'


def classes(dataset: ReadableDataset, scans: Scans, query: Mapping[str, str]) -> str:
    """Return a page of the classes of a field; `query` has the name as `field` and the page's number as `page`."""
    fields = counted_fields(dataset)
    name = query.get("field", "") if query.get("field", "") in fields else next(iter(fields), None)
    if name is None:
        return framed("Classes", "<h1>Classes</h1><p>No field has integers that could be counted.</p>")
    scan = scans.get(("counts", name), lambda: Counts(dataset, name))
    scan.ask(WAIT)
    done = scan.done  # before the counts, which are then those of all samples
    counts, names = scan.counts(), names_by_field(dataset.metadata, dataset.fields).get(name, ())
    values, most = sorted({*range(len(names)), *counts}), max([1, *counts.values()])
    pages = max(1, -(-len(values) // _CLASSES))
    page = min(max(1, as_integer(query.get("page", ""), 1)), pages)
    rows = []
    for value in values[(page - 1) * _CLASSES : page * _CLASSES]:
        count = counts.get(value, 0)
        words = names[value] if 0 <= value < len(names) else ""
        label = escaped(words, 200) if words else f'<span class="soft">{escaped(name)} {value}</span>'
        place = link("/", where=_condition(name, value, dataset.fields[name]))
        rows.append(
            f'<tr><td class="number">{value}</td><td><a href="{place}"><bdi>{label}</bdi></a></td>'
            f'<td class="number">{count:,}</td>'
            f'<td class="bar"><meter min="0" max="{most}" value="{count}"></meter></td></tr>'
        )
    missing_count = scan.count - sum(counts.values()) if done and not scan.error else 0
    lacking = f'<p class="soft">{missing_count:,} samples have no value.</p>' if missing_count else ""
    menu = choice("field", fields, name, "field") if len(fields) > 1 else ""
    body = [
        f"<h1>Classes of {escaped(name)}</h1>",
        f'<form action="/classes" class="filter">{menu}<button>Count</button></form>' if menu else "",
        error(scan.error) if scan.error else "",
        progress(None if done else scan, "Counting", False, counts=name),
        f'<div class="scroll"><table class="classes"><tr><th>number</th><th>class</th><th>samples</th><th></th></tr>'
        f"{''.join(rows)}</table></div>",
        _pager("/classes", page, pages, field=name) if pages > 1 else "",
        lacking,
    ]
    return framed(f"Classes of {name}", "\n".join(body), again=not done)


def state_of(dataset: ReadableDataset, scans: Scans, query: Mapping[str, str]) -> dict[str, Any]:
    """Return how far a scan has come, as text, and whether it is done; the request keeps it running."""
    name, condition = query.get("counts", ""), query.get("where", "").strip()
    scan: Scan
    if name in counted_fields(dataset):
        scan = scans.get(("counts", name), lambda: Counts(dataset, name))
    else:
        scan = scans.get(("where", condition), lambda: Chosen(dataset, condition))
    scan.ask(0)
    found = f", {scan.found:,} found" if isinstance(scan, Chosen) else ""
    return {"text": told(scan, "Counting" if isinstance(scan, Counts) else "Filtering") + found, "done": scan.done}
