"""IDX files become samples without loss; files that contradict themselves or each other are refused."""

import gzip
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

    @pytest.mark.parametrize("dtype", ["i1", "i4"])
    def test_labels_of_any_integer_type(self, tmp_path: Path, dtype: str) -> None:
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

    def test_classes_are_named(self, tmp_path: Path) -> None:
        """Class names go to the metadata."""
        idx_pair(tmp_path)
        assert idx(tmp_path, classes="shirt, coat,bag").metadata["classes"] == ["shirt", "coat", "bag"]


ZEROS, LABELS = np.zeros((6, 5, 4), np.uint8), np.array([0, 1, 2, 0, 1, 2], np.uint8)
PAIR = {"images": ZEROS, "labels": LABELS}


class TestRefusals:
    @pytest.mark.parametrize("zipped", [False, True])
    @pytest.mark.parametrize(
        ("shape", "extra", "expected", "holds"),
        [
            ((6, 5, 4), b"", 120, 100),  # one image short
            ((5, 5, 4), b"xx", 100, 102),  # two bytes too many
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
        write_idx(tmp_path / "images", np.zeros((6, 5, 4), np.uint8))
        write_idx(tmp_path / "labels", np.zeros(5, np.uint8), zipped=zipped, shape=(6,), extra=extra)
        with pytest.raises(SourceError, match=rf"labels must hold 6 bytes .* it holds {5 + len(extra)}$"):
            idx(tmp_path)

    @pytest.mark.parametrize(
        ("files", "options", "message"),
        [
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
                    np.zeros(3, np.float64),  # labels that are no integers
                )
            ),
            *(({"images": np.zeros(shape, np.uint8)}, {}, "no images") for shape in ((0, 5, 4), (3, 5, 0))),
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
