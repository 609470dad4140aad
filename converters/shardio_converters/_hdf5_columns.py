"""The contents of an HDF5 file: the datasets, members and groups that can be columns of samples, and links to them.

A file may name other files, in external links, external storage and virtual datasets. These are opened only on request:
otherwise only hard links are followed, and soft links are resolved by name.
"""

import contextlib
import importlib
import math
import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from shardio.containers.hdf5_library import DAMAGE
from shardio.errors import Message
from shardio.foreign.files import File
from shardio.format import cf
from shardio.format.fields import CHECKSUM, length_column, present_column, shape_column
from shardio.source import Field

from ._fields import array_field, dtype_in_words
from ._source_base import ArrayColumn

_MOST_NUMBERS = 1024  # in an attribute
_MOST_BYTES = 1 << 16  # of an attribute
_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"
_HOPS = 32  # the most links to links to follow: more count as a cycle
_UNKNOWN = Field("bytes")
_VIRTUAL = "a virtual dataset of others in this file"


def is_hidden(name: str) -> bool:
    """Return whether a dataset of this name is a column that shardio adds to every shard, not a field."""
    return name.startswith((CHECKSUM, shape_column(""), length_column(""), present_column("")))


def is_matlab(path: Path) -> bool:
    """Return whether MATLAB wrote an HDF5 file, with its axes in reverse order."""
    return File(path).read(0, 10) == b"MATLAB 7.3"


@final
@dataclass(frozen=True, slots=True)
class Column(ArrayColumn):
    """A dataset, a member of a compound one, or a group of `data` and `offsets`, by its path.

    Attributes:
        members: the path of names to a member of a compound dataset; () for a whole dataset.
        ragged: whether it is a group of `data` and `offsets`.
        classes: the names of an enumeration of 0, 1, 2...
        decoded: whether its numbers are decoded by the attributes that each file has of its dataset, see `format.cf`.
        units_from: the path of the times whose bounds it holds, and whose units and calendar it has; empty for its own.
    """

    members: tuple[str, ...] = ()
    ragged: bool = False
    classes: tuple[str, ...] = ()
    decoded: bool = False
    units_from: str = ""

    def form(self) -> tuple[Any, ...]:
        return (self.path, self.members, self.ragged, self.classes, self.units_from, self.axis)


@final
class Contents:
    """The contents of an open file.

    Args:
        file: the h5py.File.
        path: its path.
        external_links: whether to include data in other files that it names.
        whole: whether each dataset is one row.

    Attributes:
        columns: the columns by name, which is the path, and for members `path/member`; their dimensions are the paths
            of dimension scales, "" for an axis without one.
        attributes: by path of a dataset, its attributes of netCDF that say what its numbers mean.
        external: what is left out because it is in other files or virtual, and in which, or what is wrong with those.
    """

    def __init__(self, file: Any, path: Path, external_links: bool, whole: bool = False) -> None:
        self.columns: dict[str, Column] = {}
        self.external: dict[str, str] = {}
        self.attributes: dict[str, dict[str, Any]] = {}
        self._h5py: Any = importlib.import_module("h5py")
        self._follow, self._whole, self._matlab = external_links, whole, is_matlab(path)
        self._links: dict[str, str] = {}
        self._seen: dict[tuple[int, int], str] = {}  # objects that have a name already
        self._walk(file["/"], "", path)

    def where(self) -> str:
        """Name the data that other files hold, in words that follow the file's name, and the way to read them."""
        named = ", ".join(f"{name!r} ({what})" for name, what in self.external.items())
        virtual = all(what == _VIRTUAL for what in self.external.values())
        told = "has virtual datasets, which may lead to other files" if virtual else "keeps data in other files"
        advice = Message("; `shardio convert hdf5 --external-links` ({external_links:True}) reads them")
        return Message("{}: {}{}", told, named, "" if self._follow else advice)

    def names(self) -> dict[str, str]:
        """Return the name of the column for all its names, including those through links within the file."""
        names = [*self.columns, *self._links]
        for link in self._links:
            below = f"{self._resolve(link)}/"
            names += [
                f"{link}/{name[len(below) :]}" for name in (*self.columns, *self._links) if name.startswith(below)
            ]
        return {name: real for name in names if (real := self._resolve(name)) in self.columns}

    def _resolve(self, name: str) -> str:
        for _ in range(_HOPS):
            ends = [at for at, letter in enumerate(name) if letter == "/"]
            through = next((end for end in [*ends, len(name)] if name[:end] in self._links), None)
            if through is None:
                break
            name = self._links[name[:through]] + name[through:]
        return name

    def _walk(self, group: Any, prefix: str, path: Path) -> None:
        """Add everything below `group`, with `prefix` before the names; `path` is the file that contains the group."""
        h5l, links, names = self._h5py.h5l, group.id.links, list[bytes]()
        links.visit(names.append)  # visits every link once, and follows only hard links
        for raw in names:
            local, kind = os.fsdecode(raw), links.get_info(raw).type
            name = prefix + local
            if kind == h5l.TYPE_HARD:
                self._add(self._h5py.h5o.open(group.id, raw), name, path)
            elif kind == h5l.TYPE_SOFT:
                target = posixpath.join("/", posixpath.dirname(name), os.fsdecode(links.get_val(raw)))
                self._links[name] = posixpath.normpath(target).lstrip("/")
            elif kind == h5l.TYPE_EXTERNAL:
                filename, target = (os.fsdecode(part) for part in links.get_val(raw))
                if not self._follow:
                    self.external[name] = f"an external link to {target} in {filename}"
                    continue
                try:
                    there = group[local]
                except (OSError, KeyError, ValueError, RuntimeError) as error:
                    self.external[name] = f"an external link to {target} in {filename}: {error}"
                    continue
                if self._add(there.id, name, path) and isinstance(there, self._h5py.Group):
                    self._walk(there, f"{name}/", Path(os.fsdecode(there.file.filename)))

    def _add(self, opened: Any, name: str, path: Path) -> bool:
        """Add a dataset or a group of `data` and `offsets` by its id; False if it has another name already."""
        info = self._h5py.h5o.get_info(opened)
        first = self._seen.setdefault((info.fileno, info.addr), name)
        if first != name:
            self._links[name] = first
            return False
        if isinstance(opened, self._h5py.h5d.DatasetID):
            found = self._h5py.Dataset(opened)
            others = list(dict.fromkeys(name for name, _ in _sources(found)))
            missing = _missing(found, path.parent, self._follow) if others else []
            if missing or (others and not self._follow):
                what = f"{', '.join(missing)}, which is missing" if self._follow else ", ".join(others)
                self.external[name] = f"kept in {what}" if others != ["."] else _VIRTUAL
            else:
                bare = not self._h5py.h5a.get_num_attrs(opened)  # most are, and asking for each attribute takes time
                lead = (1,) if self._whole else ()
                shape = None if (stored := found.shape) is None else (*lead, *stored)
                scales = ("",) * len(shape or ()) if bare else (*("" for _ in lead), *_scales(found))
                column = Column(name, shape or (), dimensions=scales, whole=self._whole)
                if not bare and self._matlab and "MATLAB_empty" in found.attrs:
                    problem = "an empty array of MATLAB, of which it holds the size"
                    self.columns[name] = replace(column, problem=problem)
                else:
                    self.columns |= _of_dataset(found, column, not bare and _is_bare(found))
                self.attributes[name] = {} if bare else cf_attributes(found)
        elif isinstance(opened, self._h5py.h5g.GroupID) and self._is_ragged(found := self._h5py.Group(opened)):
            for part in ("data", "offsets"):
                part_info = self._h5py.h5o.get_info(found[part].id)
                self._seen[part_info.fileno, part_info.addr] = name
            field = _field_of_entries(found["data"])
            self.columns[name] = Column(name, (len(found["offsets"]) - 1,), field or _UNKNOWN, ragged=True)
        return True

    def _is_ragged(self, group: Any) -> bool:
        if self._whole or len(group.id) != 2 or sorted(group.id) != [b"data", b"offsets"]:
            return False
        if any(group.id.links.get_info(part).type != self._h5py.h5l.TYPE_HARD for part in group.id):
            return False
        data, offsets = group["data"], group["offsets"]
        if not all(isinstance(part, self._h5py.Dataset) and not _sources(part) for part in (data, offsets)):
            return False
        fits = data.ndim and _field_of_entries(data) is not None
        return bool(fits and offsets.dtype.kind in "iu" and offsets.ndim == 1 and len(offsets))


def _field_of_entries(data: Any) -> Field | None:
    """The field of rows of varying length that a dataset stores end to end: bytes of uint8, else ragged arrays."""
    rows = array_field(data.dtype, data.shape[1:])
    if rows is None or 0 in data.shape[1:]:
        return None
    is_bytes = rows.dtype == "uint8" and not rows.shape
    return _UNKNOWN if is_bytes else Field("array", dtype=rows.dtype, shape=(None, *(rows.shape or ())))


def _scales(dataset: Any) -> tuple[str, ...]:
    """Return the paths of the dimension scales of a dataset's axes, its own if it is one; "" where there is none."""
    with contextlib.suppress(*DAMAGE):
        if dataset.is_scale:
            return (dataset.name.strip("/"),)
        return tuple(str(axis[0].name).strip("/") if len(axis) else "" for axis in dataset.dims)
    return ()


def _is_bare(dataset: Any) -> bool:
    """Return whether a dataset stands for a dimension of netCDF alone, which has no variable, and holds no values."""
    title = dataset.attrs.get("NAME", b"") if dataset.is_scale else b""
    return (title if isinstance(title, bytes) else str(title).encode()).startswith(_NO_VARIABLE)


def _sources(dataset: Any) -> list[tuple[str, str]]:
    """The other files that hold a dataset's data, and the datasets in them; "." for a virtual dataset in this file.

    These may be in other files in turn, so "." counts like any other file.
    """
    # This comes before its shape, for which a virtual dataset may open its files.
    external = {(os.fsdecode(part[0]), "") for part in dataset.external or ()}
    virtual = {(part.file_name, part.dset_name) for part in dataset.virtual_sources()} if dataset.is_virtual else set()
    return sorted(external | virtual)


def _missing(dataset: Any, folder: Path, follow: bool) -> list[str]:
    """The files, and with `follow` datasets, that hold data of a dataset and are missing: HDF5 reads fill values then.

    HDF5 replaces a percent sign in a name by numbers, so such names are not looked for.
    """
    found = list[str]()
    for name, inner in _sources(dataset):
        if "%" in name + inner:
            continue
        if not (folder / name).exists():
            found.append(name)
        elif follow and inner:
            with contextlib.ExitStack() as opened:
                file = dataset.file if name == "." else opened.enter_context(type(dataset.file)(folder / name, "r"))
                if inner not in file:
                    found.append(f"{inner} of {name}")
                elif file[inner].is_virtual and name != ".":
                    found += _missing(file[inner], (folder / name).parent, follow)
    return list(dict.fromkeys(found))


def _of_dataset(dataset: Any, column: Column, is_bare: bool) -> dict[str, Column]:
    kind = dataset.id.get_type()
    try:
        _ = kind.dtype
    except TypeError as error:
        return {column.path: replace(column, problem=str(error))}
    if not column.shape:
        return {column.path: replace(column, problem="it has no rows")}
    if is_bare:
        return {column.path: replace(column, problem="a dimension of netCDF without values")}
    return dict(_columns(kind, column.path, column, column.shape[1:]))


def _columns(kind: Any, name: str, column: Column, shape: tuple[int, ...]) -> Iterator[tuple[str, Column]]:
    """Complete `column`, or make one for each member of a compound type.

    Args:
        kind: the HDF5 type of the elements.
        name: the column's name.
        column: the column, without its field.
        shape: the shape of its rows.
    """
    h5t = importlib.import_module("h5py").h5t
    if kind.get_class() == h5t.ARRAY:
        yield from _columns(kind.get_super(), name, column, shape + kind.get_array_dims())
    elif kind.get_class() == h5t.COMPOUND and kind.dtype.kind != "c":
        for number in range(kind.get_nmembers()):
            member = os.fsdecode(kind.get_member_name(number))
            inner = replace(column, members=(*column.members, member))
            yield from _columns(kind.get_member_type(number), f"{name}/{member}", inner, shape)
    else:
        refused = {h5t.BITFIELD: "bitfields", h5t.REFERENCE: "references", h5t.TIME: "datetimes"}
        what = refused.get(kind.get_class()) or _field(kind.dtype, shape)
        if isinstance(what, str):
            yield name, replace(column, problem=f"no field holds {what}")
        else:
            yield name, replace(column, field=what, classes=_classes(kind.dtype))


def _field(dtype: Any, shape: tuple[int, ...]) -> Field | str:
    """Return the field for rows of `shape`; the name of the type if no field holds it."""
    h5py = importlib.import_module("h5py")
    if h5py.check_string_dtype(dtype):
        return Field("json" if shape else "text")
    if (base := h5py.check_vlen_dtype(dtype)) is not None:
        numbers = array_field(np.dtype(base), ())
        if shape or numbers is None:
            return f"{list(shape)} of variable-length {base}" if shape else f"variable-length {base}"
        if not np.dtype(base).isnative:  # h5py returns the bytes as they are in the file, and calls them native
            return f"variable-length {base}: h5py confuses their byte order"
        return Field("bytes") if base == np.uint8 else Field("array", dtype=numbers.dtype, shape=(None,))
    if dtype.kind in "mM":
        return "datetimes"
    if dtype.kind == "V" and not shape:
        return Field("bytes")
    return array_field(dtype, shape) or dtype_in_words(dtype)


def _classes(dtype: Any) -> tuple[str, ...]:
    """Return the names of an enumeration, if its values are 0, 1, 2..."""
    values = importlib.import_module("h5py").check_enum_dtype(dtype) or {}
    names = {value: name for name, value in values.items()}
    return tuple(names[number] for number in range(len(names))) if names.keys() == set(range(len(names))) else ()


def cf_attributes(dataset: Any) -> dict[str, Any]:
    """Return those attributes of an h5py dataset that say what its numbers mean, and `bounds`, by name.

    They are text, NumPy's numbers and arrays [n] of them; for anything else, a description of it, which is no number.
    """
    found: dict[str, Any] = {}
    for name in (*cf.ATTRIBUTES, "bounds"):
        if name not in dataset.attrs:
            continue
        try:
            value = _value(dataset.attrs, name)
        except TypeError as error:
            value = f"of a type that NumPy lacks ({error})"
        if value is not None:
            found[name] = value
    return found


def _value(attributes: Any, name: str) -> Any:
    """Return one attribute of an h5py dataset; None for one without a value. TypeError if NumPy lacks its type."""
    stored = attributes.get_id(name)
    size = math.prod(stored.shape or ()) if stored.shape is not None else 0
    if not size:
        return None
    if size > _MOST_NUMBERS or size * stored.dtype.itemsize > _MOST_BYTES:
        return f"{list(stored.shape)} of {stored.dtype}"
    value = np.ravel(np.asarray(attributes[name]))
    if value.dtype.kind in "biuf" and value.dtype.char != "g":
        native = value.astype(value.dtype.newbyteorder("="))
        return native[0] if size == 1 else native
    return _utf8(value[0] if size == 1 else value.tolist())


def _utf8(value: Any) -> str:
    """Return text in the characters of UTF-8; of anything else a description."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text.encode(errors="replace").decode()[:_MOST_BYTES].rstrip("\0")
