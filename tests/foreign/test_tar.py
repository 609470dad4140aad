"""Tars of samples: every header format, webdataset's grouping, and damage."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from _builders import flip
from _foreign import FORMATS, write_tar
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset.tariterators import group_by_keys, tar_file_expander

from shardio.errors import BadSample, SourceError
from shardio.foreign.files import File
from shardio.foreign.tar import TarSample, open_tar, sample_at, scan

BLOCK = 512


def samples(path: Path) -> list[tuple[str, dict[str, bytes]]]:
    """The key and files of all samples, each run read again at its offset."""
    file = open_tar(path)
    runs = list(scan(file))
    assert [sample_at(file, run.offset, run.size) for run in runs] == runs
    return [(run.key, files_of(file, run)) for run in runs]


def files_of(file: File, run: TarSample) -> dict[str, bytes]:
    """The files of a sample by extension."""
    return {extension: file.read(*place) for extension, place in run.places().items()}


def by_webdataset(data: bytes) -> list[tuple[str, dict[str, bytes]]]:
    """The same samples by the webdataset library."""
    files = tar_file_expander([{"url": "", "stream": io.BytesIO(data)}])
    found = []
    for sample in group_by_keys(files):
        found.append((sample["__key__"], {k: v for k, v in sample.items() if k not in ("__key__", "__url__")}))
    return found


class TestHeaders:
    @pytest.mark.parametrize("kind", FORMATS)
    def test_names_of_every_length(self, tmp_path: Path, kind: str) -> None:
        """Names of up to 400 bytes with directories are the key, in any header format."""
        lengths = [1, 99, 100, 101, 155, 200] + ([400] if kind != "ustar" else [])
        names = [("d" * 60 + "/") * (length // 61) + "x" * (length - length // 61 * 61) for length in lengths]
        names = [name if not name.endswith("/") else name + "x" for name in names]
        path = write_tar(tmp_path / "a.tar", [(f"{name}.Txt", name.encode()) for name in names], kind)
        assert samples(path) == [(name, {"txt": name.encode()}) for name in names]
        assert samples(path) == by_webdataset(path.read_bytes())

    @pytest.mark.parametrize(
        ("change", "folders"),
        [
            # V7: no magic, files of type NUL, directories that end in a slash
            (lambda h: h[:156] + b"\0" + bytes(355), ["größe/"]),
            (lambda h: h[:124] + b"\x80" + bytes(10) + b"\5" + h[136:], []),  # a binary size, as beyond 8 GiB
        ],
    )
    def test_old_and_large_ones(self, tmp_path: Path, change: Any, folders: list[str]) -> None:
        """The oldest format and binary sizes are read."""
        members = [("größe/a.txt", b"hello"), ("größe/a.cls", b"world")]
        path = write_tar(tmp_path / "a.tar", [*((folder, b"") for folder in folders), *members])
        path.write_bytes(changed(path.read_bytes(), change))
        expected = [("größe/a", {"txt": b"hello", "cls": b"world"})]
        assert samples(path) == expected == by_webdataset(path.read_bytes())

    def test_a_size_by_a_pax_header(self, tmp_path: Path) -> None:
        """The size in a pax header counts, and determines where the next header begins."""
        with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
            for name, size, headers in (("a.txt", 700, {"size": "700", "comment": "with = and \n"}), ("a.cls", 1, {})):
                member = tarfile.TarInfo(name)
                member.size, member.pax_headers = size, headers
                tar.addfile(member, io.BytesIO(b"x" * size))
        data = bytearray((tmp_path / "a.tar").read_bytes())
        header = data.index(b"a.txt", 2 * BLOCK)
        without_size = changed(data[header : header + BLOCK], lambda h: h[:124] + b"00000000000\0" + h[136:])
        data[header : header + BLOCK] = without_size
        (tmp_path / "a.tar").write_bytes(data)
        assert samples(tmp_path / "a.tar") == [("a", {"txt": b"x" * 700, "cls": b"x"})]


def changed(data: bytes | bytearray, change: Any) -> bytes:
    """A tar of members below one block each, every header changed and its checksum corrected."""
    blocks = [bytes(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
    for number, block in enumerate(blocks):
        if block[257:262] == b"ustar":
            header = change(block)
            header = header[:148] + b" " * 8 + header[156:]
            blocks[number] = header[:148] + b"%06o\0 " % sum(header) + header[156:]
    return b"".join(blocks)


class TestSamples:
    def test_neighbours_with_one_key(self, tmp_path: Path) -> None:
        """A sample ends where the key changes, and a key that recurs later is another sample."""
        names = ["a.jpg", "a.seg.PNG", "b.jpg", "a.cls", "x/a.cls", "y/a.b.c"]
        path = write_tar(tmp_path / "a.tar", [(name, name.encode()) for name in names])
        expected = [
            ("a", {"jpg": b"a.jpg", "seg.png": b"a.seg.PNG"}),
            ("b", {"jpg": b"b.jpg"}),
            ("a", {"cls": b"a.cls"}),
            ("x/a", {"cls": b"x/a.cls"}),
            ("y/a", {"b.c": b"y/a.b.c"}),
        ]
        assert samples(path) == expected == by_webdataset(path.read_bytes())

    def test_what_is_passed_over(self, tmp_path: Path) -> None:
        """Directories, names without an extension, meta entries and hidden files are skipped, also within a sample."""
        names = [
            "a.jpg",
            "README",
            "__meta__",
            "__meta__/x.json",
            "a.b/c",
            "._a.jpg",
            "x/.hidden.cls",
            "a.cls",
            "__a.b",
        ]
        path = write_tar(tmp_path / "a.tar", [(name, b"") for name in names])
        assert samples(path) == [("a", {"jpg": b"", "cls": b""}), ("__a", {"b": b""})]

    @pytest.mark.parametrize("kind", FORMATS)
    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    def test_as_webdataset_reads_them(self, tmp_path_factory: pytest.TempPathFactory, kind: str, data: Any) -> None:
        """Any names give the keys, extensions and bytes that the webdataset library reads."""
        part = st.text("aB-_ ü.", min_size=1, max_size=8).filter(lambda text: text[0] != ".")
        names = st.lists(st.lists(part, min_size=1, max_size=2).map("/".join), max_size=6, unique_by=str.lower)
        members = [(name, bytes([n])) for n, name in enumerate(data.draw(names))]
        path = write_tar(tmp_path_factory.mktemp("tar") / "a.tar", members, kind)
        assert samples(path) == by_webdataset(path.read_bytes())


class TestRefusals:
    @pytest.mark.parametrize(
        ("kind", "told"),
        [
            (tarfile.SYMTYPE, "a symbolic link: pack the files again with `tar --dereference`"),
            (tarfile.LNKTYPE, "a hard link: pack the files again with `tar --hard-dereference`"),
            (tarfile.CHRTYPE, "of the type b'3'; only files are read"),
            (tarfile.GNUTYPE_SPARSE, "a sparse file: pack the files again without `tar --sparse`"),
            (b"Q", "of the type b'Q'; only files are read"),
        ],
    )
    def test_what_is_not_a_file(self, tmp_path: Path, kind: bytes, told: str) -> None:
        """Other types of members are refused with their offset and the option of GNU tar that packs files instead."""
        path = write_tar(tmp_path / "a.tar", [("a.txt", b"1"), ("b.txt", b"")])
        data = path.read_bytes()
        path.write_bytes(data[: 2 * BLOCK] + changed(data[2 * BLOCK :], lambda h: h[:156] + kind + h[157:]))
        with pytest.raises(SourceError, match=rf"a.tar, byte 1024: 'b.txt' is {told}; 0 complete samples"):
            list(scan(open_tar(path), damage=[]))

    @pytest.mark.parametrize(
        ("of_all", "of_one", "told"),
        [
            # sparse files of GNU tar's pax format, which look regular
            ({}, {"GNU.sparse.major": "1", "GNU.sparse.realsize": "9"}, r"'a\.txt' is a sparse file"),
            ({}, {"GNU.sparse.map": "0,1"}, r"'a\.txt' is a sparse file"),
            # names and sizes of all members
            ({"path": "1"}, {}, "a header for all members may not give them a path"),
            ({"size": "1"}, {}, "a header for all members may not give them a size"),
            ({"GNU.sparse.name": "1"}, {}, "a header for all members may not give them a GNU.sparse.name"),
        ],
    )
    def test_pax_headers(self, tmp_path: Path, of_all: dict[str, str], of_one: dict[str, str], told: str) -> None:
        """Pax headers that make a sparse file, or give all members a name or a size, are refused."""
        with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT, pax_headers=of_all) as tar:
            member = tarfile.TarInfo("a.txt")
            member.pax_headers = of_one
            tar.addfile(member)
        with pytest.raises(SourceError, match=told):
            list(scan(open_tar(tmp_path / "a.tar")))


class TestDamage:
    @pytest.mark.parametrize("kind", FORMATS)
    def test_cut_anywhere(self, tmp_path: Path, kind: str) -> None:
        """A tar that is truncated before its end mark is refused with the number of complete samples."""
        name = "long/" * 30
        path = write_tar(tmp_path / "a.tar", [(f"{name}{n}.txt", b"x" * 700) for n in range(3)], kind)
        data = path.read_bytes()
        ends = [run.offset + run.size for run in scan(open_tar(path))]
        for size in (*range(0, ends[-1], 100), *ends):
            path.write_bytes(data[:size])
            whole = sum(end < size for end in ends)
            with pytest.raises(SourceError, match=r"byte \d+: .*cut off; [0-3] complete samples") as caught:
                list(scan(open_tar(path)))
            assert abs(int(str(caught.value).split("; ")[-1][0]) - whole) <= 1
            damage: list[str] = []
            assert f"; {len(list(scan(open_tar(path), damage)))} complete samples" in damage[0]
            assert damage == [str(caught.value)]
        path.write_bytes(data[: ends[-1] + BLOCK])
        assert len(list(scan(open_tar(path)))) == 3

    def test_the_last_sample_before_a_cut(self, tmp_path: Path) -> None:
        """It is whole if the next one's header is, or else if it has as many files as the one before it."""
        files = [("a.jpg", b"1"), ("a.cls", b"2"), ("b.png", b"3"), ("b.cls", b"4"), ("c.jpg", b"x" * 700)]
        data = write_tar(tmp_path / "a.tar", files).read_bytes()
        after_b_png, after_b_cls = 6 * BLOCK, 8 * BLOCK
        for size, keys in {
            after_b_png: ["a"],
            after_b_png + 9: ["a"],
            after_b_png + BLOCK: ["a"],
            after_b_cls - BLOCK + 1: ["a", "b"],
            after_b_cls: ["a", "b"],
            after_b_cls + 9: ["a", "b"],
            after_b_cls + BLOCK: ["a", "b"],
            after_b_cls + BLOCK + 600: ["a", "b"],
        }.items():
            (tmp_path / "a.tar").write_bytes(data[:size])
            file, damage = open_tar(tmp_path / "a.tar"), list[str]()
            runs = list(scan(file, damage))
            assert [run.key for run in runs] == keys
            assert [sample_at(file, run.offset, run.size) for run in runs] == runs
            assert f"cut off; {len(keys)} complete samples" in damage[0]

    @pytest.mark.parametrize("offset", [0, 100, 148, 257, 400])
    def test_a_damaged_header(self, tmp_path: Path, offset: int) -> None:
        """One wrong byte in a header fails its checksum."""
        path = write_tar(tmp_path / "a.tar", [("a.txt", b"1"), ("b.txt", b"2"), ("c.txt", b"3")])
        flip(path, 4 * BLOCK + offset, 3)
        with pytest.raises(SourceError, match=r"byte 2048: .*damaged: its checksum is wrong; 2 complete samples"):
            list(scan(open_tar(path)))

    @pytest.mark.parametrize(
        ("size", "told"),
        [
            (b"\xff" * 12, "damaged: its size is b"),  # negative
            (b"\xc0" + bytes(11), "damaged: its size is b"),
            (b"12345678901z", "damaged: its size is b"),  # no octal digits
            (b"-0000000001\0", "damaged: its size is b"),
            (b"\x80" + b"\xff" * 11, "the member 'a.txt' has .* cut off"),  # the largest that a header can hold
            (b"77777777777\0", "the member 'a.txt' has .* cut off"),
        ],
    )
    def test_sizes_that_are_wrong(self, tmp_path: Path, size: bytes, told: str) -> None:
        """Negative sizes, invalid octal digits and sizes beyond the file are refused."""
        path = write_tar(tmp_path / "a.tar", [("a.txt", b"1")])
        path.write_bytes(changed(path.read_bytes(), lambda h: h[:124] + size + h[136:]))
        with pytest.raises(SourceError, match=f"byte 0: {told}"):
            list(scan(open_tar(path)))

    @pytest.mark.parametrize(
        "record",
        [b"99 path=x\n", b"9 path=x.\n", b"path=x\n", b"0 path=x\n", b"5 pat\n", b"12 size=-1\n\n", b"10 path=x"],
    )
    def test_damaged_pax_records(self, tmp_path: Path, record: bytes) -> None:
        """Pax records with wrong lengths or without a value are refused."""
        with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
            header = tarfile.TarInfo("pax")
            header.type, header.size = b"x", len(record)
            tar.addfile(header, io.BytesIO(record))
            tar.addfile(tarfile.TarInfo("a.txt"))
        with pytest.raises(SourceError, match=r"byte 5\d\d: damaged"):
            list(scan(open_tar(tmp_path / "a.tar")))

    @pytest.mark.parametrize(
        ("name", "change", "told"),
        [
            (
                "x" * 200 + ".txt",
                lambda data: data[: 2 * BLOCK] + bytes(2 * BLOCK),
                "an extended header without a member",
            ),
            ("x" * (2 << 20), lambda data: data, "an extended header has at most 1048576 bytes, this one has 2097153"),
            # the samples of another archive would be lost
            ("a.txt", lambda data: data + data, "there is more data after the tar's end mark; 1 complete samples"),
        ],
    )
    def test_what_no_tar_has(self, tmp_path: Path, name: str, change: Any, told: str) -> None:
        """An extended header alone, one of megabytes, and data behind the end mark are refused."""
        path = write_tar(tmp_path / "a.tar", [(name, b"")], "gnu")
        path.write_bytes(change(path.read_bytes()))
        with pytest.raises(SourceError, match=told):
            list(scan(open_tar(path)))

    def test_a_file_that_has_changed(self, tmp_path: Path) -> None:
        """An offset into a file that was rewritten gives a bad sample, not other data."""
        path = write_tar(tmp_path / "a.tar", [("a.txt", b"1" * 600), ("b.txt", b"2")])
        first, second = scan(open_tar(path))
        write_tar(path, [("a.txt", b"1"), ("b.txt", b"2"), ("c.txt", b"3" * 600), ("d.txt", b"")])
        file = open_tar(path)
        with pytest.raises(BadSample, match="byte 0: expected one sample of 1536 bytes; the file has changed"):
            sample_at(file, first.offset, first.size)
        with pytest.raises(BadSample, match="byte 1536: not a tar header"):
            sample_at(file, second.offset, second.size)

    @settings(max_examples=300, deadline=None)
    @given(data=st.data())
    def test_random_damage(self, tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
        """Any damage gives samples or a SourceError, and offsets stay within the file."""
        kind = data.draw(st.sampled_from(sorted(FORMATS)))
        members = [("d/" * 80 + "a.txt", b"1" * 300), ("ü.cls", b"2"), ("ü.jpg", b""), ("b.npy", b"3" * 600)]
        path = write_tar(tmp_path_factory.mktemp("tar") / "a.tar", members, kind)
        whole = bytearray(path.read_bytes().rstrip(b"\0") + bytes(1500))
        for at, value in data.draw(
            st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=4)
        ):
            whole[at] = value
        if data.draw(st.booleans()):  # so that damage passes the checksums
            whole = bytearray(changed(whole, lambda header: header))
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
        file = open_tar(path)
        try:
            for run in scan(file):
                for _, offset, size in run.members:
                    assert 0 <= offset <= offset + size <= file.size
                assert sample_at(file, run.offset, run.size) == run
        except SourceError:
            pass
