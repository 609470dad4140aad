"""Videos are seen: in sheets, pages and notebooks by their frames, in figures by their tables of packets."""

import html
import io
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _cli import here
from _datasets import packed
from _media import frames_of, grey_video
from PIL import Image

import shardio
from shardio import Field
from shardio.care.browse.batch_page import batch_page
from shardio.care.browse.batches import Job
from shardio.care.browse.pictures import small, strip
from shardio.care.browse.sample import sample as sample_page
from shardio.care.browse.scan import Scans
from shardio.care.show import Context, cards_of, contact_sheet
from shardio.care.stats.counting import inspect_table
from shardio.engines.video_frames import rgb
from shardio.errors import BadSample

COUNT = 6
FIELDS: dict[str, Any] = {"video": Field("video", optional=True), "label": "int64"}
MISSING, BAD = 4, 5


@cache  # x264 may give other bytes when it encodes the same frames again
def value(number: int) -> bytes | None:
    """Videos of 40 to 43 frames; none, and one whose first key frame is damaged once its table is made."""
    return None if number == MISSING else grey_video(40 + number, key_frames=5 * (number + 1), seed=number)


@pytest.fixture(scope="module", params=["tar", "hdf5", "lmdb"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> shardio.Dataset:
    """A dataset of videos in each container."""
    folder = tmp_path_factory.mktemp("videos") / request.param
    samples = ({"video": value(number), "label": number} for number in range(COUNT))
    packed(folder, samples, FIELDS, container=request.param)
    return shardio.open(folder)


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> shardio.Dataset:
    """A dataset in a tar, in which the last video is damaged."""
    folder = tmp_path_factory.mktemp("videos") / "tar"
    packed(folder, ({"video": value(number), "label": number} for number in range(COUNT)), FIELDS, container="tar")
    damaged = value(BAD)
    assert damaged is not None
    (path,) = (path for path in folder.glob("*.tar") if damaged in path.read_bytes())
    content = path.read_bytes()
    place = content.index(damaged) + damaged.index(b"mdat") + 4
    path.write_bytes(content[:place] + bytes(2000) + content[place + 2000 :])
    return shardio.open(folder)


def pixels(number: int, frames: list[int]) -> np.ndarray[Any, Any]:
    """Return frames of a video as RGB, from decoding the whole file."""
    file = value(number)
    assert file is not None
    whole = frames_of(file)
    return np.stack([rgb(whole[frame], 0, 0, whole[frame].height, whole[frame].width) for frame in frames])


def test_a_view_of_clips_is_seen(data: shardio.Dataset, tmp_path: Path) -> None:
    """A page and a sheet have frames of the clips that a view makes."""
    clips = data.where("label == 1").clips("video", 6, step=2)
    assert (strip(clips, "video", 0, 3) == np.concatenate([*pixels(1, [2, 6, 10])], axis=1)).all()
    assert contact_sheet(clips, tmp_path / "sheet.png") == len(clips) > 1


def test_frames_of_a_page_are_those_of_the_file(data: shardio.Dataset) -> None:
    """A page has frames of equal parts of a video; its poster is the one in the middle."""
    (expected,) = pixels(1, [20])
    assert (strip(data, "video", 1, 1) == expected).all()
    assert (strip(data, "video", 2, 3) == np.concatenate([*pixels(2, [7, 21, 35])], axis=1)).all()
    poster = np.asarray(Image.open(io.BytesIO(small(data, "video", 1))))
    assert poster.shape == expected.shape
    assert abs(poster.mean() - expected.mean()) < 4  # a JPEG
    with pytest.raises(BadSample, match="no value"):
        small(data, "video", MISSING)


def test_a_page_says_what_a_video_is(data: shardio.Dataset) -> None:
    """The page of a sample has frames and figures of its video; or says that there is none."""
    page = html.unescape(sample_page(data, Scans(), 2, {}, None))
    assert "h264, 48 x 64, 42 frames, 4.2 s, 10 frames/s, " in page
    assert 'src="/frames/video/2"' in page
    assert "This sample has no value." in sample_page(data, Scans(), MISSING, {}, None)


def test_batches_show_frames_of_clips(tar: shardio.Dataset, tmp_path: Path) -> None:
    """A page and a sheet have frames of each clip, and why a damaged one has none."""
    there = tar.select([number for number in range(COUNT) if number != MISSING])
    page = html.unescape(batch_page(there, Job(batch_size=len(there), shuffle="none"), {}, {}))
    assert page.count("<figcaption>video[") == 8 * (len(there) - 1)
    assert re.search(r'class="error"[^<]*libavcodec|libavcodec[^<]*</p>', page), page
    loader = shardio.Loader(
        tar.select(range(4)),
        4,
        transforms={"video": [shardio.CenterClip(6, stride=2), shardio.ToFloat()]},
        shuffle=None,
    )
    (batch,) = loader
    cards, left_out = cards_of(batch, Context.of(loader.dataset, loader.normalized, loader.field_names), 4)
    assert left_out == ""
    assert [name for name, _ in cards[1].pictures] == ["video[0]", "video[1]", "video[3]", "video[5]"]
    for (_, picture), expected in zip(cards[1].pictures, pixels(1, [15, 17, 21, 25]), strict=True):
        assert (picture == expected).all()
    assert contact_sheet(tar.select(range(4)), tmp_path / "sheet.png") == 4
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 4 * 160


def test_figures_come_from_the_tables(data: shardio.Dataset) -> None:
    """Frames, seconds, rates, sizes and codecs are of all videos, distances of key frames of those sampled."""
    videos = shardio.stats(data).fields["video"]
    assert videos.missing == 1
    assert videos.lengths is None
    found = videos.videos
    assert found is not None
    assert found.codecs == {"h264": 5}
    assert (found.frames.min, found.frames.max, found.frames.count) == (40, 45, 5)
    assert found.seconds.max == pytest.approx(4.5)
    assert found.rates is not None
    assert found.rates.mean == pytest.approx(10)
    assert found.spacing is not None
    assert (found.spacing.min, found.spacing.max) == (5, pytest.approx(22.5))
    assert found.spared is not None
    assert 0 < found.spared < 1
    assert videos.images is not None
    assert videos.images.common == ((48, 64, 5),)
    assert shardio.stats(data, sample=0).fields["video"].videos.spacing is None


def test_a_damaged_table_is_a_bad_value(data: shardio.Dataset) -> None:
    """Stats says that a table is cut short, or has facts that it cannot have, and counts nothing of it."""
    selection = data.selection(np.array([2]))
    facts, table = selection.column("_video.video")[0], bytes(selection.stored("_packets.video")[0])
    assert inspect_table(facts, table, 1 << 20)[0] == 42
    for change, cut in ((0, 3), (1, 0), (-1, 0), (1 << 60, 0), (-(1 << 60), 0)):
        other = facts.copy()
        other[1] += change  # the number of groups
        with pytest.raises(BadSample, match="table of packets"):
            inspect_table(other, table[: len(table) - cut], 1 << 20)


def test_commands_say_what_videos_are(tar: shardio.Dataset) -> None:
    """`stats` prints the figures, and a notebook has frames."""
    printed = here("stats", tar.path)
    assert re.search(r"^  codecs +h264 5$", printed, re.M)
    assert re.search(r"^  frames/key frame \* +min 5  ", printed, re.M)
    assert "shardio.Normalize" not in printed
    page = tar._repr_html_()
    assert page.count("data:image/jpeg") == 3  # of samples 0, 1, 3 and 5
    assert "h264, 48 x 64, 40 frames" in page
    assert "cannot be shown" in page  # the damaged one


def test_info_says_what_the_first_video_is(data: shardio.Dataset) -> None:
    """`info` shows codec, size and length of the first sample's video, of a view as well."""
    assert re.search(
        r"^field video +video, optional; the first one: h264, 48 x 64, 40 frames, ", here("info", data.path), re.M
    )
    view = here("info", data.path, "--where", "label == 2")
    assert re.search(r"^field video .*; the first one: h264, 48 x 64, 42 frames, 4.2 s, 10 frames/s$", view, re.M)
