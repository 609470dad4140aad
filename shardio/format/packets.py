"""Tables of packets: where each picture of a video stands in its file, when it is shown, and what decodes without it.

A video's table is bytes of its own beside the file, made from it:

- a directory, 16 bytes for each group of packets, which begins with a key frame: where the group begins in the file (6
  bytes, little-endian like the others), the bytes of its block (3), the frames that it shows and in the 4 highest bits
  how many of these before its key frame (3), and how many ticks its first frame is off an even rate (4);
- the decoder's extradata;
- a block for each group: a checksum (4), then columns of the packets' kinds, sizes, gaps, order and times, of as few
  bits as they need.

The checksum of a group is of all that decoding it takes: the facts, the directory, the extradata, its block and its
packets' bytes. The whole directory, as the entries of other groups say which frames, and which times, are in this one.

Frames are numbered in the order in which decoding the whole file gives them. So a clip reads the directory, and the
blocks of the groups that it touches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..system.types import Buffer

ENTRY = 16
"""Bytes of a group in the directory."""
MOST_LEADING = 15
"""Frames that may be shown before the key frame of their group."""

LEAST = 32
"""Packets of a group, which has as many key frames as that takes; the last one may have fewer."""

_PLACE, _BLOCK, _FRAMES, _OFF = slice(0, 6), slice(6, 9), slice(9, 12), slice(12, 16)
_FRAME_BITS = 20
_SPARSE = 0x80
_MOST_TICKS = 1 << 31
_MOST = 1 << 56
_MOST_PACKETS = 1 << _FRAME_BITS  # of a group
_SUM = 4  # bytes of a checksum
_DROPPED, _SPARE, _KEY = 1, 2, 4


class BadTable(ValueError):
    """A table of packets is damaged, or has numbers that its video cannot have."""


class VideoFacts(NamedTuple):
    """The facts of a video, as a hidden column has them: int64 each; all 0 where there is no video."""

    frames: int = 0
    """The frames that decoding the whole file gives."""
    groups: int = 0
    """The groups of packets in the table's directory."""
    extradata: int = 0
    """The bytes of the decoder's extradata."""
    table: int = 0
    """The bytes of the table."""
    codec: int = 0
    """The number of the codec, in `CODECS`."""
    height: int = 0
    """The height of a frame in pixels, before rotation."""
    width: int = 0
    """Its width."""
    rotation: int = 0
    """The degrees by which it is turned clockwise to be shown: 0, 90, 180 or 270."""
    ticks: int = 0
    """The numerator of a tick in seconds."""
    per: int = 0
    """Its denominator."""
    start: int = 0
    """When the first frame is shown, in ticks."""
    span: int = 0
    """How long all frames are shown, in ticks."""

    @classmethod
    def of(cls, stored: Buffer) -> "VideoFacts":
        """Return what stored bytes of the column say."""
        return cls(*np.frombuffer(stored, "<i8").tolist())

    def check(self, table: int) -> None:
        """Raise BadTable for numbers that a video whose table has so many bytes cannot have."""
        counts = *self[: self._fields.index("start")], self.span
        known = self.codec < len(CODECS) and self.rotation in (0, 90, 180, 270) and self.table == table
        if not known or min(counts) < 0 or max(counts) > _MOST or abs(self.start) > _MOST or self.head > table:
            raise BadTable(f"no video with a table of {table} bytes has {self}")
        if (self.frames or self.groups) and not all((self.codec, self.height, self.width, self.ticks, self.per)):
            raise BadTable(f"no video has {self}")

    @property
    def stored(self) -> bytes:
        """The stored bytes of the column."""
        return np.array(self, "<i8").tobytes()

    @property
    def head(self) -> int:
        """The bytes of the directory and the extradata."""
        return ENTRY * self.groups + self.extradata


CODECS = ("", "h264", "hevc", "av1", "vp9", "vp8", "mjpeg")
"""The names of codecs, which `VideoFacts.codec` numbers."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Packets:
    """Some packets of a video, in the order in which they are decoded.

    Attributes:
        offsets: where each begins in the file, in bytes, int64 [m].
        sizes: their bytes, int64 [m].
        keys: which are key frames, at which decoding may begin, bool [m].
        shown: the number of the frame that each shows, int64 [m]; -1 if decoding the whole file drops it.
        times: when each is shown, in ticks, int64 [m]; 0 for dropped ones that were read from a table.
        spare: which no other picture refers to, so that who does not want them need not decode them, bool [m].
    """

    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    keys: NDArray[np.bool_]
    shown: NDArray[np.int64]
    times: NDArray[np.int64]
    spare: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, part: slice | NDArray[np.int64]) -> "Packets":
        return Packets(*(getattr(self, name)[part] for name in self.__slots__))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Directory:
    """The groups of packets of a video.

    Attributes:
        offsets: where each begins in the file, int64 [g].
        blocks: where the block of each begins in the table, int64 [g + 1].
        first: the number of the first frame that each shows, int64 [g + 1].
        leading: how many of its frames are shown before its key frame, int64 [g].
        off: how many ticks its first frame is off an even rate, int64 [g].
    """

    offsets: NDArray[np.int64]
    blocks: NDArray[np.int64]
    first: NDArray[np.int64]
    leading: NDArray[np.int64]
    off: NDArray[np.int64]

    @classmethod
    def of(cls, facts: VideoFacts, head: Buffer, size: int) -> "Directory":
        """Read the directory from the head of a table; BadTable if a file of `size` bytes cannot have it."""
        if len(head) < facts.head:
            raise BadTable(f"the table ends within its head of {facts.head} bytes")
        rows = np.frombuffer(head, np.uint8)[: ENTRY * facts.groups].reshape(-1, ENTRY)
        offsets, bits = _number(rows[:, _PLACE]), _number(rows[:, _FRAMES])
        blocks = facts.head + np.concatenate([[0], np.cumsum(_number(rows[:, _BLOCK]))])
        first = np.concatenate([[0], np.cumsum(bits & (1 << _FRAME_BITS) - 1)])
        off = np.ascontiguousarray(rows[:, _OFF]).view("<i4")[:, 0].astype(np.int64)
        if blocks[-1] != facts.table or first[-1] != facts.frames or (offsets >= size).any():
            told = f"{blocks[-1]} bytes, {first[-1]} frames, groups up to byte {offsets.max(initial=0)}"
            raise BadTable(
                f"the directory has {told}; {facts.table} bytes, {facts.frames} frames of {size} bytes are stated"
            )
        return cls(offsets, blocks, first, bits >> _FRAME_BITS, off)

    def touched(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the groups that decoding some frames needs, int64, ascending: theirs, and the one before.

        A frame that is shown before the key frame of its group refers to the group before, too.
        """
        own = np.searchsorted(self.first, frames, "right") - 1
        leads = frames - self.first[own] < self.leading[own]
        return np.unique(np.concatenate([own, np.maximum(own[leads] - 1, 0)]))

    def touched_at(self, facts: VideoFacts, ticks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the groups that decoding the frames shown at some times may need, int64, ascending."""
        shows = np.flatnonzero(np.diff(self.first))
        begins = _even(facts, self.first[shows]) + self.off[shows]
        own = shows[np.maximum(np.searchsorted(begins, ticks, "right") - 1, 0)]
        return np.unique(np.concatenate([own, np.maximum(own[self.leading[own] > 0] - 1, 0)]))


def table_of(facts: VideoFacts, packets: Packets, extradata: bytes, sums: Sequence[int]) -> tuple[VideoFacts, bytes]:
    """Return a video's facts, with what is known of its table, and the table of its packets.

    Args:
        facts: what is known of the video.
        packets: all its packets.
        extradata: the decoder's extradata.
        sums: `sum_of` each packet's bytes.

    Raises BadTable for packets that no table holds: the frames that groups show overlap, or numbers are too large.
    """
    if not len(packets) or not packets.keys[0]:
        raise BadTable("the first packet is no key frame")
    begins = [0]
    for key in np.flatnonzero(packets.keys).tolist():
        if key - begins[-1] >= LEAST:
            begins.append(key)
    entries, blocks, first = list[bytes](), list[bytes](), 0
    for begin, end in zip(begins, [*begins[1:], len(packets)], strict=True):
        group = packets[begin:end]
        there = group.shown >= 0
        shown, times = group.shown[there], group.times[there]
        if not np.array_equal(np.sort(shown), np.arange(first, first + len(shown))):
            raise BadTable(f"the frames of packets {begin} to {end} are not shown one after the other")
        leading = int((times < group.times[0]).sum())
        blocks.append(block := _block(group, first))
        off = int(times.min(initial=facts.start + facts.span)) - _even(facts, first)
        numbers = (int(group.offsets[0]), 6), (_SUM + len(block), 3), (len(shown) | leading << _FRAME_BITS, 3)
        if leading > MOST_LEADING or len(group) >= _MOST_PACKETS or not -(1 << 31) <= off < 1 << 31:
            raise BadTable(f"packets {begin} to {end} show {len(shown)} frames, {leading} before their key frame")
        try:
            entry = b"".join(number.to_bytes(size, "little") for number, size in numbers)
        except OverflowError as error:
            raise BadTable(f"the block of packets {begin} to {end} has {len(block)} bytes") from error
        entries.append(entry + off.to_bytes(4, "little", signed=True))
        first += len(shown)
    head = b"".join([*entries, extradata])
    size = len(head) + sum(_SUM + len(block) for block in blocks)
    known = facts._replace(frames=first, groups=len(begins), extradata=len(extradata), table=size)
    whole, parts = _head_sum(known, head), zip(blocks, begins, [*begins[1:], len(packets)], strict=True)
    return known, head + b"".join(_group_sum(whole, block, sums[b:e]) + block for block, b, e in parts)


def packets_of(facts: VideoFacts, directory: Directory, groups: Sequence[int], blocks: Buffer, size: int) -> Packets:
    """Return the packets of some groups.

    Args:
        facts: what is known of the video.
        directory: its groups.
        groups: the numbers of the groups.
        blocks: their blocks, end to end.
        size: the bytes of the file.

    Raises:
        BadTable: a block is damaged, or has numbers that the video cannot have.
    """
    parts, done = [], 0
    for number in groups:
        end = done + int(directory.blocks[number + 1] - directory.blocks[number])
        parts.append(_group(facts, directory, number, bytes(blocks[done:end]), size))
        done = end
    return Packets(*(np.concatenate([getattr(part, name) for part in parts]) for name in Packets.__slots__))


def sum_of(packet: Buffer) -> int:
    """Return the checksum of a packet's bytes."""
    return xxhash.xxh3_64_intdigest(packet)


def check_groups(
    facts: VideoFacts, head: Buffer, directory: Directory, groups: Sequence[int], blocks: Buffer, sums: Sequence[int]
) -> None:
    """Raise BadTable for a group whose checksum is not that of its packets.

    Args:
        facts, directory, groups, blocks: as of `packets_of`.
        head: the head of the table.
        sums: `sum_of` the bytes of each packet of the groups.
    """
    whole, done, counted = _head_sum(facts, head), 0, 0
    for number in groups:
        block = bytes(blocks[done : (done := done + int(directory.blocks[number + 1] - directory.blocks[number]))])
        own = sums[counted : (counted := counted + _Reader(block[_SUM:]).varint())]
        found = _group_sum(whole, block[_SUM:], own)
        if found != block[:_SUM]:
            raise BadTable(f"group {number} of its packets: checksum {found.hex()} is not {block[:_SUM].hex()}")


def whole_table(facts: VideoFacts, table: Buffer, size: int) -> tuple[Directory, Packets]:
    """Return the directory and all packets of a table; BadTable if a file of `size` bytes cannot have it."""
    facts.check(len(table))
    directory = Directory.of(facts, table[: facts.head], size)
    return directory, packets_of(facts, directory, range(facts.groups), table[facts.head :], size)


def check_table(facts: VideoFacts, table: Buffer, value: Buffer) -> None:
    """Raise BadTable for a table, or facts, that are not those of a video's bytes."""
    if facts == VideoFacts() and not len(table):
        return
    directory, packets = whole_table(facts, table, len(value))
    places = zip(packets.offsets.tolist(), packets.sizes.tolist(), strict=True)
    sums = [sum_of(value[place : place + size]) for place, size in places]
    check_groups(facts, table[: facts.head], directory, range(facts.groups), table[facts.head :], sums)


def _head_sum(facts: VideoFacts, head: Buffer) -> bytes:
    return xxhash.xxh3_64_digest(facts.stored + bytes(head))


def _group_sum(head_sum: bytes, block: Buffer, sums: Sequence[int]) -> bytes:
    parts = (head_sum, block, np.array(sums, "<u8").tobytes())
    return xxhash.xxh3_64_digest(b"".join(parts))[:_SUM]


def runs_to_decode(packets: Packets, frames: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return which packets give some frames: runs to decode one after the other, each from a key frame on.

    Packets that nothing refers to, and that aren't wanted, are left out.

    Args:
        packets: the packets of the groups that `Directory.touched` names.
        frames: the numbers of the frames.

    Raises BadTable if the packets lack one of the frames.
    """
    wanted = np.isin(packets.shown, frames) & (packets.shown >= 0)
    numbers, keys = np.flatnonzero(wanted), np.flatnonzero(packets.keys)
    if len(numbers) != len(np.unique(frames)):
        raise BadTable("the groups lack a frame that they are to have")
    own = np.searchsorted(keys, numbers, "right") - 1
    # What is shown before its key frame refers to what comes before that.
    leads = (packets.shown[numbers] < packets.shown[keys[own]]) | (packets.shown[keys[own]] < 0)
    runs = list[tuple[int, int]]()
    for key, last in zip(keys[np.maximum(own - leads, 0)].tolist(), numbers.tolist(), strict=True):
        begin = key
        while runs and begin <= runs[-1][1]:
            begin = min(begin, runs.pop()[0])
        runs.append((begin, last))
    needed = wanted | ~packets.spare
    return [begin + np.flatnonzero(needed[begin : last + 1]) for begin, last in runs]


def _even(facts: VideoFacts, frame: Any) -> Any:
    """Return when a frame, or each of several, would be shown at an even rate, in ticks."""
    each, rest = divmod(facts.span, max(1, facts.frames))  # apart, as hours in ns overflow int64 times their frames
    return facts.start + frame * each + frame * rest // max(1, facts.frames)


def _block(group: Packets, first: int) -> bytes:
    there = group.shown >= 0
    order = group.shown[there] - first
    steps = np.diff(group.times[there][np.argsort(order)])
    unit = int(np.gcd.reduce(steps)) if steps.any() else 1
    ends = group.offsets + group.sizes
    kinds = _DROPPED * ~there + _SPARE * group.spare + _KEY * group.keys
    columns = (
        kinds,
        group.sizes[group.keys],
        group.sizes[~group.keys],
        group.offsets[1:] - ends[:-1],
        order - np.arange(len(order)),
        steps // unit,
    )
    return b"".join((_varint(len(group)), _varint(unit), *map(_column, columns)))


def _group(facts: VideoFacts, directory: Directory, number: int, block: bytes, size: int) -> Packets:
    reader = _Reader(block[_SUM:])
    count = reader.varint()
    first, frames = int(directory.first[number]), int(directory.first[number + 1] - directory.first[number])
    # A packet has at least a byte of the file. What is claimed of more packets than a table holds takes no memory.
    if not max(1, frames) <= count <= min(size, _MOST_PACKETS):
        raise BadTable(f"group {number} has {count} packets for {frames} frames")
    unit, kinds = reader.varint(), reader.column(count, _KEY | _SPARE | _DROPPED)
    there, keys = kinds & _DROPPED == 0, kinds & _KEY != 0
    if int(there.sum()) != frames or not keys[:1].all():
        raise BadTable(f"group {number} has {there.sum()} frames, and is to have {frames} from a key frame on")
    sizes = np.empty(count, np.int64)
    of_keys = int(keys.sum())
    sizes[keys], sizes[~keys] = reader.column(of_keys, size), reader.column(count - of_keys, size)
    gaps, order, steps = (
        reader.column(count - 1, size), reader.column(frames, count), reader.column(frames - 1, _MOST_TICKS)
    )  # fmt: skip
    if unit > _MOST_TICKS or not reader.at_end:
        raise BadTable(f"group {number} has numbers that are too large, or bytes behind them")
    begins = np.full(count, directory.offsets[number])
    begins[1:] += np.cumsum(sizes[:-1] + gaps)
    if (sizes < 1).any() or (begins < 0).any() or (begins > size - sizes).any():
        raise BadTable(f"group {number} has packets outside of the file's {size} bytes")
    moved = order.any()
    order += np.arange(frames)
    if moved and not np.array_equal(np.sort(order), np.arange(frames)):
        raise BadTable(f"group {number} shows a frame twice")
    times = np.zeros(frames, np.int64)
    np.cumsum(steps * unit, out=times[1:])
    shown, when = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    shown[there] = first + order
    when[there] = _even(facts, first) + int(directory.off[number]) + times[order]
    return Packets(begins, sizes, keys, shown, when, kinds & _SPARE != 0)


def _number(columns: NDArray[np.uint8]) -> NDArray[np.int64]:
    return np.asarray(columns.astype(np.int64) @ (1 << 8 * np.arange(columns.shape[1], dtype=np.int64)), np.int64)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _column(values: NDArray[np.int64]) -> bytes:
    """Return numbers in as few bits as they need: all of them, or only those that are not the most frequent one."""
    if not len(values):
        return b""
    low = int(values.min())
    rest = values - low
    width = int(rest.max()).bit_length()
    found, counts = np.unique(rest, return_counts=True)
    usual, few = int(found[counts.argmax()]), len(rest) - int(counts.max())
    place = (len(rest) - 1).bit_length()
    base = _varint(low << 1 if low >= 0 else ~(low << 1))
    if few * (place + width) + 16 < len(rest) * width:
        numbers = np.flatnonzero(rest != usual)
        packed = _bits(numbers << width | rest[numbers], place + width)
        return bytes([width | _SPARSE]) + base + _varint(usual) + _varint(few) + packed
    return bytes([width]) + base + _bits(rest, width)


def _bits(values: NDArray[np.int64], width: int) -> bytes:
    return np.packbits(values[:, None] >> np.arange(width - 1, -1, -1) & 1).tobytes() if width else b""


@final
class _Reader:
    """Reads a block, from its beginning on."""

    def __init__(self, block: bytes) -> None:
        self._block, self._at = block, 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._block)

    def byte(self) -> int:
        if self.at_end:
            raise BadTable("a block ends within a number")
        self._at += 1
        return self._block[self._at - 1]

    def varint(self) -> int:
        number = shift = 0
        while (byte := self.byte()) > 0x7F:
            number |= (byte & 0x7F) << shift
            shift += 7
            if shift > 56:
                raise BadTable("a number in a block is too large")
        return number | byte << shift

    def column(self, count: int, most: int) -> NDArray[np.int64]:
        """Read numbers of at most so much, positive or negative: before they are added up, which could hide others."""
        if count < 1:
            return np.empty(0, np.int64)
        head, zigzag = self.byte(), self.varint()
        width, low = head & ~_SPARSE, zigzag >> 1 if zigzag & 1 == 0 else ~(zigzag >> 1)
        usual = 0
        if not head & _SPARSE:
            column = self._numbers(count, width)
        else:
            usual, few, place = self.varint(), self.varint(), (count - 1).bit_length()
            found = self._numbers(few, place + width)
            column, numbers = np.full(count, usual, np.int64), found >> width
            if few > count or (numbers >= count).any():
                raise BadTable("a block has exceptions for packets that it lacks")
            column[numbers] = found & (1 << width) - 1
        column += low
        # The greatest number of so many bits may be too large, though none of the column's is.
        if max(-low, low + max(usual, (1 << width) - 1)) > most and np.abs(column).max() > most:
            raise BadTable("a number in a block is too large")
        return column

    def _numbers(self, count: int, width: int) -> NDArray[np.int64]:
        size = (count * width + 7) // 8
        if width > 62 or self._at + size > len(self._block):
            raise BadTable("a block ends within a column")
        if not width:
            return np.zeros(count, np.int64)
        data = np.frombuffer(self._block, np.uint8, size, self._at)
        self._at += size
        bits = np.unpackbits(data)[: count * width].reshape(count, width)
        return np.asarray(bits @ (1 << np.arange(width - 1, -1, -1, dtype=np.int64)), np.int64)
