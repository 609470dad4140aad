"""Folders of images become samples by torchvision's rules; damaged files become bad samples."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from _builders import class_folders, jpeg, png, write_files
from _cli import run

from shardio.conversion.api import convert
from shardio.conversion.shard_tasks import read_encoded
from shardio.errors import BadSample, ConfigError, DatasetError, SourceError
from shardio.format.fields import Field
from shardio.source import Source
from shardio_converters.imagefolder import ImageFolder, imagefolder


def listing(source: ImageFolder) -> list[tuple[str, int | None]]:
    """The key and label of every sample."""
    samples = [source[index] for index in range(len(source.sizes()))]
    return [(sample["key"], sample.get("label")) for sample in samples]


def stored(source: Source, index: int) -> None:
    """Sample `index` as it is stored, or its error."""
    ((_, encoded),) = read_encoded(source, np.array([index]))
    if isinstance(encoded, DatasetError):
        raise encoded


def test_a_dataset_of_shardio_is_no_folder_of_images(tmp_path: Path) -> None:
    """A dataset, or a folder of datasets, is named as such."""
    class_folders(tmp_path / "photos")
    convert(imagefolder(tmp_path / "photos"), tmp_path / "out" / "train")
    for given in (tmp_path / "out", tmp_path / "out" / "train"):
        with pytest.raises(SourceError, match=r"out/train is a dataset of shardio already"):
            imagefolder(given)


def test_images_without_labels_are_told(tmp_path: Path) -> None:
    """A flat folder gives images without labels, with a note, also with `strict`; one without images is refused."""
    class_folders(tmp_path / "photos")
    flat = imagefolder(tmp_path / "photos" / "cat")
    assert (list(flat.fields), flat.metadata) == (["image", "key"], {"source": "imagefolder"})
    assert listing(flat) == [("a.jpg", None), ("b.png", None)]
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"no images and no class folders; suffixes: .bmp, .jpeg"):
        imagefolder(tmp_path / "empty")
    made = convert(imagefolder(tmp_path / "photos" / "cat"), tmp_path / "cat", strict=True)
    assert [note[:44] for note in made.notes] == ["without class folders no sample gets a label"]
    assert convert(imagefolder(tmp_path / "photos"), tmp_path / "all").notes == ()


class TestLayouts:
    def test_class_folders(self, tmp_path: Path) -> None:
        """Folders are classes; each sample has the file's bytes, a label and a key."""
        written = class_folders(tmp_path)
        source = imagefolder(tmp_path)
        assert dict(source.fields) == {
            "image": Field("image"),
            "label": Field("scalar", dtype="int64"),
            "key": Field("text"),
        }
        assert source.metadata == {"source": "imagefolder", "classes": ["cat", "dog"]}
        assert listing(source) == [
            ("cat/a.jpg", 0),
            ("cat/b.png", 0),
            ("dog/c.webp", 1),
            ("dog/d.bmp", 1),
            ("dog/old/e.JPEG", 1),
        ]
        assert [source[index]["image"] for index in range(5)] == list(written.values())
        assert source.sizes().tolist() == [len(data) for data in written.values()]
        assert source.sizes().dtype == np.int64

    def test_the_order_is_by_class_then_path(self, tmp_path: Path) -> None:
        """Samples are sorted by class, then path: `a/*` comes before `a-2/*`, although a dash sorts before a slash."""
        class_folders(tmp_path, {"a-2": ["x.jpg"], "a": ["z.jpg", "b/y.jpg", "b-1/y.jpg"], "B": ["x.jpg"]})
        source = imagefolder(tmp_path)
        assert source.metadata["classes"] == ["B", "a", "a-2"]
        assert listing(source) == [
            ("B/x.jpg", 0),
            ("a/b-1/y.jpg", 1),
            ("a/b/y.jpg", 1),
            ("a/z.jpg", 1),
            ("a-2/x.jpg", 2),
        ]

    def test_only_images_are_taken(self, tmp_path: Path) -> None:
        """Other files are ignored, also beside the class folders, and so are named pipes."""
        class_folders(tmp_path, {"cat": ["a.jpg"]})
        # cat/jpg is a name, not a suffix
        write_files(tmp_path, {"README.md": "", "cover.jpg": jpeg(), "cat/notes.txt": "words", "cat/jpg": jpeg()})
        os.mkfifo(tmp_path / "cat" / "pipe.jpg")
        source = imagefolder(tmp_path)
        assert listing(source) == [("cat/a.jpg", 0)]
        (others, beside) = source.remarks
        assert set(others.rpartition(": ")[2].split(", ")) == {".txt 1", "without a suffix 1", ".jpg 1", ".md 1"}
        assert beside == "left out 1 image beside the class folders, of no class"

    def test_what_is_left_out_is_told(self, tmp_path: Path) -> None:
        """The note on ignored files counts them by suffix, most frequent first; without any there is no note."""
        class_folders(tmp_path)
        assert imagefolder(tmp_path).remarks == ()
        for number, suffix in enumerate(["a", "b", "c", "d", "e", "GIF"], 1):
            write_files(tmp_path / "cat", {f"{copy}.{suffix}": b"" for copy in range(number)})
        kinds = ".bmp, .jpeg, .jpg, .png, .webp"
        told = f"left out 21 files of other kinds than {kinds}: .gif 6, .e 5, .d 4, .c 3, .b 2, ..."
        assert imagefolder(tmp_path).remarks == (told,)
        assert f"note: {told}\n" in run("convert", "imagefolder", tmp_path, tmp_path.with_name("out"))
        class_folders(tmp_path / "flat", {"": ["b.jpg"]})
        (tmp_path / "flat" / "c.tif").write_bytes(b"")
        (remark,) = imagefolder(tmp_path / "flat").remarks
        assert remark.startswith(f"left out 1 file of other kinds than {kinds}: .tif 1; `shardio convert arrayfolder`")

    def test_what_macos_writes_beside_images(self, tmp_path: Path) -> None:
        """Its `._NAME`, on disks that cannot keep what it says, is no image; it is left out, and counted."""
        class_folders(tmp_path, {"cat": ["a.jpg"], "dog": ["b.jpg"]})
        write_files(tmp_path, dict.fromkeys(("cat/._a.jpg", "dog/._b.jpg", "._c.jpg"), b"\0\5\x16\7"))
        source = imagefolder(tmp_path)
        assert listing(source) == [("cat/a.jpg", 0), ("dog/b.jpg", 1)]
        assert source.remarks[0].endswith(": ._* of macOS 3")

    @pytest.mark.parametrize("names", [["cat/a.MP4", "dog/b.mov"], ["a.mp4"]])
    def test_videos_are_no_classes(self, tmp_path: Path, names: list[str]) -> None:
        """A folder of videos is told what to do with these, not to be classes without samples."""
        write_files(tmp_path, dict.fromkeys(names, b""))
        told = r"`shardio convert videofolder .* OUT` takes videos"
        with pytest.raises(SourceError, match=told) as refused:
            imagefolder(tmp_path)
        assert "allow_empty" not in str(refused.value)

    def test_extensions_choose_the_files(self, tmp_path: Path) -> None:
        """Extensions are given with or without a dot, in any case; there must be one."""
        class_folders(tmp_path)
        assert listing(imagefolder(tmp_path, extensions=" png,.WEBP")) == [("cat/b.png", 0), ("dog/c.webp", 1)]
        with pytest.raises(ConfigError, match="at least one suffix"):
            imagefolder(tmp_path, extensions=[])


def _replace(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


class TestBadSamples:
    @pytest.mark.parametrize(
        ("damage", "reason"),
        [
            (_replace(b"<html>404 not found</html>"), "not a JPEG, PNG, WebP or BMP image"),
            (_replace(jpeg()[:-200]), "cut short"),
            (_replace(png()[:-1]), "cut short"),  # named .jpg, known by its content
            (Path.unlink, "No such file"),  # removed after the folder was scanned
            (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
        ],
    )
    def test_a_damaged_file_is_named_with_the_reason(
        self, tmp_path: Path, damage: Callable[[Path], object], reason: str
    ) -> None:
        """A damaged file is one bad sample, and its neighbours are still read."""
        class_folders(tmp_path, {"cat": ["a.jpg", "b.jpg"]})
        source = imagefolder(tmp_path)
        damage(tmp_path / "cat" / "a.jpg")
        with pytest.raises(BadSample, match=rf"cat/a.jpg\)?: .*{reason}"):
            stored(source, 0)
        assert source[1]["key"] == "cat/b.jpg"

    def test_damaged_files_do_not_stop_the_scan(self, tmp_path: Path) -> None:
        """Empty files, broken links and links to themselves are counted, and fail when they are read."""
        class_folders(tmp_path, {"cat": ["d.jpg"]})
        (tmp_path / "cat" / "a.jpg").write_bytes(b"")
        (tmp_path / "cat" / "b.jpg").symlink_to("nowhere.jpg")
        (tmp_path / "cat" / "c.jpg").symlink_to("c.jpg")
        source = imagefolder(tmp_path)
        assert source.sizes().tolist()[:3] == [0, 0, 0]
        for index, (name, reason) in enumerate([("a", "empty"), ("b", "No such file"), ("c", "symbolic links")]):
            with pytest.raises(BadSample, match=rf"cat/{name}.jpg\)?: .*{reason}"):
                stored(source, index)
        assert source[3]["key"] == "cat/d.jpg"


def test_links_are_followed(tmp_path: Path) -> None:
    """A linked file has its target's size and bytes; a folder that is linked twice counts twice."""
    written = class_folders(tmp_path / "elsewhere", {"far": ["a.jpg"]})
    class_folders(tmp_path / "photos", {"cat": ["b.jpg"]})
    (tmp_path / "photos" / "cat" / "c.jpg").symlink_to(tmp_path / "elsewhere" / "far" / "a.jpg")
    (tmp_path / "photos" / "cat" / "more").symlink_to(tmp_path / "elsewhere" / "far")
    (tmp_path / "photos" / "dog").symlink_to(tmp_path / "elsewhere" / "far")
    source = imagefolder(tmp_path / "photos")
    assert listing(source) == [("cat/b.jpg", 0), ("cat/c.jpg", 0), ("cat/more/a.jpg", 0), ("dog/a.jpg", 1)]
    assert source.sizes().tolist()[1:] == [len(written["far/a.jpg"])] * 3


class TestRefusals:
    def test_a_class_folder_without_images(self, tmp_path: Path) -> None:
        """A class folder without images is refused by name."""
        class_folders(tmp_path)
        for name in "abcdefg":
            (tmp_path / name).mkdir()
        named = ", ".join(f".*/{name}" for name in "abcde")
        with pytest.raises(SourceError, match=rf"class folders need images, there are none in {named} and 2 more; suf"):
            imagefolder(tmp_path)

    def test_class_folders_without_images_may_be_allowed(self, tmp_path: Path) -> None:
        """With `allow_empty`, class folders without images are classes without samples."""
        for name in "aez":
            (tmp_path / name).mkdir()
        with pytest.raises(SourceError, match=r"class folders need images.* allow_empty=True"):
            imagefolder(tmp_path, allow_empty=True)
        class_folders(tmp_path, {"b": ["1.jpg", "2.jpg"], "y": ["3.jpg"]})
        source = imagefolder(tmp_path, allow_empty=True)
        assert source.classes == ("a", "b", "e", "y", "z")
        assert listing(source) == [("b/1.jpg", 1), ("b/2.jpg", 1), ("y/3.jpg", 3)]
        assert np.asarray(source.column("label")).tolist() == [1, 1, 3]

    def test_folders_that_are_parts_and_not_classes(self, tmp_path: Path) -> None:
        """Folders such as train and test are classes, as in torchvision, and a note asks whether that is intended."""
        class_folders(tmp_path, {"train": ["a.jpg"], "Val": ["b.jpg"]})
        (remark,) = imagefolder(tmp_path).remarks
        assert remark == "the classes are Val, train; if these are parts of a data set, convert them one by one"


@pytest.mark.parametrize("closed", ["", "cat", "cat/old"])
def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    """A folder without read permission is refused by name, so that its images are not silently missing."""
    class_folders(tmp_path / "in", {"cat": ["a.jpg", "old/b.jpg"]})
    folder, scandir = tmp_path / "in" / closed, os.scandir

    def refuse(path: str | Path) -> object:
        if Path(path) == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(SourceError, match=f"^{folder} cannot be read: Permission denied$"):
        imagefolder(tmp_path / "in")


class TestFoldersThatAreNoClasses:
    @pytest.mark.parametrize("hidden", [".ipynb_checkpoints", "__MACOSX", "@eaDir", ".Trash-1000/files"])
    @pytest.mark.parametrize("above", ["", "cat/"])
    def test_hidden_folders(self, tmp_path: Path, hidden: str, above: str) -> None:
        """They are left out at any depth, and named in a remark; `hidden` takes them, and either value ends it."""
        class_folders(tmp_path, {"cat": ["a.jpg"], "dog": ["b.jpg"], f"{above}{hidden}": ["c.jpg"]})
        source = imagefolder(tmp_path)
        assert listing(source) == [("cat/a.jpg", 0), ("dog/b.jpg", 1)]
        (remark,) = source.remarks
        named = f"{above}{hidden}".removesuffix("/files")
        assert remark == f"left out {named}, hidden or added by a system, as no classes; hidden=True takes them"
        with pytest.raises(SourceError, match="hidden=True"):
            convert(source, tmp_path / "out", strict=True)
        assert not imagefolder(tmp_path, hidden=False).remarks
        taken = imagefolder(tmp_path, hidden=True)
        assert len(taken.sizes()) == 3
        assert not taken.remarks

    def test_hidden_folders_without_images(self, tmp_path: Path) -> None:
        """Folders such as .git hold nothing that is missed; hidden files are taken, as torchvision does."""
        class_folders(tmp_path, {"cat": ["a.jpg", ".b.jpg"]})
        write_files(tmp_path, {".git/HEAD": "ref: main"})
        source = imagefolder(tmp_path)
        assert listing(source) == [("cat/.b.jpg", 0), ("cat/a.jpg", 0)]
        assert not source.remarks

    def test_a_class_of_folders(self, tmp_path: Path) -> None:
        """A class whose images are in several folders within is a remark that either value of `nested` ends."""
        class_folders(tmp_path, {"extra/cat": ["a.jpg"], "extra/dog": ["b.jpg"], "fox": ["c.jpg", "cubs/d.jpg"]})
        (remark,) = imagefolder(tmp_path).remarks
        told = "class folders hold folders instead of images: extra; nested=True takes all in them as one class"
        assert remark == told
        with pytest.raises(SourceError, match="folders instead of images"):
            convert(imagefolder(tmp_path), tmp_path / "out", strict=True)
        assert not imagefolder(tmp_path, nested=True).remarks
        flat = imagefolder(tmp_path, nested=False, allow_empty=True)
        assert listing(flat) == [("fox/c.jpg", 1)]
        assert not flat.remarks

    @pytest.mark.parametrize(
        "layout",
        [
            {"n01443537/images": ["0.jpg"], "n01629819/images": ["1.jpg"]},  # Tiny ImageNet
            {"cat": ["0.jpg", "more/1.jpg", "less/2.jpg"], "dog": ["3.jpg"]},
            {"0": ["0.jpg"], "1": ["1.jpg"]},
        ],
    )
    def test_ordinary_class_folders(self, tmp_path: Path, layout: dict[str, list[str]]) -> None:
        """One folder within a class, or images beside such folders, is no remark."""
        class_folders(tmp_path, layout)
        assert not imagefolder(tmp_path).remarks

    def test_the_classes_are_listed(self, tmp_path: Path) -> None:
        """The command line says which classes it found, the first of them."""
        class_folders(tmp_path / "in", {name: ["a.jpg"] for name in "abcdefg"})
        told = run("convert", "imagefolder", tmp_path / "in", tmp_path / "out")
        assert "\n  classes (7): a, b, c, d, e, ...\n" in told
