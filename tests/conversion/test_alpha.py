"""What becomes of alpha channels: kept in the files, dropped by a Loader as Pillow does, kept in arrays."""

from pathlib import Path

import cv2
import numpy as np
from _builders import png

import shardio

PIXELS = cv2.cvtColor(cv2.imdecode(np.frombuffer(png(20, 30, 4), np.uint8), cv2.IMREAD_UNCHANGED), cv2.COLOR_BGRA2RGBA)


def test_a_loader_drops_alpha_and_the_file_keeps_it(tmp_path: Path) -> None:
    """The stored file is the same; the Loader gives the colours beneath transparent pixels."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(png(20, 30, 4))
    for pixels in (False, True):
        made = shardio.convert(
            tmp_path / "in", tmp_path / f"out {pixels}", converter="imagefolder", store_pixels=pixels, container="hdf5"
        )
        if not pixels:
            assert shardio.open(made.path)[0]["image"] == png(20, 30, 4)
        (batch,) = shardio.Loader(made.path, batch_size=1)
        np.testing.assert_array_equal(batch["image"][0].numpy(), PIXELS[..., :3])
