"""WebDataset tars: samples that are files with one name and several extensions, side by side in a tar.

The convention is that of https://github.com/webdataset/webdataset; `shardio.foreign.tar` says what is read and refused,
`shardio.foreign.members` what the extensions stand for.
"""

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from shardio.errors import BadSample, ConfigError, SourceError
from shardio.foreign import members, tar
from shardio.foreign.files import File, check_uncompressed, find_files
from shardio.foreign.locations import LocatedSource, Spans, ValueLocations, scan_files
from shardio.foreign.members import MemberField
from shardio.foreign.names import Paths, bad_samples_at, printable
from shardio.source import Field, Sample, check_index

from ._fields import choose_fields

_KEY_DIGITS = 12


def webdataset(src: Paths, *, fields: str | Mapping[str, str] | None = None, key: bool | None = None) -> "WebDataset":
    """Tars of the WebDataset convention: one, a directory of them, or a pattern such as `train-{000..146}.tar`.

    Files with the same name up to the first dot are a sample. `jpg`, `jpeg`, `png`, `webp` and `bmp` are the field
    `image`, any of them from sample to sample; `cls` is `label`; `caption.txt` is the text `caption`, and so on; `npy`
    is an array, of fixed shape if the first and last sample agree; what else there is is bytes. Pickles (`pth`, `pyd`,
    ...) are refused unless `fields` leaves them out. A sample that lacks a field is a bad one.

    Compressed tars (`.tar.gz`, `.tgz`, `.tar.bz2`, `.tar.xz`, and `.tar.zst` with pyarrow) are unpacked to temporary
    files without names, in TMPDIR, by each process that reads them; it keeps up to eight. In another order than the
    tars' own they are unpacked again and again.

    Args:
        src: a tar, a directory, or a pattern with `*`, `?`, `[...]` or ranges `{a..b}`; in Python also a list of such.
        fields: extensions to take and what to call them, such as "image=jpg,label=cls,caption=txt"; all extensions of
            the first sample without it.
        key: whether there is a text field `key` with each sample's key; without this there is one unless the keys are
            running numbers of 12 digits, as shardio writes them, or a field is called so.

    Example:
        shardio convert webdataset 'cc3m/train-{00000..00331}.tar' data/cc3m --fields image=jpg,caption=txt
        shardio convert webdataset shards data/plain --no-key

    Raises:
        SourceError: `src` is not there, holds no samples, or a tar is damaged, cut off, or holds links or sparse files.
        ConfigError: `fields` names an extension that no sample near the beginning has, or `key` a field twice.
    """
    paths = find_files(src, lambda name: name.lower().endswith(tar.SUFFIXES), "tars")
    found = scan_files(paths, _scan)
    places = ValueLocations(paths, [spans for spans, _ in found], tar.open_tar)
    if not len(places):
        raise SourceError(f"{printable(src)} holds no samples: no files whose names have an extension")
    parts = _parts(places, fields, printable(src))
    if key and "key" in parts:
        raise ConfigError(
            f"{printable(src)}: there would be two fields called 'key'; rename one by fields, or key=False"
        )
    numbered = all(running for _, running in found)
    return WebDataset(places, parts, key=(not numbered and "key" not in parts) if key is None else key)


@final
class WebDataset(LocatedSource):
    """Samples of tars. Where each begins is known; its headers are read again when it is."""

    def __init__(self, places: ValueLocations, parts: Mapping[str, MemberField], *, key: bool) -> None:
        super().__init__(places)
        self._parts, self._key = dict(parts), key

    @property
    def fields(self) -> Mapping[str, Field]:
        """The chosen extensions, and `key`."""
        return {n: part.field for n, part in self._parts.items()} | ({"key": Field("text")} if self._key else {})

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The converter's name."""
        return {"source": "webdataset"}

    def places(self, index: int) -> dict[str, tuple[int, int]]:
        """See `shardio.source.HasPlaces`."""
        check_index(index, len(self._places))
        files = _open(self._places, index)
        check_uncompressed(files.tar)
        if self._key:
            raise SourceError(
                f"{printable(files.tar.path)}: keys do not stand in a tar as they are stored: give key=False"
            )
        found = {}
        for name, part in self._parts.items():
            if part.field.kind != "scalar":
                extension = files.extension_of(part)
                offset, size = files.places[extension]
                with bad_samples_at(f"{files}, .{extension}"):
                    start, size = part.stored_span(files.read(extension))
                found[name] = offset + start, size
        return found

    def __getitem__(self, index: int) -> Sample:
        check_index(index, len(self._places))
        files = _open(self._places, index)
        sample: dict[str, Any] = {}
        for name, part in self._parts.items():
            extension = files.extension_of(part)
            with bad_samples_at(f"{files}, .{extension}"):
                sample[name] = part.decode(files.read(extension))
        return sample | ({"key": files.key} if self._key else {})


@final
@dataclass(frozen=True, slots=True)
class _Files:
    """The files of one sample, by extension, in an open tar."""

    tar: File
    key: str
    places: Mapping[str, tuple[int, int]]

    def __str__(self) -> str:
        return f"{printable(self.tar.path)}, key {self.key!r}"

    def extension_of(self, part: MemberField) -> str:
        """The extension of the file that a field is; BadSample if there is none."""
        if (extension := part.find(self.places)) is None:
            raise BadSample(f"{self}: it has no .{part.extensions[0]}, but .{', .'.join(self.places)}")
        return extension

    def read(self, extension: str) -> bytes:
        """What the file with this extension holds."""
        offset, size = self.places[extension]
        data = self.tar.read_buffered(offset, size)
        if len(data) < size:
            raise BadSample(f"the tar ends within it, {len(data)} of {size} bytes are there")
        return data


def _open(places: ValueLocations, index: int) -> _Files:
    """The files of sample `index`; BadSample if they are no longer there, or two have the same extension."""
    file, _, offset, size = places.locate(index)
    with bad_samples_at(printable(file.path)):
        run = tar.sample_at(file, offset, size)
        return _Files(file, run.key, run.places())


def _scan(path: Path) -> tuple[Spans, bool]:
    """Where the samples of a tar are, and whether their keys are running numbers as shardio writes them."""
    offsets, sizes = array("q"), array("q")
    running, first = True, 0
    for number, run in enumerate(tar.scan(tar.open_tar(path))):
        offsets.append(run.offset)
        sizes.append(run.size)
        digits = len(run.key) == _KEY_DIGITS and run.key.isdecimal()
        first = first if number or not digits else int(run.key)
        running = running and digits and int(run.key) == first + number
    return (np.array(offsets, np.int64), np.array(sizes, np.int64)), running


def _parts(places: ValueLocations, given: str | Mapping[str, str] | None, where: str) -> dict[str, MemberField]:
    """Which files are which fields, by the first samples and the last."""
    probed = list(_probe(places))
    samples = [extensions for _, extensions in probed]
    available = dict.fromkeys(extension for sample in samples for extension in sample)
    chosen = choose_fields(members.field_names(samples[0]) if given is None else given, available, where)
    parts = {}
    for name, extension in chosen.items():
        having = [number for number, sample in probed if extension in sample]
        try:
            with bad_samples_at("its first or last file"):
                values = [_open(places, number).read(extension) for number in {having[0], having[-1]}]
            field = members.field_of(extension, values)
        except (BadSample, SourceError) as error:
            others = ",".join(f"{field}={own}" for field, own in chosen.items() if own != extension)
            advice = f"leave it out by fields, such as {others!r}" if others else "choose others by fields"
            raise SourceError(f"{where}, .{extension}: {error}; {advice}") from error
        parts[name] = MemberField(members.alternatives(extension, samples, list(chosen.values())), field)
    return parts


def _probe(places: ValueLocations) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Number and extensions of the first samples and the last; at least one, or what is wrong with it is raised."""
    wrong, good = None, False
    for number in places.probes().tolist():
        try:
            yield number, tuple(_open(places, number).places)
            good = True
        except BadSample as error:
            wrong = wrong or error
    if wrong and not good:
        raise SourceError(f"no sample can be read: {wrong}") from wrong
