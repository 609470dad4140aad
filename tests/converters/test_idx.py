"""IDX files become samples without loss; files that contradict themselves or each other are refused."""

import gzip
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from _builders import idx_bytes, idx_pair, pixels, write_idx
from numpy.typing import NDArray

from shardio.errors import ConfigError, SourceError
from shardio.format.fields import Field
from shardio.format.images import ImageInfo, probe
from shardio_converters.idx import Idx, idx

EXAMPLES = Path(__file__).parents[2] / "examples"


def decoded(source: Idx) -> NDArray[np.uint8]:
    """All images, decoded by OpenCV; colours as RGB."""
    images = [
        cv2.imdecode(np.frombuffer(source[index]["image"], np.uint8), cv2.IMREAD_UNCHANGED)
        for index in range(len(source.sizes()))
    ]
    stack = np.stack([np.asarray(image, np.uint8) for image in images])
    return stack[..., ::-1] if stack.ndim == 4 else stack


def labels_of(source: Idx) -> list[int]:
    """All labels."""
    return [source[index]["label"] for index in range(len(source.sizes()))]


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
        assert decoded(source).tolist() == images.tolist()
        assert labels_of(source) == labels.tolist()
        assert probe(source[0]["image"]) == ImageInfo("png", 5, 4, 1)
        assert source.sizes().tolist() == [20] * 6
        assert source.sizes().dtype == np.int64

    def test_colours(self, tmp_path: Path) -> None:
        """Four dimensions are colour images, channels in RGB order."""
        images = np.stack([pixels(5, 4, 3, seed=seed) for seed in range(3)])
        write_idx(tmp_path / "images", images)
        source = idx(tmp_path)
        assert dict(source.fields) == {"image": Field("image", shape=(5, 4), channels=3)}
        assert decoded(source).tolist() == images.tolist()
        assert source.sizes().tolist() == [60] * 3

    @pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4"])
    def test_labels_of_any_whole_type(self, tmp_path: Path, dtype: str) -> None:
        """Labels may be big-endian integers of 1, 2 or 4 bytes, signed or not."""
        write_idx(tmp_path / "images", np.zeros((3, 2, 2), np.uint8))
        write_idx(tmp_path / "labels", np.array([0, 1, 100], dtype))
        assert labels_of(idx(tmp_path)) == [0, 1, 100]

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
        assert decoded(source).tolist() == images.tolist()
        assert labels_of(source) == labels.tolist()

    def test_split_takes_files_by_their_prefix(self, tmp_path: Path) -> None:
        """`split` selects the training or test files of one folder by prefix."""
        train, _ = idx_pair(tmp_path, 6, prefix="train-")
        test, _ = idx_pair(tmp_path, 3, prefix="t10k-")
        assert decoded(idx(tmp_path, subset="train")).tolist() == train.tolist()
        assert decoded(idx(tmp_path, subset="t10k")).tolist() == test.tolist()

    @pytest.mark.parametrize("classes", ["shirt, coat,bag", ["shirt", "coat", "bag"]])
    def test_classes_are_named(self, tmp_path: Path, classes: str | list[str]) -> None:
        """Class names from text or a list go to the metadata."""
        idx_pair(tmp_path)
        assert idx(tmp_path, classes=classes).metadata == {"source": "idx", "classes": ["shirt", "coat", "bag"]}


class TestWorkers:
    @pytest.mark.parametrize("zipped", [False, True])
    def test_pickling_sends_paths(self, tmp_path: Path, zipped: bool) -> None:
        """A pickled source is a few hundred bytes and reads the files itself."""
        images, labels = idx_pair(tmp_path, 200, height=28, width=28, zipped=zipped)
        source = idx(tmp_path, classes="a,b,c")
        sent = pickle.dumps(source)
        assert len(sent) < 2000
        copy = pickle.loads(sent)  # noqa: S301
        assert decoded(copy).tolist() == images.tolist()
        assert labels_of(copy) == labels.tolist()
        assert copy.metadata == source.metadata

    def test_a_file_that_shrinks_is_found_by_the_worker(self, tmp_path: Path) -> None:
        """A file that shrinks after the check is refused when the pickled source is loaded."""
        idx_pair(tmp_path)
        sent = pickle.dumps(idx(tmp_path))
        path = tmp_path / "images-idx3-ubyte"
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(SourceError, match="must hold 120 bytes"):
            pickle.loads(sent)[0]  # noqa: S301

    @pytest.mark.parametrize("index", [-1, 6])
    def test_an_index_outside_is_an_error(self, tmp_path: Path, index: int) -> None:
        """An index below 0 or past the end is an error."""
        idx_pair(tmp_path)
        with pytest.raises(IndexError, match=rf"index must be in \[0, 6\), got {index}"):
            idx(tmp_path)[index]


class TestRefusals:
    @pytest.mark.parametrize("count", [5, 7])
    def test_another_number_of_labels(self, tmp_path: Path, count: int) -> None:
        """Files with different counts are refused with both counts."""
        idx_pair(tmp_path)
        write_idx(tmp_path / "labels-idx1-ubyte", np.zeros(count, np.uint8))
        with pytest.raises(SourceError, match=rf"images-idx3-ubyte holds 6 images, .*labels-idx1-ubyte {count} labels"):
            idx(tmp_path)

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
        "damage",
        [
            lambda data: data[:-9],  # cut in the checksum
            lambda data: data[: len(data) // 2],  # cut in the numbers
            lambda data: data[:12],  # cut in the IDX header
            lambda data: data[:40] + bytes(20) + data[60:],  # overwritten
            lambda data: data[:-8] + bytes(8),  # the checksum itself
        ],
    )
    def test_a_corrupt_gzip(self, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
        """A corrupt gzip file is refused."""
        idx_pair(tmp_path, 30, zipped=True)
        path = tmp_path / "images-idx3-ubyte.gz"
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(SourceError, match=r"images-idx3-ubyte.gz cannot be (read|unpacked): "):
            idx(tmp_path)

    def test_a_header_cut_short(self, tmp_path: Path) -> None:
        """A file that ends within its header is refused."""
        (tmp_path / "images").write_bytes(idx_bytes(np.zeros((5, 5, 4), np.uint8))[:10])
        with pytest.raises(SourceError, match="must hold 12 bytes of sizes after its mark, it holds 6"):
            idx(tmp_path)

    def test_more_than_one_pair(self, tmp_path: Path) -> None:
        """Several pairs are refused with a list of the files and advice on how to choose."""
        idx_pair(tmp_path, prefix="train-")
        idx_pair(tmp_path, prefix="t10k-")
        with pytest.raises(SourceError, match=r"t10k-images.*, train-labels.*; point at .*subset=\"train\""):
            idx(tmp_path)

    def test_two_files_of_labels(self, tmp_path: Path) -> None:
        """Two files of labels for one file of images are refused."""
        idx_pair(tmp_path)
        write_idx(tmp_path / "fine-labels", np.zeros(6, np.uint8))
        with pytest.raises(SourceError, match="more than one pair of IDX files: fine-labels, images"):
            idx(tmp_path)

    @pytest.mark.parametrize(
        "array",
        [
            np.zeros((3, 2), np.uint8),  # neither a list nor images
            np.zeros((3, 2, 2), np.float32),  # pixels that are no bytes
            np.zeros((3, 2, 2, 4), np.uint8),  # four colours
            np.zeros(3, np.float64),  # labels that are no whole numbers
        ],
    )
    def test_numbers_that_are_neither_images_nor_labels(self, tmp_path: Path, array: NDArray[np.generic]) -> None:
        """An IDX file that holds neither images nor labels is refused."""
        write_idx(tmp_path / "images", np.zeros((3, 2, 2), np.uint8))
        write_idx(tmp_path / "strange", array)
        with pytest.raises(SourceError, match=r"strange is neither images, .* nor labels"):
            idx(tmp_path)

    @pytest.mark.parametrize("shape", [(0, 5, 4), (3, 0, 4), (3, 5, 0)])
    def test_no_images(self, tmp_path: Path, shape: tuple[int, ...]) -> None:
        """A file without images is refused."""
        write_idx(tmp_path / "images", np.zeros(shape, np.uint8))
        with pytest.raises(SourceError, match="holds no images"):
            idx(tmp_path)

    @pytest.mark.parametrize(
        ("split", "reason"),
        [(None, "holds no IDX file of images$"), ("train", "of images whose name begins with 'train-'")],
    )
    def test_a_directory_without_images(self, tmp_path: Path, split: str | None, reason: str) -> None:
        """A directory without images is refused with what was searched for."""
        write_idx(tmp_path / "labels", np.zeros(3, np.uint8))
        with pytest.raises(SourceError, match=reason):
            idx(tmp_path, subset=split)

    @pytest.mark.parametrize("name", ["missing", "images-idx3-ubyte"])
    def test_not_a_directory(self, tmp_path: Path, name: str) -> None:
        """A path to a file is refused."""
        idx_pair(tmp_path)
        with pytest.raises(SourceError, match=rf"idx takes a directory, .*{name} cannot be read"):
            idx(tmp_path / name)

    def test_fewer_classes_than_labels(self, tmp_path: Path) -> None:
        """A label without a class name is refused."""
        idx_pair(tmp_path)
        with pytest.raises(SourceError, match=r"with 2 classes labels must be in \[0, 2\), got 0 to 2"):
            idx(tmp_path, classes="shirt,coat")

    def test_classes_without_labels(self, tmp_path: Path) -> None:
        """Class names without labels are refused."""
        write_idx(tmp_path / "images", np.zeros((3, 2, 2), np.uint8))
        with pytest.raises(ConfigError, match="classes need labels"):
            idx(tmp_path, classes="shirt,coat")


class TestExample:
    @pytest.mark.parametrize(("part", "count"), [("train", 500), ("test", 100)])
    def test_the_example_is_balanced(self, part: str, count: int) -> None:
        """The Fashion-MNIST example has ten classes with equally many images."""
        source = idx(EXAMPLES / "fashion-mnist" / part)
        assert source.fields["image"] == Field("image", shape=(28, 28), channels=1)
        assert np.bincount(labels_of(source)).tolist() == [count] * 10

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
        assert labels_of(source) == np.repeat(np.arange(3), 100).tolist()
        firsts = [4 * index % 256 for start in (0, 150, 300) for index in range(start, start + 100)]
        assert decoded(source)[:, 0, 0].tolist() == firsts
        made = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.gz")]
        assert len(made) == 4
        assert [(tmp_path / "one" / path).read_bytes() for path in made] == [
            (tmp_path / "two" / path).read_bytes() for path in made
        ]
