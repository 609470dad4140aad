"""The page of a batch: what a rank gets at a step, each sample next to its original."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, get_args, get_type_hints

from ...errors import ConfigError, ShardioError
from ...system.html import escaped
from ...transforms import Transform
from ...views.readable import ReadableDataset
from ..sheet import Card
from .batches import Job, Shown, batch_of
from .grid import pictured_field
from .page import as_integer, choice, error, framed, link, step
from .pictures import LARGEST, colored_levels, inline_png, with_marks

PER_PAGE = 24
_WORDS = ("shuffle", "tail", "assign")


def batch_page(
    dataset: ReadableDataset, usual: Job, transforms: Mapping[str, Sequence[Transform]], query: Mapping[str, str]
) -> str:
    """Return the page of a batch. `query` has the values of the job that differ from the usual ones, and `from`."""
    job, body = usual, ["<h1>Batches</h1>"]
    try:
        job = asked_job(usual, query)
        first = as_integer(query.get("from", ""), 0)
        shown = batch_of(dataset, job, transforms, first, PER_PAGE)
    except (ShardioError, OSError, MemoryError) as failed:
        return framed("Batches", "\n".join([*body, _form(job, bool(transforms)), error(failed)]))
    body += [_form(job, bool(transforms)), _steps(shown), _rows(dataset, shown)]
    body += [f'<p class="soft">Not shown: {escaped(shown.left_out)}</p>'] if shown.left_out else []
    return framed("Batches", "\n".join(body))


def asked_job(usual: Job, query: Mapping[str, str]) -> Job:
    """Return the job that an address asks for. Raises ConfigError for a value that breaks a rule."""
    asked: dict[str, Any] = {}
    for name, was in asdict(usual).items():
        given = query.get(name)
        if given is None:
            continue
        if isinstance(was, bool):
            asked[name] = given == "1"
        elif isinstance(was, int):
            if not given.removeprefix("-").isdecimal() or len(given) > 20:
                raise ConfigError("{} must be an integer, got {!r}", name, given[:40])
            asked[name] = int(given)
        else:
            asked[name] = given
    return replace(usual, **asked)


def _query(job: Job, first: int = 0) -> dict[str, object]:
    values = {name: int(value) if isinstance(value, bool) else value for name, value in asdict(job).items()}
    return values | ({"from": first} if first else {})


def _form(job: Job, can_augment: bool) -> str:
    fields, kinds = [], get_type_hints(Job)
    for name, value in asdict(job).items():
        if name in _WORDS:
            fields.append(choice(name, list(get_args(kinds[name])), value, name))
        elif isinstance(value, bool):
            if can_augment:
                fields.append(choice(name, ("0", "1"), f"{value:d}", name, ("no", "yes")))
        elif name in ("block", "window") and job.shuffle != "block":
            continue
        else:
            text = name.replace("_", " ")
            fields.append(f'<label>{text} <input name="{name}" inputmode="numeric" size="6" value="{value}"></label>')
    return f'<form action="/batches" class="filter job">{"".join(fields)}<button>Show</button></form>'


def _steps(shown: Shown) -> str:
    job = shown.job

    def to(there: bool, text: str, rel: str = "", first: int = 0, **changes: Any) -> str:
        place = link("/batches", **_query(replace(job, **changes), first)) if there else None
        return step(place, text, rel)

    last = shown.first + len(shown.indices)
    parts = [
        to(job.step > 0, "◀ step", "prev", step=job.step - 1),
        f"step {job.step:,} of {shown.steps:,}",
        to(job.step + 1 < shown.steps, "step ▶", "next", step=job.step + 1),
    ]
    if job.world > 1:
        parts += [
            to(job.rank > 0, "◀ rank", rank=job.rank - 1),
            f"rank {job.rank:,} of {job.world:,}",
            to(job.rank + 1 < job.world, "rank ▶", rank=job.rank + 1),
        ]
    if len(shown.indices) < job.batch_size:
        parts += [
            to(shown.first > 0, "◀", first=max(0, shown.first - PER_PAGE)),
            f"samples {shown.first:,} to {last - 1:,} of {job.batch_size:,}",
            to(last < job.batch_size, "▶", first=last),
        ]
    return f'<p class="pager">{" ".join(parts)}</p>'


def _rows(dataset: ReadableDataset, shown: Shown) -> str:
    original = pictured_field(dataset.fields, "")
    cards = []
    for row, (index, card) in enumerate(zip(shown.indices, shown.cards, strict=True)):
        place = link(f"/sample/{index}")
        before = (
            f'<a href="{place}"><figure><img loading="lazy" alt="" src="{link(f"/small/{original}/{index}")}">'
            "<figcaption>stored</figcaption></figure></a>"
            if original is not None
            else ""
        )
        made = (
            error(shown.errors[row])
            if row in shown.errors
            else "".join(_picture(card, name, pixels) for name, pixels in card.pictures)
        )
        lines = "".join(f"<span><bdi>{escaped(line, 100)}</bdi></span>" for line in card.lines)
        marked = " marked" if card.marked else ""
        cards.append(
            f'<div class="pair{marked}" id="row{shown.first + row}"><div>{before}{made}</div>'
            f'<a class="lines" href="{place}">{lines}</a></div>'
        )
    return f'<div class="pairs">{"".join(cards)}</div>'


def _picture(card: Card, name: str, pixels: Any) -> str:
    """Return a picture of a batch, pixel for pixel unless it is very large."""
    if pixels is None:
        return ""
    every = -(-max(pixels.shape[:2]) // LARGEST)
    image = colored_levels(pixels[::every, ::every])
    words = f"{name}, {pixels.shape[0]} x {pixels.shape[1]}"
    drawn = with_marks(inline_png(image, name, "made"), card.marks.get(name, ()), (pixels.shape[0], pixels.shape[1]))
    return f"<figure>{drawn}<figcaption>{escaped(words)}</figcaption></figure>"
