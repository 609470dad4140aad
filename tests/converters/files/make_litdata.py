"""Write the LitData test files with the package litdata. Run it by hand where litdata and zstd are installed:

python tests/converters/files/make_litdata.py
"""

import io
import shutil
from pathlib import Path
from typing import Any

import litdata
import numpy as np
import torch
from litdata.streaming.item_loader import TokensLoader
from PIL import Image

HERE = Path(__file__).parent / "litdata"
COUNT = 5


def sample(number: int) -> dict[str, Any]:
    """One sample, with a value of each kind."""
    stream = io.BytesIO()
    Image.new("RGB", (8, 6), (number * 40, 20, 200)).save(stream, "JPEG")
    return {
        "image": Image.open(io.BytesIO(stream.getvalue())),
        "pixels": Image.new("RGB", (5, 4), (number, 2, 3)),
        "label": number,
        "array": np.arange(6, dtype=np.float32).reshape(2, 3) + number,
        "tokens": torch.arange(number + 1),
        "flat": np.arange(3, dtype=np.int16) - number,
        "text": f"größe {number}",
        "raw": bytes([255, number]),
        "share": number / 3,
        "odd": bool(number % 2),
        "nested": {"a": number, "b": [1, number]},
    }


def pair(number: int) -> tuple[str, int]:
    """A text and a label."""
    return f"text {number}", number


def pickled(number: int) -> dict[str, Any]:
    """A value that litdata pickles."""
    return {"x": complex(number, 1), "y": number}


def small(number: int) -> dict[str, Any]:
    """A sample that compresses well."""
    return {"array": np.full(40, number, np.int32), "text": f"text {number} " * 20}


def document(number: int) -> np.ndarray[Any, Any]:
    """Tokens of a document; there are 3, 4, 7, 12 and 19."""
    return np.arange(number * number + 3, dtype=np.uint16) + np.uint16(65000)


def long_document(number: int) -> torch.Tensor:
    """Tokens of a document that need 32 bits."""
    return torch.arange(number + 1, dtype=torch.int32) + 100_000


def main() -> None:
    """Write samples that are dicts, tuples, and refused; compressed in each way; and tokens."""
    shutil.rmtree(HERE, ignore_errors=True)
    options: dict[str, Any] = {"num_workers": 1, "start_method": "fork"}
    for name, make in (("dicts", sample), ("pairs", pair), ("pickles", pickled)):
        litdata.optimize(make, list(range(COUNT)), output_dir=str(HERE / name), chunk_size=2, **options)
    for level in ("chunk", "batch", "sample"):
        packed = {"compression": "zstd", "compression_level": level, "chunk_size": 2}
        litdata.optimize(small, list(range(COUNT)), output_dir=str(HERE / f"zstd-{level}"), **packed, **options)
    for name, tokens, packed in (
        ("tokens", document, {"chunk_size": 14}),
        ("tokens-tensor", long_document, {"chunk_size": 100}),
        ("tokens-zstd", document, {"chunk_size": 14, "compression": "zstd", "compression_level": "chunk"}),
    ):
        options["item_loader"] = TokensLoader()
        litdata.optimize(tokens, list(range(COUNT)), output_dir=str(HERE / name), **packed, **options)


if __name__ == "__main__":
    main()
