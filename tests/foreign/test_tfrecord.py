"""TFRecord framing: TensorFlow's own files, checksums, truncation and damage."""

import struct
import sys
from pathlib import Path

import pytest
from _foreign import example, framed, masked, write_tfrecord
from hypothesis import given, settings
from hypothesis import strategies as st

from shardio.errors import MissingDependency, SourceError
from shardio.foreign.tfrecord import is_tfrecord_name, open_tfrecord, read_record, scan

FILES = Path(__file__).parents[1] / "converters" / "files"


def records(path: Path) -> list[bytes]:
    """The data of all records."""
    file = open_tfrecord(path)
    offsets, sizes = scan(file)
    return [read_record(file, *place) for place in zip(offsets.tolist(), sizes.tolist(), strict=True)]


class TestFraming:
    def test_a_record_as_long_as_a_gzip_mark(self, tmp_path: Path) -> None:
        """A record whose length resembles a gzip header is recognised by the checksum after it."""
        data = bytes(0x088B1F)
        path = write_tfrecord(tmp_path / "a.tfrecord", [data])
        assert path.read_bytes()[:3] == b"\x1f\x8b\x08"
        assert records(path) == [data]

    def test_names(self) -> None:
        """File names are recognised as TFRecords."""
        taken = ("a.tfrecord", "a.tfrecords", "a.tfrecord-00000-of-00010", "a.tfrecord.gz", "train-00003-of-01024")
        assert all(map(is_tfrecord_name, taken))
        assert not any(map(is_tfrecord_name, ("train-00003-of-01024.json", "a.tfrecordings", "features.json")))


class TestDamage:
    @pytest.mark.parametrize("byte", [0, 7, 8, 11])
    def test_a_wrong_byte_in_the_framing(self, tmp_path: Path, byte: int) -> None:
        """Damaged framing is refused with its offset and the number of complete records."""
        path = write_tfrecord(tmp_path / "a.tfrecord", [b"one", b"two", b"three"])
        data = bytearray(path.read_bytes())
        data[19 + byte] ^= 1
        path.write_bytes(data)
        told = (
            r"a.tfrecord, byte 19: not a TFRecord, or damaged: the checksum of its length is wrong; 1 complete records"
        )
        with pytest.raises(SourceError, match=told):
            scan(open_tfrecord(path))

    @pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**40, 4])
    def test_lengths_beyond_the_file(self, tmp_path: Path, length: int) -> None:
        """A length beyond the file is refused, even with a valid checksum."""
        head = struct.pack("<Q", length)
        (tmp_path / "a.tfrecord").write_bytes(head + masked(head) + b"one" + masked(b"one"))
        with pytest.raises(SourceError, match="byte 0: the file ends at byte 19 within this record: it was cut off"):
            scan(open_tfrecord(tmp_path / "a.tfrecord"))

    def test_cut_anywhere(self, tmp_path: Path) -> None:
        """A file truncated within a record is refused; between records truncation cannot be noticed."""
        data = framed(b"one") + framed(b"four")
        path = tmp_path / "a.tfrecord"
        for size in range(1, len(data)):
            path.write_bytes(data[:size])
            if size == 19:
                assert records(path) == [b"one"]
            else:
                told = f"byte {19 * (size > 19)}: .*cut off; {int(size > 19)} complete records"
                with pytest.raises(SourceError, match=told):
                    scan(open_tfrecord(path))

    @settings(max_examples=200, deadline=None)
    @given(data=st.binary(max_size=60), whole=st.integers(0, 3))
    def test_random_bytes(self, tmp_path_factory: pytest.TempPathFactory, data: bytes, whole: int) -> None:
        """Records followed by random bytes are refused with the number of complete records."""
        path = tmp_path_factory.mktemp("tfrecord") / "a.tfrecord"
        path.write_bytes(framed(b"one") * whole + data)
        told = ""
        try:
            assert len(scan(open_tfrecord(path))[0]) >= whole
        except SourceError as error:
            told = str(error)
        assert not told or f"; {whole} complete records" in told or "cannot be unpacked" in told


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the package, the error says how to install it."""
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    path = write_tfrecord(tmp_path / "a.tfrecord", [example({"a": [1]})])
    with pytest.raises(MissingDependency, match=r"google_crc32c: pip install 'google-crc32c>=[\d.]+'$"):
        open_tfrecord(path)
