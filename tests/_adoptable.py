"""Files that other programs wrote, for `shardio index` to adopt."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from _builders import jpeg
from _foreign import example, write_tfrecord
from webdataset import ShardWriter

COUNT = 7
"""The number of samples of tars and TFRecords."""


def tars(folder: Path) -> Path:
    """Tars by webdataset's own writer, with every kind of field and three samples each."""
    folder.mkdir(parents=True, exist_ok=True)
    with ShardWriter(f"{folder}/train-%02d.tar", maxcount=3, verbose=0) as writer:
        for number in range(COUNT):
            sample = {"jpg": jpeg(seed=number), "cls": number - 2, "caption.txt": f"größe {number}"}
            sample |= {"json": {"b": 1, "a": [number]}, "box.npy": np.array([number, np.nan], np.float32)}
            sample |= {"tokens.npy": np.arange(number), "bin": bytes([number])}
            writer.write({"__key__": f"x{number}", **sample})
    return folder


def records(folder: Path) -> Path:
    """TFRecords with TensorFlow's naming, `NAME.tfrecord-00000-of-00002`."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [
        example(
            {"image": [jpeg(seed=n)], "label": [n], "score": [n / 4], "box": [0.5, float(n)], "name": [b"n%d" % n]}
            | {"wave": [n / 2] * (n % 3 + 1)}
        )
        for n in range(COUNT)
    ]
    for number in range(2):
        write_tfrecord(folder / f"train.tfrecord-{number:05d}-of-00002", made[number * 4 : number * 4 + 4])
    return folder


def tables(folder: Path, **options: Any) -> Path:
    """Two HDF5 files written by h5py."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(2):
        with h5py.File(folder / f"part{number}.h5", "w") as file:
            rows = np.arange(number * 40, number * 40 + 40)
            pixels = (rows[:, None] * 50 + np.arange(2000)).astype(np.uint8).reshape(-1, 20, 100)
            file.create_dataset("data/images", data=pixels, **options)
            file.create_dataset("data/boxes", data=rows[:, None] * np.ones((1, 2), ">f4"))
            file.create_dataset("labels", data=rows.astype(np.uint8))
            points = np.repeat(rows, rows % 4).astype(">i2")[:, None] * [1, -1]
            file["data/points/data"], file["data/points/offsets"] = points, np.cumsum([0, *rows % 4])
            file["names"] = [f"größe {row}" for row in rows.tolist()]
            files = file.create_dataset("jpegs", 40, h5py.vlen_dtype(np.uint8))
            for row in range(40):
                files[row] = np.frombuffer(jpeg(seed=row), np.uint8)
    return folder
