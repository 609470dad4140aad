"""`jpeg_restarts`: lossless transcoding of JPEGs, what stays as it was, and the notes on both."""

import io
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from _builders import (
    CMYK_JPEG,
    encode,
    jpeg,
    pixels,
    png,
    sampled_jpegs,
    spoiled,
    tiff,
    unsent,
    with_exif,
    with_thumbnail,
    write_files,
)
from _cli import run
from _datasets import files, packed
from PIL import Image

import shardio
from shardio import native
from shardio.conversion.reencode import DAMAGED, OTHER_CODING, ReencodeOptions
from shardio.errors import BadSample, ConfigError, SourceWarning
from shardio.format.images import jpeg_coding, orientation, probe
from shardio.order.world import World

pytestmark = pytest.mark.skipif(native.library() is None, reason="not compiled here")


def saved(**options: Any) -> bytes:
    """A JPEG that Pillow writes of one picture."""
    file = io.BytesIO()
    Image.fromarray(pixels(70, 90)).save(file, "jpeg", **options)
    return file.getvalue()


def two_images() -> bytes:
    """A JPEG with another one behind it, whose place is in its metadata."""
    file = io.BytesIO()
    Image.fromarray(pixels(70, 90)).save(file, "mpo", save_all=True, append_images=[Image.fromarray(pixels(35, 45))])
    return file.getvalue()


def lossy(data: bytes) -> bytes:
    """A JPEG that ends, with a marker, in the midst of its scan."""
    return data[: 2 * len(data) // 3] + b"\xff\xd9"


SIZES = ((1, 1), (2, 3), (8, 200), (17, 33), (97, 141), (128, 256))
CORPUS = {
    **{f"{h} x {w}, {n}": data for h, w in SIZES for n, data in enumerate(sampled_jpegs(h, w))},
    **{f"grey, {h} x {w}": jpeg(h, w, 1, progressive=h % 2 == 0) for h, w in SIZES},
    "progressive": jpeg(97, 141, progressive=True),
    "optimal": saved(optimize=True),
    "RGB": saved(keep_rgb=True),
    "coarse": saved(qtables=[[300] * 64] * 2),
    "intervals of one": encode("jpg", pixels(70, 90), cv2.IMWRITE_JPEG_RST_INTERVAL, 1),
    "extended": jpeg(97, 141).replace(b"\xff\xc0", b"\xff\xc1"),
    "fill bytes": jpeg(97, 141).replace(b"\xff\xc4", b"\xff\xff\xff\xc4"),
}
METADATA = {
    "EXIF": with_exif(jpeg(70, 90), tiff(1)),
    "a thumbnail": with_thumbnail(jpeg(70, 90, progressive=True), jpeg(12, 16)),
    "a profile, a comment": saved(icc_profile=bytes(range(256)) * 600, comment="the comment"),
    "no JFIF, Adobe's marker": saved(keep_rgb=True, comment=b"\xff\xd9"),
    "trailing bytes": jpeg(70, 90) + b"\xff\xd8 a film" * 9000,
}
TURNED = {f"turned by {n}": with_exif(jpeg(70, 90), tiff(n, order="><"[n % 2])) for n in range(2, 9)}
STAYS = {
    "CMYK": (CMYK_JPEG, OTHER_CODING),
    "unsent bits": (unsent(jpeg(97, 141, progressive=True)), OTHER_CODING),
    "12 bits": (jpeg(20, 30).replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c"), OTHER_CODING),
    "arithmetic": (jpeg(20, 30).replace(b"\xff\xc0", b"\xff\xc9"), OTHER_CODING),
    "no Huffman code": (spoiled(jpeg(97, 141)), OTHER_CODING),
    "two images": (two_images(), OTHER_CODING),
    "an end in the scan": (lossy(jpeg(97, 141)), DAMAGED),
    "the same, progressive": (lossy(jpeg(97, 141, progressive=True)), DAMAGED),
}
transcode = ReencodeOptions(jpeg_restarts=True)


def parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The segments of a JPEG's header that hold metadata, and at last what follows the end of the image."""
    at = 2
    while (code := data[at + 1]) != 0xDA:
        length = int.from_bytes(data[at + 2 : at + 4])
        if 0xE0 <= code < 0xFF:
            yield code, data[at + 2 : at + 2 + length]
        at += 1 if code == 0xFF else 2 + length
    yield 0, data[data.index(b"\xff\xd9", at) :]


def shown(data: bytes) -> Iterator[tuple[str, Any]]:
    """The pixels that Pillow, OpenCV and djpeg decode."""
    yield "Pillow", np.asarray(Image.open(io.BytesIO(data)))
    flags = cv2.IMREAD_UNCHANGED, cv2.IMREAD_REDUCED_COLOR_2
    yield from (("OpenCV", np.asarray(cv2.imdecode(np.frombuffer(data, np.uint8), flag))) for flag in flags)
    if shutil.which("djpeg"):
        for way in (["-fast"], ["-scale", "1/8"], ["-nosmooth"]):
            yield f"djpeg {way}", subprocess.run(["djpeg", *way], input=data, capture_output=True, check=True).stdout


@pytest.mark.parametrize("name", [*CORPUS, *METADATA, *TURNED])
def test_every_decoder_shows_the_same(name: str) -> None:
    """A JPEG becomes baseline with restart markers and the same pixels; transcoding it again changes nothing."""
    data = (CORPUS | METADATA | TURNED)[name]
    stayed: Counter[str] = Counter()
    made = transcode(data, stayed=stayed)
    assert not stayed
    for (decoder, found), (_, wanted) in zip(shown(made), shown(data), strict=True):
        assert np.array_equal(found, wanted), decoder
    coding, width = jpeg_coding(made), probe(made).width
    assert coding.process == (name == "coarse")  # steps above 255 need an extended frame
    assert not coding.several_scans
    columns = -(-width // coding.unit[1])
    assert columns % coding.restart_interval == 0
    assert coding.restart_interval >= min(4, columns)
    assert transcode(made) == made


@pytest.mark.parametrize("engine", ["cpu", "dali", "nvimgcodec"])
def test_every_engine_delivers_the_same(engine: Any, tmp_path: Path) -> None:
    """Whole images and random crops of a Loader stay the same, of baseline and of progressive files."""
    if engine != "cpu":
        pytest.importorskip(f"nvidia.{engine}")
    images = [data for name, data in CORPUS.items() if name.startswith(("97", "128", "progressive"))]
    packed(tmp_path / "a", [{"image": data} for data in images])
    shardio.convert(tmp_path / "a", tmp_path / "b", jpeg_restarts=True)
    for transform in (shardio.Resize((48, 40)), shardio.RandomResizedCrop(32)):
        options: dict[str, Any] = {"transforms": [transform], "engine": engine, "world": World(), "seed": 1}
        before, after = (next(iter(shardio.Loader(tmp_path / name, len(images), **options))) for name in "ab")
        np.testing.assert_array_equal(before["image"].numpy(), after["image"].numpy())


@pytest.mark.parametrize("name", [*METADATA, *TURNED])
def test_metadata_stays(name: str) -> None:
    """All metadata stays in its order; `strip` drops it unless it turns the image."""
    data = (METADATA | TURNED)[name]
    made, stripped = transcode(data), ReencodeOptions(jpeg_restarts=True, strip=True)(data)
    assert [*parts(made)] == [*parts(data)]
    assert orientation(stripped) == orientation(data)
    if name in TURNED:
        assert stripped == made
    else:
        kept = [(code, part) for code, part in parts(data) if code in (0xE0, 0xEE)]
        assert [*parts(stripped)] == [*kept, (0, b"\xff\xd9")]
        np.testing.assert_array_equal(Image.open(io.BytesIO(stripped)), Image.open(io.BytesIO(data)))


@pytest.mark.parametrize("name", STAYS)
def test_what_cannot_be_transcoded_stays(name: str) -> None:
    """It stays byte for byte and is counted; so do other formats, and masks, which are not."""
    data, reason = STAYS[name]
    stayed: Counter[str] = Counter()
    assert transcode(data, stayed=stayed) is data
    assert stayed == {reason: 1}
    assert transcode(png(20, 30), stayed=stayed) == png(20, 30)
    assert transcode(jpeg(20, 30), stayed=stayed, mask=True) == jpeg(20, 30)
    assert stayed.total() == 1


def test_other_changes_come_first() -> None:
    """Images are transcoded after they were shrunk or encoded anew; a PNG that becomes a JPEG is transcoded, too."""
    for data in (jpeg(97, 141), png(97, 141), CMYK_JPEG):
        plain = ReencodeOptions(resize_shorter=40, recompress="always")(data)
        made = ReencodeOptions(resize_shorter=40, recompress="always", jpeg_restarts=True)(data)
        assert jpeg_coding(made).restart_interval
        np.testing.assert_array_equal(Image.open(io.BytesIO(made)), Image.open(io.BytesIO(plain)))


def folder(root: Path, images: list[bytes]) -> Path:
    """A folder of images of one class, in this order."""
    # Also others are called so, as their contents decide.
    return write_files(root, {f"class/{number:03d}.jpg": data for number, data in enumerate(images)})


def test_what_stayed_is_counted(tmp_path: Path) -> None:
    """Shards of an interrupted conversion and of other processes count, and bad samples do not."""
    images = [STAYS["CMYK"][0], jpeg(97, 141), STAYS["an end in the scan"][0], png(20, 30), jpeg(97, 141)[:500]]
    source = folder(tmp_path / "in", [*images, *(data for data, _ in STAYS.values())])
    options: dict[str, Any] = {"converter": "imagefolder", "jpeg_restarts": True, "shard_size": 1}
    with pytest.raises(BadSample, match="cut short"):
        shardio.convert(source, tmp_path / "out", **options)
    told: list[str] = []
    skipping: dict[str, Any] = options | {"on_error": "skip", "max_bad": 1, "tell": told.append}
    made = shardio.convert(source, tmp_path / "out", resume=True, workers=2, **skipping)
    assert made.manifest.samples == 12
    note = f"jpeg_restarts copied 10 JPEGs byte for byte: 3 {DAMAGED}, 7 {OTHER_CODING}"
    assert made.notes[-1] == told[-1] == note
    assert files(tmp_path / "out") == files(shardio.convert(source, tmp_path / "again", **skipping).path)
    stored = [sample["image"] for sample in shardio.open(tmp_path / "out")]
    assert [stored[0], *stored[2:]] == [images[0], *images[2:4], *(data for data, _ in STAYS.values())]


def test_the_command_line(tmp_path: Path) -> None:
    """The options give what their keywords give; `reshard` has them, and `append` keeps to those of the dataset."""
    source = folder(tmp_path / "in", [METADATA["EXIF"], *TURNED.values(), CMYK_JPEG])
    made = {name: tmp_path / name for name in ("python", "command", "plain", "reshard")}
    with pytest.warns(SourceWarning, match="an EXIF tag rotates or flips 7 images"):
        wanted = shardio.convert(source, made["python"], converter="imagefolder", jpeg_restarts=True, strip=True)
    told = run("convert", "imagefolder", source, made["command"], "--jpeg-restarts", "--strip")
    assert files(made["command"]) == files(made["python"])
    assert f"note: --jpeg-restarts copied 1 JPEG byte for byte: 1 {OTHER_CODING}" in told
    run("convert", "imagefolder", source, made["plain"])
    run("reshard", made["plain"], made["reshard"], "--jpeg-restarts", "--strip")
    assert shardio.open(made["reshard"]).digest == wanted.manifest.digest
    run("append", "imagefolder", source, made["command"])
    images = [sample["image"] for sample in shardio.open(made["command"])]
    assert images[: len(images) // 2] == images[len(images) // 2 :]
    told = run("append", "imagefolder", source, made["plain"], "--jpeg-restarts", code=2)
    assert "the dataset was made without --jpeg-restarts, and appends keep to that" in told


def test_wrong_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors name options that exclude each other, and the compiled part where a machine lacks it."""
    source = folder(tmp_path / "in", [jpeg(97, 141)])
    stored: dict[str, Any] = {"store_pixels": True, "jpeg_restarts": True}
    told = "store_pixels stores no image files, which jpeg_restarts transcodes"
    for message, options in {"strip goes with jpeg_restarts": {"strip": True}, told: stored}.items():
        with pytest.raises(ConfigError, match=message):
            shardio.convert(source, tmp_path / "out", converter="imagefolder", **options)
    monkeypatch.setattr(native, "library", lambda: None)
    for use in (lambda: ReencodeOptions(jpeg_restarts=True), lambda: transcode(jpeg(97, 141))):
        with pytest.raises(ConfigError, match="jpeg_restarts needs the compiled part of shardio, which is missing"):
            use()


HINTS = {
    "photos": ([jpeg(300, 400, seed=n) for n in range(30)], ""),
    "some progressive": (
        [jpeg(300, 400, seed=n, progressive=n % 2 == 0) for n in range(24)],
        "; 12 of 24 are progressive, and decoded whole for any crop",
    ),
    "small ones": ([jpeg(99, 400, seed=n) for n in range(30)], None),
    "mostly others": ([jpeg(300, 400), *[png(300, 400)] * 3], None),
    "damaged ones": ([lossy(jpeg(300, 400))], None),
    "with markers": ([encode("jpg", pixels(300, 400), cv2.IMWRITE_JPEG_RST_INTERVAL, 5)], None),
}


@pytest.mark.parametrize("name", HINTS)
def test_photos_without_markers_are_told(name: str, tmp_path: Path) -> None:
    """One note tells the bytes that crops would skip; none where no JPEG is large, or the option is given."""
    images, more = HINTS[name]
    source = folder(tmp_path / "in", images)
    made = shardio.convert(source, tmp_path / "out", converter="imagefolder")
    if more is None:
        assert made.notes == ()
    else:
        (note,) = made.notes
        hint = r"with jpeg_restarts=True, random crops would decode (\d+) % fewer bytes of these JPEGs(.*)"
        told = re.fullmatch(hint, note)
        assert told is not None
        assert told[2] == f", to the same pixels{more}"
        # A crop needs half of a photo, of the four fifths that end at its bottom, or of all of a progressive file.
        assert 20 < int(told[1]) < (45 if not more else 60)
    stays = (f"jpeg_restarts copied 1 JPEG byte for byte: 1 {DAMAGED}",) if name == "damaged ones" else ()
    assert shardio.convert(tmp_path / "out", tmp_path / "again", jpeg_restarts=True).notes == stays
