"""Compiled code gives what Pillow and NumPy give: pixels of PNGs, or the same error, and bytes looked up in tables."""

import struct
import tracemalloc
import zlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardio import native
from shardio.engines import output_format, whole_images
from shardio.engines.output_format import OutputFormat, OutputWriter
from shardio.errors import BadSample
from shardio.transforms import Normalize
from shardio.transforms.recipe import Recipe

pytestmark = pytest.mark.skipif(native.library() is None, reason="there is no compiled part")


def chunk(name: bytes, content: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(rows: NDArray[np.uint8], channels: int, *, cuts: Sequence[int] = (), before: bytes = b"") -> bytes:
    """A PNG of filtered rows, whose compressed data are cut to several chunks, with other chunks before them."""
    height, width = len(rows), (rows.shape[1] - 1) // channels
    compressed = zlib.compress(rows.tobytes())
    ends = [*sorted(cut % len(compressed) for cut in cuts), len(compressed)]
    parts = [chunk(b"IDAT", compressed[start:stop]) for start, stop in zip([0, *ends], ends, strict=False)]
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before + b"".join(parts) + chunk(b"IEND", b"")


def filtered(height: int, width: int, channels: int, filters: Sequence[int], seed: int) -> NDArray[np.uint8]:
    """Rows of random bytes, each behind the number of its filter."""
    rows = np.random.default_rng(seed).integers(0, 256, (height, 1 + width * channels), dtype=np.uint8)
    rows[:, 0] = np.resize(np.array(filters, np.uint8), height)
    return rows


def outcome(data: bytes, channels: int) -> tuple[tuple[int, ...], bytes] | str:
    """The outcome of decoding: the shape and the bytes of pixels, or the text of the error."""
    try:
        pixels = whole_images.decode_mask(data) if channels == 0 else whole_images.decode(data, channels)
    except BadSample as error:
        return str(error)
    return pixels.shape, pixels.tobytes()


def by_pillow(data: bytes, channels: int) -> tuple[tuple[int, ...], bytes] | str:
    """The outcome of decoding if Pillow decodes everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_images, "_decode_plain_png", lambda data, channels: None)
        return outcome(data, channels)


@settings(max_examples=300, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 20), st.integers(1, 40), st.sampled_from([1, 3])),
    filters=st.lists(st.sampled_from([0, 1, 2, 3, 4, 4, 5]), min_size=1, max_size=20),
    cuts=st.lists(st.integers(0, 10**6), max_size=4),
    wanted=st.sampled_from([0, 1, 3, 4]),
    before=st.sampled_from([b"", chunk(b"tEXt", b"a\0IDAT"), chunk(b"tRNS", bytes(6)), chunk(b"gAMA", bytes(4))]),
    seed=st.integers(0, 9),
)
def test_rows_of_pngs_are_pillows(
    shape: tuple[int, int, int], filters: list[int], cuts: list[int], wanted: int, before: bytes, seed: int
) -> None:
    """PNGs of any filters, cut to any chunks, have Pillow's pixels, or its error: as grey, RGB, RGBA and as masks."""
    data = png(filtered(*shape, filters, seed), shape[2], cuts=cuts, before=before)
    assert outcome(data, wanted) == by_pillow(data, wanted)


@settings(max_examples=300, deadline=None)
@given(
    channels=st.sampled_from([1, 3]),
    place=st.integers(8, 10**6),
    removed=st.integers(0, 4),
    added=st.binary(max_size=4),
)
def test_damaged_pngs_are_judged_as_pillow_does(channels: int, place: int, removed: int, added: bytes) -> None:
    """A PNG whose header or pixels are damaged has Pillow's pixels, or its error."""
    data = png(filtered(6, 9, channels, [4, 3, 2, 1], 1), channels, cuts=[50])
    place = 8 + place % (len(data) - 8)
    data = data[:place] + added + data[place + removed :]
    assert outcome(data, channels) == by_pillow(data, channels)


@pytest.mark.parametrize(("stored", "wanted"), [(1, 1), (1, 3), (3, 3), (1, 0)])
def test_plain_pngs_need_no_pillow(stored: int, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain PNG is decoded without Pillow, whose way to the same pixels takes longer."""
    data = png(filtered(7, 5, stored, [4, 3, 2, 1, 0], 1), stored)
    pillows = by_pillow(data, wanted)
    monkeypatch.setattr(whole_images, "_by_pillow", None)
    assert outcome(data, wanted) == pillows


@pytest.mark.usefixtures("part")
def test_what_stands_beside_pixels_makes_no_png_bad() -> None:
    """A plain PNG with a text of a wrong checksum, which Pillow refuses, is decoded, also without the compiled part."""
    rows = filtered(2, 4, 3, [0], 1)
    data = png(rows, 3, before=chunk(b"tEXt", b"a\0text")[:-4] + bytes(4))
    assert "bad header checksum" in by_pillow(data, 3)
    assert outcome(data, 3) == ((2, 4, 3), rows[:, 1:].tobytes())


def test_a_png_of_more_rows_than_it_says_takes_no_more_memory() -> None:
    """A small PNG that holds 64 MiB of rows is decompressed up to those that its header names, and has these pixels."""
    rows = filtered(1, 4, 1, [0], 1)
    too_many = zlib.compress(rows.tobytes() + bytes(1 << 26))
    data = png(rows, 1).replace(chunk(b"IDAT", zlib.compress(rows.tobytes())), chunk(b"IDAT", too_many))
    tracemalloc.start()
    made, (_, peak) = outcome(data, 1), tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert made == by_pillow(data, 1) == ((1, 4, 1), rows[0, 1:].tobytes())
    assert peak < 1 << 20


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_bytes_are_looked_up_as_numpy_does(
    dtype: str, last: bool, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pixels become the same floats of any dtype and layout with compiled code and without."""
    transforms = [Normalize((0.4, 0.5, 0.6)[:channels], (0.2, 0.3, 0.1)[:channels], dtype=dtype)]
    format_ = OutputFormat(Recipe.of(transforms, channels=channels, size=None), channels, last)
    pixels = np.random.default_rng(1).integers(0, 256, (2, 17, 33, channels), dtype=np.uint8)
    made = []
    for _ in range(2):
        out = np.zeros((2, *format_.shape((17, 33))), format_.dtype)
        OutputWriter(format_).convert(pixels, out)
        made.append(out.tobytes())
        monkeypatch.setattr(output_format, "look_up", lambda *arguments, **options: False)
    wanted = format_.cast(format_.recipe.to_floats(pixels))
    assert made[0] == made[1] == (wanted if last else wanted.transpose(0, 3, 1, 2)).tobytes()
