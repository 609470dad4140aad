"""Ways to damage files, each a function of the file and a random generator: of bytes, and of each format's own values.

Those that know a format write it with its own library, or with the right checksums, so that the damage gets past them.
"""

import contextlib
import gzip
import io
import json
import os
import pickle
import re
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import h5py
import lmdb
import msgspec
import numpy as np
import xxhash
from _foreign import framed

SECRET = "/proc/self/cwd/victim/secret.txt"
"""The path of a file that no data may lead to: a fuzz round's working directory has such a file."""
PATHS = (SECRET, "../victim/secret.txt", "../../../victim", "../victim", "/etc/passwd", "..", ".", "/", "", "a\0b")
PATHS += ("-rf", ".hidden", "x" * 300, "\udcff", "\x1b[31m")
CODE = (
    "os:system",
    "_tiny:no_model",
    "__import__('os').system('touch victim/executed')",
    "builtins.exec",
    "{0.__class__}",
)


class _Planted:
    """Its pickle touches a file when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch victim/executed",)


PICKLE = pickle.dumps(_Planted(), protocol=2)


def number(random: Random, size: int) -> int:
    """An integer that breaks arithmetic elsewhere: at the limits of types, or near `size`."""
    limits = [0, 1, -1, 2**7, 2**8, 2**15, 2**16, 2**31, 2**32, 2**40, 2**62, 2**63, 2**64, -(2**31), -(2**63)]
    return random.choice([*limits, size, size // 2, -size]) + random.choice([0, 0, 1, -1])


def value(random: Random) -> Any:
    """A JSON value that a reader may not expect."""
    scalars: list[Any] = [None, True, 0.5, -1, 1e308, [], {}, "", "0", [[]], {"": None}, [None], float("nan")]
    choices = [number(random, 12), *(random.choice(some) for some in (scalars, PATHS, CODE)), [number(random, 12)] * 3]
    return random.choice(choices)


def in_json(parsed: Any, random: Random) -> Any:
    """Change one value of a parsed JSON document, at any depth."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            places.append((node, key))
            walk(node[key])

    walk(parsed)
    if not places or random.random() < 0.02:
        return value(random)
    node, key = random.choice(places)
    kind = random.randrange(8)
    if kind == 0:
        del node[key]
    elif kind == 1 and isinstance(node, dict):
        node[random.choice([*PATHS, "label", "image", "data"])] = node.pop(key)
    elif kind == 1:
        node.insert(key, node[key])
    elif kind == 2:
        node[key] = [node[key]]
    elif kind == 3 and isinstance(node[key], str):
        node[key] = random.choice([node[key][:-1], node[key] + "x", node[key].upper(), *PATHS])
    elif kind in (3, 4) and isinstance(node[key], int):
        node[key] = node[key] + random.choice([1, -1, 2**32]) if kind == 3 else number(random, node[key])
    elif kind == 5:
        other, place = random.choice(places)
        with contextlib.suppress(LookupError, TypeError):
            node[key] = json.loads(json.dumps(other[place]))
    else:
        node[key] = value(random)
    return parsed


# Bytes.


def _spot(data: bytes | bytearray, random: Random, width: int = 1) -> int:
    """An offset in `data`: anywhere, or where headers stand, or among trailing tables."""
    room = max(1, len(data) - width + 1)
    return random.choice(
        [random.randrange(room), random.randrange(min(room, 600)), -random.randrange(min(room, 600)) % room]
    )


def _block(data: bytes | bytearray, random: Random) -> slice:
    length = min(len(data), random.choice([1, 4, 8, 16, 64, 100, 512, 4096]))
    at = random.randrange(len(data) - length + 1)
    at = at // length * length if random.random() < 0.5 else at
    return slice(at, at + length)


def damage_once(data: bytearray, random: Random) -> None:
    """Change bits, bytes, or the numbers and texts that stand there, or make the data longer or shorter."""
    at, block, kind = _spot(data, random), _block(data, random), random.randrange(10)
    if kind == 0:
        for _ in range(random.choice([1, 1, 1, 4, 40])):
            data[_spot(data, random)] ^= 1 << random.randrange(8)
    elif kind == 1:
        room = len(data[at : at + random.choice([1, 2, 4, 8, 64, 600])])
        data[at : at + room] = random.choice([b"\0", b"\xff", b" ", random.randbytes(1)]) * room
    elif kind == 2:
        del data[random.choice([random.randrange(len(data)), len(data) - 1, len(data) // 2, 0]) :]
    elif kind == 3:
        data += random.choice([b"\0", bytes(1024), random.randbytes(100), bytes(data[-2048:]), bytes(data)])
    elif kind == 4:
        data[at:at] = random.choice([b"\0", b"\xff" * 8, random.randbytes(7), PICKLE, bytes(data[block])])
    elif kind == 5:
        new = random.choice([PICKLE, bytes(data[block]), bytes(data[block])])
        data[at : at + len(new)] = new
    elif kind < 8:
        replace_number(data, random)
    elif found := [match.span() for match in re.finditer(rb"-?\d+" if kind == 8 else rb"[ -~]{3,}", data)]:
        (start, stop), width = random.choice(found), random.random()
        text = str(number(random, len(data))) if kind == 8 else random.choice([*PATHS, *CODE])
        new = text.encode(errors="surrogateescape")
        if width > 0.4:  # mostly the data keeps its length
            new = (new.rjust(stop - start, b"0") if kind == 8 else new.ljust(stop - start, b"\0"))[: stop - start]
        data[start:stop] = new


def replace_number(data: bytearray, random: Random) -> None:
    """Put an integer of 16, 32 or 64 bits, of either byte order."""
    width = random.choice([2, 4, 8, 8])
    at = _spot(data, random, width)
    at = at // width * width if random.random() < 0.7 else at
    if at + width > len(data):
        return
    order = random.choice(["little", "little", "big"])
    found = int.from_bytes(data[at : at + width], order)
    new = random.choice([number(random, len(data)), found + 1, found - 1, found * 2, found << 8])
    data[at : at + width] = (new % (1 << 8 * width)).to_bytes(width, order)


def damaged_bytes(data: bytes, random: Random) -> bytes:
    """Damage some bytes."""
    changed = bytearray(data)
    for _ in range(random.choice([1, 1, 1, 2, 5])):
        if changed:
            damage_once(changed, random)
    return bytes(changed)


def any_bytes(path: Path, random: Random) -> None:
    path.write_bytes(damaged_bytes(path.read_bytes(), random))


# Files as a whole.


def remove(path: Path, random: Random) -> None:
    path.unlink()


def empty(path: Path, random: Random) -> None:
    path.write_bytes(b"")


def not_a_file(path: Path, random: Random) -> None:
    """Put a folder, a pipe, or a link that leads to itself in the file's place."""
    path.unlink()
    random.choice([path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to(path.name)])()


def link_outside(path: Path, random: Random, folder: Path) -> None:
    """Put a link that leads out of `folder` in the place of a file or of a folder that holds it."""
    path = random.choice([path, *(parent for parent in path.parents if folder in parent.parents)])
    file = path.is_file()
    path.unlink() if file else shutil.rmtree(path)
    targets = (
        (SECRET, "/proc/self/cwd/victim/missing") if file else ("/proc/self/cwd/victim", "/proc/self/cwd/victim/shards")
    )
    path.symlink_to(random.choice(targets))


def rename(path: Path, random: Random) -> None:
    """Give the file a name that is not valid UTF-8."""
    os.rename(path, os.fsencode(path) + random.choice([b"\xff", b".\xc3", b" ", b"\n"]))


# Formats.


def any_json(path: Path, random: Random) -> None:
    text = path.read_text()
    kind = random.randrange(12)
    if kind == 0:
        path.write_bytes(
            random.choice([text.encode("utf-16"), b"\xef\xbb\xbf" + text.encode(), text.encode() + b"\xff"])
        )
    elif kind == 1:  # a key twice
        other = json.dumps(value(random))
        path.write_text(re.sub(r'"\w+": ', lambda key: f"{key[0]}{other}, {key[0]}", text, count=random.randint(1, 9)))
    elif kind == 2:
        deep = "[" * 100_000 + "]" * 100_000
        path.write_text(re.sub(r"\d+", deep, text, count=1) if random.random() < 0.5 else deep)
    elif kind == 3:
        path.write_text(
            text.replace("1", random.choice(["1e999", "NaN", "-0", "1" * 5000, "1.0"]), random.randint(1, 9))
        )
    else:
        parsed = json.loads(text)
        for _ in range(random.choice([1, 1, 2])):
            parsed = in_json(parsed, random)
        path.write_bytes(json.dumps(parsed).encode(errors="surrogatepass"))


def read_record(path: Path) -> Any:
    """The record of a shard in a journal."""
    return msgspec.msgpack.decode(path.read_bytes()[16:])


def write_record(path: Path, record: Any) -> None:
    """Write the record of a shard, after its checksum."""
    data = msgspec.msgpack.encode(record)
    path.write_bytes(xxhash.xxh3_128_digest(data) + data)


def any_msgpack(path: Path, random: Random) -> None:
    """Change the record of a shard, and its checksum with it."""
    parsed = read_record(path)
    checksums = parsed.pop("sample_checksums", b"")
    parsed = in_json(parsed, random)
    if isinstance(parsed, dict):
        parsed["sample_checksums"] = (
            damaged_bytes(checksums, random) if checksums and random.random() < 0.3 else checksums
        )
    with contextlib.suppress(UnicodeEncodeError, OverflowError):
        write_record(path, parsed)


def any_npy(path: Path, random: Random) -> None:
    """Change elements of an array, or its header."""
    array = np.load(path)
    if random.random() < 0.3 or not array.size:
        kinds = ["|O", "<i8", ">u2", "|V8", "|S99999", "<U4", "q" * 70000]
        shape = tuple(number(random, array.size) for _ in range(random.choice([1, 2, 65])))
        change = random.choice([{"descr": random.choice(kinds)}, {"shape": shape}, {"fortran_order": True}])
        header = {"descr": array.dtype.descr, "shape": array.shape, "fortran_order": False, **change}
        with contextlib.suppress(ValueError, TypeError, OverflowError, struct.error):
            stream = io.BytesIO()
            np.lib.format.write_array_header_2_0(stream, header)
            path.write_bytes(stream.getvalue() + array.tobytes())
        return
    flat = array.reshape(-1)
    name = random.choice(array.dtype.names) if array.dtype.names else None
    column = flat if name is None else flat[name]
    row = random.randrange(len(column))
    with contextlib.suppress(OverflowError, ValueError, DeprecationWarning):  # which NumPy 1 raises here
        column[row] = random.choice([number(random, 4096), column[random.randrange(len(column))]])
    np.save(path, array, allow_pickle=False)


def array_index(content: bytes) -> tuple[Any, list[Any]]:
    """The JSON value and the tables of an index of `containers/array_index.py`."""
    stream, arrays = io.BytesIO(content), list[Any]()
    while stream.tell() < len(content):
        arrays.append(np.lib.format.read_array(stream, allow_pickle=False))
        stream.seek(-stream.tell() % 64, io.SEEK_CUR)
    return json.loads(arrays[0].tobytes()), arrays[1:-1]


def sealed_array_index(text: bytes, tables: list[Any]) -> bytes:
    """The content of such an index, with its checksum."""
    stream = io.BytesIO()
    for array in (np.frombuffer(text, np.uint8), *tables):
        np.save(stream, array, allow_pickle=False)
        stream.write(bytes(-stream.tell() % 64))
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": (16,)})
    return stream.getvalue() + xxhash.xxh3_128_digest(stream.getvalue())


def any_array_index(path: Path, random: Random) -> None:
    """Change the JSON, or a table, of an index of arrays, and its checksum with it; of any other index elements."""
    try:
        parsed, tables = array_index(path.read_bytes())
    except ValueError:
        any_npy(path, random)
        return
    kind, place = random.randrange(8), random.randrange(len(tables)) if tables else None
    if kind < 4 or place is None:
        for _ in range(random.choice([1, 1, 2])):
            parsed = in_json(parsed, random)
    elif kind < 6 and tables[place].size:
        column = tables[place].reshape(-1)
        column = column[random.choice(column.dtype.names)] if column.dtype.names else column
        row = random.randrange(len(column))
        with contextlib.suppress(OverflowError, ValueError, DeprecationWarning):  # which NumPy 1 raises here
            column[row] = random.choice([number(random, 4096), column[random.randrange(len(column))]])
    else:
        table = tables[place]
        other = [table[:-1], table[::-1], table[:0], table[:, None], np.concatenate([table, table]), table[None]]
        other += [table.view(np.uint8), np.zeros(len(table), ">i8"), np.zeros(len(table), "V8"), np.zeros(3, "U2")]
        other += [random.choice(tables), np.zeros((len(table), 2**20), "V0"), np.asfortranarray(np.ones((3, 2)))]
        tables[place] = random.choice(other)
        if random.random() < 0.2:
            del tables[place]
    text = json.dumps(parsed).encode(errors="surrogatepass")
    if random.random() < 0.05:
        text = random.choice([b"[" * 100_000, b"", text.replace(b"1", b"1e999"), text + b" " * 2**20, text.upper()])
    path.write_bytes(sealed_array_index(text, tables))


def any_hdf5(path: Path, random: Random) -> None:
    """Change links, storage, attributes and numbers with h5py."""
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        name, other, kind = random.choice(names), random.choice(names), random.randrange(6)
        found = file[name]
        if kind < 2:
            lead_elsewhere(file, name, random)
        elif kind == 2 and isinstance(found, h5py.Dataset) and found.shape is not None:  # another type
            data = found[()]
            del file[name]
            with contextlib.suppress(TypeError, ValueError, OSError):
                file.create_dataset(name, data=data, dtype=random.choice([None, ">i8", "f2", "u1"]))
        elif kind == 3 and not other.startswith(name) and not name.startswith(other):  # another object
            del file[name]
            file[name] = file[other]
        elif kind == 4:
            node = random.choice([file, found])
            for attribute in list(node.attrs):
                new = value(random)
                with contextlib.suppress(TypeError, ValueError, OverflowError):
                    node.attrs[attribute] = json.dumps(new) if isinstance(new, list | dict) or new is None else new
        elif isinstance(found, h5py.Dataset) and found.shape and found.size and found.dtype.kind in "iuf":
            with contextlib.suppress(OverflowError, TypeError):  # a row of numbers, such as offsets
                found[random.randrange(found.shape[0])] = found.dtype.type(number(random, found.size))


def lead_elsewhere(file: h5py.File, name: str, random: Random) -> None:
    """Replace an object by one whose data is in another file, or a link."""
    found, kind = file[name], random.randrange(4)
    if kind == 0 or not isinstance(found, h5py.Dataset):
        inside = h5py.SoftLink(random.choice(["/", f"/{name}", "missing", name.rpartition("/")[0] or "."]))
        other = random.choice(["../victim/other.h5", SECRET.replace("secret.txt", "other.h5")])
        del file[name]
        file[name] = random.choice([inside, h5py.ExternalLink(other, "/data"), h5py.ExternalLink(other, "/")])
        return
    shape, dtype = found.shape, found.dtype
    if not shape or h5py.check_vlen_dtype(dtype) or h5py.check_string_dtype(dtype):
        return
    del file[name]
    if kind == 1:
        layout = h5py.VirtualLayout(shape, dtype)
        layout[...] = h5py.VirtualSource("../victim/other.h5", "data", shape)
        file.create_virtual_dataset(name, layout)
    else:
        place = random.choice(["victim/secret.txt", SECRET, "/etc/passwd"]), 0, int(np.prod(shape)) * dtype.itemsize
        file.create_dataset(name, shape, dtype, external=[place])


def any_lmdb(path: Path, random: Random) -> None:
    """Change, add or remove entries with LMDB's own library."""
    with (
        lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 24) as file,
        file.begin(write=True) as transaction,
    ):
        entries = list(transaction.cursor())
        key, data = random.choice(entries)
        kind = random.randrange(5)
        if kind == 0:
            transaction.delete(key)
        elif kind == 1:
            transaction.put(damaged_bytes(key, random)[:500] or b"k", data)
        elif kind == 2:
            transaction.put(key, random.choice(entries)[1])
        else:
            transaction.put(key, damaged_bytes(data, random))


def any_tar(path: Path, random: Random) -> None:
    """Change a member's header, with the right checksum, or its data."""
    data = bytearray(path.read_bytes())
    with tarfile.open(path) as tar:
        member = random.choice(tar.getmembers())
    fields = {0: 100, 100: 8, 124: 12, 136: 12, 156: 1, 157: 100, 257: 6, 345: 155}
    start = random.choice(list(fields))
    at, size = member.offset + start, fields[start]
    if start == 124:
        new = random.choice(
            [
                b"%011o\0" % (abs(number(random, len(data))) % 8**11),
                b"\x80" + number(random, 0).to_bytes(11, "big", signed=True),
            ]
        )
    elif start == 156:
        new = random.choice([b"0", b"1", b"2", b"5", b"L", b"x", b"g", b"S", b"\0", b"3"])
    else:
        new = random.choice(PATHS).encode(errors="surrogateescape")
    data[at : at + size] = new.ljust(size, b"\0")[:size]
    head = data[member.offset : member.offset + 512]
    head[148:156] = b" " * 8
    data[member.offset + 148 : member.offset + 156] = b"%06o\0 " % sum(head)
    path.write_bytes(bytes(data))


def any_tfrecord(path: Path, random: Random) -> None:
    """Change a record, with the right checksums."""
    data, records, at = path.read_bytes(), [], 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        records.append(data[at + 12 : at + 12 + length])
        at += length + 16
    if records:
        place = random.randrange(len(records))
        records[place] = damaged_bytes(records[place], random)
    path.write_bytes(b"".join(map(framed, records)))


def any_zip(path: Path, random: Random) -> None:
    """Change a member, with the right checksum."""
    with zipfile.ZipFile(path) as file:
        members = [(info, file.read(info)) for info in file.infolist()]
    place = random.randrange(len(members))
    with zipfile.ZipFile(path, "w") as file:
        for index, (info, content) in enumerate(members):
            if index == place and random.random() < 0.1:
                info.filename = random.choice(
                    [name for name in PATHS if name and "\0" not in name and name.isprintable()]
                )
            changed = random.choice([damaged_bytes(content, random), PICKLE]) if index == place else content
            file.writestr(info, changed)


def any_gzip(path: Path, random: Random) -> None:
    """Change what is compressed, with the right checksum."""
    path.write_bytes(gzip.compress(damaged_bytes(gzip.decompress(path.read_bytes()), random), mtime=0))


FORMATS: tuple[tuple[str, Callable[[Path, Random], None]], ...] = (
    (r"\.json$|zarray$|zattrs$|zgroup$", any_json),
    (r"\.done$", any_msgpack),
    (r"\.idx\.npy$|\.bin$", any_array_index),
    (r"\.npy$", any_npy),
    (r"\.(h5|hdf5)$", any_hdf5),
    (r"\.lmdb$|data\.mdb$", any_lmdb),
    (r"\.tar$", any_tar),
    (r"\.tfrecord", any_tfrecord),
    (r"\.(npz|zip|pt)$", any_zip),
    (r"\.gz$", any_gzip),
)
WHOLE = (remove, empty, not_a_file, rename)


def damage(path: Path, random: Random, *, whole: bool, links: Path | None) -> str:
    """Damage a file in one of these ways; return the name of the way.

    Args:
        path: the file.
        random: decides everything.
        whole: whether nothing has damaged the file yet, so that its format's library can change it.
        links: the folder of all files, if links may be put into it. A source's links may lead to other files.
    """
    chance, known = random.random(), [function for pattern, function in FORMATS if re.search(pattern, path.name)]
    if links is not None and chance < 0.04:
        link_outside(path, random, links)
        return "link_outside"
    way = random.choice(WHOLE) if chance < 0.1 else known[0] if known and whole and chance < 0.5 else any_bytes
    way(path, random)
    return way.__name__
