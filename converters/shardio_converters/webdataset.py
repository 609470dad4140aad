"""WebDataset tars: a sample is a group of adjacent files in a tar with the same name and different extensions.

The convention is that of https://github.com/webdataset/webdataset. `shardio.foreign.tar` documents which tars can be
read, `_members` the meaning of extensions.
"""

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from shardio.errors import BadSample, ConfigError, Message, Option, SourceError
from shardio.foreign.files import File, Sort, check_uncompressed, find_files, order_hints, other_files, within_folders
from shardio.foreign.locations import Spans, ValueLocations, scan_damaged_files
from shardio.foreign.names import Paths, bad_samples_at, printable
from shardio.foreign.tar import SUFFIXES, open_tar, sample_at, scan
from shardio.source import Field, Missing, Places, Sample, check_index, listed_names, with_optional

from . import _members as members
from ._fields import choose_fields, readable, rename_remarks, shortened
from ._members import MemberField
from ._source_base import LocatedSource

_KEY_DIGITS = 12
_MOST_KEYS = 1000  # of a tar, among which a key that comes again is looked for
_APART = "its other files are elsewhere in the tar, and not adjacent: `tar --sort=name` puts them together"


def webdataset(
    src: Paths,
    *,
    fields: str | Mapping[str, str] | None = None,
    key: bool | None = None,
    optional: str | Collection[str] | None = None,
    on_error: str = "raise",
    sort: Sort = "name",
    files: str | None = None,
) -> "WebDataset":
    """Tars of the WebDataset convention: one, a directory of them, or a pattern such as `train-{000..146}.tar`.

    Adjacent files with the same name up to the first dot form a sample. `jpg`, `jpeg`, `png`, `webp` and `bmp` become
    the field `image`, in any mix from sample to sample; `mp4`, `m4v`, `mkv`, `webm` and `mov` become `video`; `cls`
    becomes `label`; `caption.txt` becomes the text `caption`, and so on. `npy` becomes an array, of fixed shape if the
    first and the last sample agree; any other extension becomes bytes. Pickles (`pth`, `pyd`, ...) are an error unless
    `fields` leaves them out. A sample without one of the fields is a bad sample, unless the field is optional.

    Each process that reads a compressed tar (`.tar.gz`, `.tgz`, `.tar.bz2`, `.tar.xz`, and `.tar.zst` with pyarrow)
    unpacks it to an unnamed temporary file in TMPDIR, and keeps up to eight of these. In any other order than that of
    the tars, they are unpacked again and again.

    Args:
        src: a tar, a directory, or a pattern with `*`, `?`, `[...]` or ranges `{a..b}`; in Python also a list of these.
        fields: the extensions to take, with names for their fields, as in "image=jpg,label=cls,caption=txt": any that
            some sample has. Without it: all extensions of the first sample; a note names those that only others have.
        key: add a text field `key` with each sample's key. Without this option it is added unless the keys are running
            numbers of 12 digits, as shardio writes them, or another field has that name.
        optional: the fields that samples may lack, as in "caption,score".
        on_error: `"skip"` takes the samples before the place where a tar is damaged or was cut off; one bad sample then
            stands for all that follow.
        sort: `natural` sorts files by the numbers in their names, so that s_2 comes before s_10.
        files: a pattern for the names of the files to take from a directory, such as "train-*". Without it: all.

    Example:
        shardio convert webdataset 'cc3m/train-{00000..00003}.tar' data/cc3m --fields image=jpg,caption=txt
        shardio convert webdataset shards data/some --fields image=jpg,caption=txt --optional caption --sort natural
        shardio convert webdataset shards data/plain --no-key
        shardio convert webdataset shards data/small --resize-shorter 256

    Raises:
        SourceError: `src` does not exist or holds no samples, a tar is damaged or truncated (unless `on_error` is
            `"skip"`), or holds links or sparse files.
        ConfigError: `fields` names an extension that no sample has, or `key` would be a second field of that name.
    """
    src = within_folders(src, files)
    paths = find_files(src, lambda name: name.lower().endswith(SUFFIXES), "tars", sort)
    found, damage = scan_damaged_files(paths, _scan, on_error)
    places = ValueLocations(paths, [tar.spans for tar in found], open_tar, damage)
    if not len(places):
        raise SourceError(f"{printable(src)} holds no samples: no files whose names have an extension")
    layouts = _layouts(places, found)
    parts = _parts(places, layouts, fields, optional, printable(src))
    if key and "key" in parts:
        raise ConfigError(
            "{}: there would be two fields called 'key'; rename one with fields, or pass {key:False}", printable(src)
        )
    numbered = all(tar.running for tar in found)
    # Only files of which some are elsewhere are parts of a sample; a whole sample again is another one.
    apart = next((scanned.apart for scanned in found if scanned.apart), "") if len(layouts) > 1 else ""
    lost = [] if fields is not None else _left_out(parts.values(), places, layouts, apart)
    names = rename_remarks(
        fields, {name: part.extensions[0] for name, part in parts.items() if not _is_plain(name, part)}
    )
    remarks = (*other_files(src, paths, "tars"), *shortened(lost, "extensions are left out"), *names)
    adds_key = (not numbered and "key" not in parts) if key is None else key
    split = next((scanned.split for scanned in found if scanned.split), "")
    keys = _Keys(split, any(scanned.in_folders for scanned in found)) if adds_key else None
    hints = (*order_hints(paths), *_odd_keys(layouts, apart))
    return WebDataset(places, parts, keys, _APART if apart else "", remarks, hints)


class _Keys(NamedTuple):
    """The keys of all samples: the first that its tar does not hold in one piece, and whether keys name folders."""

    split: str
    in_folders: bool


@final
@dataclass(frozen=True, eq=False)
class WebDataset(LocatedSource):
    """The samples of tars. Only the location of each is kept; its headers are read again with the sample.

    Attributes:
        parts: the files of each field.
        keys: the keys of all samples, if they are the field `key`.
        apart: why a sample may lack a file; "" if that is not known.
    """

    parts: Mapping[str, MemberField]
    keys: _Keys | None
    apart: str
    remarks: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    source = "webdataset"

    @property
    def fields(self) -> Mapping[str, Field]:
        """The chosen extensions, and `key`."""
        return {name: part.field for name, part in self.parts.items()} | ({"key": Field("text")} if self.keys else {})

    def in_place(self, key: bool | None) -> "WebDataset":
        """Return the samples as `shardio index` takes them: without keys that the tars do not hold in one piece.

        With `key=None`, keys that name no folders are left out as well, as they always were.
        """
        if self.keys is not None and self.keys.split:
            told = f"left out the keys, as a tar holds {self.keys.split!r} in two pieces; converting keeps them"
            return replace(self, keys=None, remarks=(*self.remarks, told))
        if self.keys is not None and key is None and not self.keys.in_folders:
            hint = Message("the keys are left out; {key:True} takes them as the field key, as converting does")
            return replace(self, keys=None, hints=(*self.hints, hint))
        return self

    @property
    def adoption(self) -> Places:
        names = {name: part.extensions[0] for name, part in self.parts.items()}
        return Places(self.places.starts, self._spans, names)

    def _spans(self, index: int) -> dict[str, tuple[int, int]]:
        check_index(index, len(self.places))
        files = _open(self.places, index)
        check_uncompressed(files.tar)
        found = {}
        if self.keys:
            if files.key_at is None:
                place = printable(files.tar.path)
                raise SourceError(
                    "{}: the tar does not hold the key {!r} in one piece: pass {key:False}", place, files.key
                )
            found["key"] = files.key_at, len(files.key.encode())
        for name, part in self.parts.items():
            if part.field.kind != "scalar" and (extension := part.find(files.places)) is not None:
                offset, size = files.places[extension]
                with bad_samples_at(f"{files}, .{extension}"):
                    start, size = part.stored_span(files.read(extension))
                found[name] = offset + start, size
        return found

    def __getitem__(self, index: int) -> Sample:
        check_index(index, len(self.places))
        files = _open(self.places, index)
        sample: dict[str, Any] = {}
        for name, part in self.parts.items():
            if (extension := part.find(files.places)) is None:
                why = f"{files}: it has no .{part.extensions[0]}, but .{', .'.join(files.places)}"
                sample[name] = Missing(f"{why}; {self.apart}" if self.apart else why)
                continue
            with bad_samples_at(f"{files}, .{extension}"):
                sample[name] = part.decode(files.read(extension))
        return sample | ({"key": files.key} if self.keys else {})


class _Files(NamedTuple):
    """The files of one sample in an open tar, by extension."""

    tar: File
    key: str
    key_at: int | None
    places: Mapping[str, tuple[int, int]]

    def __str__(self) -> str:
        return f"{printable(self.tar.path)}, key {self.key!r}"

    def read(self, extension: str) -> bytes:
        offset, size = self.places[extension]
        data = self.tar.read_buffered(offset, size)
        if len(data) < size:
            raise BadSample(f"the tar ends within it, after {len(data)} of {size} bytes")
        return data


def _open(places: ValueLocations, index: int) -> _Files:
    """Return the files of sample `index`; BadSample if the tar has changed, or two files have the same extension."""
    file, _, offset, size = places.locate(index)
    with bad_samples_at(printable(file.path)):
        run = sample_at(file, offset, size)
        return _Files(file, run.key, run.key_at, run.places())


class _Layout(NamedTuple):
    """Samples that have just the same extensions: the numbers of the first and last one, how many, the first key."""

    first: int
    last: int
    samples: int
    key: str

    def and_also(self, other: "_Layout") -> "_Layout":
        return _Layout(self.first, other.last, self.samples + other.samples, self.key)


class _Scanned(NamedTuple):
    """The samples of a tar, as its headers describe them.

    Attributes:
        spans: the location of each sample.
        running: whether the keys are running numbers, as shardio writes them.
        layouts: the extensions that samples have, and which samples of the tar have just these.
        split: the first key that the tar does not hold in one piece, "" if there is none.
        in_folders: whether keys name folders.
        apart: a key that comes again after others, whose files are therefore not adjacent; "" if none is seen.
    """

    spans: Spans
    running: bool
    layouts: Mapping[tuple[str, ...], _Layout]
    split: str
    in_folders: bool
    apart: str


def _scan(path: Path, damage: list[str]) -> _Scanned:
    offsets, sizes = array("q"), array("q")
    layouts: dict[tuple[str, ...], _Layout] = {}
    running, first = True, 0
    split, in_folders, apart, seen = "", False, "", set[str]()
    for number, run in enumerate(scan(open_tar(path), damage)):
        extensions, own = tuple([member.extension for member in run.members]), _Layout(number, number, 1, run.key)
        layouts[extensions] = layouts[extensions].and_also(own) if extensions in layouts else own
        offsets.append(run.offset)
        sizes.append(run.size)
        digits = len(run.key) == _KEY_DIGITS and run.key.isdecimal()
        first = first if number or not digits else int(run.key)
        running = running and digits and int(run.key) == first + number
        split = split or (run.key if run.key_at is None else "")
        in_folders = in_folders or bool(run.key.rpartition("/")[0])
        if len(layouts) > 1 and not apart and run.key in seen:
            apart = run.key
        if number < _MOST_KEYS:
            seen.add(run.key)
    spans = np.array(offsets, np.int64), np.array(sizes, np.int64)
    return _Scanned(spans, running, layouts, split, in_folders, apart)


def _layouts(places: ValueLocations, found: Sequence[_Scanned]) -> dict[tuple[str, ...], _Layout]:
    """Return the extensions that samples have, in the order of the first that has them, by numbers in the source."""
    layouts: dict[tuple[str, ...], _Layout] = {}
    for start, scanned in zip(places.starts.tolist(), found, strict=False):
        for extensions, own in scanned.layouts.items():
            own = own._replace(first=start + own.first, last=start + own.last)
            layouts[extensions] = layouts[extensions].and_also(own) if extensions in layouts else own
    return layouts


def _left_out(
    parts: Collection[MemberField], places: ValueLocations, layouts: Mapping[tuple[str, ...], _Layout], apart: str
) -> list[str]:
    """A remark for each extension that some sample has and no field takes, which the first sample therefore lacks."""
    having: dict[str, list[_Layout]] = {}
    for extensions, layout in layouts.items():
        taken = {part.find(extensions) for part in parts}
        for extension in dict.fromkeys(extensions):
            if extension not in taken:
                having.setdefault(extension, []).append(layout)
    remarks: list[str] = []
    samples = sum(layout.samples for layout in layouts.values())
    for extension, those in having.items():
        count = sum(layout.samples for layout in those)
        first = f"{printable(places.path_of(those[0].first))}, key {those[0].key!r}"
        told = "left out .{}, which {} of {} samples have, the first in {}; "
        advice: object = _APART
        if not apart:
            rule = "{fields} takes it, and every sample without it is then bad, unless {} allows that"
            advice = Message(rule, Option("optional", list(members.field_names([extension]))))
        remarks.append(Message(told + "{}", extension, count, samples, first, advice))
    return remarks


def _odd_keys(layouts: Mapping[tuple[str, ...], _Layout], apart: str) -> tuple[str, ...]:
    """Hints on keys that make more samples, or fewer, than the files were meant to be."""
    if apart:
        return (f"files of key {apart!r} are in several samples, each of which lacks some: in each, {_APART}",)
    for extensions, layout in layouts.items():
        suffixes: dict[str, set[str]] = {}
        for stem, _, suffix in (extension.rpartition(".") for extension in extensions):
            suffixes.setdefault(stem, set()).add(suffix)
        alike = len(suffixes) > 1 and all(stem.isdecimal() for stem in suffixes) and layout.samples == 1
        if alike and all(len(each) > 1 for each in suffixes.values()):
            told = f"the {len(extensions)} files from {layout.key + '.' + extensions[0]!r} on are one sample"
            return (f"{told}, as a key ends at the first dot of a name: rename files whose keys hold dots",)
    return ()


def _is_plain(name: str, part: MemberField) -> bool:
    """Return whether the convention gives a field this name, rather than the rules for names of fields."""
    extension = part.extensions[0]
    return name in ("image", "video", "label", "bytes", extension, extension.rpartition(".")[0])


def _parts(
    places: ValueLocations,
    layouts: Mapping[tuple[str, ...], _Layout],
    given: str | Mapping[str, str] | None,
    optional: str | Collection[str] | None,
    where: str,
) -> dict[str, MemberField]:
    """The fields and the extensions of their files, from the first samples and the last, and those of each extension.

    Without `given` these are the extensions of the first sample, and those of optional fields that it lacks.
    The first and the last sample with an extension are read as well where none of the others has it.
    """
    probed = _probe(places, places.probes().tolist())
    samples = list(probed.values())
    available = dict.fromkeys(extension for extensions in (*samples, *layouts) for extension in extensions)
    if given is None:
        named, more = members.field_names(samples[0]), members.field_names(available)
        given = named | {n: more[n] for n in listed_names(optional) if n in more and n not in named}
    chosen = choose_fields(given, available, where)
    parts: dict[str, MemberField] = {}
    wrong: dict[str, Exception] = {}
    for name, extension in chosen.items():
        having = [number for number, sample in probed.items() if extension in sample]
        try:
            if not having:
                those = [layout for extensions, layout in layouts.items() if extension in extensions]
                ends = {min(layout.first for layout in those), max(layout.last for layout in those)}
                having = list(_probe(places, sorted(ends)))
            with bad_samples_at("its first or last file"):
                values = [_open(places, number).read(extension) for number in {having[0], having[-1]}]
            field = members.field_of(extension, values)
        except (BadSample, SourceError) as error:
            wrong[extension] = error
            continue
        parts[name] = MemberField(members.alternatives(extension, samples, list(chosen.values())), field)
    if wrong:
        extension, reason = next(iter(wrong.items()))
        others = ",".join(f"{name}={chosen[name]}" for name in parts)
        advice = f"leave it out with fields, such as {others!r}" if others else "choose others with fields"
        raise SourceError(f"{where}, .{extension}: {reason}; {advice}") from reason
    fields = with_optional({name: part.field for name, part in parts.items()}, optional)
    return {name: replace(part, field=fields[name]) for name, part in parts.items()}


def _probe(places: ValueLocations, numbers: Iterable[int]) -> dict[int, tuple[str, ...]]:
    """Return the extensions of those of these samples that can be read, by number; SourceError if none can be."""
    return dict(readable(numbers, lambda number: tuple(_open(places, number).places), "sample"))
