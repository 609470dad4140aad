"""Frames of videos become RGB by one formula in integers, whole or in parts, in compiled code and without it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import shardio
from shardio import native
from shardio.engines.base import rows_of
from shardio.engines.cpu import CpuEngine
from shardio.engines.orientation import make_upright
from shardio.engines.video_frames import VideoFrames, rgb
from shardio.errors import BadSample, ConfigError
from shardio.transforms import ToFloat, Transform
from shardio.transforms.recipe import Recipe
from shardio.transforms.steps import Crop, Flip, Scale

av = pytest.importorskip("av")

MATRICES = {2: (0.299, 0.114), 5: (0.299, 0.114), 1: (0.2126, 0.0722), 9: (0.2627, 0.0593)}
"""The shares of red and blue in the brightness: untagged, BT.601, BT.709, BT.2020."""
SHARED = {"gray": (1, 1), "yuv420p": (2, 2), "yuv422p": (1, 2), "yuv440p": (2, 1), "yuv444p": (1, 1)}
"""How many pixels share a colour, down and across."""
FORMATS = [name + depth for name in SHARED for depth in ("", "10le", "12le")] + ["yuvj420p", "yuvj422p", "yuvj444p"]


def made_frame(name: str, height: int, width: int, matrix: int, color_range: int, seed: int) -> Any:
    """A frame of noise."""
    frame, random = av.VideoFrame(width, height, name), np.random.default_rng(seed)
    frame.colorspace, frame.color_range = matrix, color_range
    bits = int(name[-4:-2]) if name.endswith("le") else 8
    for plane in frame.planes:
        samples = random.integers(0, 1 << bits, plane.buffer_size // (2 if bits > 8 else 1))
        plane.update(samples.astype("<u2" if bits > 8 else "u1").tobytes())
    return frame


def exact(frame: Any, matrix: int, *, full: bool) -> NDArray[np.float64]:
    """The pixels in RGB, not rounded, [height, width, 3]: what ITU-R BT.601, 709 and 2020 say, colours repeated."""
    name = frame.format.name.replace("j", "")
    bits = int(name[-4:-2]) if name.endswith("le") else 8
    down, across = SHARED[name.removesuffix("10le").removesuffix("12le")]
    planes = [
        np.frombuffer(plane, "<u2" if bits > 8 else "u1").reshape(plane.height, -1)[:, : plane.width].astype(float)
        for plane in frame.planes
    ]
    planes += [np.full_like(planes[0], 1 << bits - 1)] * (3 - len(planes))
    whole = [planes[0], *(np.repeat(np.repeat(plane, down, 0), across, 1) for plane in planes[1:])]
    y, u, v = (plane[: frame.height, : frame.width] for plane in whole)
    most, unit = (1 << bits) - 1, 1 << bits - 8
    light = y / most if full else (y - 16 * unit) / (219 * unit)
    blueness, redness = ((each - 128 * unit) / (most if full else 224 * unit) for each in (u, v))
    share_of_red, share_of_blue = MATRICES[matrix]
    red = light + 2 * (1 - share_of_red) * redness
    blue = light + 2 * (1 - share_of_blue) * blueness
    green = (light - share_of_red * red - share_of_blue * blue) / (1 - share_of_red - share_of_blue)
    return np.clip(255 * np.stack([red, green, blue], axis=-1), 0, 255)


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(FORMATS),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40) | st.integers(500, 530)),
    matrix=st.sampled_from([*MATRICES]),
    full=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_colors(name: str, size: tuple[int, int], matrix: int, full: bool, seed: int) -> None:
    """RGB is what the standards say, rounded: nowhere 0.51 of a level away, for each format, matrix, range and size."""
    frame = made_frame(name, *size, matrix, 2 if full else 1, seed)
    made = rgb(frame, 0, 0, *size)
    wanted = exact(frame, matrix, full=full or "j" in name)
    assert made.shape == wanted.shape
    assert np.abs(made - wanted).max() < 0.51


@pytest.mark.skipif(native.library() is None, reason="there is no compiled part")
@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(FORMATS),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40) | st.integers(500, 1100)),
    matrix=st.sampled_from([*MATRICES]),
    seed=st.integers(0, 2**32 - 1),
)
def test_crops(name: str, size: tuple[int, int], matrix: int, seed: int) -> None:
    """Compiled code makes of crops of frames what it makes of the same crops of their pixels, resized or not."""
    random, count = np.random.default_rng(seed), 3
    frames = [made_frame(name, *size, matrix, 1, seed + number) for number in range(count)]
    sizes = np.tile(np.array(size, np.int32), (count, 1))
    corners = random.integers(0, sizes, dtype=np.int32)
    boxes = np.concatenate([corners, random.integers(1, sizes - corners + 1, dtype=np.int32)], axis=1)
    crops = [
        rgb(frame, 0, 0, *size)[top : top + height, left : left + width]
        for frame, (top, left, height, width) in zip(frames, boxes.tolist(), strict=True)
    ]
    crop = Crop(boxes, inside=True)
    made = engine()(VideoFrames(frames), sizes, [crop], None)
    assert made is not None
    assert all(np.array_equal(one, other) for one, other in zip(made, crops, strict=True))

    flips = random.random(count) < 0.5
    steps: list[Scale | Flip] = [Scale(np.full((count, 2), 17, np.int32), "bilinear", antialias=True), Flip(flips)]
    for transforms, shape, dtype in (((), (17, 17, 3), np.uint8), ((ToFloat(),), (3, 17, 17), np.float32)):
        make, out = engine(*transforms), np.empty((count, *shape), dtype)
        make(VideoFrames(frames), sizes, [crop, *steps], out)
        for row, pixels in enumerate(crops):
            other = np.empty((1, *shape), dtype)
            own = [rows_of(step, np.array([row])) for step in steps]
            make(np.ascontiguousarray(pixels[None]), np.array([pixels.shape[:2]], np.int32), own, other)
            np.testing.assert_array_equal(out[row], other[0])


@pytest.mark.parametrize("compiled", [True, False])
def test_without_compiled_code(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine makes the same of frames without compiled code."""
    if not compiled:
        monkeypatch.setattr(native, "library", lambda: None)
    frame = made_frame("yuv420p", 30, 41, 1, 1, 0)
    out, sizes = np.empty((1, 20, 30, 3), np.uint8), np.array([[30, 41]], np.int32)
    engine()(VideoFrames([frame]), sizes, [Crop(np.array([[5, 6, 20, 30]], np.int32), inside=True)], out)
    np.testing.assert_array_equal(out[0], rgb(frame, 5, 6, 20, 30))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("compiled", [True, False])
def test_turned_frames(compiled: bool, orientation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crop of a frame that is turned or mirrored is that of the upright pixels, resized or not."""
    if not compiled:
        monkeypatch.setattr(native, "library", lambda: None)
    frame = made_frame("yuv420p", 30, 41, 1, 1, 0)
    upright = make_upright(rgb(frame, 0, 0, 30, 41), orientation)
    given, sizes = VideoFrames([frame]), np.array([upright.shape[:2]], np.int32)
    crop = Crop(np.array([[5, 6, 20, 21]], np.int32), inside=True)
    for steps, size in (([crop], (20, 21)), ([crop, Scale(np.array([[9, 8]], np.int32), "bilinear", True)], (9, 8))):
        out, other = np.empty((1, *size, 3), np.uint8), np.empty((1, *size, 3), np.uint8)
        engine()(given, sizes, steps, out, np.array([orientation], np.uint8))
        engine()(np.ascontiguousarray(upright[None]), sizes, steps, other)
        np.testing.assert_array_equal(out, other)


def test_a_frame_of_another_size() -> None:
    """A frame that has another size than the one before it is a bad sample."""
    frames = VideoFrames([made_frame("yuv420p", 8, 8, 1, 1, 0), made_frame("yuv420p", 8, 10, 1, 1, 0)])
    sizes = np.full((2, 2), 8, np.int32)
    scale = Scale(sizes, "bilinear", antialias=True)
    with pytest.raises(BadSample, match="8 x 10 pixels, 8 x 8 were stored"):
        engine()(frames, sizes, [scale], np.empty((2, 8, 8, 3), np.uint8))


def test_untagged_frames() -> None:
    """Frames that name no matrix are converted by the one that is given; those that name one, by their own."""
    frames = [made_frame("yuv420p", 8, 8, matrix, 1, 0) for matrix in (2, 9, 1)]
    for one, matrix in zip(frames, (1, 9, 1), strict=True):
        made = VideoFrames([one], "bt709").pixels(0)
        assert np.abs(made - exact(one, matrix, full=False)).max() < 0.51


def test_a_loader_of_untagged_videos(tmp_path: Path) -> None:
    """The Loader's option says by which matrix videos are converted that name none; another word is refused."""
    with av.open(str(tmp_path / "video.mp4"), "w") as file:
        stream = file.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        file.mux(stream.encode(made_frame("yuv420p", 48, 64, 2, 1, 0)))
        file.mux(stream.encode(None))
    with shardio.create(tmp_path / "dataset", container="tar", fields={"video": "video"}) as writer:
        writer.append({"video": (tmp_path / "video.mp4").read_bytes()})
    with av.open(str(tmp_path / "video.mp4")) as file:
        (frame,) = file.decode(video=0)
    for untagged in ("bt601", "bt709"):
        given: Any = {"transforms": {"video": [shardio.CenterClip(1)]}, "untagged_matrix": untagged}
        (batch,) = shardio.Loader(tmp_path / "dataset", 1, world=shardio.World(), **given)
        np.testing.assert_array_equal(
            np.asarray(batch["video"][0]).reshape(48, 64, 3), rgb(frame, 0, 0, 48, 64, untagged)
        )
    with pytest.raises(ConfigError, match="untagged_matrix must be 'bt601' or 'bt709' or 'bt2020', got 'smpte'"):
        shardio.Loader(tmp_path / "dataset", 1, untagged_matrix="smpte")


@pytest.mark.parametrize(("name", "matrix"), [("gbrp", 5), ("yuv420p", 8), ("yuv410p", 1), ("yuv420p16le", 1)])
def test_formats_that_are_not_converted(name: str, matrix: int) -> None:
    """Frames in RGB, of other matrices and of other depths are bad samples, whose error says which are converted."""
    frame = av.VideoFrame(8, 8, name)
    frame.colorspace = matrix
    with pytest.raises(BadSample, match=f"{name} with matrix {matrix}: converted are gray, yuv420p"):
        VideoFrames([frame]).table()


def engine(*transforms: Transform) -> CpuEngine:
    """An engine for frames."""
    return CpuEngine(Recipe.of(transforms, channels=3, size=None), channels=3)
