"""WebDataset tars: a sample is a group of adjacent files in a tar with the same name and different extensions.

The convention is that of https://github.com/webdataset/webdataset. `shardio.foreign.tar` documents what is read and
what is refused, `shardio.foreign.members` the meaning of extensions.
"""

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from shardio.errors import BadSample, ConfigError, SourceError
from shardio.foreign import members
from shardio.foreign.files import File, check_uncompressed, find_files
from shardio.foreign.locations import LocatedSource, Spans, ValueLocations, scan_damaged_files
from shardio.foreign.members import MemberField
from shardio.foreign.names import Paths, bad_samples_at, printable
from shardio.foreign.tar import SUFFIXES, open_tar, sample_at, scan
from shardio.source import Field, Sample, check_index

from ._fields import choose_fields, rename_remarks, shortened

_KEY_DIGITS = 12


def webdataset(
    src: Paths,
    *,
    fields: str | Mapping[str, str] | None = None,
    key: bool | None = None,
    on_error: str = "raise",
) -> "WebDataset":
    """Tars of the WebDataset convention: one, a directory of them, or a pattern such as `train-{000..146}.tar`.

    Adjacent files with the same name up to the first dot form a sample. `jpg`, `jpeg`, `png`, `webp` and `bmp` become
    the field `image`, in any mix from sample to sample; `cls` becomes `label`; `caption.txt` becomes the text
    `caption`, and so on. `npy` becomes an array, of fixed shape if the first and the last sample agree; any other
    extension becomes bytes. Pickles (`pth`, `pyd`, ...) are refused unless `fields` leaves them out. A sample without
    one of the fields is a bad sample.

    Each process that reads a compressed tar (`.tar.gz`, `.tgz`, `.tar.bz2`, `.tar.xz`, and `.tar.zst` with pyarrow)
    unpacks it to an unnamed temporary file in TMPDIR, and keeps up to eight of these. In any other order than that of
    the tars, they are unpacked again and again.

    Args:
        src: a tar, a directory, or a pattern with `*`, `?`, `[...]` or ranges `{a..b}`; in Python also a list of these.
        fields: the extensions to take, with names for their fields, as in "image=jpg,label=cls,caption=txt". Without
            it: all extensions of the first sample; a note names those that only later samples have.
        key: add a text field `key` with each sample's key. Without this option it is added unless the keys are running
            numbers of 12 digits, as shardio writes them, or another field has that name.
        on_error: `"skip"` takes the samples before the place where a tar is damaged or was cut off; one bad sample then
            stands for all that follow.

    Example:
        shardio convert webdataset 'cc3m/train-{00000..00003}.tar' data/cc3m --fields image=jpg,caption=txt
        shardio convert webdataset shards data/plain --no-key
        shardio convert webdataset shards data/small --resize-shorter 256

    Raises:
        SourceError: `src` does not exist or holds no samples, a tar is damaged or truncated (unless `on_error` is
            `"skip"`), or holds links or sparse files.
        ConfigError: `fields` names an extension that none of the first samples has, or `key` would be a second field of
            that name.
    """
    paths = find_files(src, lambda name: name.lower().endswith(SUFFIXES), "tars")
    found, damage = scan_damaged_files(paths, _scan, on_error)
    places = ValueLocations(paths, [tar.spans for tar in found], open_tar, damage)
    if not len(places):
        raise SourceError(f"{printable(src)} holds no samples: no files whose names have an extension")
    parts = _parts(places, fields, printable(src))
    if key and "key" in parts:
        raise ConfigError(
            f"{printable(src)}: there would be two fields called 'key'; rename one with fields, or pass key=False"
        )
    numbered = all(tar.running for tar in found)
    lost = [] if fields is not None else _left_out(parts.values(), paths, found)
    names = rename_remarks(
        fields, {name: part.extensions[0] for name, part in parts.items() if not _is_plain(name, part)}
    )
    remarks = (*shortened(lost, "extensions are left out"), *names)
    return WebDataset(places, parts, remarks, key=(not numbered and "key" not in parts) if key is None else key)


@final
class WebDataset(LocatedSource):
    """The samples of tars. Only the location of each is kept; its headers are read again with the sample."""

    def __init__(
        self, places: ValueLocations, parts: Mapping[str, MemberField], remarks: Sequence[str], *, key: bool
    ) -> None:
        super().__init__(places, remarks)
        self._parts, self._key = dict(parts), key

    @property
    def fields(self) -> Mapping[str, Field]:
        """The chosen extensions, and `key`."""
        return {n: part.field for n, part in self._parts.items()} | ({"key": Field("text")} if self._key else {})

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The converter's name."""
        return {"source": "webdataset"}

    @property
    def names(self) -> Mapping[str, str]:
        """The extension of each field's file."""
        return {name: part.extensions[0] for name, part in self._parts.items()}

    def places(self, index: int) -> dict[str, tuple[int, int]]:
        """See `shardio.source.HasPlaces`."""
        check_index(index, len(self._places))
        files = _open(self._places, index)
        check_uncompressed(files.tar)
        if self._key:
            raise SourceError(
                f"{printable(files.tar.path)}: a tar does not hold keys as shardio stores them: pass key=False"
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
    """The files of one sample in an open tar, by extension."""

    tar: File
    key: str
    places: Mapping[str, tuple[int, int]]

    def __str__(self) -> str:
        return f"{printable(self.tar.path)}, key {self.key!r}"

    def extension_of(self, part: MemberField) -> str:
        """The extension of a field's file; BadSample if the sample has no such file."""
        if (extension := part.find(self.places)) is None:
            raise BadSample(f"{self}: it has no .{part.extensions[0]}, but .{', .'.join(self.places)}")
        return extension

    def read(self, extension: str) -> bytes:
        """Read the file with this extension."""
        offset, size = self.places[extension]
        data = self.tar.read_buffered(offset, size)
        if len(data) < size:
            raise BadSample(f"the tar ends within it, after {len(data)} of {size} bytes")
        return data


def _open(places: ValueLocations, index: int) -> _Files:
    """The files of sample `index`; BadSample if the tar has changed, or two files have the same extension."""
    file, _, offset, size = places.locate(index)
    with bad_samples_at(printable(file.path)):
        run = sample_at(file, offset, size)
        return _Files(file, run.key, run.places())


@final
@dataclass(frozen=True, slots=True)
class _Scanned:
    """What the headers of a tar tell.

    Attributes:
        spans: the location of each sample.
        running: whether the keys are running numbers, as shardio writes them.
        layouts: the extensions that samples have, and the key of the first sample that has just these.
    """

    spans: Spans
    running: bool
    layouts: Mapping[tuple[str, ...], str]


def _scan(path: Path, damage: list[str] | None) -> _Scanned:
    offsets, sizes = array("q"), array("q")
    layouts: dict[tuple[str, ...], str] = {}
    running, first = True, 0
    for number, run in enumerate(scan(open_tar(path), damage)):
        layouts.setdefault(tuple([member.extension for member in run.members]), run.key)
        offsets.append(run.offset)
        sizes.append(run.size)
        digits = len(run.key) == _KEY_DIGITS and run.key.isdecimal()
        first = first if number or not digits else int(run.key)
        running = running and digits and int(run.key) == first + number
    return _Scanned((np.array(offsets, np.int64), np.array(sizes, np.int64)), running, layouts)


def _left_out(parts: Collection[MemberField], paths: Sequence[Path], found: Sequence[_Scanned]) -> list[str]:
    """A remark for each extension that some sample has and no field takes, which the first sample therefore lacks."""
    remarks: dict[str, str] = {}
    for path, scanned in zip(paths, found, strict=True):
        for extensions, key in scanned.layouts.items():
            taken = {part.find(extensions) for part in parts}
            for extension in extensions:
                if extension not in taken and extension not in remarks:
                    where = f"{printable(path)}, key {key!r}, is the first that has it"
                    remarks[extension] = (
                        f"left out .{extension}, which the first sample lacks: {where}; fields takes it"
                    )
    return list(remarks.values())


def _is_plain(name: str, part: MemberField) -> bool:
    """Whether the convention gives a field this name, rather than the rules for names of fields."""
    extension = part.extensions[0]
    return name in ("image", "label", "bytes", extension, extension.rpartition(".")[0])


def _parts(places: ValueLocations, given: str | Mapping[str, str] | None, where: str) -> dict[str, MemberField]:
    """The fields and the extensions of their files, from the first samples and the last."""
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
            advice = f"leave it out with fields, such as {others!r}" if others else "choose others with fields"
            raise SourceError(f"{where}, .{extension}: {error}; {advice}") from error
        parts[name] = MemberField(members.alternatives(extension, samples, list(chosen.values())), field)
    return parts


def _probe(places: ValueLocations) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the number and the extensions of the first samples and the last; SourceError if none can be read."""
    wrong, good = None, False
    for number in places.probes().tolist():
        try:
            yield number, tuple(_open(places, number).places)
            good = True
        except BadSample as error:
            wrong = wrong or error
    if wrong and not good:
        raise SourceError(f"no sample can be read: {wrong}") from wrong
