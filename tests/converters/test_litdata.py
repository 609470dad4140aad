"""Datasets that litdata wrote become samples, read by litdata; indexes that would run code are refused before."""

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from _datasets import files
from _sources import changed

from shardio.errors import BadSample, ConfigError, MissingDependency, SourceError
from shardio.format.images import sniff
from shardio.testing import check_source
from shardio_converters.litdata import litdata

FILES = Path(__file__).parent / "files" / "litdata"
"""By make_litdata.py, which says what is in them."""

INSTALLED = importlib.util.find_spec("litdata") is not None
needs_litdata = pytest.mark.skipif(not INSTALLED, reason="litdata is not installed")


def of_type(kind: str) -> Callable[[Any], object]:
    """A change of the type of samples."""
    return lambda i: i["config"].update(data_spec=i["config"]["data_spec"].replace("builtins.dict", kind))


@needs_litdata
@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # litdata, once per process
def test_every_kind(tmp_path: Path) -> None:
    """Values of every kind are read, files byte for byte."""
    source = litdata(FILES / "dicts")
    expected = []
    for number in range(5):
        image, pixels = source[number]["image"], source[number]["pixels"]
        assert [sniff(image), sniff(pixels)] == ["jpeg", "png"]
        assert image in (FILES / "dicts" / f"chunk-0-{number // 2}.bin").read_bytes()
        decoded = cv2.imdecode(np.frombuffer(pixels, np.uint8), cv2.IMREAD_COLOR)
        np.testing.assert_array_equal(decoded, np.full((4, 5, 3), (3, 2, number)))
        expected.append(
            {
                "image": image,
                "pixels": pixels,
                "label": number,
                "array": np.arange(6, dtype=np.float32).reshape(2, 3) + np.float32(number),
                "tokens": np.arange(number + 1),
                "flat": np.arange(3, dtype=np.int16) - np.int16(number),
                "text": f"größe {number}",
                "raw": bytes([255, number]),
                "share": number / 3,
                "odd": bool(number % 2),
                "nested": {"a": number, "b": [1, number]},
            }
        )
    kinds = {"image": "image", "array": ("float32", (2, 3)), "tokens": ("int64", (None,))}
    check_source(source, expected, tmp_path / "out", **kinds, nested="json", raw="bytes", odd="bool")
    assert source.metadata == {"source": "litdata"}


@needs_litdata
def test_tuples(tmp_path: Path) -> None:
    """Parts of tuples get names."""
    expected = [{"text": f"text {number}", "label": number} for number in range(5)]
    check_source(litdata(FILES / "pairs", names="text,label"), expected, tmp_path / "out")


NEEDS_ZSTD = pytest.mark.skipif(importlib.util.find_spec("zstd") is None, reason="LitData needs zstd for samples")


@needs_litdata
@pytest.mark.parametrize("level", ["chunk", "batch", pytest.param("sample", marks=NEEDS_ZSTD)])
def test_compressed(tmp_path: Path, level: str) -> None:
    """Chunks, batches and samples compressed with zstd are read in any order, and their directory stays as it is."""
    folder = Path(shutil.copytree(FILES / f"zstd-{level}", tmp_path / "in"))
    before = files(folder)
    expected = [{"array": np.full(40, number, np.int32), "text": f"text {number} " * 20} for number in range(5)]
    source = litdata(folder)
    check_source(source, expected, tmp_path / "out", array=("int32", (40,)))
    for number in (4, 0, 3, 1, 2, 0):
        assert source[number]["text"] == expected[number]["text"]
    assert files(folder) == before


@needs_litdata
@pytest.mark.parametrize("name", ["tokens", "tokens-zstd"])
def test_documents_of_tokens(tmp_path: Path, name: str) -> None:
    """What was written for a TokensLoader becomes documents, each as long as it was."""
    folder = Path(shutil.copytree(FILES / name, tmp_path / "in"))
    before = files(folder)
    source = litdata(folder)
    expected = [{"tokens": np.arange(n * n + 3, dtype=np.uint16) + np.uint16(65000)} for n in range(5)]
    check_source(source, expected, tmp_path / "out", tokens=("uint16", (None,)))
    assert source.sizes().tolist() == [(48 + 36 + 50) // 5] * 5
    assert source.remarks == ()
    assert files(folder) == before
    tensors = litdata(FILES / "tokens-tensor")
    assert tensors[4]["tokens"].tolist() == [100_000, 100_001, 100_002, 100_003, 100_004]
    assert tensors.fields["tokens"].dtype == "int32"


@needs_litdata
@pytest.mark.parametrize("name", ["tokens", "tokens-zstd"])
def test_blocks_of_tokens(tmp_path: Path, name: str) -> None:
    """`block_size` cuts each chunk as LitData's TokensLoader does, and a remark counts what is left at the ends."""
    chunks = [np.concatenate([np.arange(n * n + 3) for n in part]) + 65000 for part in ((0, 1, 2), (3,), (4,))]
    blocks = [chunk[start : start + 5] for chunk in chunks for start in range(0, len(chunk) - 4, 5)]
    source = litdata(FILES / name, names="text", block_size=5)
    expected = [{"text": block.astype(np.uint16)} for block in blocks]
    check_source(source, expected, tmp_path / "out", text=("uint16", (5,)))
    assert source.remarks == ("left out 10 tokens at the ends of 3 chunks, fewer than 5 each",)
    if name == "tokens":
        from litdata import StreamingDataset, TokensLoader

        theirs = StreamingDataset(str(FILES / name), item_loader=TokensLoader(block_size=5))
        assert [theirs[number].tolist() for number in range(len(theirs))] == [block.tolist() for block in blocks]


@needs_litdata
@pytest.mark.parametrize(
    ("name", "options"), [("dicts", {"block_size": 4}), ("tokens", {"block_size": 0}), ("tokens", {"block_size": True})]
)
def test_block_sizes_that_are_refused(name: str, options: dict[str, Any]) -> None:
    """A block has at least one token, and samples that are no tokens have no blocks."""
    told = "block_size must be at least 1, and goes with tokens for a TokensLoader, got"
    with pytest.raises(ConfigError, match=told):
        litdata(FILES / name, **options)


@needs_litdata
@pytest.mark.parametrize("keep", [0.5, 0.9])
@pytest.mark.parametrize("name", ["tokens", "tokens-zstd", "zstd-chunk", "zstd-batch"])
def test_chunks_that_are_cut_off(tmp_path: Path, name: str, keep: float) -> None:
    """A chunk that was cut off is refused by the index that says more, or its samples are bad and name it."""
    folder = Path(shutil.copytree(FILES / name, tmp_path / "in"))
    (path,) = folder.glob("chunk-0-1.*")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    if name == "tokens":
        with pytest.raises(SourceError, match="for which the file is too small"):
            litdata(folder)
        return
    source = litdata(folder)
    assert source[0]
    with pytest.raises(BadSample, match=r"in, sample 3: "):
        source[3]


@needs_litdata
def test_damage_is_a_bad_sample(tmp_path: Path) -> None:
    """A sample that LitData cannot read is named."""
    out = Path(shutil.copytree(FILES / "dicts", tmp_path / "out"))
    path = out / "chunk-0-1.bin"
    path.write_bytes(path.read_bytes().replace("größe 2".encode(), b"gr\xff\xff\xff\xffe 2"))
    with pytest.raises(BadSample, match="out, sample 2: UnicodeDecodeError"):
        litdata(out)[2]


@pytest.mark.skipif(INSTALLED, reason="litdata is installed")
def test_without_litdata() -> None:
    """The error says what to install."""
    with pytest.raises(MissingDependency, match=r"needs litdata: pip install 'litdata>=[\d.]+'$"):
        litdata(FILES / "dicts")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: i.pop("config"), "not an index of LitData: KeyError"),
        (lambda i: i.update(chunks=None), "not an index of LitData: TypeError"),
        (of_type("collections.defaultdict"), "single values, they are collections.defaultdict"),
        (lambda i: i["config"].update(data_spec="[2, {}]"), "not an index of LitData: KeyError: 'type'"),
        (lambda i: i["config"].update(data_spec="words"), "not an index of LitData: JSONDecodeError: Expecting value"),
        (lambda i: i["config"].update(compression="lz4"), "chunks are compressed by lz4, shardio unpacks zstd"),
        (lambda i: i["config"].update(encryption={"algorithm": "fernet"}), "chunks with encryption are not read"),
        (lambda i: i["config"].update(item_loader="ParquetLoader"), "the samples of a ParquetLoader cannot be taken"),
        (
            lambda i: i["config"].update(item_loader="TokensLoader"),
            "chunk-0-0.bin is said to hold 2 samples and None tok",
        ),
        (lambda i: i["chunks"][0].update(chunk_size=1 << 40), "for which the file is too small"),
        (lambda i: i["config"]["data_format"].append("video"), "the samples hold video: taken are bool, bytes"),
        (lambda i: i["chunks"][0].update(filename="../x.bin"), r"a file called '\.\./x.bin'"),
        (lambda i: i["chunks"][0].update(filename="x.bin"), "x.bin does not exist"),
    ],
)
def test_indexes_that_are_refused(change: Callable[[Any], object], message: str, tmp_path: Path) -> None:
    """What an index says wrongly, or what would run code, is refused before LitData sees it."""
    with pytest.raises(SourceError, match=message):
        litdata(changed(FILES / "dicts", tmp_path, change))


def test_what_is_no_dataset(tmp_path: Path) -> None:
    """A directory without an index is refused, and one of values that LitData pickles, which is never opened."""
    with pytest.raises(SourceError, match=r"index.json cannot be read: No such file"):
        litdata(tmp_path)
    with pytest.raises(SourceError, match="the samples hold pickle: pickles are never loaded"):
        litdata(FILES / "pickles")
