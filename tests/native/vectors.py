"""Write what the C part makes here for `vectors.c` to repeat on another processor: `python vectors.py FILE`.

Each case is its kind, 24 int32 numbers, and three parts: what it is made from, more of that, and the result.
"""

import io
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))
from _builders import jpeg, pixels, sampled_jpegs, tiff, with_exif

from shardio.engines.fused_images import FusedImages, filter_number
from shardio.engines.jpeg_headers import orientations_of
from shardio.engines.orientation import TRANSPOSITIONS
from shardio.engines.size_preserving_steps import KINDS, arrays_of, carry_out
from shardio.engines.video_frames import FRAME, planes_of
from shardio.native import rows
from shardio.native.pixels import unfilter
from shardio.native.recode import restart
from shardio.transforms import ColorJitter, GaussianBlur, RandomErasing, RandomGenerator, RandomRotation
from shardio.transforms.auto_augment import Ranges, operations
from shardio.transforms.fuse import FusedSteps
from shardio.transforms.steps import Blur, Flip, Interpolation, SizePreservingStep, Warp

NUMBERS = 24
IMAGE, STEP, PERMUTE, ORIENTATION, RESTART, SHUFFLE, UNFILTER, FRAMES = range(8)
NORMALIZATION = np.array([[0.485, 0.229], [0.456, 0.224], [0.406, 0.225]], np.float32)


def case(kind: int, numbers: Sequence[int], *parts: bytes) -> bytes:
    """One case of the file."""
    padded = [*numbers, *[0] * (NUMBERS - len(numbers))]
    return struct.pack(f"<i{NUMBERS}i", kind, *padded) + b"".join(struct.pack("<q", len(p)) + p for p in parts)


def files() -> Iterator[tuple[int, int, bytes]]:
    """Height, width and file: of each sampling, progressive, with restarts, transcoded to have some, grey."""
    for data in sampled_jpegs(145, 170):
        yield from ((145, 170, file) for file in (data, restart(data)) if file)
    yield from ((145, 170, jpeg(145, 170, restarts=interval)) for interval in (1, 3, 22))
    yield 60, 80, jpeg(60, 80, 1)
    file = io.BytesIO()
    Image.fromarray(pixels(90, 50, seed=9)).save(file, "JPEG", quality=40)
    yield 90, 50, file.getvalue()


def image_cases() -> Iterator[bytes]:
    """Crops of files and of pixels, by every filter, in all sizes, mirrored and turned, as bytes and as floats."""
    random = np.random.default_rng(0)
    encoded = list(files())
    filters: list[tuple[Interpolation, bool]] = [(name, True) for name in get_args(Interpolation)]
    filters += [("bilinear", False), ("bicubic", False)]
    for number in range(900):
        interpolation, antialias = filters[number % len(filters)]
        channels = 1 if number % 5 == 0 else 3
        floats, from_file, fast = number % 3 == 0, number % 4 != 0, number % 7 == 0
        if from_file:
            height, width, data = encoded[number % len(encoded)]
        else:
            height, width = (int(side) for side in random.integers(1, 90, 2))
            data = random.bytes(height * width * channels)
        turn = int(random.integers(1, 9)) if from_file and number % 2 else 1
        upright = (width, height) if TRANSPOSITIONS[turn][2] else (height, width)
        rows_, columns = (int(random.integers(1, side + 1)) for side in upright)
        box = [
            int(random.integers(upright[0] - rows_ + 1)),
            int(random.integers(upright[1] - columns + 1)),
            rows_,
            columns,
        ]
        size = [int(side) for side in random.integers(1, 120, 2)]
        window = [int(random.integers(-3, side)) for side in size]
        kept = [int(random.integers(max(1, 1 - at), side - at + 3)) for side, at in zip(size, window, strict=True)]
        flip = bool(number & 1)
        arrays = (np.array([row], np.int32) for row in (upright, box, size, window, kept))
        fused = FusedSteps(*arrays, np.array([flip]), interpolation, antialias)
        normalization = NORMALIZATION[:channels] if floats else None
        images = FusedImages(channels, normalization, decode="fast" if fast else "exact")
        out: Any = np.empty((1, channels, *kept), np.float32) if floats else np.empty((1, *kept, channels), np.uint8)
        if from_file:
            (left,) = images.make([data], [(images, fused, out)], np.array([turn], np.uint8), encoded=True)
        else:
            array = np.frombuffer(data, np.uint8).reshape(1, height, width, channels)
            left = images.resize(array, fused, out)
        assert not left
        bits = sum(flag << bit for bit, flag in enumerate(TRANSPOSITIONS[turn]))
        numbers = [height, width, *box, *size, *window, int(flip), bits, *kept, channels, filter_number(fused)]
        more = b"" if normalization is None else np.ascontiguousarray(normalization).tobytes()
        yield case(IMAGE, [*numbers, int(from_file), int(fast)], data, more, out.tobytes())


def steps(sizes: NDArray[np.int32], seed: int, channels: int) -> Iterator[SizePreservingStep]:
    """Every step for one image."""
    generator = RandomGenerator(seed, 0, 0, np.zeros(1, np.int64))
    signed = generator.uniform(1)[:, 0] * 2 - 1
    for bilinear in (False, True):
        yield from operations(
            Ranges(0.99, 135, 0.99, 6), np.full((1, 2), 32.0), sizes, np.abs(signed), signed, bilinear=bilinear
        )
    yield Flip(np.ones(1, np.bool_))
    for transform in (ColorJitter(hue=0.5), GaussianBlur((5, 9)), RandomErasing(1, value=7), RandomRotation(180)):
        yield from transform.steps(sizes, generator)


def step_cases() -> Iterator[bytes]:
    """Every step on images of several sizes."""
    random = np.random.default_rng(2)
    for number in range(12):
        height, width, channels = (*(int(side) for side in random.integers(1, 60, 2)), 1 if number % 4 == 0 else 3)
        for step in steps(np.array([[height, width]], np.int32), number, channels):
            given = random.integers(0, 256, (1, height, width, channels), dtype=np.uint8)
            made = given.copy()
            carry_out(made, [step])
            if step.mask.any():
                kernel = step.kernel if isinstance(step, Blur) else (0, 0)
                arrays = [array.tobytes() for array in arrays_of(step, channels)[1:]]
                numbers = [height, width, channels, KINDS.index(type(step)), *kernel]
                numbers += [isinstance(step, Warp) and step.bilinear, len(arrays[0]) if arrays else 0]
                yield case(STEP, numbers, given.tobytes(), b"".join(arrays), made.tobytes())


def frame_cases() -> Iterator[bytes]:
    """Crops of frames of videos, of 8 to 12 bits, whose colours are shared by one, two or four pixels."""
    random = np.random.default_rng(3)
    images = FusedImages(3)
    for number, name in enumerate(["yuv420p", "yuv422p10le", "yuv444p", "yuv440p", "yuv420p12le", "yuvj420p"] * 4):
        planes = planes_of(name, (1, 5, 9)[number % 3], 1)
        height, width = int(random.integers(1, 30)), int(random.integers(1, 30) if number % 2 else 1100)
        samples = random.integers(0, 1 << planes.bits, (3, height, width), dtype=np.uint16)
        stored = samples if planes.bits > 8 else samples.astype(np.uint8)
        frame = np.zeros(1, FRAME)
        frame["planes"] = stored.ctypes.data + stored.strides[0] * np.arange(3)
        frame["pitches"], frame["size"], frame["factors"] = stored.strides[1], (height, width), planes.factors
        frame["layout"] = (planes.bits, planes.across, planes.down, planes.shift, planes.black)
        top, left = int(random.integers(height)), int(random.integers(width))
        box = [top, left, height - top, width - left]
        arrays = (np.array([row], np.int32) for row in ([height, width], box, box[2:], [0, 0], box[2:]))
        out = np.empty((1, *box[2:], 3), np.uint8)
        wanted = (images, FusedSteps(*arrays, np.zeros(1, np.uint8)), out)
        (left_out,) = images.make(frame, [wanted], None, encoded=False, frames=True)
        assert not left_out
        numbers = [*box, *(int(value) for column in ("size", "layout", "factors") for value in frame[column][0])]
        yield case(FRAMES, numbers, stored.tobytes(), bytes(out.size), out.tobytes())


def other_cases() -> Iterator[bytes]:
    """Orders of epochs, orientations, files that are transcoded, bytes that were shuffled, and rows of PNGs."""
    random = np.random.default_rng(1)
    for n in (1, 1000, 2**31 - 1):
        bits = max(2, (n - 1).bit_length())
        widths, keys = (bits - bits // 2, bits // 2), random.integers(0, 2**63, 8, dtype=np.uint64)
        positions = random.integers(0, n, 500, dtype=np.uint64)
        order = positions.copy()
        rows.permute(order, n, widths, keys)
        yield case(PERMUTE, [n, *widths], positions.tobytes(), keys.tobytes(), order.tobytes())
    for width in (2, 4, 8):
        for count in (0, 1, 15, 16, 33, 1000):
            elements = random.integers(0, 256, (count, width), dtype=np.uint8)
            yield case(SHUFFLE, [width], elements.T.tobytes(), bytes(elements.size), elements.tobytes())
    for number in range(20):
        height, width, channels = (*random.integers(1, 40, 2).tolist(), (1, 3)[number % 2])
        lines = random.integers(0, 256, (height, 1 + width * channels), dtype=np.uint8)
        lines[:, 0] %= 5
        made = unfilter(lines.tobytes(), height, width, channels)
        assert made is not None
        yield case(UNFILTER, [height, width, channels], lines.tobytes(), bytes(made.size), made.tobytes())
    plain = jpeg(24, 32)
    for data in (plain, *(with_exif(plain, tiff(value)) for value in range(1, 10)), b"", plain[:30]):
        found = orientations_of([data])[0] if len(data) > 30 else 0  # the compiled part leaves cut headers to Python
        yield case(ORIENTATION, [], data, b"", bytes([found]))

    for number, (_, _, data) in enumerate(files()):
        data = with_exif(data, tiff(6))
        yield case(RESTART, [number % 2], data, b"", restart(data, strip=number % 2 == 1) or b"")


def main() -> None:
    """Write the file."""
    Path(sys.argv[1]).write_bytes(b"".join([*image_cases(), *step_cases(), *other_cases(), *frame_cases()]))


if __name__ == "__main__":
    main()
