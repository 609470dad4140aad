"""Videos: any frames are those of decoding the whole file; what tables can't hold is refused; damage is found."""

import io
from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
import pytest
from _builders import encode
from _videos import CORPUS, CUTS, FRAMES, decoded, ffmpeg, frames, make, planes, turned, video
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio.errors import BadSample
from shardio.foreign.video import described, indexable, scan
from shardio.foreign.video_decoder import Run, decode
from shardio.format.packets import BadTable, Directory, VideoFacts, packets_of, runs_to_decode

MOST = 1 << 24


def show(value: bytes, facts: VideoFacts, table: bytes, wanted: Sequence[int]) -> dict[int, av.VideoFrame]:
    """Decode some frames of a video, as a loader does."""
    facts.check(len(table))
    directory = Directory.of(facts, table[: facts.head], len(value))
    groups = directory.touched(np.array(wanted)).tolist()
    blocks = b"".join(table[directory.blocks[each] : directory.blocks[each + 1]] for each in groups)
    packets, runs = packets_of(facts, directory, groups, blocks, len(value)), list[Run]()
    for run in runs_to_decode(packets, np.array(wanted)):
        places = zip(packets.offsets[run].tolist(), packets.sizes[run].tolist(), strict=True)
        runs.append(([value[place : place + size] for place, size in places], packets.shown[run].tolist()))
    return decode(facts, table[facts.head - facts.extradata : facts.head], runs, {*wanted}, MOST)


@pytest.mark.parametrize("name", [*CORPUS, *CUTS])
@settings(max_examples=12)
@given(data=st.data())
def test_any_frames(name: str, data: st.DataObject) -> None:
    """Any frames of a video equal those of decoding the whole file, bit for bit, by decoders that were used before."""
    whole, (facts, table) = frames(name), _described(name)
    assert facts.frames == len(whole)
    begin, stride = data.draw(st.integers(0, facts.frames - 1)), data.draw(st.sampled_from([1, 2, 4, 9]))
    wanted = range(begin, facts.frames, stride)[: data.draw(st.integers(1, 8))]
    found = show(video(name), facts, table, wanted)
    for number in wanted:
        np.testing.assert_array_equal(planes(found[number]), whole[number])


_KNOWN: dict[str, tuple[VideoFacts, bytes]] = {}


def _described(name: str) -> tuple[VideoFacts, bytes]:
    if name not in _KNOWN:
        _KNOWN[name] = described(video(name))
    return _KNOWN[name]


@pytest.mark.parametrize("name", [*CORPUS, *CUTS])
def test_facts(name: str, tmp_path: Path) -> None:
    """The facts are those of libav, and decoding all groups finds nothing else; a table takes few bytes."""
    path = tmp_path / name
    path.write_bytes(video(name))
    facts, table = scan(path, MOST, whole=True)
    assert (facts, table) == _described(name)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (facts.height, facts.width) == (stream.height, stream.width)
        assert (facts.ticks, facts.per) == (stream.time_base.numerator, stream.time_base.denominator)
        assert facts.start == next(container.decode(stream)).pts
    assert facts.rotation == (90 if name == "turned.mp4" else 0)
    assert len(table) < 4 * facts.frames + facts.extradata + 100


def test_fewer_packets() -> None:
    """Pictures that nothing refers to, and that aren't wanted, are left out of what is decoded."""
    for name, most in (("h264_long.mp4", 0.75), ("hevc_layers.mp4", 0.75), ("vp9.webm", 1.0)):
        facts, table = _described(name)
        directory = Directory.of(facts, table[: facts.head], len(video(name)))
        packets = packets_of(facts, directory, range(facts.groups), table[facts.head :], len(video(name)))
        taken = sum(map(len, runs_to_decode(packets, np.arange(0, facts.frames, 7))))
        assert taken <= most * len(packets), name


def test_unstated_reordering() -> None:
    """H.264 that states no depth of its reordering loses no frame."""
    whole, value = frames("h264_long.mp4"), video("h264_long.mp4")
    changed = without_reordering(value)
    assert changed != value
    facts, table = described(changed)
    found = show(changed, facts, table, range(FRAMES))
    for number, frame in found.items():
        np.testing.assert_array_equal(planes(frame), whole[number])


def without_reordering(value: bytes) -> bytes:
    """Return an MP4 of x264 whose sequence parameters end before they state the depth of reordering."""
    begin = value.index(b"avcC") + 12
    size = int.from_bytes(value[begin - 2 : begin], "big")
    bits = "".join(f"{byte:08b}" for byte in value[begin : begin + size].replace(b"\0\0\3", b"\0\0")).rstrip("0")[:-1]
    place = next(n for n in range(len(bits) - 8, 0, -1) if _states_reordering(bits[n:]))
    shorter = bits[:place] + "01"
    shorter += "0" * (-len(shorter) % 8)
    raw = bytes(int(shorter[at : at + 8], 2) for at in range(0, len(shorter), 8))
    kept = raw.replace(b"\0\0\1", b"\0\0\3\1").replace(b"\0\0\2", b"\0\0\3\2")
    return value[:begin] + kept + bytes(size - len(kept)) + value[begin + size :]


def _states_reordering(bits: str) -> bool:
    """Whether these are two flags, the numbers 0 and 0 of Golomb, four more, and nothing else."""
    numbers, at = list[int](), 2
    while at < len(bits) and "1" in bits[at:]:
        zeros = bits.index("1", at) - at
        numbers.append(int(bits[at + zeros : at + 2 * zeros + 1], 2) - 1)
        at += 2 * zeros + 1
    return bits.startswith("11") and at == len(bits) and len(numbers) == 6 and numbers[:2] == [0, 0]


@pytest.mark.parametrize(
    ("matrix", "rotation"),
    [
        ((1, 0, 0, 1), 0),
        ((0, 1, -1, 0), 90),
        ((-1, 0, 0, -1), 180),
        ((0, -1, 1, 0), 270),
        ((-1, 0, 0, 1), None),  # a mirror
        ((0.7, 0.7, -0.7, 0.7), None),
    ],
)
def test_rotations(matrix: Sequence[float], rotation: int | None) -> None:
    """Quarter turns are facts; what is to be shown mirrored or askew is refused."""
    value = turned(video("h264.mp4"), matrix)
    if rotation is not None:
        assert described(value)[0].rotation == rotation
        return
    with pytest.raises(BadSample, match="no quarter turn"):
        described(value)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        (
            "v.avi",
            ("-c:v", "libx264", "-bf", "2"),
            "not those of MP4, MOV, MKV or WebM; `shardio convert` rewrites MPEG-TS, AVI",
        ),
        ("v.ts", ("-c:v", "libx264"), "not those of MP4, MOV, MKV or WebM; `shardio convert` rewrites MPEG-TS, AVI"),
        ("v.mpg", ("-c:v", "mpeg2video"), "with --keyframes 12 also takes MPEG-PS"),
        ("v.mkv", ("-c:v", "mpeg4"), "its codec is 'mpeg4'"),
        ("v.m4a", ("-vn", "-c:a", "aac"), "no video stream"),
        (
            "v.mp4",
            ("-c:v", "libx264", "-g", "30", "-x264-params", "intra-refresh=1"),
            r"frame \d+ damaged or not at all",
        ),
    ],
)
def test_what_is_refused(name: str, options: Sequence[str], reason: str, tmp_path: Path) -> None:
    """Files whose packets can't be read in place, other codecs, and files without pictures are refused by name."""
    with pytest.raises(BadSample, match=reason):
        described(make(tmp_path / name, options).read_bytes())


@pytest.mark.parametrize("name", ["v.mp4", "v.mkv"])
def test_one_frame(name: str, tmp_path: Path) -> None:
    """A video of one frame lasts as long as its file shows it, so it isn't too short for clips in seconds."""
    value = make(tmp_path / name, ("-r", "25", "-frames:v", "1", "-c:v", "libx264")).read_bytes()
    facts = described(value)[0]
    assert (facts.frames, facts.span * facts.ticks / facts.per) == (1, 0.04)
    with shardio.create(tmp_path / "d", fields={"video": "video"}) as writer:
        writer.append({"video": value})
    for clip in (shardio.FramesAt([0.0]), shardio.CenterClip(1, stride_seconds=0.1)):
        (batch,) = shardio.Loader(tmp_path / "d", 1, transforms={"video": [clip]})
        assert batch["video_time"].tolist() == [[0.0]]


def test_no_file_of_a_video() -> None:
    """Text, a part of a file and nothing at all are bad samples, whose reasons name no temporary file."""
    for value, reason in (
        (b"", "it is an empty file"),
        (b"hello", "its first bytes are not those of MP4"),
        (video("h264.mp4")[:200], "cannot read it as 'mov', it may be cut short or damaged: Invalid data [a-z ]*$"),
        (video("h264.mp4")[300:], "its first bytes are not those of MP4"),
    ):
        with pytest.raises(BadSample, match=reason):
            described(value)


def test_a_cut_file() -> None:
    """A file that ends within a packet is a bad sample if its head states all packets; else its whole ones are it."""
    with pytest.raises(BadSample):
        described(video("mjpeg.mov")[:-20000])
    whole, (facts, table) = frames("h264_open.mkv"), described(video("h264_open.mkv")[:-9000])
    assert 0 < facts.frames < FRAMES
    shown = show(video("h264_open.mkv"), facts, table, range(facts.frames))
    assert all(np.array_equal(planes(frame), whole[number]) for number, frame in shown.items())


def test_large_frames(tmp_path: Path) -> None:
    """Frames of more pixels than allowed are refused, before any is decoded."""
    facts, table = _described("h264.mp4")
    path = tmp_path / "v.mp4"
    path.write_bytes(video("h264.mp4"))
    with pytest.raises(BadSample, match="64 x 96 pixels"):
        scan(path, 64 * 96 - 1)
    with pytest.raises(BadSample, match="64 x 96 pixels"):
        decode(facts, b"", [], [], 64 * 96 - 1)
    lying = facts._replace(height=48)
    with pytest.raises(BadSample, match=r"frame 0 has 64 x 96 pixels, expected 48 x 96"):
        show(video("h264.mp4"), lying, table, [0])


def test_another_size_in_the_middle(tmp_path: Path) -> None:
    """A video whose size changes is refused."""
    parts = [make(tmp_path / f"{size}.ts", ("-c:v", "libx264", "-g", "12"), size=size) for size in ("96x64", "64x48")]
    whole = tmp_path / "whole.ts"
    whole.write_bytes(b"".join(part.read_bytes() for part in parts))
    ffmpeg("-i", whole, "-c", "copy", "-an", tmp_path / "v.mkv")
    with pytest.raises(BadSample, match="has parameters that its head lacks"):
        described((tmp_path / "v.mkv").read_bytes())


@pytest.mark.parametrize("name", ["v.mp4", "v.mkv"])
def test_other_parameters_in_the_middle(name: str, tmp_path: Path) -> None:
    """Parameter sets in a packet are refused if they are others than the file's head has, and taken if they are not."""
    parts = [make(tmp_path / f"{crf}.ts", ("-c:v", "libx264", "-g", "12", "-crf", crf)) for crf in ("20", "35")]
    for whole, accepted in ((parts[:1] * 2, True), (parts, False)):
        joined = tmp_path / "joined.ts"
        joined.write_bytes(b"".join(part.read_bytes() for part in whole))
        ffmpeg("-fflags", "+genpts", "-i", joined, "-c", "copy", "-an", tmp_path / name)
        if accepted:
            assert described((tmp_path / name).read_bytes())[0].frames > FRAMES
            continue
        with pytest.raises(BadSample, match=r"packet \d+ has parameters that its head lacks"):
            described((tmp_path / name).read_bytes())


def test_pictures_without_tables() -> None:
    """JPEG frames that rely on the standard's tables are decoded alike before and after frames that bring their own."""
    with av.open(io.BytesIO(video("mjpeg.mov"))) as container:
        own = next(bytes(packet) for packet in container.demux(video=0))
    plain = np.zeros((64, 96, 3), np.uint8)
    plain[16:40, 20:70] = 200
    bare = bytearray(encode("jpeg", plain))
    while (place := bare.find(b"\xff\xc4")) >= 0:
        del bare[place : place + 2 + int.from_bytes(bare[place + 2 : place + 4], "big")]
    facts = described(video("mjpeg.mov"))[0]
    shown = [planes(decode(facts, b"", [([each], [0])], [0], MOST)[0]) for each in (bytes(bare), own, bytes(bare))]
    np.testing.assert_array_equal(shown[0], shown[2])


@settings(max_examples=150)
@given(data=st.data())
def test_damage(data: st.DataObject) -> None:
    """Damaged packets and tables give a frame as it should be, or none: checksums of groups tell; nothing waits."""
    name = data.draw(st.sampled_from(["h264.mp4", "hevc_open.mp4", "vp9.webm", "av1.mp4", "mjpeg.mov"]))
    value, (facts, table) = bytearray(video(name)), _described(name)
    damaged = value if data.draw(st.booleans()) else bytearray(table)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    table = table if damaged is value else bytes(damaged)
    wanted = range(data.draw(st.integers(0, facts.frames - 5)), facts.frames)[:5]
    try:
        found = show(bytes(value), facts, table, wanted)
    except (BadSample, BadTable):
        found = {}
    assert {*found} <= {*wanted}
    again = show(video(name), *_described(name), wanted)  # by the same decoders
    for number in wanted:
        np.testing.assert_array_equal(planes(again[number]), frames(name)[number])


@settings(max_examples=60)
@given(data=st.data())
def test_damaged_files(data: st.DataObject) -> None:
    """A damaged file is a bad sample, or each of its packets is within it and each frame has one."""
    name = data.draw(st.sampled_from(["h264.mp4", "h264_pieces.mp4", "h264_open.mkv", "vp9.webm"]))
    value = bytearray(video(name))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.one_of(st.integers(0, 600), st.integers(0, len(value) - 1)))
        value[place] = data.draw(st.integers(0, 255))
    del value[data.draw(st.integers(100, len(value))) if data.draw(st.booleans()) else len(value) :]
    try:
        facts, table = described(bytes(value))
    except BadSample:
        return
    directory = Directory.of(facts, table[: facts.head], len(value))
    packets = packets_of(facts, directory, range(facts.groups), table[facts.head :], len(value))
    assert (packets.offsets + packets.sizes <= len(value)).all()
    assert np.array_equal(np.sort(packets.shown[packets.shown >= 0]), np.arange(facts.frames))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("v.ts", ("-c:v", "libx264", "-bf", "2", "-c:a", "aac")),
        ("v.m2ts", ("-c:v", "libx264", "-c:a", "ac3")),
        ("hevc.ts", ("-c:v", "libx265", "-x265-params", "log-level=none", "-an")),
        ("v.flv", ("-c:v", "libx264", "-bf", "2", "-c:a", "mp3", "-ar", "44100")),
        ("v.avi", ("-c:v", "mjpeg", "-pix_fmt", "yuvj420p", "-c:a", "pcm_s16le")),
    ],
)
def test_rewriting(name: str, options: Sequence[str], tmp_path: Path) -> None:
    """Formats whose packets have no place of their own become MP4s with the same frames, and always the same bytes."""
    path = make(tmp_path / name, options)
    value, whole = path.read_bytes(), decoded(path)
    made = indexable(value)
    assert indexable(value) == made != value
    assert indexable(made) is made
    facts, table = described(bytes(made))
    assert facts.frames == len(whole)
    found = show(bytes(made), facts, table, range(facts.frames))
    assert all(np.array_equal(planes(found[number]), frame) for number, frame in enumerate(whole))
    (tmp_path / "v.mp4").write_bytes(made)
    with av.open(str(path)) as before, av.open(str(tmp_path / "v.mp4")) as after:
        assert len(after.streams.audio) == len(before.streams.audio)


@pytest.mark.parametrize(("name", "options"), [("v.avi", ("-c:v", "libx264", "-bf", "2")), ("v.flv", ("-c:v", "flv"))])
def test_what_is_not_rewritten(name: str, options: Sequence[str], tmp_path: Path) -> None:
    """Pictures without times of their own, and codecs that nothing here decodes, must be encoded anew."""
    with pytest.raises(BadSample, match=r"encode it anew, as `shardio convert --keyframes 12` does"):
        described(bytes(indexable(make(tmp_path / name, options).read_bytes())))
