"""The options of `shardio convert` on the command line, plug-ins, and the commands that rewrite datasets."""

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from _builders import encode, jpeg, pixels, png, webp
from _cli import run
from PIL import Image

import shardio
from shardio.care.verify import verify


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 images in three classes: large ones, small ones, progressive ones, a PNG."""
    root = tmp_path_factory.mktemp("photos")
    for number in range(30):
        path = root / f"class {number % 3}" / f"-{number:02d} ü.jpg"
        path.parent.mkdir(exist_ok=True)
        side = 300 if number % 2 else 60
        path.write_bytes(jpeg(side, side * 2, seed=number, progressive=number % 5 == 0))
    (root / "class 0" / "a.png").write_bytes(png(200, 100))
    return root


def test_shards_are_cut_by_what_becomes_of_the_images(photos: Path, tmp_path: Path) -> None:
    """Shards have about the requested size after the images have shrunk, not before."""
    run("convert", "imagefolder", photos, tmp_path / "out", "--resize-shorter", 20, "--shard-size", "8KB")
    ds = shardio.open(tmp_path / "out")
    payload = sum(len(ds[number]["image"]) for number in range(len(ds)))
    assert abs(len(ds.manifest.shards) - payload / 8000) <= 2


def test_errors_of_bad_samples_name_the_command_that_goes_on(tmp_path: Path) -> None:
    """What the error of a bad sample says to add works, in the folder that the first try left."""
    for number in range(4):
        path = tmp_path / "photos" / "cat" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no image" if number % 2 else jpeg(seed=number))
    command = ("convert", "imagefolder", tmp_path / "photos", tmp_path / "out", "--workers", "1")
    assert "the same command with --on-error skip --resume leaves such samples out" in run(*command, code=1)
    told = run(*command, "--on-error", "skip", "--resume", code=1)
    assert "--max-bad 4 would allow all" in told
    assert "with --resume, as here, the same command keeps the shards that are finished" in told
    assert "add --resume to keep the shards" in run(*command, "--on-error", "skip", "--overwrite", code=1)
    run(*command, "--on-error", "skip", "--resume", "--max-bad", "2")
    assert len(shardio.open(tmp_path / "out")) == 2


def test_appending(photos: Path, tmp_path: Path) -> None:
    """`append` adds shards to a dataset, says how many samples are new, and names what does not fit as it is typed."""
    out = tmp_path / "out"
    run("convert", "imagefolder", photos, out, "--resize-shorter", 20, "--shard-size", "8KB")
    digest = shardio.open(out).digest
    append = ("append", "imagefolder", photos, out)
    assert f"{out}: would get 31 samples in " in run(*append, "--dry-run")
    told = run(*append, "--where", "label == 1", "--resume")
    assert f"{out}: 41 samples, 10 of them new, in " in told
    assert run(*append, "--where", "label == 1", "--resume").splitlines() == told.splitlines()[:2]
    assert f"grew from 31 samples, {digest} " in " ".join(run("info", out).split())
    assert "made with --resize-shorter 20, and appends keep to that" in run(*append, "--resize-shorter", 30, code=2)
    assert "made with --shard-size 8000, and appends keep to that" in run(*append, "--shard-size", "1MB", code=2)
    assert "no such directory or shardio.json" in run("append", "imagefolder", photos, tmp_path / "none", code=1)
    assert "no such option" in run(*append, "--to", "hdf5", code=2).lower()
    (photos / "class 3").mkdir()
    try:
        told = run(*append, "--allow-empty", code=2)
    finally:
        (photos / "class 3").rmdir()
    assert "class 3 is unnamed in 'the dataset', but 'class 3' in 'the source'" in told


def test_what_looks_like_something_else_is_told(tmp_path: Path) -> None:
    """A note points out byte arrays that may be pixels and labels with a shape, unless options name them."""
    arrays = {"image": np.zeros((4, 32, 32, 3), np.uint8), "planes": np.zeros((4, 3, 16, 20), np.uint8)}
    others = {"label": np.zeros((4, 1), np.uint8), "small": np.zeros((4, 15, 15), np.uint8), "f": np.zeros((4, 32, 32))}
    np.savez(tmp_path / "in.npz", **arrays, **others)
    told = run("convert", "numpy", tmp_path / "in.npz", tmp_path / "out", "--as-image", "planes")
    notes = [line for line in told.splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: field 'image' is array, uint8, [32, 32, 3]; if its values are pixels, --as-image image stores images",
        "note: field 'label' is array, uint8, [1]; --squeeze label stores numbers, which training needs",
    ]
    dataset = shardio.open(tmp_path / "out")
    with pytest.raises(shardio.ConfigError, match="if these are pixels, converting with --as-image makes images"):
        shardio.Loader(dataset, 2, transforms={"image": [shardio.RandomCrop(8)]})


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    """--dry-run prints the chosen samples, shards and stored fields, and writes nothing."""
    np.savez(tmp_path / "in.npz", x=np.zeros((100, 8, 8), np.uint8), label=np.arange(100))
    options = ["--split", "train=0.9,val=0.1", "--shard-size", "1KB", "--as-image", "x", "--where", "label < 50"]
    options += ["--to", "tar", "--dry-run"]
    lines = run("convert", "numpy", tmp_path / "in.npz", tmp_path / "out", *options).splitlines()
    assert lines[0].startswith(f"{tmp_path}/out/train: would have 45 samples in ")
    assert lines[1].startswith(f"{tmp_path}/out/val: would have 5 samples in 1 tar shard, of about ")
    assert lines[2:] == ["  x      image, grey, 8 x 8", "  label  scalar, int64"]
    assert [path.name for path in tmp_path.iterdir()] == ["in.npz"]


def test_datasets_written_anew(photos: Path, tmp_path: Path) -> None:
    """`reshard`, `merge` and `repair` work from one container to the next."""
    run("convert", "imagefolder", photos, tmp_path / "a")
    told = run("reshard", tmp_path / "a", tmp_path / "b", "--to", "lmdb", "--shard-size", "30KB")
    assert shardio.open(tmp_path / "a").digest in told
    run("merge", tmp_path / "a", tmp_path / "b", tmp_path / "c", "--to", "hdf5", "--shard-size", "50KB")
    merged = shardio.open(tmp_path / "c")
    assert len(merged) == 62
    assert merged[3]["key"] == merged[34]["key"]
    assert "nothing to repair" in run("repair", tmp_path / "c")
    (tmp_path / "c" / "shardio.json").unlink()
    assert merged.digest in run("repair", tmp_path / "c")
    other = shardio.create(tmp_path / "d", fields=merged.fields, metadata={"classes": ["dog"]})
    with other as writer:
        writer.append(merged[0])
    told = run("merge", tmp_path / "a", tmp_path / "d", tmp_path / "e", code=2)
    assert "--classes union numbers classes by name" in told
    run("merge", tmp_path / "a", tmp_path / "d", tmp_path / "e", "--classes", "ignore")
    assert len(shardio.open(tmp_path / "e")) == 32
    assert verify(shardio.open(tmp_path / "c"), deep=True).problems == ()


def test_a_plug_in_is_found(tmp_path: Path) -> None:
    """A third-party converter that is installed is listed, has its help, and runs."""
    info = tmp_path / "site" / "somebodys_squares-1.0.dist-info"
    info.mkdir(parents=True)
    (info.parent / "somebodys_squares.py").write_text(PLUG_IN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys-squares\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[shardio.converters]\nsquares = somebodys_squares:squares\n")
    path = os.pathsep.join([str(info.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    assert "squares      Numbers and their squares.\n" in run("convert", "--list", PYTHONPATH=path)
    told = run("convert", "squares", "--help", PYTHONPATH=path)
    assert "What is multiplied with them." in told
    assert "shardio convert squares 10 data/squares --times 3" in told
    run("convert", "squares", 10, tmp_path / "out", "--times", 3, "--upwards", "--workers", 2, PYTHONPATH=path)
    ds = shardio.open(tmp_path / "out")
    assert ds.read(range(10), ["square"])["square"].tolist() == [3 * n * n for n in range(10)]


PLUG_IN = '''
"""Squares."""
import numpy as np
from shardio import Field


def squares(src, *, times: int = 1, upwards: bool = False):
    """Numbers and their squares.

    Args:
        src: how many.
        times: what is multiplied
            with them.
        upwards: whether they go up.

    Example:
        shardio convert squares 10 data/squares --times 3
    """
    assert upwards is True
    return Squares(int(src), times)


class Squares:
    """Squares by number."""

    def __init__(self, count, times):
        self.count, self.times = count, times
        self.fields = {"square": Field("scalar", dtype="int64")}
        self.metadata = {"source": "squares"}

    def sizes(self):
        return np.full(self.count, 8)

    def __getitem__(self, index):
        return {"square": index * index * self.times}
'''


@pytest.fixture
def without_opencv(tmp_path: Path) -> dict[str, str]:
    """Variables of an environment in which OpenCV is installed, but cannot be imported."""
    (tmp_path / "broken/cv2").mkdir(parents=True)
    (tmp_path / "broken/cv2/__init__.py").write_text("raise ImportError('libGL.so.1: cannot open shared object file')")
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path / "broken"), os.environ.get("PYTHONPATH", "")])}


WITHOUT_OPENCV = """
import sys
import numpy as np
from PIL import Image
import shardio
from shardio import Loader, Normalize, RandomHorizontalFlip, Resize

shardio.convert("in", "out", converter="imagefolder")
data = shardio.open("out")
assert shardio.verify("out", deep=True).count == 0
shardio.stats(data)
assert shardio.show(Loader(data, 5), "sheet.png") == len(data) == 5
(batch,) = Loader(data, 5, shuffle=None)
np.savez("pixels.npz", *(image.numpy() for image in batch["image"]))
moves = [Resize((16, 16), antialias=False), RandomHorizontalFlip(), Normalize((0.5,) * 3, (0.2,) * 3, dtype="float16")]
(batch,) = Loader(data, 5, transforms={"image": moves})
assert batch["image"].shape == (5, 3, 16, 16)
assert "cv2" not in sys.modules
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("part", ["compiled", "off"])
def test_images_need_no_opencv(part: str, tmp_path: Path, without_opencv: dict[str, str]) -> None:
    """Without OpenCV, images of every format are converted, checked, counted, drawn and loaded, as Pillow has them."""
    files = {"bmp": encode("bmp", pixels(30, 40)), "grey.png": png(30, 40, 1), "jpg": jpeg(30, 40), "png": png(30, 40)}
    files["webp"] = webp(30, 40)
    (tmp_path / "in/class").mkdir(parents=True)
    for name, data in files.items():
        (tmp_path / f"in/class/a.{name}").write_bytes(data)
    environment = os.environ | without_opencv | ({"SHARDIO_NATIVE": "off"} if part == "off" else {})
    subprocess.run([sys.executable, "-W", "ignore", "-c", WITHOUT_OPENCV], check=True, env=environment, cwd=tmp_path)
    found = np.load(tmp_path / "pixels.npz")
    for number, data in enumerate(files.values()):
        with Image.open(io.BytesIO(data)) as wanted:
            assert np.array_equal(found[f"arr_{number}"], np.asarray(wanted.convert("RGB")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "purpose"),
    [
        (["numpy", "b.npz", "--as-image", "image"], "storing pixels as PNG"),
        (["imagefolder", "in", "--resize-shorter", "8"], "re-encoding a png image"),
        (["imagefolder", "in", "--recompress", "always"], "re-encoding a png image"),
        (["arrayfolder", "in"], "reading a PNG as an array"),
    ],
)
def test_what_needs_opencv_says_how_to_get_it(
    command: list[str], purpose: str, tmp_path: Path, without_opencv: dict[str, str]
) -> None:
    """A conversion that encodes images, or reads PNGs as arrays, says why OpenCV fails, and what to install."""
    np.savez(tmp_path / "b.npz", image=np.zeros((6, 32, 32), np.uint8), label=np.arange(6))
    (tmp_path / "in/class").mkdir(parents=True)
    (tmp_path / "in/class/a.png").write_bytes(png(30, 40, dtype=np.uint16))
    kind, source, *options = command
    told = run("convert", kind, tmp_path / source, tmp_path / "out", *options, code=1, **without_opencv)
    reason = "cv2, which cannot be imported (libGL.so.1: cannot open shared object file)"
    assert f"{purpose} needs {reason}: pip install 'opencv-python-headless>=4.11'" in " ".join(told.split())
    assert "Traceback" not in told
