"""Clips as samples: several of each video, chosen, weighed, mixed, saved and delivered as any samples are."""

from functools import partial
from pathlib import Path
from typing import Any

import _datasets
import _jobs
import numpy as np
import pytest
import torch
from _builders import jpeg
from _clips import FIELDS, LENGTHS, check, sample, videos
from _datasets import packed
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio.errors import ConfigError

DATA = videos()
load = partial(_datasets.load, batch_size=4, seed=3, transforms={"video": [shardio.CenterCrop((48, 64))]})


def starts(frames: int, step: int, every: int) -> list[tuple[int, int]]:
    """The video and first frame of each clip."""
    span = (frames - 1) * step + 1
    return [(video, first) for video, n in enumerate(LENGTHS) for first in range(0, n - span + 1, every)]


@given(frames=st.integers(1, 20), step=st.integers(1, 4), every=st.integers(1, 30))
@settings(max_examples=50, deadline=None)
def test_clips_are_counted_exactly(frames: int, step: int, every: int) -> None:
    """Each video has a clip from every `every`-th frame on, as long as all of it fits; `origin` gives the video."""
    clips, wanted = DATA.clips("video", frames, step=step, every=every), starts(frames, step, every)
    assert len(clips) == len(wanted)
    numbers = np.arange(len(clips))
    assert clips.origin(numbers).tolist() == [video for video, _ in wanted]
    shown = clips.selection(numbers).column("_frames.video")
    assert shown.tolist() == [[first + step * k for k in range(frames)] for _, first in wanted]
    assert clips.read(numbers[:3], ["key"])["key"] == [f"v{video}" for video, _ in wanted[:3]]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::shardio.errors.SplitWarning")  # parts of few videos are uneven
@given(
    frames=st.integers(1, 6),
    step=st.integers(1, 3),
    every=st.integers(4, 12),
    kind=st.sampled_from(["clips", "where", "select", "split", "weighted", "mixed", "joined", "slice"]),
    ranks=st.integers(1, 3),
    batch_size=st.integers(1, 5),
    data=st.data(),
)
@settings(max_examples=25, deadline=None)
def test_ranks_deliver_each_clip_once(
    frames: int, step: int, every: int, kind: str, ranks: int, batch_size: int, data: st.DataObject
) -> None:
    """Whatever is made of clips delivers their frames, exactly over any ranks, and from a state on any others."""
    clips = DATA.clips("video", frames, step=step, every=every)
    made: Any = {
        "clips": lambda: clips,
        "where": lambda: clips.where("label in (1, 2, 5)"),
        "select": lambda: clips.select([3, 0, len(clips) - 1, 3, 5]),
        "split": lambda: clips.split({"a": 0.5, "b": 0.5}, seed=1)["b"],
        "weighted": lambda: clips.weighted("label"),
        "mixed": lambda: shardio.mix({"a": clips, "b": clips[:7]}, {"a": 2, "b": 1}),
        "joined": lambda: shardio.concat({"a": clips, "b": clips[2:]}),
        "slice": lambda: clips[1::3],
    }[kind]()
    both = kind in ("mixed", "joined")
    origins = {"mixed": [clips, clips[:7]], "joined": [clips, clips[2:]]}.get(kind, [made])
    videos_of = np.concatenate([each.origin(np.arange(each.numbers)) for each in origins])
    if kind == "weighted":
        videos_of = clips.origin(np.arange(len(clips)))

    def frames_of(batches: list[dict[str, Any]]) -> list[Any]:
        found: list[Any] = []
        for batch in batches:
            valid = batch["valid"].tolist() if "valid" in batch else [True] * len(batch["index"])
            for index, shown, there in zip(
                batch["index"].tolist(), check(batch, lambda i: int(videos_of[i])), valid, strict=True
            ):
                assert np.diff(shown).tolist() == [step] * (frames - 1)
                found += [(index, *shown)] if there else []
        return found

    options: dict[str, Any] = {"transforms": {"video": [shardio.CenterCrop((48, 64))]}}
    found = _jobs.exact_over_ranks(made, ranks, batch_size, data, values=frames_of, **options)
    if not (both and kind == "mixed") and kind != "weighted":
        assert sorted(index for index, *_ in found) == list(range(len(made)))
    assert len(found) == len(made)


def test_split_keeps_the_clips_of_a_video_together() -> None:
    """Parts share no video, also of views and of several datasets; a named group is taken instead."""
    clips = DATA.clips("video", 2, every=3)
    other = packed(None, [sample(n) for n in (2, 4)], FIELDS).clips("video", 2, every=3)
    for data in (clips, clips.where("label > 0"), clips[::2], shardio.concat({"a": clips, "b": other})):
        parts = data.split({"train": 0.6, "val": 0.4}, seed=2)
        keys = [{(key, n >= len(clips)) for key, n in _keys(part, data)} for part in parts.values()]
        assert sum(map(len, parts.values())) == len(data)
        assert not keys[0] & keys[1]
        assert all(keys)
    by_group = clips.split({"train": 0.6, "val": 0.4}, group="key", seed=2)["val"]
    assert len(set(by_group.origin(np.arange(len(by_group))).tolist())) < 8


def _keys(part: Any, whole: Any) -> list[tuple[str, int]]:
    numbers = part._in_base(np.arange(len(part)))
    return list(zip(whole.read(numbers, ["key"])["key"], numbers.tolist(), strict=True))


def test_views_of_clips_are_saved(tmp_path: Path) -> None:
    """A saved view of clips is that view, of the same dataset."""
    data = videos(tmp_path / "d")
    view = data.clips("video", 4, step=2, every=3).where("label != 1")
    view.save(tmp_path / "clips.json")
    again = shardio.open(tmp_path / "clips.json")
    assert (again.digest, len(again), again.fields) == (view.digest, len(view), view.fields)
    for one, other in zip(load(view), load(again), strict=True):
        assert torch.equal(one["video"], other["video"])
    assert view.digest != data.clips("video", 4, step=2, every=4).where("label != 1").digest


def test_a_dataset_that_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clips of what was there before come first, so that a state goes on, and those of new videos follow."""
    small = videos(count=5)
    monkeypatch.setattr(shardio.Dataset, "earlier", {small.digest: 5})
    before, grown = small.clips("video", 4, every=9), DATA.clips("video", 4, every=9)
    assert grown.earlier == {before.digest: len(before)}
    assert grown.origin(np.arange(len(before))).tolist() == before.origin(np.arange(len(before))).tolist()
    first, rest = load(before, shuffle=None), load(grown, shuffle=None)
    loop = iter(first)
    assert next(loop)["index"].tolist() == [0, 1, 2, 3]
    rest.load_state_dict(first.state_dict())
    assert next(iter(rest))["index"].tolist() == [4, 5, 6, 7]


def test_lists_of_images_have_clips() -> None:
    """Frames may be files of their own."""
    rows = [{"frames": [jpeg(20, 24, seed=10 * n + k) for k in range(2 + n)], "n": n} for n in range(6)]
    data = packed(None, rows, {"frames": "images", "n": "int64"})
    clips = data.clips("frames", 3)
    assert clips.origin(np.arange(len(clips))).tolist() == [1, 2, 3, 4, 4, 5, 5]
    (batch,) = load(clips, batch_size=7, transforms={"frames": [shardio.CenterCrop(16)]}, shuffle=None)
    (cut,) = load(data, batch_size=6, transforms={"frames": [shardio.CenterCrop(16)]}, shuffle=None)
    for row, (video, first) in enumerate([(1, 0), (2, 0), (3, 0), (4, 0), (4, 3), (5, 0), (5, 3)]):
        assert torch.equal(batch["frames"][row], cut["frames"][video][first : first + 3])


def test_missing_videos_have_no_clips() -> None:
    """A sample without a video has none, and the field of clips is never missing."""
    rows = [sample(n) | ({"video": None} if n in (1, 4) else {}) for n in range(6)]
    clips = packed(None, rows, FIELDS | {"video": shardio.Field("video", optional=True)}).clips("video", 4)
    assert {*clips.origin(np.arange(len(clips))).tolist()} == {0, 2, 3, 5}
    for batch in load(clips):
        assert "video_present" not in batch
        check(batch, lambda index: int(clips.origin([index])[0]))


def test_clips_that_make_no_sense() -> None:
    """Arguments are checked, a video's clips have no clips, and a view leaves no frames to choose."""
    clips = DATA.clips("video", 4)
    with pytest.raises(ConfigError, match="'video' is clips of 4 frames, video"):
        clips.clips("video", 2)
    for options, why in (
        ({"field": "label", "frames": 2}, "'label' is scalar"),
        ({"field": "video", "frames": 0}, "frames must be"),
        ({"field": "video", "frames": 2, "step": 0}, "step must be"),
        ({"field": "video", "frames": 2, "every": 0}, "every must be"),
        ({"field": "none", "frames": 2}, "no field 'none'"),
    ):
        with pytest.raises(ConfigError, match=why):
            DATA.clips(**options)  # type: ignore[arg-type] # wrong on purpose
    with pytest.raises(ConfigError, match=r"a view has chosen the frames already, got RandomClip.*: leave it out"):
        load(clips, transforms={"video": [shardio.RandomClip(2)]})
    with pytest.raises(ConfigError, match="clips chooses from stored samples"):
        DATA.weighted("label").clips("video", 2)
    with pytest.raises(ConfigError, match="field 'video' is clips of 4 frames, video in source 'a', but clips of 3"):
        shardio.concat({"a": clips, "b": DATA.clips("video", 3)})
