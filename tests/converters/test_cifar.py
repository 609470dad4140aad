"""CIFAR's binary files become samples without loss; archives, pickles and truncated files are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _sources import all_of, column, images_of
from numpy.typing import NDArray

from shardio.errors import ConfigError, SourceError
from shardio.format.fields import Field
from shardio.format.images import ImageInfo, probe
from shardio.testing import check_source
from shardio_converters.cifar import cifar

TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
COARSE = ("aquatic mammals", "fish", "flowers")
FINE = ("apple", "aquarium_fish", "baby", "bear", "beaver")


def images(count: int, seed: int = 0) -> NDArray[np.uint8]:
    """Noise, `[count, 32, 32, 3]`, in which no two colours or axes can be confused."""
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), np.uint8)


def write(path: Path, pixels: NDArray[np.uint8], *labels: list[int]) -> Path:
    """Write a file in the documented format: for each image its labels, then 1024 bytes of each colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [
        bytes(numbers) + b"".join(image[:, :, color].tobytes() for color in range(3))
        for image, *numbers in zip(pixels, *labels, strict=True)
    ]
    path.write_bytes(b"".join(records))
    return path


def ten(root: Path) -> NDArray[np.uint8]:
    """A small CIFAR-10: batches of 3, 2 and 1 images, of which batch 10 sorts before batch 2, and one test image."""
    pixels = images(7)
    write(root / "data_batch_1.bin", pixels[:3], [9, 0, 1])
    write(root / "data_batch_2.bin", pixels[3:5], [5, 3])
    write(root / "data_batch_10.bin", pixels[5:6], [7])
    write(root / "test_batch.bin", pixels[6:], [2])
    (root / "batches.meta.txt").write_text("\n".join(TEN) + "\n\n")
    (root / "readme.html").write_text("<html>")
    return pixels


def hundred(root: Path) -> NDArray[np.uint8]:
    """A small CIFAR-100: three training images and one test image."""
    pixels = images(4, seed=1)
    write(root / "train.bin", pixels[:3], [1, 0, 2], [4, 0, 3])
    write(root / "test.bin", pixels[3:], [2], [1])
    (root / "coarse_label_names.txt").write_text("\n".join(COARSE) + "\n")
    (root / "fine_label_names.txt").write_text("\n".join(FINE) + "\n")
    return pixels


class TestSamples:
    def test_cifar_10(self, tmp_path: Path) -> None:
        """Pixels, labels and classes of all batches are read in numerical order."""
        pixels = ten(tmp_path)
        source = cifar(tmp_path)
        assert images_of(source) == pixels[:6].tolist()
        assert column(source, "label") == [9, 0, 1, 5, 3, 7]
        assert source.metadata == {"source": "cifar", "classes": list(TEN)}
        assert dict(source.fields) == {
            "image": Field("image", shape=(32, 32), channels=3),
            "label": Field("scalar", dtype="int64"),
        }
        assert probe(source[0]["image"]) == ImageInfo("png", 32, 32, 3)
        assert source.sizes().tolist() == [3072] * 6
        assert source.column("coarse_label") is None
        check_source(source, all_of(source), tmp_path / "out")

    def test_cifar_100(self, tmp_path: Path) -> None:
        """The label is the fine label, which follows the coarse one in a record."""
        pixels = hundred(tmp_path)
        source = cifar(tmp_path)
        assert images_of(source) == pixels[:3].tolist()
        assert (column(source, "label"), column(source, "coarse_label")) == ([4, 0, 3], [1, 0, 2])
        assert source.metadata == {"source": "cifar", "classes": list(FINE), "coarse_classes": list(COARSE)}
        assert list(source.fields) == ["image", "label", "coarse_label"]
        check_source(source, all_of(source), tmp_path / "out")

    @pytest.mark.parametrize(
        ("folder", "write_to", "trained"), [("cifar-10-batches-bin", ten, 6), ("cifar-100-binary", hundred, 3)]
    )
    def test_the_test_images(self, tmp_path: Path, folder: str, write_to: Any, trained: int) -> None:
        """`subset` selects the test file; the folder above the unpacked one works, with the archive in it too."""
        pixels = write_to(tmp_path / folder)
        (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"\x1f\x8b")
        assert images_of(cifar(tmp_path)) == pixels[:trained].tolist()
        source = cifar(tmp_path, subset="test")
        assert images_of(source) == pixels[trained:].tolist()
        assert source[0]["label"] == {6: 2, 3: 1}[trained]


def without_test(root: Path) -> None:
    """CIFAR-10 without its test images."""
    ten(root)
    (root / "test_batch.bin").unlink()


def both(root: Path) -> None:
    """Both data sets in one directory."""
    ten(root / "cifar-10-batches-bin")
    hundred(root / "cifar-100-binary")


class TestRefusals:
    @pytest.mark.parametrize("size", [0, 3 * 3073 - 1, 3 * 3073 + 1])
    def test_a_file_cut_short(self, tmp_path: Path, size: int) -> None:
        """A file that is empty or holds part of a record is refused."""
        ten(tmp_path)
        path = tmp_path / "data_batch_1.bin"
        path.write_bytes((path.read_bytes() + b"x")[:size])
        told = rf"data_batch_1.bin must hold records of 3073 bytes, it holds {size} bytes"
        with pytest.raises(SourceError, match=told):
            cifar(tmp_path)

    def test_a_label_without_a_name(self, tmp_path: Path) -> None:
        """A label beyond the class names is refused with its record."""
        ten(tmp_path)
        write(tmp_path / "data_batch_2.bin", images(2), [5, 10])
        with pytest.raises(SourceError, match=r"data_batch_2.bin, record 1: label must be in \[0, 10\), got 10"):
            cifar(tmp_path)
        hundred(tmp_path / "100")
        write(tmp_path / "100" / "train.bin", images(1), [3], [0])
        with pytest.raises(SourceError, match=r"train.bin, record 0: coarse_label must be in \[0, 3\), got 3"):
            cifar(tmp_path / "100")

    @pytest.mark.parametrize(
        ("make", "name", "options", "message"),
        [
            (ten, "data_batch_1.bin", {}, r"takes a directory, .*data_batch_1.bin is a file; unpack an archive with"),
            (ten, "cifar.tar.gz", {}, r"takes a directory, .*cifar.tar.gz is a file; unpack an archive with tar -xzf"),
            (ten, "", {"subset": "val"}, "subset must be 'train' or 'test', got 'val'"),
            (without_test, "", {"subset": "test"}, "holds no files of test"),
            (both, "", {}, r"more than one data set: cifar-10-batches-bin in .*; point at one"),
            (lambda root: (root / "readme.html").touch(), "", {}, r"holds no data_batch_1.bin or .* or test.bin$"),
            (lambda root: None, "", {}, r"; unpack cifar.tar.gz first, with tar -xzf$"),
            (lambda root: (root / "data_batch_1").touch(), "", {}, "the Python version is pickles, which are not read"),
        ],
    )
    def test_what_is_no_cifar(self, tmp_path: Path, make: Any, name: str, options: Any, message: str) -> None:
        """Files, archives, other versions, several data sets and unknown subsets are refused with advice."""
        make(tmp_path)
        if "unpack" in message:
            (tmp_path / "cifar.tar.gz").write_bytes(b"\x1f\x8b")
        with pytest.raises((SourceError, ConfigError), match=message):
            cifar(tmp_path / name, **options)
