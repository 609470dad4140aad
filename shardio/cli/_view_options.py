"""The options of every command that reads a view: samples chosen on the command line, or a view that was saved."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from ..dataset.opening import as_dataset, as_other
from ..dataset.store_access import StoreAccess
from ..errors import ConfigError, Message, Option
from ..format.fields import listed_names
from ..stores.url import as_url
from ..views.split import parse_split
from ..views.view import BaseDataset
from ._options import Shown, options_of, with_options

DATASET = "The dataset's directory, its URL, such as s3://BUCKET/PATH, or the file of a view, such as rare.json."


@final
@dataclass(frozen=True, slots=True)
class ViewChoice:
    """Which samples of a dataset a command is about. By default, all of them.

    Attributes:
        where: a condition that the samples must fulfil, such as "label in (3, 5) and score > 0.7".
        split: the shares of random parts, such as train=0.9,val=0.1, of which `part` takes one.
        part: the part of the split.
        split_by: a field whose classes keep their shares in each part.
        split_group: a field, such as patient; samples of one group stay in one part.
        split_seed: the seed of the split.
        of: for the file of a view: the dataset that it is of, if that is not below its folder; for a view of several
            datasets NAME=DATASET, once for each.
        join: fields of another dataset or table to add, before anything is chosen, as in "captions.csv on=key"; may be
            given several times. By position without on=. Words that may follow: fields=NAME,NEW=OLD, how=optional or
            how=inner for samples without a row, and replace for fields that take the place of others.
    """

    join: Sequence[str] | None = None
    where: str | None = None
    split: str | None = None
    part: str | None = None
    split_by: str | None = None
    split_group: str | None = None
    split_seed: int = 0
    of: Sequence[str] | None = None

    def __post_init__(self) -> None:
        given = {"part": self.part, "split_by": self.split_by, "split_group": self.split_group}
        for name, value in given.items() if self.split is None else ():
            if value is not None:
                raise ConfigError("{} goes with {split}", Option(name))

    def opened(self, place: str, stores: dict[str, Any], *others: Any) -> BaseDataset:
        """Open a dataset or a view, and choose from it. Raises what `shardio.open`, `where` and `split` raise.

        Args:
            place: its path or URL.
            stores: the options of `shardio.open` for data at URLs and on slow file systems.
            others: what else `stores` may be for.
        """
        if self.split is not None and self.part is None:
            raise ConfigError(Message("{split} goes with {part}, the name of the part to take"))
        return self._part(self._parts(place, stores, others), self.part)

    def place(self, path: str, stores: dict[str, Any], *others: Any) -> str | BaseDataset:
        """Return a path as it is, or what is chosen from the dataset there, as `opened` does."""
        return path if self == ViewChoice() else self.opened(path, stores, *others)

    def to_train(self, path: str, stores: dict[str, Any], *others: Any) -> tuple[str | BaseDataset, BaseDataset | None]:
        """Return what to train on, as `place` does, and what to validate on if nothing else is given.

        Of a split these are `part`, by default `train`, and the part `val` if there is one.
        """
        if self.split is None:
            return self.place(path, stores, *others), None
        parts = self._parts(path, stores, others)
        train = self._part(parts, self.part or "train")
        val = parts.get("val")
        return train, None if val is train else val

    def _part(self, parts: Mapping[str, BaseDataset], name: str | None) -> BaseDataset:
        if (name or "") not in parts:
            raise ConfigError("{part} must be one of {}, got {!r}", ", ".join(parts), name)
        return parts[name or ""]

    def _parts(self, place: str, stores: dict[str, Any], others: Sequence[Any]) -> Mapping[str, BaseDataset]:
        """Return the parts of the split; without one, what is chosen, as ""."""
        of = self._given
        joins = [_parsed(text) for text in self.join or ()]
        given = of.values() if isinstance(of, Mapping) else filter(None, [of])
        access = StoreAccess.of(place, *given, *(other for other, _ in joins), *others, **stores)
        view: BaseDataset = as_dataset(place, access, of)
        for other, options in joins:
            view = view.join(as_other(other, access), **options)
        view = view if self.where is None else view.where(self.where)
        if self.split is None:
            return {"": view}
        return view.split(parse_split(self.split), by=self.split_by, group=self.split_group, seed=self.split_seed)

    @property
    def _given(self) -> str | Mapping[str, str] | None:
        if not self.of:
            return None
        only = self.of[0]
        if len(self.of) == 1 and ("=" not in only or as_url(only) is not None or os.path.exists(only)):
            return only
        given = {}
        for text in self.of:
            name, equals, place = text.partition("=")
            if not (name and equals) or name in given:
                raise ConfigError("{of} must be a dataset, or NAME=DATASET once for each source, got {!r}", text)
            given[name] = place
        return given


def _parsed(text: str) -> tuple[str, dict[str, Any]]:
    """Return what `--join` names: the other dataset, and the arguments of `BaseDataset.join`."""
    options: dict[str, Any] = {}
    try:
        other, *words = shlex.split(text)
    except ValueError as error:  # no word, or a quote without its end
        raise ConfigError("{join} takes a dataset and words that follow it, got {!r}: {}", text, error) from error
    for word in words:
        name, equals, value = word.partition("=")
        if name not in ("on", "how", "fields", "replace") or bool(equals) == (name == "replace") or name in options:
            raise ConfigError("{join} takes a dataset and on=, how=, fields= or replace, each once, got {!r}", text)
        options[name] = value if equals else True
    if "fields" in options:
        pairs = [part.partition("=") for part in listed_names(options["fields"])]
        options["fields"] = {new: old or new for new, _, old in pairs}
    return other, options


_OPTIONS = options_of(
    ViewChoice,
    {"Choice of samples": "join where split part split_by split_group split_seed of"},
    {
        "join": Shown(kind=list[str] | None, metavar="OTHER on=FIELD"),
        "where": Shown(metavar="CONDITION"),
        "split": Shown(metavar="NAME=SHARE,..."),
        "part": Shown(metavar="NAME"),
        "split_by": Shown(metavar="FIELD"),
        "split_group": Shown(metavar="FIELD"),
        "of": Shown(kind=list[str] | None, metavar="DATASET"),
    },
)

with_view_options = with_options("choice", _OPTIONS, ViewChoice)
"""Turns `command(..., choice: ViewChoice)` into a command that chooses samples, or opens a view."""
with_part_options = with_options("choice", [option for option in _OPTIONS if option.name not in ("where", "split")])
"""Turns `command(..., choice: dict[str, Any])` into a command with those of these options that no conversion has."""
