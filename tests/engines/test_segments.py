"""JPEGs with restart markers: crops of them, whoever wrote them, and files that are transcoded to have some."""

import io
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
from _builders import SOS, encode, jpeg, pixels, resized, segments, tiff, with_exif
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageOps

from shardio import native
from shardio.engines.fused_images import FusedImages
from shardio.engines.jpeg_headers import orientations_of
from shardio.errors import BadSample
from shardio.native.recode import find_damage, restart, transcode
from shardio.transforms.fuse import FusedSteps

pytestmark = pytest.mark.skipif(native.library() is None, reason="not compiled here")
SAMPLINGS = ("1x1", "2x1", "2x2", "1x2", "4x1")
ODD = ("3x1", "1x4", "4x2", "2x2,2x1,1x2", "1x1,2x1,1x1", "2x1,1x2,1x1")
SOF, DRI, END = b"\xff\xc0", b"\xff\xdd\0\4", b"\xff\xd9"
METADATA = b"\xff\xfe\x00\x06said", b"\xff\xe2\x00\x14ICC_PROFILE\0\1\1icc!", b"\xff\xe4\x00\x02"


def by_opencv(image: NDArray[np.uint8], sampling: str, interval: int, *options: int) -> bytes:
    """Encode with a marker after every `interval` MCUs, or -`interval` rows of them; "" stands for grey."""
    if interval < 0:
        across = int(sampling[:1] or 1) * 8
        interval = -interval * -(-image.shape[1] // across)
    options = (cv2.IMWRITE_JPEG_RST_INTERVAL, interval, *options)
    if not sampling:
        return encode("jpg", image[..., 0], *options)
    name = {"1x1": "444", "2x1": "422", "2x2": "420", "1x2": "440", "4x1": "411"}[sampling]
    factors = getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{name}")
    return encode("jpg", image, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factors, *options)


def by_pillow(image: NDArray[np.uint8], sampling: str, interval: int) -> bytes:
    """The same by Pillow, which knows three samplings."""
    file, options = io.BytesIO(), {"restart_marker_blocks" if interval > 0 else "restart_marker_rows": abs(interval)}
    picture = Image.fromarray(image if sampling else image[..., 0])
    picture.save(file, "JPEG", subsampling=("1x1", "2x1", "2x2", "").index(sampling) % 3, **options)
    return file.getvalue()


def by_cjpeg(image: NDArray[np.uint8], sampling: str, interval: int) -> bytes:
    """The same by libjpeg's program: of any sampling, grey with factors that mean nothing, and codes of its own."""
    options = ["-restart", f"{interval}B" if interval > 0 else str(-interval)] if interval else []
    options += ["-sample", sampling] if sampling else ["-grayscale", "-sample", "2x2"]
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PPM")
    return subprocess.run(
        ["cjpeg", "-optimize", *options], input=file.getvalue(), capture_output=True, check=True
    ).stdout


def by_transcoding(image: NDArray[np.uint8], sampling: str, interval: int) -> bytes:
    """As a progressive file for odd intervals; the interval of the result is shardio's own."""
    data = by_opencv(image, sampling, 0, cv2.IMWRITE_JPEG_PROGRESSIVE, interval % 2)
    made = restart(data) if interval else data
    assert made
    return made


ENCODERS: dict[str, tuple[Callable[..., bytes], tuple[str, ...]]] = {
    "opencv": (by_opencv, (*SAMPLINGS, "")),
    "pillow": (by_pillow, ("1x1", "2x1", "2x2", "")),
    "transcoded": (by_transcoding, (*SAMPLINGS, "")),
}
if shutil.which("cjpeg"):
    ENCODERS["cjpeg"] = by_cjpeg, (*SAMPLINGS, *ODD, "")


def noise(height: int, width: int, seed: int) -> NDArray[np.uint8]:
    """Smooth noise, in which a wrong pixel or a shift shows."""
    small = np.random.default_rng(seed).integers(0, 256, (height // 3 + 1, width // 3 + 1, 3), dtype=np.uint8)
    return np.asarray(cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC), np.uint8)


def crops(
    data: bytes,
    boxes: NDArray[np.integer[Any]],
    size: tuple[int, int],
    *,
    channels: int = 3,
    fast: bool = False,
    orientation: int = 1,
    stored: tuple[int, int] | None = None,
) -> tuple[NDArray[np.uint8], list[int]]:
    """Crops of a file, resized to `size`, and the rows that the compiled part leaves to other decoders.

    `stored` is the (height, width) that the file should have.
    """
    image = stored or Image.open(io.BytesIO(data)).size[:: 1 if orientation > 4 else -1]
    sizes = np.broadcast_to(np.array(size, np.int32), (len(boxes), 2))
    fused = FusedSteps(
        np.broadcast_to(np.array(image, np.int32), sizes.shape),
        boxes.astype(np.int32), sizes, np.zeros_like(sizes), sizes, np.zeros(len(boxes), np.bool_),
    )  # fmt: skip
    out = np.empty((len(boxes), *size, channels), np.uint8)
    images = FusedImages(channels, decode="fast" if fast else "exact")
    turns = np.full(len(boxes), orientation, np.uint8)
    return out, [*images.make([data] * len(boxes), [(images, fused, out)], turns, encoded=True)[0]]


def crop(data: bytes, box: tuple[int, int, int, int], **options: Any) -> NDArray[np.uint8] | None:
    """One crop, not resized; None if it is left to other decoders."""
    out, left = crops(data, np.array([box]), box[2:], **options)
    return None if left else out[0]


def whole(data: bytes, channels: int = 3) -> NDArray[np.uint8]:
    """Pillow's pixels."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB" if channels == 3 else "L")
    return np.asarray(image).reshape(image.height, image.width, channels)


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A file with restart markers, and the same one without."""
    encoder, samplings = ENCODERS[draw(st.sampled_from(sorted(ENCODERS)))]
    sides = st.one_of(st.integers(1, 40), st.integers(1, 300))
    image = noise(draw(sides), draw(sides), draw(st.integers(0, 99)))
    sampling = draw(st.sampled_from(samplings))
    interval = draw(st.one_of(st.integers(1, 12), st.integers(1, 400), st.integers(-4, -1)))
    return encoder(image, sampling, interval), encoder(image, sampling, 0)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(files(), st.sampled_from([1, 3]), st.integers(1, 8), st.booleans(), st.data())
def test_any_crop(made: tuple[bytes, bytes], channels: int, orientation: int, fast: bool, data: st.DataObject) -> None:
    """A crop of any file, turned and resized, has Pillow's pixels; decoded fast, those of the file without markers."""
    file, plain = (with_exif(image, tiff(orientation)) for image in made)
    upright = whole(plain, channels)
    rows, columns = (data.draw(st.integers(1, side)) for side in upright.shape[:2])
    top, left = (data.draw(st.integers(0, a - b)) for a, b in zip(upright.shape, (rows, columns), strict=False))
    size = data.draw(st.integers(1, rows)), data.draw(st.integers(1, columns))
    options: dict[str, Any] = {"channels": channels, "fast": fast, "orientation": orientation}
    (found,), rest = crops(file, np.array([(top, left, rows, columns)]), size, **options)
    assert not rest
    if fast:
        (wanted,), _ = crops(plain, np.array([(top, left, rows, columns)]), size, **options)
    else:
        part = upright[top : top + rows, left : left + columns]
        picture = Image.fromarray(part if channels == 3 else part[..., 0])
        wanted = np.asarray(resized(picture, size, "bilinear")).reshape(found.shape)
    assert np.array_equal(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoder", "sampling"), [(name, sampling) for name, (_, all_) in ENCODERS.items() for sampling in all_]
)
def test_many_crops(encoder: str, sampling: str) -> None:
    """1,440 crops for each encoder and sampling, from one pixel to the whole image, at the edges too."""
    random = np.random.default_rng(7)
    for number in range(12):
        height, width = random.integers(1, (40, 130, 300)[number % 3], 2).tolist()
        interval = int(random.choice([1, 2, 3, 4, 5, 8, 13, 40, -1, -2, -3]))
        data = ENCODERS[encoder][0](noise(height, width, number), sampling, interval)
        for channels in (1, 3):
            wanted = whole(data, channels)
            for most in ((1, 1), (6, 6), (height, 3), (3, width), (height // 3, width // 3), (height, width)):
                rows, columns = (
                    int(random.integers(1, max(1, min(a, b)) + 1)) for a, b in zip(most, (height, width), strict=True)
                )
                at = random.integers(0, (height - rows + 1, width - columns + 1), (10, 2))
                at[0] = height - rows, width - columns
                found, left = crops(data, np.insert(at, [2], (rows, columns), 1), (rows, columns), channels=channels)
                assert not left
                for image, (top, start) in zip(found, at.tolist(), strict=True):
                    assert np.array_equal(image, wanted[top : top + rows, start : start + columns])


def covering(count: int, interval: int, columns: int, box: tuple[int, int, int, int]) -> set[int]:
    """The segments that a box of MCUs (top, left, bottom, right; without the last) needs of an image."""
    top, left, bottom, right = box
    if columns % interval == 0:
        return {row * columns // interval + k // interval for row in range(top, bottom) for k in range(left, right)}
    begins = max(row for row in range(top + 1) if row * columns % interval == 0)
    return set(range(begins * columns // interval, min(count, -(-bottom * columns // interval))))


@pytest.mark.parametrize("padding", [b"", b"\xff\xff"])
@pytest.mark.parametrize("interval", [1, 2, 5, 7, 10, 15, 20])
@pytest.mark.parametrize(("sampling", "across", "down"), [("2x2", 16, 16), ("2x1", 16, 8), ("1x1", 8, 8), ("", 8, 8)])
def test_only_segments_that_cover_a_crop_are_read(
    sampling: str, across: int, down: int, interval: int, padding: bytes
) -> None:
    """A crop stays the same when other segments are emptied, and fails when one that covers it is.

    Where the interval divides a row of MCUs, these are the ones that the crop and 2 pixels around it overlap. Where it
    does not, they are all from the last marker at a row's beginning to the crop's last row.
    """
    columns, rows = 10, 9
    data = by_opencv(noise(rows * down - 3, columns * across - 5, 3), sampling, interval)
    data = data.replace(b"\1\1\x11\0\xff", b"\1\1\x42\0\xff")  # the factors of one component mean nothing
    box = 3 * down + 2, 4 * across + 2, down + 4, 2 * across - 4
    parts = segments(data)
    parts = [part[:-2] + padding + part[-2:] for part in parts]
    needed = covering(len(parts), interval, columns, (3, 4, 5, 6))
    wanted = whole(data)[box[0] : box[0] + box[2], box[1] : box[1] + box[3]]
    used = set()
    for number in range(1, len(parts)):  # the first holds the header
        emptied = b"".join([*parts[:number], padding, parts[number][-2:], *parts[number + 1 :]])
        found = crop(emptied, box)
        used |= {number} if found is None else set()
        assert found is None or np.array_equal(found, wanted)
    assert used == needed - {0}


def with_markers(parts: list[bytes], marker: Callable[[int], bytes]) -> bytes:
    """Join segments, with what `marker` makes of the numbers of all but the last one."""
    return b"".join([part[:-2] + marker(n) for n, part in enumerate(parts[:-1])] + parts[-1:])


def right(n: int) -> bytes:
    """The marker that ends segment `n`."""
    return bytes([0xFF, 0xD0 + n % 8])


DISORDER: dict[str, Callable[[list[bytes]], bytes]] = {
    "renumbered": lambda parts: with_markers(parts, lambda n: right(n + (n == 30))),
    "one number": lambda parts: with_markers(parts, lambda n: right(n if n < 20 else 0)),
    "missing": lambda parts: with_markers(parts, lambda n: right(n) if n != 30 else b""),
    "doubled": lambda parts: with_markers(parts, lambda n: right(n) * (1 + (n == 30))),
    "in excess": lambda parts: with_markers(parts[:-1], right) + parts[-2][-2:] + parts[-1],
    "lost segment": lambda parts: with_markers([*parts[:-2], parts[-1]], right),
    "end inside": lambda parts: with_markers(parts, lambda n: right(n) if n != 30 else END),
    "no end": lambda parts: with_markers(parts, right)[:-2],
    "cut": lambda parts: b"".join(parts[:30]),
    "cut in a marker": lambda parts: b"".join(parts[:30])[:-1],
    "another scan": lambda parts: with_markers(parts, right)[:-2] + parts[0][parts[0].index(SOS) :] + END,
}


@pytest.mark.parametrize("disorder", DISORDER.values(), ids=DISORDER)
@pytest.mark.parametrize("interval", [1, 3, 10])
def test_markers_in_disorder(disorder: Callable[[list[bytes]], bytes], interval: int) -> None:
    """Such a file is decoded from the front: a crop of its beginning comes out, and damage in front of one shows."""
    data = by_opencv(noise(16 * 40, 160, 5), "2x2", interval)
    middle, beginning = (16 * 8, 40, 16, 20), (2, 5, 9, 11)
    parts = segments(data)
    assert len(parts) > 31
    found, top = crop(disorder(parts), beginning), whole(data)[2:11, 5:16]
    assert found is not None
    assert np.array_equal(found, top)
    assert crop(b"".join([parts[0], parts[1][-2:], *parts[2:]]), middle) is not None  # this would not, from the front
    assert crop(disorder([parts[0], parts[1][-2:], *parts[2:]]), middle) is None


@pytest.mark.parametrize(
    "head", ["several intervals", "padding", "hidden interval", "two frames", "no height", "other size"]
)
def test_odd_headers(head: str) -> None:
    """A file's last interval counts, even if a reader that takes 0xff01 to have a length would skip it."""
    data = by_opencv(noise(16 * 20, 160, 6), "2x2", 80)
    at, frame = data.index(DRI), data.index(SOF)
    hidden = b"\xff\xef\0\2" + DRI + b"\0\x50" + b"\xff\xef" + (65507).to_bytes(2) + bytes(65505)
    assert len(hidden) == 0xFFEF
    changed = {
        "several intervals": data[:at] + DRI + b"\xff\xff" + DRI + b"\0\1" + data[at:],
        "padding": data[:at] + b"\xff" * 9 + data[at:],
        "hidden interval": data[:at] + DRI + b"\0\x5a" + b"\xff\x01" + hidden + data[at + 6 :],
        "two frames": data[:at] + data[frame : frame + 19] + data[at:],
        "no height": data[: frame + 5] + b"\0\0" + data[frame + 7 :],
        "other size": data[: frame + 5] + b"\0\x77" + data[frame + 7 :],
    }[head]
    box = 16 * 9 + 3, 33, 20, 40
    found, left = crops(changed, np.array([box]), box[2:], stored=(16 * 20, 160))
    if head in ("several intervals", "padding", "hidden interval"):
        assert not left
        assert np.array_equal(found[0], whole(data)[box[0] : box[0] + box[2], box[1] : box[1] + box[3]])
    else:
        assert left == [0]


@st.composite
def originals(draw: st.DrawFn) -> bytes:
    """A file with or without restart markers, in one scan or progressive, with metadata."""
    encoder, samplings = ENCODERS[draw(st.sampled_from(sorted(ENCODERS.keys() - {"transcoded"})))]
    image = noise(draw(st.integers(1, 200)), draw(st.integers(1, 200)), draw(st.integers(0, 99)))
    data = encoder(image, draw(st.sampled_from(samplings)), draw(st.integers(-2, 9)))
    if draw(st.booleans()):
        data = by_opencv(image, draw(st.sampled_from((*SAMPLINGS, ""))), 0, cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
    metadata = b"".join(METADATA)
    return with_exif(data[:2] + metadata * draw(st.booleans()) + data[2:], tiff(6)) + b"more" * draw(st.booleans())


@settings(max_examples=200, deadline=None)
@given(originals())
def test_transcoding_keeps_coefficients_and_metadata(data: bytes) -> None:
    """A file gets restart markers, and keeps its coefficients, metadata and what follows its end; again, it stays."""
    made = restart(data)
    assert made is not None
    assert transcode(made) == transcode(data)
    assert np.array_equal(whole(made), whole(data))
    assert restart(made) == made
    assert orientations_of([made]).tolist() == [6]
    for kept in METADATA:
        assert made.count(kept) == data.count(kept)
    assert made[made.rindex(END) :] == data[data.rindex(END) :]
    size = Image.open(io.BytesIO(data)).size[::-1]
    assert find_damage(made, size, size[0] * size[1]) == ""


def test_what_strip_removes() -> None:
    """`strip` removes all metadata but what tells colors, and what follows the end."""
    data = with_exif(jpeg(40, 50), tiff(6)) + b"more"
    made = restart(data, strip=True)
    assert made is not None
    assert b"Exif" not in made
    assert b"JFIF" in made
    assert made.endswith(END)
    rgb = io.BytesIO()
    Image.fromarray(noise(40, 50, 1)).save(rgb, "JPEG", keep_rgb=True)
    made = restart(rgb.getvalue(), strip=True)
    assert made is not None
    assert np.array_equal(whole(made), whole(rgb.getvalue()))


def test_files_that_are_not_transcoded() -> None:
    """Bits left unsent, arithmetic codes, markers between scans, whose meaning would change, and places that would."""
    progressive = jpeg(60, 80, progressive=True)
    last, second = progressive.rindex(SOS), progressive.index(SOS, progressive.index(SOS) + 2)
    assert restart(progressive) is not None
    assert restart(progressive[:last] + END) is None
    adobe = b"\xff\xee\x00\x0eAdobe" + bytes(7)  # no transform: RGB, to those who read it in time
    with_late_marker = progressive[:second] + adobe + progressive[second:]
    assert np.array_equal(whole(with_late_marker), whole(progressive))
    assert restart(with_late_marker) is None
    several = io.BytesIO()
    Image.fromarray(pixels(60, 80)).save(several, "MPO", save_all=True, append_images=[Image.new("RGB", (80, 60))])
    assert restart(several.getvalue()) is None
    alone = restart(several.getvalue(), strip=True)
    assert alone is not None
    assert np.array_equal(whole(alone), whole(several.getvalue()))
    if shutil.which("cjpeg"):
        file = io.BytesIO()
        Image.fromarray(pixels(60, 80)).save(file, "PPM")
        done = subprocess.run(["cjpeg", "-arithmetic"], input=file.getvalue(), capture_output=True, check=True)
        assert restart(done.stdout) is None


def test_damage_is_not_transcoded() -> None:
    """Damage that libjpeg warns of, or passes over in silence where much follows, is not made undetectable."""
    data = encode(
        "jpg", np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8), cv2.IMWRITE_JPEG_QUALITY, 95
    )
    middle = len(data) // 2
    for planted in (b"\x5a", b"\xff\x00" * 20, END, b"\xff\xd3"):
        with pytest.raises(BadSample, match="the jpeg image is damaged"):
            restart(data[:middle] + planted + data[middle + len(planted) :])


@pytest.mark.parametrize("interval", [1, 3, 10])
@pytest.mark.parametrize("transcoded", [False, True])
def test_damage_in_any_segment_is_found(interval: int, transcoded: bool) -> None:
    """A check of all of a file finds a segment that is cut short, lost or marked wrong, whoever wrote it."""
    data = by_opencv(noise(70, 160, 8), "2x2", interval)
    made = restart(data) if transcoded else data
    assert made is not None
    assert find_damage(made, (70, 160), 70 * 160) == ""
    parts = segments(made)
    for n in range(1, len(parts)):
        length = len(parts[n]) - 2
        for part in (parts[n][: length // 2] + parts[n][-2:], parts[n][-2:], parts[n][:-2], b""):
            if part or n + 1 < len(parts):
                assert find_damage(b"".join([*parts[:n], part, *parts[n + 1 :]]), (70, 160), 70 * 160), (n, part)
