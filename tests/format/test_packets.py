"""Tables of packets hold what they were made of, in few bytes, and damaged ones are refused."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardio.format.packets import BadTable, Directory, Packets, VideoFacts, check_groups, packets_of, sum_of, table_of

FACTS = VideoFacts(0, 0, 0, 0, 1, 240, 320, 0, 1, 12800, 0, 0)


@st.composite
def videos(draw: st.DrawFn) -> tuple[VideoFacts, Packets, int]:
    """The packets of a video: groups whose frames follow each other, some of them dropped, reordered or spare."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    groups = draw(st.lists(st.integers(1, 60), min_size=1, max_size=6))
    reordered, leading, dropped = draw(st.booleans()), draw(st.integers(0, 3)), draw(st.sampled_from([0.0, 0.1]))
    shown, keys = list[int](), list[bool]()
    for count in groups:
        order = np.arange(count)
        if reordered:
            order = np.argsort(order + random.uniform(0, 4, count))
        first = order.tolist().index(min(leading, count - 1) if shown else 0)
        order[[0, first]] = order[[first, 0]]
        shown += (len(shown) + order).tolist()
        keys += [True] + [False] * (count - 1)
    count = len(shown)
    steps = random.integers(1, 3, count) * 512 if draw(st.booleans()) else np.full(count, 512)
    times = np.concatenate([[0], np.cumsum(steps)]) + draw(st.integers(-(10**6), 10**12))
    gone = random.uniform(size=count) < dropped
    kept = np.array(shown)
    numbers = np.where(gone, -1, np.searchsorted(np.sort(kept[~gone]), kept))
    sizes, gaps = random.integers(1, draw(st.sampled_from([5, 3000, 10**6])), count), random.integers(0, 9, count)
    offsets = draw(st.integers(0, 10**9)) + np.cumsum(sizes + gaps) - sizes
    packets = Packets(offsets, sizes, np.array(keys), numbers, times[kept], random.uniform(size=count) < 0.4)
    frames = int((~gone).sum())
    return (
        FACTS._replace(frames=frames, start=int(times[0]), span=int(times[-1] - times[0])),
        packets,
        int(offsets[-1] + sizes[-1]),
    )


def sums_of(packets: Packets) -> list[int]:
    return [sum_of(b"%d" % offset) for offset in packets.offsets]


def read(facts: VideoFacts, table: bytes, size: int, groups: Sequence[int] | None = None) -> Packets:
    directory = Directory.of(facts, table[: facts.head], size)
    numbers = range(facts.groups) if groups is None else groups
    blocks = b"".join(table[directory.blocks[n] : directory.blocks[n + 1]] for n in numbers)
    return packets_of(facts, directory, numbers, blocks, size)


@settings(max_examples=150, deadline=None)
@given(video=videos(), extradata=st.binary(max_size=50))
def test_a_table_holds_the_packets(video: tuple[VideoFacts, Packets, int], extradata: bytes) -> None:
    """A table that is read is what it was made of, and groups hold the frames that the directory says."""
    stated, packets, size = video
    facts, table = table_of(stated, packets, extradata, sums_of(packets))
    found, there = read(facts, table, size), packets.shown >= 0
    for name in ("offsets", "sizes", "keys", "shown", "spare"):
        np.testing.assert_array_equal(getattr(found, name), getattr(packets, name))
    np.testing.assert_array_equal(found.times[there], packets.times[there])
    assert facts.frames == there.sum()
    assert table[16 * facts.groups : facts.head] == extradata
    directory = Directory.of(facts, table[: facts.head], size)
    for number in range(facts.groups):
        part = read(facts, table, size, [number])
        frames = np.arange(directory.first[number], directory.first[number + 1])
        np.testing.assert_array_equal(np.sort(part.shown[part.shown >= 0]), frames)
        if len(frames):
            touched = directory.touched(frames)
            assert number in touched
            assert {*touched} <= {*directory.touched_at(facts, part.times[part.shown >= 0])}
            leads = int((part.times[part.shown >= 0] < part.times[0]).sum()) if part.shown[0] >= 0 else None
            assert leads is None or (len(touched) == 2) == (leads > 0 and number > 0)


def test_tables_are_small() -> None:
    """A table of an even rate with pictures of some kilobytes takes less than 4 bytes for each."""
    random, count = np.random.default_rng(1), 250
    sizes = np.where(np.arange(count) % 12 == 0, random.integers(8000, 30000, count), random.integers(100, 4000, count))
    packets = Packets(
        np.cumsum(sizes) - sizes,
        sizes,
        np.arange(count) % 12 == 0,
        np.arange(count),
        np.arange(count) * 512,
        np.arange(count) % 2 == 1,
    )
    facts, table = table_of(FACTS._replace(frames=count, span=count * 512), packets, b"", sums_of(packets))
    assert len(table) < 4 * count
    assert facts.groups == 7


@settings(max_examples=300, deadline=None)
@given(video=videos(), data=st.data())
def test_damaged_tables(video: tuple[VideoFacts, Packets, int], data: st.DataObject) -> None:
    """A changed byte, a cut or a changed fact raises BadTable, or gives packets within the file, each frame once."""
    stated, packets, size = video
    facts, table = table_of(stated, packets, b"extra", sums_of(packets))
    damaged = bytearray(table)
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(table) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(table))) if data.draw(st.booleans()) else len(table) :]
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(["frames", "groups", "extradata", "table"]))
        facts = facts._replace(**{name: data.draw(st.integers(0, 10**6))})
    try:
        found = read(facts, bytes(damaged), size)
    except BadTable:
        return
    assert (found.offsets >= 0).all()
    assert (found.offsets + found.sizes <= size).all()
    assert np.array_equal(np.sort(found.shown[found.shown >= 0]), np.arange(facts.frames))


@settings(max_examples=100, deadline=None)
@given(video=videos(), data=st.data())
def test_checksums_of_groups(video: tuple[VideoFacts, Packets, int], data: st.DataObject) -> None:
    """A group's checksum is of the facts, the whole head of the table, the group's block and its packets."""
    stated, packets, size = video
    facts, table = table_of(stated, packets, b"extra", sums_of(packets))
    directory = Directory.of(facts, table[: facts.head], size)
    number = data.draw(st.integers(0, facts.groups - 1))
    own, begin = read(facts, table, size, [number]), int(directory.blocks[number])
    sums = sums_of(own)

    def check(table: bytes, sums: list[int], facts: VideoFacts = facts) -> None:
        block = table[begin : int(directory.blocks[number + 1])]
        check_groups(facts, table[: facts.head], directory, [number], block, sums)

    check(table, sums)
    with pytest.raises(BadTable, match="checksum"):
        check(table, [sum_of(b"another"), *sums[1:]])
    name = data.draw(st.sampled_from(VideoFacts._fields))
    with pytest.raises(BadTable):
        check(table, sums, facts._replace(**{name: getattr(facts, name) + 1}))
    places = [*range(facts.head), *range(begin, directory.blocks[number + 1])]
    damaged = bytearray(table)
    damaged[data.draw(st.sampled_from(places))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadTable):
        check(bytes(damaged), sums)


@pytest.mark.parametrize(
    "change",
    [
        {"codec": 99},
        {"codec": -1},
        {"rotation": 45},
        {"table": 7},  # of another size than the table
        {"groups": 1 << 40},  # beyond the table
        {"frames": -1},
        {"height": 1 << 60},
        {"per": 0},
        {"start": -(1 << 60)},
    ],
)
def test_facts_that_no_video_has(change: dict[str, int]) -> None:
    """Facts with numbers that no video has are refused, whatever a dataset claims."""
    facts = FACTS._replace(frames=3, groups=1, extradata=5, table=40)
    facts.check(40)
    VideoFacts().check(0)
    with pytest.raises(BadTable):
        facts._replace(**change).check(40)


@pytest.mark.parametrize("change", [{"keys": np.zeros(3, np.bool_)}, {"shown": np.array([0, 0, 1])}])
def test_packets_that_no_table_holds(change: dict[str, np.ndarray]) -> None:
    """Packets that begin without a key frame, or show a frame twice, are refused."""
    whole = {
        "offsets": np.arange(3) * 10,
        "sizes": np.full(3, 10),
        "keys": np.arange(3) == 0,
        "shown": np.arange(3),
        "times": np.arange(3),
        "spare": np.zeros(3, np.bool_),
    }
    with pytest.raises(BadTable):
        table_of(FACTS._replace(frames=3), Packets(**whole | change), b"", [1, 2, 3])


def test_hours_in_nanoseconds() -> None:
    """The frames shown at some time are found where frames times ticks are more than an int64 holds."""
    numbers = np.arange(80_000)
    keys, times = numbers % 250 == 0, numbers * 2 * 10**9
    packets = Packets(numbers * 10, np.full(len(numbers), 10), keys, numbers, times, np.zeros(len(numbers), np.bool_))
    facts = FACTS._replace(frames=len(numbers), ticks=10**9, span=int(times[-1]))
    facts, table = table_of(facts, packets, b"", [0] * len(numbers))
    directory = Directory.of(facts, table[: facts.head], 10 * len(numbers))
    for frame in (0, 249, 250, 40_000, 79_999):
        assert directory.touched_at(facts, times[[frame]]).tolist() == [frame // 250]
    assert np.array_equal(read(facts, table, 10 * len(numbers), [319]).times, times[-250:])
