"""One peer packs a dataset in its own environment and a fresh process. The runner is `convert.py`.

    python -m benchmarks._pack ORDER.json RESULT.json

The clock covers the packing alone, with everything imported and the files listed, and separately the time until all is
on the disk, because not every peer waits for that itself.
"""

import importlib
import importlib.metadata
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._workloads import Items, Workload, arrays, photos

SHORTER, QUALITY = 256, 92
LONGER = 341  # from the tiles' 4:3, for a peer that takes the longer side only
SHARD_BYTES = 16_000_000  # enough shards to divide the work evenly
WORKERS = 2


def shardio(task: str, variant: str, workload: Workload, source: Path, out: Path) -> Callable[[], None]:
    """Run `convert` on a folder of images or a `.npy` file."""
    from shardio.conversion.api import convert
    from shardio.conversion.reencode import ReencodeOptions
    from shardio.conversion.transformed_source import TransformedSource
    from shardio_converters import imagefolder, numpy

    made: Any = numpy.numpy(source) if task == "tensors" else imagefolder.imagefolder(source)
    if task == "small":
        made = TransformedSource(made, ReencodeOptions(resize_shorter=SHORTER, quality=QUALITY), {})

    restarts = variant == "restarts"
    options: dict[str, Any] = {"container": "tar" if restarts else variant, "jpeg_restarts": restarts}

    def run() -> None:
        convert(made, out, workers=WORKERS, shard_size=SHARD_BYTES, **options)

    return run


def webdataset(task: str, variant: str, workload: Workload, source: Path, out: Path) -> Callable[[], None]:
    """Run a ShardWriter in each process."""
    importlib.import_module("webdataset")
    return partial(_in_parts, _webdataset_part, task, _items(task, workload, source), out)


def _webdataset_part(task: str, items: Any, out: Path, part: int) -> None:
    from webdataset import ShardWriter

    with ShardWriter(str(out / f"{part}-%06d.tar"), maxsize=SHARD_BYTES, verbose=0) as writer:
        for number, sample in _samples(task, items, part):
            if task == "tensors":
                writer.write({"__key__": f"{number:012d}", "npy": sample})
            else:
                writer.write({"__key__": f"{number:012d}", "jpg": sample[0], "cls": sample[1]})


def streaming(task: str, variant: str, workload: Workload, source: Path, out: Path) -> Callable[[], None]:
    """Run an MDSWriter in each process and merge their indexes, as the manual says."""
    from streaming.base.util import merge_index

    items = _items(task, workload, source)

    def run() -> None:
        _in_parts(_streaming_part, task, items, out, workload)
        merge_index(str(out), keep_local=True)

    return run


def _streaming_part(task: str, items: Any, out: Path, workload: Workload, part: int) -> None:
    from streaming import MDSWriter

    shape = ",".join(map(str, workload.shape))
    columns = (
        {"array": f"ndarray:{workload.dtype}:{shape}"} if task == "tensors" else {"image": "bytes", "label": "int"}
    )
    with MDSWriter(out=str(out / str(part)), columns=columns, size_limit=SHARD_BYTES) as writer:
        for _, sample in _samples(task, items, part):
            writer.write({"array": sample} if task == "tensors" else {"image": sample[0], "label": sample[1]})


def litdata(task: str, variant: str, workload: Workload, source: Path, out: Path) -> Callable[[], None]:
    """Run `optimize` with as many workers."""
    import litdata as library

    inputs: list[Any] = list(range(workload.count))
    if task != "tensors":
        inputs = [(str(path), label) for path, label in photos(source, workload.count)]
    make = partial(_litdata_array, workload, source) if task == "tensors" else partial(_litdata_photo, task)
    how: dict[str, Any] = {"chunk_bytes": SHARD_BYTES, "num_workers": WORKERS, "start_method": "fork"}
    return partial(library.optimize, make, inputs, output_dir=str(out), **how)


def _litdata_photo(task: str, item: tuple[str, int]) -> Any:
    return _photo(task, Path(item[0])), item[1]


def _litdata_array(workload: Workload, source: Path, number: int) -> Any:
    import torch

    return torch.from_numpy(np.array(arrays(workload, source)[number]))


def ffcv(task: str, variant: str, workload: Workload, source: Path, out: Path) -> Callable[[], None]:
    """Run `DatasetWriter` with as many workers; it resizes photos itself, from pixels decoded by OpenCV."""
    from ffcv.fields import IntField, NDArrayField, RGBImageField
    from ffcv.writer import DatasetWriter

    from benchmarks.bench_ffcv import _array, _signed, _stored_field
    from benchmarks.bench_ffcv import _photo as _photo_bytes

    data: Any
    fields: dict[str, Any]
    if task == "tensors":
        dtype = np.dtype(_signed(workload.dtype))
        fields = {"array": NDArrayField(dtype=dtype, shape=workload.shape)}
        data = Items(_array, arrays(workload, source).view(dtype))
    elif task == "small":
        image = RGBImageField(write_mode="jpg", max_resolution=LONGER, jpeg_quality=QUALITY)
        fields, data = {"image": image, "label": IntField()}, Items(_decoded, photos(source, workload.count))
    else:
        fields = {"image": _stored_field(), "label": IntField()}
        data = Items(_photo_bytes, photos(source, workload.count))

    def run() -> None:
        out.mkdir()
        DatasetWriter(str(out / "data.beton"), fields, num_workers=WORKERS).from_indexed_dataset(data)

    return run


def _decoded(item: tuple[Path, int]) -> tuple[Any, int]:
    import cv2

    return cv2.imread(str(item[0]), cv2.IMREAD_COLOR_RGB if hasattr(cv2, "IMREAD_COLOR_RGB") else 1), item[1]


def _in_parts(work: Any, task: str, items: Any, out: Path, *arguments: Any) -> None:
    """Run `work` in several processes, each with every n-th sample."""
    out.mkdir()
    context = multiprocessing.get_context("fork")
    parts = [context.Process(target=work, args=(task, items, out, *arguments, part)) for part in range(WORKERS)]
    for process in parts:
        process.start()
    for process in parts:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a part ended with {process.exitcode}")


def _items(task: str, workload: Workload, source: Path) -> Any:
    return arrays(workload, source) if task == "tensors" else photos(source, workload.count)


def _samples(task: str, items: Any, part: int) -> Iterator[tuple[int, Any]]:
    for number in range(part, len(items), WORKERS):
        if task == "tensors":
            yield number, np.array(items[number])
        else:
            path, label = items[number]
            yield number, (_photo(task, path), label)


def _photo(task: str, path: Path) -> bytes:
    """The file itself, or a smaller JPEG of it by OpenCV, the fastest encoder from PyPI."""
    data = path.read_bytes()
    if task == "photos":
        return data
    import cv2

    cv2.setNumThreads(1)
    image: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    scale = SHORTER / min(image.shape[:2])
    if scale < 1:
        size = (round(image.shape[1] * scale), round(image.shape[0] * scale))
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    return bytes(cv2.imencode(".jpg", image, (cv2.IMWRITE_JPEG_QUALITY, QUALITY))[1])


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main(order: dict[str, Any]) -> dict[str, Any]:
    """Pack once; return the seconds of packing, the seconds until all is on the disk, bytes and versions."""
    out = Path(order["out"])
    workload = Workload(**order["workload"])
    prepare = globals()[order["library"]]
    run = prepare(order["task"], order["variant"], workload, Path(order["source"]), out)
    os.sync()
    begun = time.perf_counter()
    run()
    done = time.perf_counter()
    os.sync()
    synced = time.perf_counter()
    versions = {name: importlib.metadata.version(name) for name in order["versions"]}
    return {"seconds": done - begun, "seconds_on_disk": synced - begun, "bytes": _size(out), "versions": versions}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
