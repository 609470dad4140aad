"""IDX files become samples without loss; files that contradict themselves or each other are refused."""

import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import idx_bytes, idx_pair, pixels, write_idx
from _sources import column, images_of

from shardio.errors import ConfigError, SourceError
from shardio.format.fields import Field
from shardio.format.images import ImageInfo, probe
from shardio_converters.idx import idx

EXAMPLES = Path(__file__).parents[2] / "examples"


class TestSamples:
    @pytest.mark.parametrize("zipped", [False, True])
    def test_images_and_labels(self, tmp_path: Path, zipped: bool) -> None:
        """Every pixel and label of a pair of files is kept, gzipped or not."""
        images, labels = idx_pair(tmp_path, zipped=zipped)
        source = idx(tmp_path)
        assert dict(source.fields) == {
            "image": Field("image", shape=(5, 4), channels=1),
            "label": Field("scalar", dtype="int64"),
        }
        assert source.metadata == {"source": "idx"}
        assert images_of(source) == images.tolist()
        assert column(source, "label") == labels.tolist()
        assert probe(source[0]["image"]) == ImageInfo("png", 5, 4, 1)
        assert source.sizes().tolist() == [20] * 6
        assert source.sizes().dtype == np.int64

    def test_colours(self, tmp_path: Path) -> None:
        """Four dimensions are colour images, channels in RGB order."""
        images = np.stack([pixels(5, 4, 3, seed=seed) for seed in range(3)])
        write_idx(tmp_path / "images", images)
        source = idx(tmp_path)
        assert dict(source.fields) == {"image": Field("image", shape=(5, 4), channels=3)}
        assert images_of(source) == images.tolist()
        assert source.sizes().tolist() == [60] * 3

    @pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4"])
    def test_labels_of_any_whole_type(self, tmp_path: Path, dtype: str) -> None:
        """Labels may be big-endian integers of 1, 2 or 4 bytes, signed or not."""
        write_idx(tmp_path / "images", np.zeros((3, 2, 2), np.uint8))
        write_idx(tmp_path / "labels", np.array([0, 1, 100], dtype))
        assert column(idx(tmp_path), "label") == [0, 1, 100]

    def test_files_are_known_by_content(self, tmp_path: Path) -> None:
        """Files are recognised by content, not name, and files that are not IDX are ignored."""
        images, labels = idx_pair(tmp_path)
        (tmp_path / "images-idx3-ubyte").rename(tmp_path / "labels.gz")
        (tmp_path / "labels-idx1-ubyte").rename(tmp_path / "b.png")
        (tmp_path / "README.md").write_text("words")
        (tmp_path / "README.gz").write_bytes(gzip.compress(b"words"))
        (tmp_path / "empty").touch()
        (tmp_path / "zeros").write_bytes(bytes(100))  # no type is 0
        (tmp_path / "folder").mkdir()
        source = idx(tmp_path)
        assert images_of(source) == images.tolist()
        assert column(source, "label") == labels.tolist()

    def test_split_takes_files_by_their_prefix(self, tmp_path: Path) -> None:
        """`split` selects the training or test files of one folder by prefix."""
        train, _ = idx_pair(tmp_path, 6, prefix="train-")
        test, _ = idx_pair(tmp_path, 3, prefix="t10k-")
        assert images_of(idx(tmp_path, subset="train")) == train.tolist()
        assert images_of(idx(tmp_path, subset="t10k")) == test.tolist()

    @pytest.mark.parametrize("classes", ["shirt, coat,bag", ["shirt", "coat", "bag"]])
    def test_classes_are_named(self, tmp_path: Path, classes: str | list[str]) -> None:
        """Class names from text or a list go to the metadata."""
        idx_pair(tmp_path)
        assert idx(tmp_path, classes=classes).metadata == {"source": "idx", "classes": ["shirt", "coat", "bag"]}


ZEROS, LABELS = np.zeros((6, 5, 4), np.uint8), np.array([0, 1, 2, 0, 1, 2], np.uint8)
PAIR = {"images": ZEROS, "labels": LABELS}


class TestRefusals:
    @pytest.mark.parametrize("zipped", [False, True])
    @pytest.mark.parametrize(
        ("shape", "extra", "expected", "holds"),
        [
            ((6, 5, 4), b"", 120, 100),  # one image short
            ((5, 5, 4), b"x", 100, 101),  # one byte too many
            ((2**31, 2**31, 4), b"", 2**64, 100),  # more than fits into memory
        ],
    )
    def test_images_that_are_not_as_long_as_their_header_says(
        self, tmp_path: Path, zipped: bool, shape: tuple[int, ...], extra: bytes, expected: int, holds: int
    ) -> None:
        """A file shorter or longer than its header says is refused with both sizes."""
        write_idx(tmp_path / "images", np.zeros((5, 5, 4), np.uint8), zipped=zipped, shape=shape, extra=extra)
        with pytest.raises(SourceError, match=rf"images must hold {expected} bytes .* it holds {holds}$"):
            idx(tmp_path)

    @pytest.mark.parametrize("zipped", [False, True])
    @pytest.mark.parametrize(("labels", "extra", "holds"), [(5, b"", 5), (6, b"more", 10)])
    def test_labels_that_are_not_as_long_as_their_header_says(
        self, tmp_path: Path, zipped: bool, labels: int, extra: bytes, holds: int
    ) -> None:
        """Labels shorter than their header says are refused, even if the header matches the images."""
        write_idx(tmp_path / "images", np.zeros((6, 5, 4), np.uint8))
        write_idx(tmp_path / "labels", np.zeros(labels, np.uint8), zipped=zipped, shape=(6,), extra=extra)
        with pytest.raises(SourceError, match=rf"labels must hold 6 bytes .* it holds {holds}$"):
            idx(tmp_path)

    @pytest.mark.parametrize(
        ("files", "options", "message"),
        [
            ({"images": ZEROS, "labels": LABELS[:5]}, {}, "images holds 6 images, .*labels 5 labels"),
            ({"images": ZEROS, "labels": np.zeros(7, np.uint8)}, {}, "images holds 6 images, .*labels 7 labels"),
            ({"images": idx_bytes(ZEROS)[:10]}, {}, "must hold 12 bytes of sizes after its mark, it holds 6"),
            (
                {f"{part}-{name}": data for part in ("train", "t10k") for name, data in PAIR.items()},
                {},
                r"t10k-images, .* train-labels; point at .*subset=\"train\"",
            ),
            (PAIR | {"fine": LABELS}, {}, "more than one pair of IDX files: fine, images"),
            *(
                (PAIR | {"strange": array}, {}, r"strange is neither images, .* nor labels")
                for array in (
                    np.zeros((3, 2), np.uint8),  # neither a list nor images
                    np.zeros((3, 2, 2), np.float32),  # pixels that are no bytes
                    np.zeros((3, 2, 2, 4), np.uint8),  # four colours
                    np.zeros(3, np.float64),  # labels that are no whole numbers
                )
            ),
            *(({"images": np.zeros(shape, np.uint8)}, {}, "no images") for shape in ((0, 5, 4), (3, 0, 4), (3, 5, 0))),
            ({"labels": LABELS}, {}, "holds no IDX file of images$"),
            ({"labels": LABELS}, {"subset": "train"}, "of images whose name begins with 'train-'"),
            (PAIR, {"classes": "shirt,coat"}, r"with 2 classes labels must be in \[0, 2\), got 0 to 2"),
            ({"images": ZEROS}, {"classes": "shirt,coat"}, "classes need labels"),
        ],
    )
    def test_files_that_do_not_fit(
        self, tmp_path: Path, files: dict[str, Any], options: dict[str, str], message: str
    ) -> None:
        """Files that contradict themselves, each other or the classes are refused with what is wrong."""
        for name, data in files.items():
            (tmp_path / name).write_bytes(data if isinstance(data, bytes) else idx_bytes(data))
        with pytest.raises((SourceError, ConfigError), match=message):
            idx(tmp_path, **options)

    def test_not_a_directory(self, tmp_path: Path) -> None:
        """A path to a file is refused."""
        idx_pair(tmp_path)
        with pytest.raises(SourceError, match=r"idx takes a directory, .*images-idx3-ubyte cannot be read"):
            idx(tmp_path / "images-idx3-ubyte")


class TestExample:
    @pytest.mark.parametrize(("part", "count"), [("train", 500), ("test", 100)])
    def test_the_example_is_balanced(self, part: str, count: int) -> None:
        """The Fashion-MNIST example has ten classes with equally many images."""
        source = idx(EXAMPLES / "fashion-mnist" / part)
        assert source.fields["image"] == Field("image", shape=(28, 28), channels=1)
        assert np.bincount(column(source, "label")).tolist() == [count] * 10

    def test_the_script_takes_the_first_of_each_class(self, tmp_path: Path) -> None:
        """The script that made the example keeps the order and writes the same bytes each time."""
        labels = {"train": np.repeat(np.arange(3), 600), "t10k": np.repeat(np.arange(3), 150)}
        for prefix, values in labels.items():
            images = np.arange(len(values) * 4).reshape(-1, 2, 2).astype(np.uint8)
            write_idx(tmp_path / "in" / f"{prefix}-images-idx3-ubyte.gz", images, zipped=True)
            write_idx(tmp_path / "in" / f"{prefix}-labels-idx1-ubyte.gz", values.astype(np.uint8), zipped=True)
        for out in ("one", "two"):
            script = str(EXAMPLES / "make_fashion_mnist.py")
            subprocess.run([sys.executable, script, tmp_path / "in", tmp_path / out], check=True, capture_output=True)
        source = idx(tmp_path / "one" / "test")
        assert column(source, "label") == np.repeat(np.arange(3), 100).tolist()
        firsts = [4 * index % 256 for start in (0, 150, 300) for index in range(start, start + 100)]
        assert [image[0][0] for image in images_of(source)] == firsts
        made = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.gz")]
        assert len(made) == 4
        assert [(tmp_path / "one" / path).read_bytes() for path in made] == [
            (tmp_path / "two" / path).read_bytes() for path in made
        ]
