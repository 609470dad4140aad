"""The bench of videos: what is decoded for each frame of a clip, and what the workers spend their time on."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from _datasets import packed
from _media import grey_video

import shardio
from shardio.bench.config import BenchConfig
from shardio.bench.measurement import measure
from shardio.bench.rank import open_with_transforms
from shardio.bench.text import summary
from shardio.bench.verdict import Figures, diagnose
from shardio.errors import ConfigError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of videos of 80 frames without B-frames, so that none can be left out; a key frame every 20."""
    path = tmp_path_factory.mktemp("bench") / "videos"
    packed(path, ({"video": grey_video(80, key_frames=20, bf="0")} for _ in range(4)), {"video": "video"})
    return path


def test_a_loader_counts_the_frames_that_it_decodes(data: Path) -> None:
    """From the key frame at 20, eight frames from 36 to 43 take those up to 39, and those from 40 on."""
    loader = shardio.Loader(data, 4, transforms={"video": [shardio.CenterClip(8)]}, threads=1, prefetch=1)
    (_,) = loader
    stats = loader.stats()
    assert stats.wanted_frames % (4 * 8) == 0  # of batches that are made ahead, too
    assert stats.decoded_frames == stats.wanted_frames // 8 * (20 + 4)
    assert stats.stage_seconds["libavcodec"] > 0


def test_presets_leave_the_frames_of_a_view(data: Path) -> None:
    """A view that makes clips has chosen their frames."""
    shardio.open(data).clips("video", 8).save(data.parent / "clips.json")
    dataset, transforms = open_with_transforms(BenchConfig(str(data.parent / "clips.json"), transforms="none"))
    assert len(dataset) == 4 * 80 // 8
    assert transforms == {"video": []}


@pytest.mark.slow
@pytest.mark.parametrize("transforms", ["train", "evaluate", "none"])
def test_every_preset_has_clips(data: Path, transforms: str) -> None:
    """The presets choose 16 frames, 4 apart, which take up to five times as many, and the report says so."""
    result = measure(BenchConfig(str(data), batch_size=2, epochs=1, image_size=32, transforms=transforms))
    assert result.decoded_frames is not None
    assert 3 < result.decoded_frames <= 5
    assert result.stages.cpu_seconds["libavcodec"] > 0
    assert re.search(
        r"^videos +[345](\.\d+)? frames decoded for each one of a clip; \d+% of the rate", summary(result), re.M
    )
    assert result.to_json()["decoded_frames"] == result.decoded_frames


def test_detectors_take_no_videos(data: Path) -> None:
    """Transforms of boxes are for images."""
    with pytest.raises(ConfigError, match=r"RandomIoUCrop|boxes"):
        measure(BenchConfig(str(data), batch_size=2, epochs=1, transforms="detect"))


def test_the_verdict_on_videos() -> None:
    """Where libavcodec is the limit, the verdict says for how many frames, and what conversion would bring."""
    busy = Figures(
        starved=0.9, on_device=0.0, own=(0.1,), waits=(0.09,), workers=2, cores=2, seconds=10.0,
        stages={"libavcodec": 16.0, "decode": 3.0, "read": 0.5}, cpu={"libavcodec": 15.9, "decode": 2.9, "read": 0.4},
        used=19.5, decoded_frames=4.2,
    )  # fmt: skip
    verdict = diagnose(busy)
    assert verdict.bottleneck == "decode"
    assert (
        "82% of their time in libavcodec, which decodes 4.2 frames for each one of a clip, and 15%" in verdict.sentence
    )
    assert "a key frame every 12 frames" in str(verdict.change)
    assert "libavcodec" not in diagnose(replace(busy, stages={"decode": 19.0}, decoded_frames=0.0)).sentence
