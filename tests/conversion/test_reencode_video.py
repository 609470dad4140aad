"""Videos are encoded anew as asked: their size, key frames, rate, codec and sound; and the same by every run."""

import io
import shutil
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from _builders import class_folders
from _cli import run
from _media import shown, video

import shardio
from shardio.conversion import reencode_video
from shardio.conversion.reencode_video import DOUBLED, DROPPED, SILENT, VideoOptions
from shardio.errors import BadSample, ConfigError

CODECS = {"h264": "h264", "hevc": "hevc", "vp9": "vp9", "av1": "libdav1d"}


def made(data: bytes, **options: Any) -> tuple[bytes, Counter[str]]:
    """The video anew, and what was counted."""
    counts = Counter[str]()
    return VideoOptions(**options)(data, counts), counts


def packets(data: bytes) -> list[tuple[bool, Fraction]]:
    """For each packet of the video whether it is a key frame, and its time in seconds."""
    with av.open(io.BytesIO(data)) as file:
        return [(p.is_keyframe, p.pts * p.time_base) for p in file.demux(video=0) if p.size and p.pts is not None]


def distance(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    return float(np.abs(a.astype(int) - b.astype(int)).mean())


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(codec: str) -> None:
    """The result has the codec, the key frames, the frames and their times; two runs give the same bytes."""
    data = video(30, group=250, size=(64, 96))
    found, counts = made(data, codec=codec, keyframes=6, crf=20)
    with av.open(io.BytesIO(found)) as file:
        assert file.streams.video[0].codec_context.codec.name == CODECS[codec]
    keys = [number for number, (key, _) in enumerate(packets(found)) if key]
    assert keys[0] == 0
    assert max(np.diff([*keys, 30])) <= 6
    assert sorted(time for _, time in packets(found)) == sorted(time for _, time in packets(data))
    assert max(distance(*pair) for pair in zip(shown(found), shown(data), strict=True)) < 12
    assert counts["videos: key frames before"] == 1
    assert made(data, codec=codec, keyframes=6, crf=20)[0] == found


def test_the_same_bytes_whatever_the_encoder_did_before() -> None:
    """Videos of other sizes in between, in one helper, change nothing."""
    videos = [video(40, size=size, seed=seed) for seed, size in enumerate([(96, 144), (64, 96), (128, 150)])]
    options = VideoOptions(keyframes=12)
    first = [options(data, Counter()) for data in videos]
    for order in ((1, 0, 2), (2, 2, 1), (0, 1, 2)):
        for number in order:
            assert options(videos[number], Counter()) == first[number]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_frames(codec: str, count: int) -> None:
    """Videos with fewer frames than an encoder holds back keep these and their times."""
    data = video(count, size=(64, 96))
    for _ in range(4):
        found, _ = made(data, codec=codec)
        assert sorted(time for _, time in packets(found)) == [Fraction(number, 25) for number in range(count)]
        assert len(shown(found)) == count


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"resize_shorter": 32}, (32, 48)),
        ({"resize_shorter": 32, "codec": "vp9"}, (32, 48)),
        ({"max_pixels": 65 * 97 // 4}, (32, 48)),
        ({"keyframes": 5}, (64, 96)),  # an odd side loses a row or a column
        ({"resize_shorter": 200}, None),  # there is nothing to do: it stays as it is
    ],
)
def test_sizes(options: dict[str, Any], size: tuple[int, int] | None) -> None:
    """Videos shrink as images do, to even sides; those that are small enough, and nothing else is asked of, stay."""
    data = video(5, size=(65, 97), codec="mjpeg", form="mov")
    found, counts = made(data, **options)
    if size is None:
        assert found is data
        assert not counts
        return
    assert shown(found)[0].shape == (*size, 3)


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_rotation_is_applied(degrees: int) -> None:
    """The result is upright, and nothing says any more that it is to be turned."""
    file = io.BytesIO()
    with av.open(io.BytesIO(video(4, size=(64, 96)))) as source, av.open(file, "w", format="mp4") as out:
        stream = out.add_stream_from_template(source.streams.video[0])
        if not hasattr(stream, "set_display_rotation"):
            pytest.skip("this release of PyAV cannot state a rotation")
        stream.set_display_rotation(degrees)
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                out.mux(packet)
    found, _ = made(file.getvalue(), keyframes=2)
    expected = np.rot90(shown(file.getvalue())[0], degrees // 90)
    assert distance(shown(found)[0], expected) < 12


def expected_frames(times: list[int], rate: int, fps: int) -> list[int]:
    """The frame that is shown at each time of the other rate, by the rule; the last as long as one in the mean."""
    seconds = [Fraction(time - times[0], rate) for time in times]
    end = seconds[-1] + (seconds[-1] / (len(times) - 1))
    return [
        max(n for n, begin in enumerate(seconds) if begin <= Fraction(k, fps))
        for k in range(1000)
        if Fraction(k, fps) < end
    ]


@pytest.mark.parametrize("fps", [5, 25, 60])
@pytest.mark.parametrize("times", [list(range(20)), [0, 1, 2, 9, 10, 17, 18, 19, 30, 31]])
def test_another_rate_takes_the_frames_that_are_shown_then(fps: int, times: list[int]) -> None:
    """Frame k is what the video shows k / fps seconds after its first; what is dropped and doubled is counted."""
    data = video(len(times), size=(64, 96), times=np.array(times), group=1)
    found, counts = made(data, fps=fps, crf=5)
    frames, before = shown(found), shown(data)
    expected = expected_frames(times, 25, fps)
    assert [time for _, time in sorted(packets(found), key=lambda one: one[1])] == [
        Fraction(k, fps) for k in range(len(expected))
    ]
    nearest = [int(np.argmin([distance(frame, other) for other in before])) for frame in frames]
    assert nearest == expected
    often = Counter(expected)
    assert counts[DROPPED] == sum(n not in often for n in range(len(times)))
    assert counts[DOUBLED] == sum(count - 1 for count in often.values())


def test_sound_is_left_out_or_kept() -> None:
    """It is left out, which is counted, or copied packet by packet: in MKV where MP4 has no place for it."""
    for form, sound, keeps in (("mp4", "aac", "mov"), ("matroska", "pcm_s16le", "matroska")):
        data = video(25, sound=sound, form=form)
        silent, counts = made(data, keyframes=5)
        kept, _ = made(data, keyframes=5, keep_audio=True)
        assert counts[SILENT] == 1
        with av.open(io.BytesIO(silent)) as one, av.open(io.BytesIO(kept)) as two, av.open(io.BytesIO(data)) as first:
            assert [stream.type for stream in one.streams] == ["video"]
            assert keeps in two.format.name
            sounds = [[bytes(p) for p in file.demux(audio=0) if p.size] for file in (two, first)]
        assert sounds[0] == sounds[1]
        assert len(shown(kept)) == 25


@pytest.mark.parametrize("form", ["avi", "mpegts", "flv"])
def test_formats_whose_packets_are_not_indexed(form: str) -> None:
    """Videos to encode anew may come in a container that is not stored itself."""
    data = video(12, form=form)
    found, _ = made(data, keyframes=4)
    assert len(shown(found)) == len(shown(data)) == 12


def test_full_range_becomes_limited() -> None:
    """The pixels of full-range video stay what they are."""
    data = video(3, codec="mjpeg", form="mov", size=(64, 96))
    found, _ = made(data, crf=1, keyframes=1)
    assert distance(shown(found)[0], shown(data)[0]) < 4


@pytest.mark.parametrize("data", [b"", b"text, which is no video", video(10)[:600], b"\x1aE\xdf\xa3" + bytes(80)])
def test_what_is_no_video_or_damaged_is_a_bad_sample(data: bytes) -> None:
    with pytest.raises(BadSample):
        made(data, keyframes=5)


def test_frames_too_large_are_refused() -> None:
    with pytest.raises(BadSample, match=r"1536 pixels: max_image_pixels=.* allows 1000|1536 pixels.*allows 1000"):
        made(video(2), keyframes=5, max_image_pixels=1000)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"keyframes": 0}, "keyframes"),
        ({"fps": -1.0}, "fps"),
        ({"codec": "mpeg2"}, "codec"),
        ({"keep_audio": True}, "keep_audio goes with keyframes"),
        ({"crf": 64}, "crf"),
        ({"crf": 52}, "crf must be at most 51 with codec='h264', got 52"),  # libx264 would take 51
        ({"crf": 52, "codec": "hevc"}, "crf must be at most 51 with codec='hevc', got 52"),  # libx265 would fail
    ],
)
def test_options_out_of_range(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        VideoOptions(**options)


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """Four videos with one key frame each."""
    (tmp_path / "clips").mkdir()
    for number in range(4):
        (tmp_path / "clips" / f"{number}.mp4").write_bytes(video(40, size=(64, 96), seed=number, sound="aac"))
    return tmp_path / "clips"


@pytest.mark.long
def test_convert_encodes_anew_and_tells_what_it_brings(clips: Path, tmp_path: Path) -> None:
    """The command does it by any number of workers; without it, a hint says what it would bring."""
    told = run("convert", "videofolder", clips, tmp_path / "plain")
    assert "videos have a key frame every 40 frames" in told
    assert "--keyframes 12 would encode them anew" in told
    options = ("--resize-shorter", 32, "--keyframes", 12, "--fps", 50, "--shard-size", "1KB")
    told = run("convert", "videofolder", clips, tmp_path / "one", *options)
    assert "note: encoded 4 videos anew: " in told
    assert "and a key frame every 40 frames became one every 11; 4 videos lost the sound" in told
    assert "--fps: 0 frames were dropped, 160 were shown again" in told
    assert "would encode" not in told
    run("convert", "videofolder", clips, tmp_path / "two", *options, "--workers", 2)
    one, two = shardio.open(tmp_path / "one"), shardio.open(tmp_path / "two")
    assert one.digest == two.digest
    assert shown(one[0]["video"])[0].shape == (32, 48, 3)


def test_resume_and_append_keep_to_the_encoding(clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan has encoder, build and options: another build is refused; an append takes the dataset's options."""
    shardio.convert(clips, tmp_path / "out", converter="videofolder", keyframes=10)
    made_by = shardio.open(tmp_path / "out").manifest.conversion["encoding"]
    assert made_by["encoder"].startswith("libx264, libavcodec ")
    assert made_by["keyframes"] == 10
    again = {"converter": "videofolder", "keyframes": 10, "resume": True}
    shardio.convert(clips, tmp_path / "out", **again)
    with monkeypatch.context() as patched:
        patched.setattr(av, "__version__", "99.0")
        with pytest.raises(ConfigError, match=r"has encoder .*PyAV 99\.0"):
            shardio.convert(clips, tmp_path / "out", **again)
    more = shutil.copytree(clips, tmp_path / "more")
    with pytest.raises(ConfigError, match="was made with"):
        shardio.convert(more, tmp_path / "out", converter="videofolder", keyframes=9, append=True)
    shardio.convert(more, tmp_path / "out", converter="videofolder", append=True)
    dataset = shardio.open(tmp_path / "out")
    assert dataset[0]["video"] == dataset[4]["video"]


def test_options_of_videos_need_some(tmp_path: Path) -> None:
    class_folders(tmp_path / "photos")
    with pytest.raises(ConfigError, match=r"are for videos; the fields are image"):
        shardio.convert(tmp_path / "photos", tmp_path / "out", converter="imagefolder", keyframes=5)


def test_an_encoder_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"h264": reencode_video._Encoder("libnothing", 1, 51, {})}
    monkeypatch.setattr(reencode_video, "_ENCODERS", missing)
    with pytest.raises(ConfigError, match="no encoder 'libnothing'"):
        _ = VideoOptions(keyframes=1).made_by
