"""Clips: the frames of videos, and of lists of images, that batches have."""

from collections import Counter
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import _datasets
import _jobs
import numpy as np
import pytest
import torch
from _builders import decoded, jpeg
from _clips import FIELDS, LENGTHS, at, check, sample, video, videos, whole
from _datasets import packed
from _device import device as device
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio import CenterClip, FramesAt, RandomClip, UniformFrames
from shardio.errors import BadSample, ConfigError
from shardio.format.packets import VideoFacts
from shardio.loader.batch.clip_lengths import video_lengths

DATA = videos()
load = partial(_datasets.load, batch_size=4, seed=3)
CROP = [shardio.RandomResizedCrop(16), shardio.RandomHorizontalFlip(), shardio.ColorJitter(0.4)]
CLIPS = {
    "strides": RandomClip(4, stride=5, short="pad"),
    "seconds": RandomClip(5, stride_seconds=0.13, short="pad"),
    "center": CenterClip(6, stride=2, short="pad"),
    "uniform": UniformFrames(5),
    "given": FramesAt([0, 0.91, 0.5], short="pad"),
}


@pytest.mark.parametrize("container", ["memory", "tar", "hdf5", "lmdb"])
@pytest.mark.parametrize("kind", [*CLIPS])
def test_frames_are_those_of_the_whole_video(kind: str, container: str, tmp_path: Path) -> None:
    """Each frame, with its time, is one of decoding all of the video; there are two epochs of them."""
    clip, data = CLIPS[kind], videos(tmp_path / "d", container=container)
    loader = load(data, transforms={"video": [clip]})
    seen: list[dict[int, list[int]]] = []
    for _ in range(2):
        seen.append({})
        for batch in loader:
            assert batch["video_time"].dtype == torch.float64
            assert all(row.dtype == torch.uint8 and row.shape == (clip.frames, 48, 64, 3) for row in batch["video"])
            for index, frames in zip(batch["index"].tolist(), check(batch), strict=True):
                if isinstance(clip, RandomClip) and not clip.in_seconds:
                    assert frames == [min(frames[0] + 5 * n, LENGTHS[index] - 1) for n in range(4)]
            seen[-1] |= dict(zip(batch["index"].tolist(), check(batch), strict=True))
    assert [*seen[0]] != [*seen[1]]
    assert (seen[0] == seen[1]) is not isinstance(clip, RandomClip)


@given(st.lists(st.floats(0, 3), min_size=1, max_size=6))
@settings(max_examples=30, deadline=None)
def test_the_frame_shown_at_a_time(seconds: list[float]) -> None:
    """It is the last one that is shown no later, also at a variable rate; those beyond the end are not valid."""
    for batch in load(DATA, transforms={"video": [FramesAt(seconds, short="pad")]}):
        for row, (index, frames) in enumerate(zip(batch["index"].tolist(), check(batch), strict=True)):
            assert frames == at(seconds, index)
            steps = np.diff(whole(index)[1])
            near = whole(index)[1][-1] + steps.max() + 1e-3
            assert all(t < near for t, v in zip(seconds, batch["video_valid"][row].tolist(), strict=True) if v)
            assert all(v for t, v in zip(seconds, batch["video_valid"][row].tolist(), strict=True) if t < near - 0.1)


def test_numbers_of_frames() -> None:
    """A clip in the middle, and frames of equal parts, are where they are said to be."""
    for clip, wanted in (
        (CenterClip(4, stride=5), lambda n: [(n - 16) // 2 + 5 * k for k in range(4)]),
        (UniformFrames(4), lambda n: [n // 8, 3 * n // 8, 5 * n // 8, 7 * n // 8]),
    ):
        for batch in load(DATA, transforms={"video": [clip]}):
            assert check(batch) == [wanted(LENGTHS[index]) for index in batch["index"].tolist()]


@given(data=st.data(), frames=st.integers(1, 12), stride=st.integers(1, 4), ranks=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_short_videos_are_left_out(data: st.DataObject, frames: int, stride: int, ranks: int) -> None:
    """An epoch has each video that is long enough once, over any ranks, and from a state on any others."""
    long = [number for number, length in enumerate(LENGTHS) if length > (frames - 1) * stride]
    if not long:
        return
    options: dict[str, Any] = {"transforms": {"video": [RandomClip(frames, stride), *CROP]}}
    options["shuffle"] = data.draw(st.sampled_from(["global", "block", None]))
    found = _jobs.exact_over_ranks(DATA, ranks, data.draw(st.integers(1, 4)), data, **options)
    assert sorted(found) == long
    loader = load(DATA, **options, tail="pad")
    assert loader.too_short == len(LENGTHS) - len(long)
    assert (f"{loader.too_short} samples too short" in repr(loader)) is (loader.too_short > 0)


@given(
    clip=st.sampled_from([*CLIPS.values(), RandomClip(3, 7)]),
    ranks=st.lists(st.integers(1, 3), min_size=2, max_size=2),
    sizes=st.lists(st.integers(1, 5), min_size=2, max_size=2),
    steps=st.integers(0, 5),
    threads=st.integers(1, 3),
)
@settings(max_examples=25, deadline=None)
def test_ranks_and_threads_change_no_frame(
    clip: Any, ranks: list[int], sizes: list[int], steps: int, threads: int
) -> None:
    """Stopped and resumed on other ranks with other batches, clips have the frames and crops of one rank."""
    options: dict[str, Any] = {"transforms": {"video": [clip, *CROP]}, "on_bad_sample": "raise"}

    def delivered(batches: list[dict[str, Any]]) -> Counter[bytes]:
        rows = ((batch, row) for batch in batches for row in range(len(batch["index"])) if _counts(batch, row))
        return Counter(batch["video"][row].numpy().tobytes() + bytes(batch["index"][row]) for batch, row in rows)

    reference = _jobs.Job(DATA, 1, 8, **options)
    reference.run()
    first = _jobs.Job(DATA, ranks[0], sizes[0], threads=threads, **options)
    state = first.run(steps)
    rest = _jobs.Job(DATA, ranks[1], sizes[1], state, **options)
    found = delivered(first.batches)
    if state["epoch"] == 0:
        rest.run()
        found += delivered(rest.batches)
    assert found == delivered(reference.batches)


def _counts(batch: dict[str, Any], row: int) -> bool:
    return "valid" not in batch or bool(batch["valid"][row])


def test_lengths_in_seconds() -> None:
    """Lengths in seconds are rounded once: a video is too short for a clip that ends when it does."""
    frames = np.arange(1, 400)
    facts = np.zeros((len(frames), len(VideoFacts._fields)), np.int64)
    facts[:, VideoFacts._fields.index("span")] = 20 * frames
    facts[:, VideoFacts._fields.index("ticks")], facts[:, VideoFacts._fields.index("per")] = 1, 600
    assert video_lengths(facts)[True].tolist() == [number / 30 for number in frames.tolist()]


def test_what_short_may_be() -> None:
    """A short video repeats its last frame, marked as invalid, or is a bad sample that says how long it is."""
    for batch in load(DATA, transforms={"video": [RandomClip(5, stride=4, short="pad"), shardio.CenterCrop(8)]}):
        assert batch["video"].shape == (4, 5, 8, 8, 3)
        for index, valid, clip in zip(batch["index"].tolist(), batch["video_valid"], batch["video"], strict=True):
            assert valid.tolist() == [LENGTHS[index] > 16 or 4 * n < LENGTHS[index] for n in range(5)]
            assert all(torch.equal(clip[n], clip[int(valid.sum()) - 1]) for n in range(int(valid.sum()), 5))
    with pytest.raises(BadSample, match=r"field 'video': has \d+ frames in .* s, too few for RandomClip.*short='pad'"):
        list(load(DATA, transforms={"video": [RandomClip(5, stride=4, short="raise")]}))
    with pytest.raises(ConfigError, match=r"8 of 8 samples .* are too short for RandomClip.*short='pad'"):
        load(DATA, transforms={"video": [RandomClip(100)]})
    mixed = shardio.mix({"a": DATA, "b": DATA}, {"a": 1, "b": 1})
    with pytest.raises(ConfigError, match=r"2 of 16|4 of 16 samples .* an order of its own"):
        load(mixed, transforms={"video": [RandomClip(5, stride=4)]})
    assert len([*load(mixed, transforms={"video": [RandomClip(2)]})]) == 4
    dropping = load(DATA, transforms={"video": [RandomClip(5, stride=4)]})
    with pytest.raises(shardio.errors.StateMismatch):
        load(DATA, transforms={"video": [RandomClip(5, stride=8)]}).load_state_dict(dropping.state_dict())


def test_several_names_decode_once(monkeypatch: pytest.MonkeyPatch, nothing_ahead: None) -> None:
    """Names of one field draw clips of their own; these and clips of one video in a batch share what is decoded."""
    runs: list[list[int]] = []
    from shardio.loader.batch import make_clips

    plain = make_clips.decode

    def counted(facts: Any, extradata: bytes, decoded: Any, *more: Any) -> Any:
        runs.extend(list(shown) for _, shown in decoded)
        return plain(facts, extradata, decoded, *more)

    monkeypatch.setattr(make_clips, "decode", counted)
    fields = {"one": "video", "two": "video"}
    transforms: Any = {"one": [RandomClip(8, short="pad")], "two": [RandomClip(8, short="pad")]}
    clips = DATA.clips("video", 8, every=1)
    (batch,) = load(clips[:20], batch_size=20, transforms={"video": []}, shuffle=None, threads=1)
    assert check(batch, lambda index: 0) == [[*range(first, first + 8)] for first in range(20)]
    assert sum(map(len, runs)) < 20 * 8 / 2
    runs.clear()
    differ = 0
    for batch in load(DATA, fields=fields, transforms=transforms, shuffle=None, threads=1):
        one, two = check(batch, name="one"), check(batch, name="two")
        differ += one != two
    assert differ
    decoded_by_both = len(runs)
    runs.clear()
    for name in fields:
        list(load(DATA, fields={name: "video"}, transforms={name: transforms[name]}, shuffle=None))
    assert decoded_by_both < len(runs)


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 1},
        {"verify": True},
        {"map": dict},
        {"map": dict, "map_by": "sample"},
        {"on_bad_sample": "mask"},
        {"channels_last": True},
        {"to": "numpy"},
        {"orient": True},
        {"device": True},
        {"device": True, "channels_last": True},
        pytest.param({"isolate": True, "threads": 1}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("last", ["uint8", "float32", "float16"])
def test_options_change_no_pixel(options: dict[str, Any], last: str, device: str, tmp_path: Path) -> None:
    """Batches are [B, T, H, W, C] of uint8, or [B, T, C, H, W] of floats; all frames of a clip are erased alike."""
    options = {**options, **({"device": device} if "device" in options else {})}
    finish = [] if last == "uint8" else [shardio.ToFloat(last), shardio.RandomErasing(0.7)]
    data = videos(tmp_path / "d")
    rules: Any = {"video": [RandomClip(4, stride=3, short="pad"), *CROP, *finish]}
    for one, other in zip(load(data, transforms=rules), load(data, transforms=rules, **options), strict=True):
        assert one["video"].shape == ((4, 4, 16, 16, 3) if last == "uint8" else (4, 4, 3, 16, 16))
        for name in ("video", "video_time", "video_valid", "label", "index"):
            assert str(other[name].dtype).removeprefix("torch.") == str(one[name].dtype).removeprefix("torch.")
            np.testing.assert_array_equal(np.asarray(other[name]), np.asarray(one[name]))


def test_frames_of_a_clip_are_treated_alike() -> None:
    """Each frame has the crop, flip and colours that an image of the same sample draws, in Pillow's pixels."""
    frames = whole(2)[0]
    data = packed(None, [sample(2)] * 4, FIELDS)
    images = packed(
        None, [{"image": frame} for frame in frames[:4]], {"image": shardio.Field("pixels", shape=(48, 64))}
    )
    for batch in load(data, transforms={"video": [FramesAt([0, 0.04, 0.08, 0.12]), *CROP]}, shuffle=None):
        for frame in range(4):
            one = packed(None, [{"image": frames[frame]}] * 4, images.fields)
            (wanted,) = load(one, transforms={"image": CROP}, shuffle=None)
            assert torch.equal(batch["video"][:, frame], wanted["image"])


def test_missing_videos() -> None:
    """A sample without a video isn't short; a batch says that there is none, and has zeros or None."""
    rows = [sample(n) | ({"video": None} if n in (1, 6) else {}) for n in range(8)]
    data = packed(None, rows, FIELDS | {"video": shardio.Field("video", optional=True)})
    found = {}
    for batch in load(data, transforms={"video": [RandomClip(3, stride=5), shardio.CenterCrop(8)]}, tail="pad"):
        for row, index in enumerate(batch["index"].tolist()):
            found[index] = bool(batch["video_present"][row])
            assert batch["video"][row].any() == found[index] == batch["video_time"][row].any()
    assert found == {n: n not in (1, 6) for n in range(8) if LENGTHS[n] > 10 or n == 6}
    for batch in load(data, transforms={"video": [RandomClip(2)]}):
        for index, clip in zip(batch["index"].tolist(), batch["video"], strict=True):
            assert (clip is None) == (index in (1, 6))


@pytest.mark.parametrize("treatment", ["mask", "replace"])
def test_after_a_damaged_video_others_have_their_own_frames(treatment: str, tmp_path: Path) -> None:
    """A clip that does not decode is a bad sample that says why; no frame of it, or of another, stands elsewhere."""
    data = videos(tmp_path / "d", shard_size="1MB")
    (tar,) = (tmp_path / "d").glob("*.tar")
    content = bytearray(tar.read_bytes())
    begin = content.index(video(2)) + len(video(2)) // 3
    content[begin : begin + 400] = bytes(range(200, 240)) * 10
    tar.write_bytes(content)
    options: Any = {"transforms": {"video": [UniformFrames(12)]}, "threads": 1, "shuffle": None}
    with pytest.raises(BadSample, match=r"row 2 .*field 'video': libavcodec"):
        list(load(shardio.open(tmp_path / "d"), **options))
    for _ in range(2):
        loader = load(shardio.open(tmp_path / "d"), on_bad_sample=treatment, max_bad=8, **options)
        for batch in loader:
            good = [row for row in range(4) if "valid" not in batch or batch["valid"][row]]
            part = {name: [batch[name][row] for row in good] for name in ("video", "video_time")}
            check(part | {"index": batch["index"][good]})
        assert [record.location.index for record in loader.quarantine()] == [2]
    assert len(data) == 8


def test_lists_of_images_are_clips() -> None:
    """Frames may be files of their own: one set of draws for all, in the pixels of single images."""
    rows = [{"frames": [jpeg(20, 24, seed=10 * n + k) for k in range(5 + n)], "n": n} for n in range(6)]
    data = packed(None, rows, {"frames": "images", "n": "int64"})
    assert load(data, transforms={"frames": [RandomClip(4, stride=2)]}).too_short == 2
    for batch in load(data, transforms={"frames": [CenterClip(4, stride=2, short="pad")]}):
        assert "frames_time" not in batch
        for n, clip, valid in zip(batch["n"].tolist(), batch["frames"], batch["frames_valid"], strict=True):
            numbers = [max(5 + n - 7, 0) // 2 + 2 * k for k in range(4)]
            assert valid.tolist() == [number < 5 + n for number in numbers]
            for frame, number in zip(clip, numbers, strict=True):
                assert np.array_equal(frame, decoded(rows[n]["frames"][min(number, 4 + n)]))
    still = packed(None, [{"frames": [jpeg(20, 24)] * 4}] * 4, {"frames": "images"})
    images = packed(None, [{"image": jpeg(20, 24)}] * 4, {"image": "image"})
    (clips,) = load(still, transforms={"frames": [RandomClip(3), *CROP]})
    (wanted,) = load(images, transforms={"image": CROP})
    assert all(torch.equal(clips["frames"][:, k], wanted["image"]) for k in range(3))
    uneven = packed(None, [{"frames": [jpeg(20, 24), jpeg(24, 20)]}], {"frames": "images"})
    with pytest.raises(BadSample, match=r"field 'frames': its images differ in size"):
        list(load(uneven, batch_size=1, transforms={"frames": [RandomClip(2)]}))
    with pytest.raises(ConfigError, match="lists of images have no times"):
        load(data, transforms={"frames": [FramesAt([0.5])]})


def test_other_ways_to_load() -> None:
    """A DataLoader of PyTorch, buckets by a column, and what goes with clips no further."""
    rules: Any = {"video": [RandomClip(2), shardio.CenterCrop(8)]}
    dataset = shardio.TorchDataset(DATA, transforms=rules, seed=3)
    loaders = torch.utils.data.DataLoader(dataset, 4), load(DATA, transforms=rules, shuffle=None)
    for got, wanted in zip(*loaders, strict=True):
        assert torch.equal(got["video"], wanted["video"])
        assert torch.equal(got["video_time"], wanted["video_time"])
    with pytest.raises(ConfigError, match=r"1 samples of .* a sampler would ask for them: take short='pad'"):
        shardio.TorchDataset(DATA, transforms={"video": [RandomClip(9)]})
    assert sum(len(batch["video"]) for batch in load(DATA, transforms=rules, bucket_by="label", tail="pad")) >= 8
    with pytest.raises(ConfigError, match="mixing needs exactly one image field"):
        load(DATA, transforms=rules, mixing=shardio.MixUp(8))
    for wrong, why in (
        ([], r"first transform of a video must choose its frames, as RandomClip\(16\) does, got no transforms"),
        ([shardio.CenterCrop(8)], r"first transform of a video must choose its frames, .* got CenterCrop"),
        (
            [shardio.CenterCrop(8), RandomClip(2)],
            "first transform of a video must choose its frames, .* got CenterCrop",
        ),
        ([RandomClip(2), shardio.PadImages()], "PadImages takes single images"),
        ([RandomClip(2), RandomClip(3)], r"only the first transform chooses frames, got RandomClip\(frames=3"),
    ):
        with pytest.raises(ConfigError, match=f"transforms for 'video': .*{why}"):
            load(DATA, transforms={"video": wrong})
    with pytest.raises(ConfigError, match="a clip adds the column 'video_time'"):
        load(DATA, fields={"video": "video", "video_time": "label"}, transforms=rules)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: RandomClip(0), "frames"),
        (lambda: RandomClip(2, stride=0), "stride"),
        (lambda: RandomClip(2, stride=2, stride_seconds=0.5), "stride or stride_seconds"),
        (lambda: CenterClip(2, stride_seconds=0), "stride_seconds must be a number in \\(0, inf\\)"),
        (lambda: RandomClip(2, short="cut"), "short must be 'drop', 'pad' or 'raise'"),  # type: ignore[arg-type] # wrong on purpose
        (lambda: UniformFrames(0), "frames"),
        (lambda: FramesAt([]), "seconds must be a list of times"),
        (lambda: FramesAt([0.5, -1]), "seconds must be finite and at least 0, got -1"),
        (lambda: FramesAt([float("nan")]), "seconds must be finite"),
    ],
)
def test_clips_that_make_no_sense(make: Any, why: str) -> None:
    """Arguments are checked where a clip is made, and named."""
    with pytest.raises(ConfigError, match=why):
        make()


def test_the_memory_of_batches_is_used_again() -> None:
    """Clips of one size are written into memory that a plain loop gets back."""
    loader, places = (
        load(DATA, batch_size=2, transforms={"video": [RandomClip(3), shardio.CenterCrop(24)]}, threads=1),
        set(),
    )
    for _ in range(6):
        for batch in islice(loader, 4):
            places.add(batch["video"].data_ptr())
            del batch
    assert len(places) < 24
