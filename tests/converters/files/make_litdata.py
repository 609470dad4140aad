"""Write the LitData test files with the package litdata. Run it by hand where litdata is installed:

python tests/converters/files/make_litdata.py
"""

import io
import shutil
from pathlib import Path
from typing import Any

import litdata
import numpy as np
import torch
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


def main() -> None:
    """Write samples that are dicts, tuples, and refused."""
    shutil.rmtree(HERE, ignore_errors=True)
    for name, make in (("dicts", sample), ("pairs", pair), ("pickles", pickled)):
        options: dict[str, Any] = {"chunk_size": 2, "num_workers": 1, "start_method": "fork"}
        litdata.optimize(make, list(range(COUNT)), output_dir=str(HERE / name), **options)


if __name__ == "__main__":
    main()
