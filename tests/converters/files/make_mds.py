"""Write the MDS test files with MosaicML Streaming's own writer. Run it by hand where mosaicml-streaming is installed:

python tests/converters/files/make_mds.py

Its import takes clients of every cloud, so only its writer is imported.
"""

import importlib.machinery
import importlib.util
import io
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
COUNT = 5

COLUMNS = {
    "arrays": "ndarray",
    "bool": "uint8",
    "double": "float64",
    "fixed": "ndarray:float32:2,3",
    "id": "int",
    "image": "jpeg",
    "lossless": "png",
    "meta": "json",
    "pixels": "pil",
    "raw": "bytes",
    "str_int": "str_int",
    "text": "str",
    "tokens": "ndarray:int64",
}


def jpeg(number: int) -> bytes:
    """A small JPEG file."""
    stream = io.BytesIO()
    Image.new("RGB", (8, 6), (number * 40, 20, 200)).save(stream, "JPEG")
    return stream.getvalue()


def sample(number: int) -> dict[str, Any]:
    """One sample, with a value for each column."""
    return {
        "arrays": np.arange(2 * (number + 1), dtype=np.int16).reshape(2, -1) - number,
        "bool": number % 2,
        "double": number / 3,
        "fixed": np.full((2, 3), number / 7, np.float32),
        "id": number - 2,
        "image": Image.open(io.BytesIO(jpeg(number))),
        "lossless": Image.new("RGB", (5, 4), (number, 2, 3)),
        "meta": {"boxes": [number, {"a": 0.5}]},
        "pixels": Image.new("L" if number % 2 else "RGB", (7, 3), number),
        "raw": bytes([255, number]),
        "str_int": 10**15 + number,
        "text": f"größe {number}",
        "tokens": np.arange(number + 1),
    }


def main() -> None:
    """Write MDS datasets: in several shards, compressed, and with columns that are refused."""
    root = Path(str(importlib.util.find_spec("streaming").submodule_search_locations[0]))  # type: ignore[union-attr, index]  # it is installed
    for name, path in (("streaming", root), ("streaming.base", root / "base")):
        module = types.ModuleType(name)
        module.__path__ = [str(path)]
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
    from streaming.base.format.mds.writer import MDSWriter

    shutil.rmtree(HERE / "mds", ignore_errors=True)
    for folder, compression in (("plain", None), ("zstd", "zstd:3"), ("gz", "gz"), ("br", "br:1")):
        options = {"out": str(HERE / "mds" / folder), "compression": compression, "size_limit": 2600}
        with MDSWriter(columns=COLUMNS, **options) as writer:
            for number in range(COUNT if folder != "br" else 1):
                writer.write(sample(number))
    with MDSWriter(out=str(HERE / "mds" / "pickle"), columns={"x": "pkl", "y": "int"}) as writer:
        writer.write({"x": 1, "y": 2})


if __name__ == "__main__":
    main()
