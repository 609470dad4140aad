"""nvImageCodec as `gpu.py` tries it: two decoders in turns, images used again, and one kernel for all that follows.

The kernel has the pixels of `torch_steps.resample` and `to_floats`, which take some ten operations over arrays that are
eight times as large. It stays out of the package until a GPU has shown what it brings. It is C as well as CUDA, so
that its arithmetic also runs on the CPU.
"""

import ctypes
import os
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias, final

import numpy as np
import nvidia.nvimgcodec as codec
import torch

from shardio.engines import torch_steps
from shardio.engines.nvimgcodec import _create_decoder
from shardio.system.types import Buffer
from shardio.transforms.fuse import FusedSteps, fuse
from shardio.transforms.recipe import Recipe
from shardio.transforms.steps import Sizes, Step

SOURCE = r"""
#ifndef __CUDACC__  /* C: the loop at the end stands for the grid */
#include <math.h>
#include <string.h>
#define __global__
#define __device__ static
static __thread struct { int x, y; } blockIdx, threadIdx, blockDim;
#endif

/* The pixels of an axis that a result is made of, as Pillow's bilinear filter takes them. */
struct taps { int first, end; double center, reach, total; };

__device__ double weight(const struct taps *taps, int place) {
    double x = fabs(place - taps->center + 0.5) / taps->reach;
    return x < 1 ? 1 - x : 0;
}

__device__ struct taps taps_of(int result, int size, int resized) {
    double scale = (double)size / resized, reach = scale > 1 ? scale : 1, center = (result + 0.5) * scale;
    int first = (int)(center - reach + 0.5), end = (int)(center + reach + 0.5);
    struct taps taps = {first > 0 ? first : 0, end < size ? end : size, center, reach, 0};
    for (int place = taps.first; place < taps.end; place++) taps.total += weight(&taps, place);
    return taps;
}

__device__ void store(OUT *out, float value) {
#if BITS == 32
    *out = value;
#elif BITS == 16 && defined(__CUDACC__)
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(*out) : "f"(value));
#elif BITS == 16
    _Float16 half = (_Float16)value;
    memcpy(out, &half, 2);
#else  /* bfloat16 */
    union { float value; unsigned bits; } whole = {value};
    *out = (OUT)((whole.bits + 0x7fff + ((whole.bits >> 16) & 1)) >> 16);
#endif
}

/* One pixel of image `blockIdx.y`. `geometry` holds for each image its height, width and bytes per row, the height and
 * width it is resized to, the top and left of the window that is kept, and whether that is flipped; `colors` holds
 * three means and three deviations. An image at address 0 becomes black. */
#ifdef __cplusplus
extern "C"
#endif
__global__ void resample(const long long *images, const int *geometry, const float *colors, OUT *out, int height,
                         int width, int planar) {
    int place = blockIdx.x * blockDim.x + threadIdx.x, y = place / width, x = place % width;
    if (y >= height) return;
    const int *g = geometry + 8 * blockIdx.y;
    const unsigned char *image = (const unsigned char *)images[blockIdx.y];
    struct taps down = taps_of(g[5] + y, g[0], g[3]), across = taps_of(g[6] + (g[7] ? width - 1 - x : x), g[1], g[4]);
    float sums[3] = {0, 0, 0};
    for (int j = image ? down.first : down.end; j < down.end; j++) {
        const unsigned char *row = image + (long long)j * g[2];
        float line[3] = {0, 0, 0}, share = (float)(weight(&down, j) / down.total);
        for (int i = across.first; i < across.end; i++) {
            float part = (float)(weight(&across, i) / across.total);
            for (int c = 0; c < 3; c++) line[c] += part * row[3 * i + c];
        }
        for (int c = 0; c < 3; c++) sums[c] += share * floorf(line[c] + 0.5f);
    }
    for (int c = 0; c < 3; c++) {
        long long at = planar ? ((3LL * blockIdx.y + c) * height + y) * width + x
                              : (((long long)blockIdx.y * height + y) * width + x) * 3 + c;
        store(out + at, (floorf(sums[c] + 0.5f) * (1 / 255.f) - colors[c]) / colors[3 + c]);
    }
}

#ifndef __CUDACC__
void run(const int *grid, const long long *images, const int *geometry, const float *colors, OUT *out, int height,
         int width, int planar) {
    blockDim.x = grid[2];
    for (blockIdx.y = 0; blockIdx.y < grid[1]; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < grid[0]; blockIdx.x++)
            for (threadIdx.x = 0; threadIdx.x < grid[2]; threadIdx.x++)
                resample(images, geometry, colors, out, height, width, planar);
}
#endif
"""
FORMATS = {"float32": ("float", 32), "float16": ("unsigned short", 16), "bfloat16": ("unsigned short", 7)}
BLOCK = 256  # threads

Launch: TypeAlias = Callable[[tuple[int, int], Sequence[Any]], None]
"""Runs the kernel on a grid, with its arguments: four tensors, then numbers."""
Made: TypeAlias = tuple[torch.Tensor, Sequence[int], Any]
"""A batch, the rows that did not decode, and the CUDA event that ends the work on it, or None."""


def source_of(dtype: str) -> str:
    """Return the kernel's source for floats of a type."""
    out, bits = FORMATS[dtype]
    return f"#define OUT {out}\n#define BITS {bits}\n{SOURCE}"


@cache
def compiled(device_type: str, dtype: str) -> Launch:
    """Compile the kernel for a GPU, or for the CPU with gcc."""
    if device_type == "cuda":
        os.environ.setdefault("CUDA_HOME", "/usr/local/cuda")  # torch asks for it, and the kernel includes nothing
        kernel = torch.cuda._compile_kernel(source_of(dtype), "resample")
        return lambda grid, arguments: kernel((*grid, 1), (BLOCK, 1, 1), list(arguments))
    with TemporaryDirectory() as folder:
        command = ["gcc", "-std=gnu11", "-O2", "-shared", "-fPIC", "-xc", "-", "-o", str(Path(folder, "kernel.so"))]
        subprocess.run(command, input=source_of(dtype), text=True, check=True)
        run = ctypes.CDLL(command[-1]).run

    def launch(grid: tuple[int, int], arguments: Sequence[Any]) -> None:
        pointers = [ctypes.c_void_p(each.data_ptr()) for each in arguments[:4]]
        run((ctypes.c_int * 3)(*grid, BLOCK), *pointers, *arguments[4:])

    return launch


@final
class TwoDecoders:
    """An engine for whole batches: decoders in turns, each on a thread of its own.

    Args:
        recipe: the field's transforms: crops, one resize and flips, then a normalization.
        threads: the decoders' CPU threads, all together.
        decoders: how many there are.
        how: the other arguments of a Decoder.
    """

    reason = "nvImageCodec could not decode them"

    def __init__(self, recipe: Recipe, *, threads: int, decoders: int = 2, **how: Any) -> None:
        self.ahead = decoders
        self._decoders = deque(Decoder(recipe, threads=max(1, threads // decoders), **how) for _ in range(decoders))
        self._threads = {decoder: ThreadPoolExecutor(1) for decoder in self._decoders}
        self._pending: deque[Future[Made]] = deque()

    def begin(self, encoded: Sequence[Buffer], sizes: Sizes, steps: Sequence[Step]) -> None:
        """Start on a batch."""
        self._decoders.rotate()
        decoder = self._decoders[0]
        self._pending.append(self._threads[decoder].submit(decoder.make, encoded, fused_steps(steps, sizes)))

    def end(self) -> tuple[torch.Tensor, Sequence[int]]:
        """Return the oldest batch, for which the current CUDA stream waits, and the rows that did not decode."""
        images, failed, done = self._pending.popleft().result()
        if done is not None:
            current = torch.cuda.current_stream(images.device)
            current.wait_event(done)
            images.record_stream(current)
        return images, failed

    def check_process(self) -> None:
        """The benchmark forks no process."""

    def close(self) -> None:
        """Drop the batches that were begun."""
        self._pending.clear()


@final
class Decoder:
    """One of nvImageCodec's decoders, with a CUDA stream and the images that it decodes into.

    Args:
        recipe: the field's transforms.
        device: a GPU or the CPU.
        threads: CPU threads.
        options: those of shardio's engine.
        channels_last: the memory format of the batches.
        reuse: whether to decode into the images of the batch before.
        kernel: whether the kernel makes the batch, instead of torch's operations.
        others: what shardio's engines are given besides.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        device: torch.device,
        threads: int,
        options: Any = None,
        channels_last: bool = False,
        reuse: bool = True,
        kernel: bool = True,
        **others: Any,
    ) -> None:
        self._recipe, self._device, self._channels_last = recipe, device, channels_last
        self._reuse, self._finish, self._images = reuse, self.by_kernel if kernel else self.by_torch, list[Any]()
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        load = (options or {}).get("hw_decoder_load")
        self._decoder = _create_decoder(codec, device, threads, load, ":fancy_upsampling=1")
        self._params = codec.DecodeParams(apply_exif_orientation=False, color_spec=codec.ColorSpec.SRGB)

    def make(self, encoded: Sequence[Buffer], fused: FusedSteps) -> Made:
        """Make a batch."""
        with torch.cuda.stream(self._stream):
            decoded = self.decode(encoded, fused)
            images = self._finish(decoded, fused)
            done = None if self._stream is None else self._stream.record_event()
        return images, [row for row, image in enumerate(decoded) if image is None], done

    def streams(self, encoded: Sequence[Buffer], fused: FusedSteps) -> list[Any]:
        """Read the headers of the files, and return what decodes the region of each."""
        return [
            codec.CodeStream(np.frombuffer(data, np.uint8)).get_sub_code_stream(
                region=codec.Region(top, left, top + height, left + width)
            )
            for data, (top, left, height, width) in zip(encoded, fused.regions.tolist(), strict=True)
        ]

    def decode(self, encoded: Sequence[Buffer], fused: FusedSteps) -> list[Any]:
        """Return the region of each image, or None."""
        streams = self.streams(encoded, fused)
        again = {"images": self._images} if self._reuse and len(self._images) == len(streams) else {}
        on = {"cuda_stream": self._stream.cuda_stream} if self._stream is not None else {}
        images: list[Any] = self._decoder.decode(streams, params=self._params, **again, **on)
        self._images = images if all(image is not None for image in images) else []
        return images

    def by_kernel(self, images: Sequence[Any], fused: FusedSteps) -> torch.Tensor:
        """Make a batch of decoded regions by the kernel, which takes them from where they are."""
        recipe, device, size, count = self._recipe, self._device, self._recipe.size, len(images)
        if recipe.normalization is None or size is None or fused.interpolation != "bilinear" or not fused.antialias:
            raise ValueError("the kernel only makes bilinear, antialiased and normalized images of one size")
        about = "__array_interface__" if self._stream is None else "__cuda_array_interface__"
        addresses = np.array([0 if image is None else getattr(image, about)["data"][0] for image in images], np.int64)
        pitches = np.array([0 if image is None else image.strides[0] for image in images])[:, None]
        columns = (fused.regions[:, 2:], pitches, fused.resized, fused.windows, fused.flips[:, None])
        geometry = np.concatenate(columns, axis=1, dtype=np.int32, casting="unsafe")
        arrays = (addresses, geometry, recipe.normalization.T.astype(np.float32))
        layout = torch.channels_last if self._channels_last else torch.contiguous_format
        dtype = getattr(torch, recipe.dtype)
        out = torch.empty((count, 3, *size), dtype=dtype, device=device, memory_format=layout)
        tensors = [torch_steps.to_device(array, device) for array in arrays]
        grid = (-(-size[0] * size[1] // BLOCK), count)
        compiled(device.type, recipe.dtype)(grid, [*tensors, out, *size, int(not self._channels_last)])
        return out

    def by_torch(self, images: Sequence[Any], fused: FusedSteps) -> torch.Tensor:
        """Make the same by torch's operations, as shardio's engine does."""
        assert self._recipe.size is not None
        pixels = [self._tensor(image) for image in images if image is not None]
        if len(pixels) < len(images):
            raise ValueError("an image did not decode")
        starts = np.cumsum([0, *(each.numel() for each in pixels[:-1])])
        flat = torch.cat([each.reshape(-1) for each in pixels])
        made = torch_steps.resample(flat, starts, fused, self._recipe.size, 3)
        return torch_steps.to_floats(made, self._recipe, channels_last=self._channels_last)

    def _tensor(self, image: Any) -> torch.Tensor:
        return torch.from_numpy(np.asarray(image)) if self._stream is None else torch.utils.dlpack.from_dlpack(image)


def fused_steps(steps: Sequence[Step], sizes: Sizes) -> FusedSteps:
    """Return the steps of a batch as one region of each image."""
    fused = fuse(steps, sizes)
    if fused is None or not fused.inside:
        raise ValueError("the steps do not fuse to one region of each image")
    return fused
