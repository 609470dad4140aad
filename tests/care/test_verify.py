"""Deep verification finds, names and counts every kind of damage, in every container, with any number of threads."""

import errno
import io
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import cv2
import h5py
import numpy as np
import pytest
from _adoptable import records
from _builders import CMYK_JPEG, bmp, encode, jpeg, pixels, png, spoiled, webp
from _datasets import CONTAINERS, FIELDS, packed
from PIL import Image

import shardio
from shardio import native
from shardio.care.verify import Verification, verify
from shardio.containers import piece_sums
from shardio.conversion.adopt import adopt
from shardio.engines import whole_images
from shardio.errors import BadSample, ConfigError, ShardCorrupt
from shardio.format import manifest
from shardio.format.fields import Field
from shardio.native.recode import find_damage
from shardio.system.threads import in_order
from shardio_converters.tfrecord import tfrecord


class Raw(bytes):
    """A value that is stored unchanged, whatever the kind of its field."""


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `Raw` values bypass the writer's checks, to store what a program without checks would store."""
    encode = Field.encode
    monkeypatch.setattr(
        Field, "encode", lambda self, value: bytes(value) if isinstance(value, Raw) else encode(self, value)
    )


def sample(number: int) -> dict[str, Any]:
    """A sample with a field of every kind; its bytes fields are unique within a file."""
    return {
        "image": jpeg(20 + number % 3, 30, seed=number),
        "label": number % 7,
        "key": f"key-{number:04d}",
        "grid": np.full((2, 3), 1000 + number, np.float32),
        "points": np.full(5, 2000 + number, np.int16),
        "blob": b"blob-%04d" % number,
        "note": {"n": f"note-{number:04d}"},
    }


def write(path: Path, container: str, count: int = 40, changes: dict[int, Any] | None = None) -> shardio.Dataset:
    """Write a dataset in several shards, with some samples replaced by `changes`."""
    samples = [sample(number) | (changes or {}).get(number, {}) for number in range(count)]
    return packed(path, samples, FIELDS, container=container, shard_size="13KB")


def deep(path: Path, **options: Any) -> Verification:
    """Verify the dataset at a path deeply, with new readers."""
    return verify(path, deep=True, **options)


def replace_in(dataset: shardio.Dataset, number: int, old: bytes, new: bytes) -> None:
    """Replace one value in the shard of a sample."""
    path = dataset.path / dataset.shard_of(number)
    data = path.read_bytes()
    assert data.count(old) == 1
    assert len(old) == len(new)
    path.write_bytes(data.replace(old, new))


@contextmanager
def changed_manifest(path: Path) -> Iterator[dict[str, Any]]:
    """The manifest of the dataset at a path as JSON values, which are written back as they are changed."""
    place = path / manifest.FILE_NAME
    told = json.loads(place.read_text())
    yield told
    place.write_text(json.dumps(told))


def forge(dataset: shardio.Dataset) -> None:
    """Make the manifest fit the files, without checksums of pieces, so that only deep verification finds the change."""
    with changed_manifest(dataset.path) as told:
        told.pop("piece_bytes", None)
        for number, name in enumerate(told["shards"]["names"]):
            files = [dataset.path / name, *dataset.path.glob(f"{Path(name).stem}.idx.npy")]
            told["shards"]["bytes"][number], told["shards"]["checksums"][number], _ = piece_sums.of_files(files)


def change(field: str, number: int) -> tuple[bytes, bytes]:
    """Bytes of a sample's field, and others of the same size."""
    one = sample(number)
    match field:
        case "image":
            return one["image"][-40:], bytes(40)
        case "grid" | "points":
            return one[field].tobytes(), bytes(one[field].nbytes)
    return f"{field}-{number:04d}".encode(), f"{field}-99{number}".encode()


@pytest.mark.parametrize("container", CONTAINERS)
def test_changed_bytes_are_found_in_their_sample(tmp_path: Path, container: str) -> None:
    """A changed value is reported for its file and, with --deep, for its sample by shard, row, number and key."""
    ds = write(tmp_path / "d", container)
    wrong = dict(enumerate(("image", "key", "grid", "points", "blob", "note"), 17))
    for number, field in wrong.items():
        replace_in(ds, number, *change(field, number))
    found = deep(tmp_path / "d").found
    of_files = [problem for problem in found if problem.location is None]
    of_samples = tuple(problem for problem in found if problem.location is not None)
    assert [problem.shard for problem in of_files] == sorted({ds.locate(number).shard for number in wrong})
    assert all(problem.reason.startswith("checksum ") for problem in of_files)
    for problem, (number, field) in zip(of_samples, wrong.items(), strict=True):
        place, key = ds.locate(number), f"key-{'99' if field == 'key' else '00'}{number}"
        assert f"{problem}".startswith(f"{place.shard}, row {place.row} (sample {number}, key {key}): checksum ")
    forge(ds)
    assert verify(shardio.open(tmp_path / "d")).problems == ()
    assert deep(tmp_path / "d").found == of_samples


def set_number(ds: shardio.Dataset, number: int, column: str, value: int) -> None:
    """Set a number of a sample in the index of a tar, or in an HDF5 file."""
    location = ds.locate(number)
    path = ds.path / location.shard
    ds.close()
    if path.suffix == ".tar":
        index = np.lib.format.open_memmap(path.with_suffix(".idx.npy"), "r+")
        index[column][location.row] = value
        index.flush()
    else:
        with h5py.File(path, "r+") as file:
            file[column][location.row] = value


@pytest.mark.parametrize("container", ["tar", "hdf5"])
@pytest.mark.parametrize("name", ["label", "_shape.image"])
def test_changed_numbers_are_found(tmp_path: Path, container: str, name: str) -> None:
    """A changed label fails its checksum; a changed image size, which has none, differs from the decoded size."""
    ds = write(tmp_path / "d", container)
    location = ds.locate(17)
    set_number(ds, 17, name, 9)
    forge(ds)
    (problem,) = deep(tmp_path / "d").found
    assert problem.location == location
    assert problem.reason.startswith(
        "checksum " if name == "label" else "field 'image': the image is 22 x 30 pixels, 9 x 9 were stored"
    )


STORED_BAD = [
    ("image", spoiled(jpeg()), "the jpeg image of"),
    ("key", b"h\xfflo", "not text: 'utf-8' codec"),
    ("note", b'{"a": ', "not json: Expecting value"),
    ("note", b"[" * 100_000, "not json: "),  # nested too deeply for Python
    ("points", b"\x93NUMPY and no more", "not array:"),
]


@pytest.mark.usefixtures("raw")
@pytest.mark.parametrize(("field", "value", "told"), STORED_BAD, ids=lambda value: str(value)[:12])
def test_values_that_were_stored_bad_are_found(tmp_path: Path, field: str, value: bytes, told: str) -> None:
    """Values that do not decode are reported, even where checksums and digest are right."""
    write(tmp_path / "d", "lmdb", changes={17: {field: Raw(value)}})
    assert verify(shardio.open(tmp_path / "d")).problems == ()
    (problem,) = deep(tmp_path / "d").found
    assert problem.location.index == 17
    assert problem.reason.startswith(f"field {field!r}: {told}")


@pytest.mark.parametrize("size", [1, 4000])
def test_only_some_bad_samples_of_a_shard_are_listed(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first bad samples of each shard are listed, with all reasons, and the others counted.

    The size of the blocks that are read at once does not matter.
    """
    monkeypatch.setattr("shardio.care.examine.BLOCK_BYTES", size)
    ds = write(tmp_path / "d", "hdf5")
    wrong = range(int(ds.manifest.shards.starts[2]))
    for number in wrong:
        replace_in(ds, number, b"key-%04d" % number, b"k\xffy-%04d" % number)
    forge(ds)
    result = deep(tmp_path / "d", most=3)
    first, second = ds.manifest.shards.samples[:2].tolist()
    rows = [problem.location.row if problem.location else problem.reason for problem in result.found]
    more = [f"and {count - 3} more bad samples" for count in (first, second)]
    assert rows == [0, 1, 2, more[0], 0, 1, 2, more[1]]
    assert result.problems[3] == f"shard-000000.h5: {more[0]}"
    assert result.count == len(wrong)
    found = deep(tmp_path / "d", most=100).found
    assert [problem.location.index for problem in found] == list(wrong)
    assert all("checksum " in problem.reason and "; field 'key': not text: " in problem.reason for problem in found)
    assert deep(tmp_path / "d", most=0).problems == tuple(
        f"shard-00000{n}.h5: and {count} more bad samples" for n, count in enumerate((first, second))
    )


@pytest.mark.parametrize(("container", "column"), [("tar", "image.offset"), ("hdf5", "image/offsets")])
@pytest.mark.usefixtures("part")
def test_a_sample_that_cannot_be_read_is_named_alone(tmp_path: Path, container: str, column: str) -> None:
    """An unreadable sample does not keep the others of its shard from being checked."""
    ds = write(tmp_path / "d", container)
    set_number(ds, 17, column, 1 << 40)
    replace_in(ds, 19, b"blob-0019", b"BLOB-0019")
    forge(ds)
    result = deep(tmp_path / "d")
    # In HDF5 a row ends at the offset of the next one, so that two rows are lost.
    lost = {16, 17} if container == "hdf5" else {17}
    assert {problem.location.index for problem in result.found if problem.location} == {*lost, 19}
    assert result.samples == 40 - len(lost)
    for problem in result.found[:-1]:
        assert "field 'image', row" in problem.reason
        assert str(tmp_path) not in problem.reason
    assert result.found[-1].reason.startswith("checksum ")


@pytest.mark.parametrize("container", CONTAINERS)
def test_shards_that_cannot_be_opened_are_told_of_once(tmp_path: Path, container: str) -> None:
    """A missing, a truncated and a foreign shard are each reported once, in order, and the rest is checked.

    A truncated tar can be opened, and its samples are reported as any bad ones.
    """
    ds = write(tmp_path / "d", container, 80)
    names = [tmp_path / "d" / name for name in ds.manifest.shards.names]
    names[0].unlink()
    os.truncate(names[1], 100)
    write(tmp_path / "e", container, 1)
    for made in sorted((tmp_path / "e").glob("shard-*")):
        made.rename(tmp_path / "d" / made.name.replace("000000", "000003"))
    replace_in(ds, 79, b"key-0079", b"KEY-0079")
    result = deep(tmp_path / "d")
    told = [f"{problem}" for problem in result.found if problem.location is None]
    assert told[0] == f"{names[0].name} is missing"
    assert [line.split(":")[0] for line in told[1:]] == [
        path.name for path in (names[1], *([] if container == "tar" else [names[1]]), names[3], names[3], names[-1])
    ]
    size = ds.manifest.shards.bytes[1]
    found = "100 bytes"
    if container == "tar":
        index = (tmp_path / "d" / "shard-000001.idx.npy").stat().st_size
        found = f"with its index 100 + {index} = {100 + index} bytes"
    assert told[1].endswith(f": {found}, the manifest says {size}")
    assert "1 samples, but the manifest says" in told[-2]
    assert "(sample 79, key KEY-0079): checksum" in result.problems[-1]
    assert len(verify(shardio.open(tmp_path / "d")).problems) == 4
    assert result.samples == int(ds.manifest.shards.samples[[2, *range(4, len(names))]].sum())


def test_linked_files_are_named_where_they_are(tmp_path: Path) -> None:
    """Of files that other programs wrote, verify and errors name the file that a link leads to."""
    out = tmp_path / "out"
    adopt(tfrecord(records(tmp_path / "in")), out)
    first, second = sorted((tmp_path / "in").iterdir())
    os.truncate(first, 100)
    second.rename(tmp_path / "moved")
    names = shardio.open(out).manifest.shards.names
    told = verify(out).problems
    assert told[0].startswith(f"{names[0]}: with its index 100 + ")
    assert told[0].endswith(f"; it is a link to {first}")
    assert told[1].startswith(f"{names[1]} is missing; it is a link to {second}; if that has moved, index it again")
    with pytest.raises(ShardCorrupt, match=f"{names[1]}: there is no such file; it is a link to {second}"):
        shardio.open(out)[6]


def test_threads_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread and eight report the same problems in the same order, and the same progress."""
    monkeypatch.setattr("shardio.care.examine.BLOCK_BYTES", 4000)
    ds = write(tmp_path / "d", "tar")
    for number in range(0, 40, 3):
        replace_in(ds, number, b"key-%04d" % number, b"KEY-%04d" % number)
    (tmp_path / "d" / ds.manifest.shards.names[2]).unlink()
    results = []
    for workers in (1, 2, 8):
        steps: list[tuple[int, int]] = []
        found = deep(tmp_path / "d", workers=workers, progress=lambda *step, steps=steps: steps.append(step))
        results.append((found, steps))
    assert results[0] == results[1] == results[2]
    shards = len(ds.manifest.shards)
    assert results[0][1] == [(done, shards) for done in range(1, shards + 1)]
    assert results[0][0].found == tuple(sorted(results[0][0].found, key=lambda problem: problem.shard or ""))


@pytest.mark.parametrize("container", CONTAINERS)
def test_shards_in_another_order_are_found(tmp_path: Path, container: str) -> None:
    """Shards that a manifest lists in another order, each of them whole, are found without reading their samples.

    So is another digest than that of all samples in order.
    """
    write(tmp_path / "d", container)
    with changed_manifest(tmp_path / "d") as told:
        right = told["digest"]
        told["digest"] = wrong = "xxh3:" + "0" * 32
    for result in (verify(tmp_path / "d"), deep(tmp_path / "d", workers=4)):
        assert result.problems == (f"the digest of the samples' checksums is {right}, the manifest says {wrong}",)
    with changed_manifest(tmp_path / "d") as told:
        told["digest"] = right
        for column in told["shards"].values():
            column[:2] = column[1::-1]
    (problem,) = verify(tmp_path / "d").problems
    assert problem.startswith("the digest of the samples' checksums is xxh3:")


@pytest.mark.parametrize("container", CONTAINERS)
def test_another_count_of_samples_is_found(tmp_path: Path, container: str) -> None:
    """Shards that hold more or fewer samples than the manifest says are found without reading their samples."""
    write(tmp_path / "d", container)
    with changed_manifest(tmp_path / "d") as told:
        told["shards"]["samples"][0] += 1
        told["shards"]["samples"][1] -= 1
    problems = verify(tmp_path / "d").problems
    assert [problem.partition(":")[0] for problem in problems] == told["shards"]["names"][:2]
    assert all("samples, but the manifest says" in problem for problem in problems)


def test_a_size_that_all_images_share_is_compared(tmp_path: Path) -> None:
    """The common image size in the manifest is checked, too."""
    packed(tmp_path / "d", [{"image": jpeg(8, 9)}], {"image": "image"})
    with changed_manifest(tmp_path / "d") as told:
        told["fields"]["image"]["shape"] = [7, 9]
    (problem,) = deep(tmp_path / "d").problems
    assert problem.endswith("the image is (8, 9) (height, width), the manifest says (7, 9)")


def test_a_shortage_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files end the verification with an error and are no problem of the dataset."""
    ds = write(tmp_path / "d", "tar")
    shortage = mock.Mock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    monkeypatch.setattr(type(ds.shards), "__getitem__", shortage)
    with pytest.raises(OSError, match="Too many open files"):
        verify(ds, deep=True)


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": True}, {"most": -1}])
def test_wrong_arguments_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    """Each message names the argument."""
    with pytest.raises(ConfigError, match=f"{next(iter(options))} must be at least"):
        verify(write(tmp_path / "d", "tar", 3), **options)


LARGE = jpeg(200, 300, seed=3)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("image", "size", "message"),
    [
        (LARGE, (200, 300), ""),
        (jpeg(40, 30, 1), (40, 30), ""),
        (jpeg(1, 50), (1, 50), ""),
        (jpeg(50, 1), (50, 1), ""),
        (CMYK_JPEG, (2, 3), ""),  # the compiled part does not support it
        (png(dtype=np.uint16), (12, 16), ""),
        (webp(), (12, 16), ""),
        (bmp(), (12, 16), ""),
        (webp(), (12, 17), "the image is 12 x 16 pixels, 12 x 17 were stored"),
        (b"", (200, 300), "the image is empty"),
        (b"no image at all, though it is of some length", (200, 300), "not a JPEG, PNG, WebP or BMP image"),
        (spoiled(LARGE), (200, 300), "the jpeg image of .* bytes does not decode"),
        (LARGE[:-20], (200, 300), "the jpeg image is cut short"),
        (png()[:60] + png()[-12:], (200, 300), "the png image of 72 bytes does not decode"),
        # absurd sizes in a damaged column, for which no memory is allocated
        (LARGE, (0, 0), "the image is 200 x 300 pixels"),
        (LARGE, (-1, 300), "the image is 200 x 300 pixels"),
        (LARGE, (2**31 - 1, 2**31 - 1), "the image is 200 x 300 pixels"),
    ],
)
def test_whole_images_pass_and_others_do_not(image: bytes, size: tuple[int, int], message: str, channels: int) -> None:
    """An intact image of any format and size passes; a damaged one, or one of another size, fails in words."""
    with pytest.raises(BadSample, match=message) if message else nullcontext():
        whole_images.check(image, channels, size)


hears_libjpeg = pytest.mark.skipif(native.library() is None, reason="not compiled: nobody hears libjpeg's warnings")


@hears_libjpeg
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_jpeg_that_decodes_with_a_warning_does_not_pass(progressive: bool, channels: int) -> None:
    """A JPEG with missing or wrong coefficients, which OpenCV fills with grey, fails at any place."""
    image = jpeg(200, 300, progressive=progressive, seed=3)
    scan = image.rindex(b"\xff\xda") + 12 if progressive else image.index(b"\xff\xda") + 14
    for at in (scan + 20, scan + (len(image) - scan) // 2, len(image) - 12):
        cut = image[:at] + b"\xff\xd9"
        assert cv2.imdecode(np.frombuffer(cut, np.uint8), cv2.IMREAD_COLOR) is not None
        with pytest.raises(BadSample, match="the jpeg image is damaged: Corrupt JPEG data: premature end"):
            whole_images.check(cut, channels, (200, 300))


@hears_libjpeg
@pytest.mark.parametrize(
    ("inserted", "message"),
    [
        (b"", ""),
        (b"\xff" * 50, ""),  # the padding that the standard allows
        (b"\x00" * 8, ""),  # the longest that cameras were seen to leave
        (b"\x00" * 20, "1[0-9] extraneous bytes before marker 0xd9"),  # less those that its bit buffer holds
    ],
)
def test_only_a_little_padding_may_follow_the_scan(inserted: bytes, message: str) -> None:
    """Bytes before the end marker count as damage where they are more than padding; those behind it never do."""
    image = LARGE[:-2] + inserted + LARGE[-2:] + b"what a camera appends" * 9
    with pytest.raises(BadSample, match=message) if message else nullcontext():
        whole_images.check(image, 3, (200, 300))


@hears_libjpeg
def test_a_change_in_the_middle_of_the_scan_is_found() -> None:
    """Codes that are no Huffman codes are found, also where much follows, and so are bytes left over."""
    random = np.random.default_rng(0)
    image = encode("jpg", random.integers(0, 256, (256, 256, 3), np.uint8), cv2.IMWRITE_JPEG_QUALITY, 95)
    middle = len(image) // 2
    for planted, message in ((b"\x5a", "[0-9]{2,} extraneous bytes"), (b"\xff\x00" * 20, "bad Huffman code")):
        with pytest.raises(BadSample, match=message):
            whole_images.check(image[:middle] + planted + image[middle + len(planted) :], 3, (256, 256))


@hears_libjpeg
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 3}, {"subsampling": 0}])
@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_whole_jpegs_of_all_codings_are_free_of_damage(mode: str, options: dict[str, Any]) -> None:
    """No well-formed file is taken for a damaged one."""
    file = io.BytesIO()
    Image.fromarray(pixels(65, 50, 3, seed=1)).convert(mode).save(file, "JPEG", **options)
    assert find_damage(file.getvalue(), (65, 50), 65 * 50) == ""


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_work_of_threads_comes_in_order(threads: int) -> None:
    """Results and errors come in the order of the items, and few items are begun ahead."""
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        if item % 3 == 0:
            time.sleep(0.002)
        if item == 50:
            raise ShardCorrupt("fifty")
        return item * item

    results = in_order(work, range(1000), threads)
    assert [next(results) for _ in range(50)] == [item * item for item in range(50)]
    with pytest.raises(ShardCorrupt, match="fifty"):
        next(results)
    begun.clear()
    results = in_order(work, iter(range(10_000)), threads)
    assert [next(results) for _ in range(3)] == [0, 1, 4]
    results.close()
    assert len(begun) <= 3 + 2 * threads
