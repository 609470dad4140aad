"""What becomes of alpha channels: kept in the files, dropped by a Loader as Pillow does, kept in arrays."""

from pathlib import Path

import cv2
import numpy as np
from _builders import png, webp

import shardio
from shardio.conversion.reencode import ReencodeOptions
from shardio.format.images import probe

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


def test_alpha_of_images_that_shrink() -> None:
    """A PNG that shrinks keeps alpha; a WebP becomes a JPEG, which has none, and so does anything with `always`."""
    shrink = ReencodeOptions(resize_shorter=10)
    assert probe(shrink(png(20, 30, 4))).channels == 4
    assert probe(shrink(webp(20, 30, 4))).channels == 3
    assert probe(ReencodeOptions(recompress="always")(png(20, 30, 4))).channels == 3


def test_four_channels_as_an_array(tmp_path: Path) -> None:
    """Arrays [4, h, w] are delivered with all their channels."""
    np.savez(tmp_path / "a.npz", x=np.ascontiguousarray(PIXELS.transpose(2, 0, 1))[None])
    made = shardio.convert(tmp_path / "a.npz", tmp_path / "out", converter="numpy", container="hdf5")
    (batch,) = shardio.Loader(made.path, batch_size=1)
    assert tuple(batch["x"].shape) == (1, 4, 20, 30)
    np.testing.assert_array_equal(batch["x"][0].permute(1, 2, 0).numpy(), PIXELS)
