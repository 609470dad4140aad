"""The compiled part gives the same pixels on every processor, and survives damaged files."""

import io
import itertools
import struct
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import _forked
import cv2
import lmdb
import numpy as np
import pytest
from _builders import DHT, DQT, without
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from shardio import native
from shardio.containers.lmdb_pages import Pages
from shardio.engines.fused_images import FusedImages
from shardio.native import rows
from shardio.system import portable
from shardio.transforms.fuse import FusedSteps

pytestmark = pytest.mark.skipif(native.library() is None, reason="not compiled here")
GUARD = 32
SAMPLING_444 = cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444
NUMBERS = np.array([[0.485, 0.229], [0.456, 0.224], [0.406, 0.225]], np.float32)  # means and deviations


def picture(height: int, width: int, seed: int) -> NDArray[np.uint8]:
    """Smooth noise, in which a wrong crop shows at every pixel."""
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return np.asarray(cv2.GaussianBlur(noise, (5, 5), 0), np.uint8)


def encode(pixels: NDArray[np.uint8], *options: int) -> bytes:
    """Encode as JPEG."""
    return cv2.imencode(".jpg", pixels, options)[1].tobytes()


def fused(
    image: tuple[int, int], box: list[int], scaled: list[int], window: list[int], flip: bool, size: tuple[int, int]
) -> FusedSteps:
    """The parameters of one image as arrays of one row."""
    rows = (np.array([row], np.int32) for row in (image, box, scaled, window, size))
    return FusedSteps(*rows, np.array([flip]))


WHOLE = fused((60, 80), [0, 0, 60, 80], [60, 80], [0, 0], False, (60, 80))


def make(images: FusedImages, data: bytes, how: FusedSteps, channels: int, floats: bool) -> NDArray[np.generic]:
    """The result, from the middle of memory whose margins must stay unchanged."""
    size = how.results[0].tolist()
    shape = (1, channels, *size) if floats else (1, *size, channels)
    count = int(np.prod(shape))
    memory = np.full(count + 2 * GUARD, 77, np.float32 if floats else np.uint8)
    out = memory[GUARD:-GUARD].reshape(shape)
    (left,) = images.make([data], [(images, how, out)], None, encoded=True)
    assert (memory[:GUARD] == 77).all()
    assert (memory[-GUARD:] == 77).all()
    return out[:0] if left else out


@st.composite
def views(draw: st.DrawFn) -> FusedSteps:
    """A view of an image: any region, resize, window and flip."""
    height, width = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    rows, columns = draw(st.integers(1, height)), draw(st.integers(1, width))
    box = [draw(st.integers(0, height - rows)), draw(st.integers(0, width - columns)), rows, columns]
    size = (draw(st.integers(1, 70)), draw(st.integers(1, 70)))
    scaled = [length + draw(st.integers(0, 30)) for length in size]
    window = [draw(st.integers(0, full - length)) for full, length in zip(scaled, size, strict=True)]
    return fused((height, width), box, scaled, window, draw(st.booleans()), size)


@settings(max_examples=150, deadline=None)
@given(views(), st.sampled_from([1, 3]), st.booleans())
def test_without_antialiasing(how: FusedSteps, channels: int, floats: bool) -> None:
    """Without antialiasing, any view has OpenCV's pixels to within one; floats are torchvision's of them."""
    height, width = how.images[0].tolist()
    data = encode(picture(height, width, seed=1), cv2.IMWRITE_JPEG_SAMPLING_FACTOR, SAMPLING_444)
    how = replace(how, antialias=False)
    numbers = NUMBERS[:channels]
    plain = make(FusedImages(channels), data, how, channels, False)[0]
    whole = np.asarray(Image.open(io.BytesIO(data)).convert("RGB" if channels == 3 else "L"))
    top, left, rows, columns = how.regions[0]
    (tall, wide), (y, x), size = how.resized[0], how.windows[0], how.results[0]
    wanted = cv2.resize(whole[top : top + rows, left : left + columns], (int(wide), int(tall)))
    wanted = wanted.reshape(tall, wide, channels)[y : y + size[0], x : x + size[1]].astype(int)
    wanted = wanted[:, ::-1] if how.flips[0] else wanted
    assert np.abs(plain.astype(int) - wanted).max() <= 1
    if floats:
        made = make(FusedImages(channels, numbers), data, how, channels, True)[0]
        scaled = plain.astype(np.float32) * np.float32(1 / 255)
        assert np.array_equal(made, ((scaled - numbers[:, 0]) / numbers[:, 1]).transpose(2, 0, 1))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["-DSHARDIO_PLAIN", "-DSHARDIO_NO_AVX2", "-DSHARDIO_NO_AVX512"])
def test_all_kernels_give_the_same_bytes(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels for this processor give the same bytes as those for others."""
    other = tmp_path / "other.so"
    sources = [str(path) for path in native.FILE.parent.glob("*.c")]
    flags = ["-std=gnu11", "-O1", "-ffp-contract=off", "-shared", "-fPIC", kind]
    subprocess.run(["cc", *flags, "-o", str(other), *sources, "-ljpeg", "-lm"], check=True)
    data = encode(picture(120, 90, seed=2))
    cases = list(
        itertools.product(
            ((64, 64), (33, 47), (224, 224), (1, 1), (5, 90)),  # sizes
            ([0, 0, 120, 90], [17, 31, 50, 59], [119, 89, 1, 1]),  # boxes
            ((False, True, 3), (True, False, 3), (True, True, 1), (False, False, 1)),  # flips, floats, channels
            ("nearest", "bilinear", "bicubic", "lanczos"),
        )
    )
    made: list[list[bytes]] = []
    for file in (native.FILE, other):
        monkeypatch.setattr(native, "FILE", file)
        native.library.cache_clear()
        made.append([])
        for size, box, (flip, floats, channels), interpolation in cases:
            how = replace(fused((120, 90), box, [*size], [0, 0], flip, size), interpolation=interpolation)
            images = FusedImages(channels, NUMBERS[:channels] if floats else None)
            made[-1].append(make(images, data, how, channels, floats).tobytes())
    native.library.cache_clear()
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("image", "box", "window"),
    [
        ((60, 80), [0, 0, 61, 80], [0, 0]),  # a region that ends below the image
        ((60, 80), [-1, 0, 10, 10], [0, 0]),  # one that begins above it
        ((60, 80), [0, 0, 0, 10], [0, 0]),  # an empty one
        ((61, 80), [0, 0, 10, 10], [0, 0]),  # the image is lower than claimed
        ((60, 80), [2**31 - 1, 0, 2**31 - 1, 10], [0, 0]),  # a sum that overflows
    ],
)
def test_what_does_not_fit_is_left_to_the_caller(image: tuple[int, int], box: list[int], window: list[int]) -> None:
    """A view outside of the image is refused."""
    how = fused(image, box, [8, 8], window, False, (8, 8))
    assert not len(make(FusedImages(3), encode(picture(60, 80, seed=3)), how, 3, False))


@pytest.mark.parametrize("window", [[8, 0], [-8, 0], [0, 8], [0, -20]])
def test_a_window_beside_the_image_is_filled(window: list[int]) -> None:
    """A window that shows nothing of the image is as black as what lies beyond an image elsewhere."""
    how = fused((60, 80), [0, 0, 60, 80], [8, 8], window, False, (8, 8))
    made = make(FusedImages(3), encode(picture(60, 80, seed=3)), how, 3, False)
    assert len(made)
    assert not made.any()


def test_other_color_spaces_are_left_to_the_caller() -> None:
    """CMYK JPEGs and other files are left to the caller."""
    cmyk = encode(picture(60, 80, seed=3)).replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x14\x08")
    for data in (cmyk, b"", b"\xff\xd8\xff", cv2.imencode(".png", picture(60, 80, seed=3))[1].tobytes()):
        assert not len(make(FusedImages(3), data, WHOLE, 3, False))


@pytest.mark.parametrize("seed", range(4))
def test_broken_files_do_no_harm(seed: int) -> None:
    """Changed and missing bytes give an image or a refusal, and no write beyond the result."""
    rng = np.random.default_rng(seed)
    whole = [encode(picture(70, 90, seed), cv2.IMWRITE_JPEG_PROGRESSIVE, progressive) for progressive in (0, 1)]
    decoder = FusedImages(3)
    refused = 0
    for attempt in range(150):
        data = bytearray(whole[attempt % 2])
        for _ in range(rng.integers(1, 6)):
            data[rng.integers(min(len(data), 700) if attempt % 3 else len(data))] = rng.integers(256)
        if attempt % 5 == 0:
            del data[rng.integers(len(data)) :]
        how = fused((70, 90), [5, 7, 50, 60], [32, 32], [0, 0], bool(attempt % 2), (32, 32))
        refused += not len(make(decoder, bytes(data), how, 3, False))
    assert 0 < refused < 150


@pytest.mark.parametrize(("marker", "progressive"), [(DHT, 0), (DHT, 1), (DQT, 0), (DQT, 1)])
def test_nothing_of_one_file_gets_into_the_next(marker: bytes, progressive: int) -> None:
    """Tables of one file do not leak into the next."""
    whole = encode(picture(60, 80, 4), cv2.IMWRITE_JPEG_OPTIMIZE, 1, cv2.IMWRITE_JPEG_PROGRESSIVE, progressive)
    files, decoder = (without(whole, marker), whole) * 2, FusedImages(3)
    alone, first, after, again = (make(decoder, data, WHOLE, 3, False) for data in files)
    # Without its Huffman tables a file uses the standard ones, and decodes to noise if these happen to fit.
    assert len(alone) == 0 or (marker == DHT and not progressive)
    assert after.tobytes() == alone.tobytes() != first.tobytes() == again.tobytes() != b""


def test_frames_of_films_have_the_usual_tables() -> None:
    """JPEGs without Huffman tables, as in Motion JPEG, use those of the standard, as libjpeg and OpenCV do."""
    usual, others = encode(picture(60, 80, 4)), encode(picture(60, 80, 5), cv2.IMWRITE_JPEG_OPTIMIZE, 1)
    decoder = FusedImages(3)
    wanted, before, made = (make(decoder, d, WHOLE, 3, False) for d in (usual, others, without(usual, DHT)))
    assert (len(before), made.tobytes()) == (1, wanted.tobytes())
    frame, whole = (cv2.imdecode(np.frombuffer(data, np.uint8), 1) for data in (without(usual, DHT), usual))
    assert np.array_equal(frame, whole)


P = [0.1, 0.2, 0.4, 0.1, 0.1, 0.08, 0.02]


@pytest.fixture(scope="module")
def lmdb_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[bytes, bytes]]:
    """An LMDB file of several levels, with values in leaves, at the ends of pages, and on overflow pages."""
    path = tmp_path_factory.mktemp("lmdb") / "x.lmdb"
    rng = np.random.default_rng(0)
    entries = {
        number.to_bytes(8, "big") + name: rng.bytes(int(rng.choice([0, 1, 50, 1900, 2100, 5000, 40_000], p=P)))
        for number in range(1200)
        for name in (b"a", b"bcd")
    }
    with lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 28) as environment:
        for _ in range(2):  # the second transaction reuses pages of the first, out of order
            with environment.begin(write=True) as transaction:
                for key in rng.permutation(sorted(entries)).tolist():
                    transaction.put(key, entries[key])
    return path, entries


def look_up(data: NDArray[np.uint8], keys: list[bytes]) -> NDArray[np.int64] | None:
    """Offset and size of the values of keys of one length, int64 [n, 2]."""
    places = np.empty((len(keys), 2), np.int64)
    maps, sizes = np.full(len(keys), data.ctypes.data), np.full(len(keys), len(data))
    wanted = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), -1)
    if not rows.find_lmdb_values(maps, sizes, wanted, places):
        return None
    assert ((places >= 0) & (places.sum(axis=1, keepdims=True) <= len(data))).all()
    return places


def test_lmdb_keys_are_found(lmdb_file: tuple[Path, dict[bytes, bytes]]) -> None:
    """Each key of an LMDB file has the value that LMDB returns, and other keys have none."""
    path, entries = lmdb_file
    data = np.fromfile(path, np.uint8)
    for length in (9, 11):
        keys = [key for key in entries if len(key) == length]
        values = [data[start : start + size].tobytes() for start, size in look_up(data, keys).tolist()]
        assert values == [entries[key] for key in keys]
    for missing in (b"\0" * 9, b"\xff" * 9, (5).to_bytes(8, "big") + b"aa", (5).to_bytes(8, "big") + b"b"):
        assert look_up(data, [missing]) is None


@pytest.mark.long
def test_damaged_lmdb_files_do_no_harm(lmdb_file: tuple[Path, dict[bytes, bytes]]) -> None:
    """Damage anywhere in headers, pointers and nodes leads to the place in Python, within the file, or to none."""
    path, entries = lmdb_file
    whole = np.fromfile(path, np.uint8)
    rng = np.random.default_rng(1)
    keys, count, found = [key for key in entries if len(key) == 9][:200], len(whole) // 4096, Counter[bool]()
    flags = whole.view("<u2")[5::2048]
    tree = [*np.flatnonzero(flags == 2).tolist(), *np.flatnonzero(flags == 1).tolist() * 20]
    for attempt in range(300):
        data = whole.copy()
        for page in rng.choice(tree if attempt % 3 else [0, 1], 8).tolist():
            at = 4096 * page + int(rng.integers(8, 200))
            if attempt % 2:
                data[at] = rng.integers(256)
            else:  # integers: of pages, places, sizes, flags
                number = rng.choice([0, 1, 2, 4, 16, 4095, 65535, page, count])
                struct.pack_into("<H", data, at // 2 * 2, int(number))
        if attempt % 10 == 0:
            data = data[: int(rng.integers(len(data)))]
        with open(portable.anonymous_file("damaged"), "w+b", buffering=0) as file:
            file.write(data.data)
            pages = Pages(file.fileno(), len(data))
            for key in keys[attempt % 20 :: 20]:
                place = look_up(data, [key])
                if pages.plain and len(data) >= pages.extent:  # a reader refuses others when it opens them
                    assert (None if place is None else (*place[0].tolist(),)) == pages.find(key)
                    found[place is None] += 1
    assert min(found[True], found[False]) > 100


CUT = """
import os, sys
from pathlib import Path
import numpy as np
import shardio
from shardio import containers
from shardio.errors import ShardCorrupt
from shardio.format.fields import with_hidden

container, index = sys.argv[1], sys.argv[2] == "True"
fields = {"number": "int64", "small": ("uint8", (100,)), "large": ("uint8", (9000,)), "text": "text"}
with shardio.create("d", container=container, fields=fields) as writer:
    for n in range(2000):
        row = {"number": n, "small": np.full(100, n % 256, np.uint8), "large": np.full(9000, n % 256, np.uint8)}
        writer.append(row | {"text": "x" * (n % 90)})
dataset = shardio.open("d")
for name in fields:
    dataset.read(range(2000), [name])  # all is mapped
shard = dataset.manifest.shards.names[0]
reader = containers.get(container).reader(Path("d") / shard, with_hidden(dataset.manifest.fields))
(path,) = Path("d").glob("shard-000000.idx.npy" if index else f"shard-000000.{container.replace('hdf5', 'h5')}")
os.truncate(path, 4096)
for name, how in [(name, how) for how in ("dataset", "reader") for name in fields]:
    for rows in ([1999], range(2000)):
        try:
            dataset.read(rows, [name]) if how == "dataset" else reader.read(np.array(rows), name)
        except ShardCorrupt as error:
            print(error)
        else:
            print("read", name)
"""


@pytest.mark.parametrize(("container", "index"), [("tar", False), ("tar", True), ("hdf5", False), ("lmdb", False)])
def test_a_file_that_is_cut_while_it_is_mapped(tmp_path: Path, container: str, index: bool) -> None:
    """A mapped file that loses its pages, which raises SIGBUS, is an error that names the shard."""
    done = _forked.run(CUT, container, str(index), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 16
    told = [line for line in lines if "shard-000000" in line]
    in_index = [*lines[:2], *lines[8:10]]  # where scalars are, of tars
    assert len(told) == 16 or (container == "tar" and not index and in_index == ["read number"] * 4), lines


def test_a_fault_that_is_not_ours_still_ends_the_process(tmp_path: Path) -> None:
    """A fault outside the compiled functions ends the process as before."""
    code = (
        "import mmap, os, numpy as np, shardio\n"
        "ds = shardio.from_samples([{'x': n} for n in range(9)]); ds.read([1, 2])\n"
        "f = open('f', 'w+b'); f.truncate(8192); m = mmap.mmap(f.fileno(), 8192); f.truncate(0)\n"
        "print('before', flush=True); m[5000]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (-7, "before\n")
