"""Every example that `shardio convert SOURCE --help` shows works, with real data of the names that it uses."""

import gzip
import itertools
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import astropy.io.fits
import h5py
import lmdb
import nibabel
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
import tifffile
import zarr
from _builders import encode, idx_pair, jpeg, pixels, png, write_files
from _cli import here
from _foreign import Datum, example, framed, write_tar, write_tokenizer
from _media import video, wav

import shardio
from shardio.conversion import source as sources

OBJECTS = {"bbox": [[1.0, 2.0, 3.0, 4.0]], "category": [0]}
FILES = Path(__file__).parents[1] / "converters" / "files"


def arrayfolder(root: Path) -> None:
    """Scans of two classes, tables of them and of pairs, plates as TIFF and as FITS, slices, trials of any length."""
    for folder in ("scans/a", "scans/b", "plates", "ct", "trials"):
        (root / folder).mkdir(parents=True)
    for number in range(20):
        array = np.full((4, 4), number, np.float32)
        np.save(root / "scans" / "ab"[number % 2] / f"{number}.npy", array)
        np.save(root / "ct" / f"{number}.npy", array)
        tifffile.imwrite(root / "plates" / f"{number}.tif", array.astype(np.uint16))
        empty, image = astropy.io.fits.PrimaryHDU(), astropy.io.fits.ImageHDU(array)
        astropy.io.fits.HDUList([empty, image]).writeto(root / "plates" / f"{number}.fits")
        scipy.io.savemat(root / "trials" / f"{number}.mat", {"eeg": np.zeros((3 + number, 2)), "rate": 250})
    rows = "".join(f"{'ab'[number % 2]}/{number}.npy,{'ab'[number % 2]}\n" for number in range(20))
    (root / "scans.csv").write_text(f"path,label\n{rows}")
    for number in range(20):
        for name in ("scan", "mask"):
            volume = nibabel.Nifti1Image(np.zeros((4, 4, 4), np.uint8), np.diag([1 if name == "scan" else -1, 1, 1, 1]))
            volume.to_filename(root / f"{name}-{number}.nii")
    rows = "".join(f"scan-{number}.nii,mask-{number}.nii\n" for number in range(20))
    (root / "pairs.csv").write_text(f"scan,mask\n{rows}")


def audiofolder(root: Path) -> None:
    """Sounds of two classes."""
    write_files(root, {f"words/{'ab'[number % 2]}/{number}.wav": wav(0.1) for number in range(20)})


def cifar(root: Path) -> None:
    """Both data sets."""
    for folder, labels, names in (
        ("cifar-10-batches-bin", 1, ("data_batch_1.bin", "test_batch.bin")),
        ("cifar-100-binary", 2, ("train.bin", "test.bin")),
    ):
        (root / folder).mkdir()
        for name in names:
            (root / folder / name).write_bytes(b"".join(bytes(labels) + bytes([n]) * 3072 for n in range(20)))


def coco(root: Path) -> None:
    """Instances, keypoints, and photos whose sizes tell nothing."""
    category = {"id": 1, "name": "person", "keypoints": ["left_eye", "right_eye"]}
    for name, folder in (
        ("annotations/instances_train2017.json", "train2017"),
        ("annotations/person_keypoints_val2017.json", "val2017"),
        ("phones.json", "photos"),
    ):
        images = [{"id": number, "file_name": f"{number}.jpg", "height": 12, "width": 16} for number in range(20)]
        write_files(root, {f"{folder}/{number}.jpg": jpeg(12, 16, seed=number) for number in range(20)})
        box = {
            "id": 1,
            "image_id": 0,
            "category_id": 1,
            "bbox": [1, 2, 3, 4],
            "area": 12,
            "keypoints": [1, 2, 2, 3, 4, 2],
        }
        write_files(root, {name: json.dumps({"images": images, "annotations": [box], "categories": [category]})})


def yolo(root: Path) -> None:
    """Two subsets with labels."""
    lines = "".join(f"{part}: images/{part}\n" for part in ("train", "val"))
    files: dict[str, bytes | str] = {"data.yaml": f"{lines}names: [cat, dog]\n"}
    for part, number in itertools.product(("train", "val"), range(20)):
        files[f"images/{part}/{number}.jpg"] = jpeg(seed=number)
        files[f"labels/{part}/{number}.txt"] = "1 0.5 0.5 0.2 0.2\n"
    write_files(root / "coco8", files)


def filelist(root: Path) -> None:
    """A table, a text with another delimiter, and JSON lines of pairs and of boxes."""
    (root / "photos").mkdir()
    for number in range(20):
        (root / "photos" / f"{number}.jpg").write_bytes(jpeg(seed=number))
    (root / "photos" / "1.png").write_bytes(png(channels=1))
    rows = "".join(f"{number}.jpg,{'abc'[number % 3]}\n" for number in range(20))
    (root / "train.csv").write_text(f"path,label\n{rows}")
    (root / "train.txt").write_text("name;note\nphotos/0.jpg;first\n")
    write_files(root, {f"words/{number}.wav": wav(0.1) for number in range(20)})
    rows = "".join(f"words/{number}.wav,{'abc'[number % 3]}\n" for number in range(20))
    (root / "words.csv").write_text(f"path,label\n{rows}")
    pair = {"photo": "photos/0.jpg", "mask": "photos/1.png", "width": 3, "height": 4}
    (root / "pairs.jsonl").write_text(json.dumps(pair) + "\n")
    row = {"path": "photos/0.jpg", "objects": OBJECTS}
    (root / "boxes.jsonl").write_text((json.dumps(row) + "\n") * 20)


def hdf5(root: Path) -> None:
    """Images and labels in groups, a folder of files, a file, two months of packed temperatures, and two of winds."""
    (root / "runs").mkdir()
    (root / "era5").mkdir()
    with h5py.File(root / "last.h5", "w") as file:
        file["t2m"] = np.zeros((4, 5, 20), np.float32)
    for name in ("u10", "v10"):
        with h5py.File(root / "era5" / f"{name}.nc", "w") as file:
            file[name], file["time"] = np.zeros((20, 4), np.float32), np.arange(20)
    (root / "months").mkdir()
    for path in (root / "months" / "1.nc", root / "months" / "2.nc"):
        with h5py.File(path, "w") as file:
            file["t2m"], file["time"] = np.zeros((20, 4), np.int16), np.arange(20)
            file["t2m"].attrs["scale_factor"] = 0.5
            file["time"].attrs["units"] = "hours since 2000-01-01"
    for path in (root / "train.h5", root / "runs" / "a.h5", root / "damaged.h5"):
        with h5py.File(path, "w") as file:
            file["data/images"] = np.zeros((20, 18, 18, 3), np.uint8)
            file["data/labels"] = np.arange(20)
            file["data/waves"] = np.zeros((20, 4), np.float32)


def huggingface(root: Path) -> None:
    """Two splits of images and labels, as their library saves them."""
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    data = {"image": [{"bytes": png(seed=n), "path": None} for n in range(20)], "label": list(range(20))}
    split = datasets.Dataset.from_dict(data, features=features)
    datasets.DatasetDict({"train": split, "test": split}).save_to_disk(root / "saved" / "mnist")
    boxes = datasets.Dataset.from_dict({"image": data["image"], "objects": [OBJECTS] * 20})
    boxes.cast_column("image", datasets.Image()).save_to_disk(root / "saved" / "cppe5" / "train")


def idx(root: Path) -> None:
    """Two splits in one folder; a folder of three classes."""
    idx_pair(root / "fashion-mnist", 20, prefix="train-")
    idx_pair(root / "fashion-mnist", 20, prefix="t10k-")
    idx_pair(root / "digits", 6)


def imagefolder(root: Path) -> None:
    """Photos of two classes, and icons of one."""
    (root / "icons" / "arrow").mkdir(parents=True)
    for number in range(20):
        (root / "icons" / "arrow" / f"{number}.png").write_bytes(encode("png", pixels(20, 20, 4, seed=number)))
    for number in range(20):
        path = root / "photos" / "ab"[number % 2] / f"{number}.{('jpg', 'png')[number % 3 == 0]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(path.suffix[1:], pixels(30, 40, seed=number)))


def lmdbs(root: Path) -> None:
    """Datums of encoded images, and of raw ones."""
    with lmdb.open(str(root / "splits_lmdb"), max_dbs=1) as file:
        database = file.open_db(b"val")
        with file.begin(write=True, db=database) as transaction:
            for number in range(20):
                transaction.put(b"%02d" % number, jpeg(9, seed=number))
    for name in ("ilsvrc12_train_lmdb", "scenes_lmdb"):
        with lmdb.open(str(root / name)) as file, file.begin(write=True) as transaction:
            for number in range(20):
                raw = Datum(channels=3, height=4, width=4, data=bytes(48), label=number)
                encoded = Datum(encoded=True, data=jpeg(seed=number), label=number)
                made = raw if name.startswith("scenes") else encoded
                transaction.put(b"%04d" % number, made.SerializeToString())


def litdata(root: Path) -> None:
    """A dataset of pairs, and one of tokens whose only chunk, of 5,000, is one document."""
    shutil.copytree(FILES / "litdata" / "pairs", root / "optimized" / "train")
    text = Path(shutil.copytree(FILES / "litdata" / "tokens-tensor", root / "optimized" / "text"))
    index = json.loads((text / "index.json").read_text())
    index["chunks"][0] |= {"chunk_size": 1, "dim": 5000, "chunk_bytes": 12 + 4 * 5000}
    (text / "index.json").write_text(json.dumps(index))
    numbers = np.array([1, 12, 12 + 4 * 5000, *range(5000)], np.uint32)
    (text / index["chunks"][0]["filename"]).write_bytes(numbers.tobytes())


def mds(root: Path) -> None:
    """Images with labels."""
    shutil.copytree(FILES / "mds" / "plain", root / "imagenet" / "train")


def numpy(root: Path) -> None:
    """Images with labels [n, 1], a matrix of floats, and a folder of volumes."""
    (root / "unet3d" / "train").mkdir(parents=True)
    for number in range(20):
        volume = np.zeros((4, 4, 4), np.float32)
        np.savez(root / "unet3d" / "train" / f"{number}.npz", x=volume, y=np.array([number]))
    images, labels = np.zeros((20, 18, 18), np.uint8), np.arange(20)[:, None]
    np.savez(root / "train.npz", x_train=images, y_train=labels)
    np.save(root / "features.npy", np.zeros((20, 4), np.float32))


def parquet(root: Path) -> None:
    """Images with labels, in one file and in two, and the paths of sounds."""
    for folder in ("mnist", "clips"):
        (root / folder).mkdir()
    (root / "clips" / "a.wav").write_bytes(b"RIFF")
    pq.write_table(pa.table({"file_name": ["a.wav"] * 20}), root / "clips.parquet")
    pq.write_table(pa.table({"vector": [[1.0, 2.0]] * 20}), root / "vectors.parquet")
    table = pa.table({"img": [png(seed=n) for n in range(20)], "label": list(range(20))})
    for name in ("train.parquet", "mnist/train-00000-of-00002.parquet", "mnist/train-00001-of-00002.parquet"):
        pq.write_table(table, root / name)
    table = pa.table({"image": [png(seed=n) for n in range(20)], "objects": [OBJECTS] * 20})
    pq.write_table(table, root / "boxes.parquet")


def text(root: Path) -> None:
    """Files of text, a book, pages in JSON lines, and a tokenizer of their words."""
    write_tokenizer(root / "tokenizer.json", ["a tale of two cities"])
    for name in ("corpus", "pages"):
        (root / name).mkdir()
    for number in range(20):
        (root / "corpus" / f"{number}.txt").write_text("a tale of two cities")
    (root / "book.txt").write_text("a tale\n\n" * 20)
    row = json.dumps({"content": "two cities", "lang": "en", "url": "x"}) + "\n"
    (root / "pages" / "0.jsonl.gz").write_bytes(gzip.compress(row.encode() * 20))


def tfrecord(root: Path) -> None:
    """Examples of images, in a set of two files and in one."""
    records = [example({"image/encoded": [jpeg(seed=n)], "image/class/label": [n]}) for n in range(20)]
    for name in ("train-00000-of-00002", "train-00001-of-00002", "old.tfrecord"):
        (root / name).write_bytes(b"".join(map(framed, records)))


def torch(root: Path) -> None:
    """A module with an object and a class."""
    (root / "my").mkdir()
    (root / "my" / "data.py").write_text(
        "import numpy as np\n"
        "train_set = [(np.zeros((4, 4), np.uint8), np.zeros((4, 4), np.uint8)) for _ in range(20)]\n"
        "class Waves:\n"
        "    def __init__(self, count): self.count = count\n"
        "    def __len__(self): return self.count\n"
        "    def __getitem__(self, n): return {'wave': np.full(8, n, np.float32), 'label': n}\n"
    )


def videofolder(root: Path) -> None:
    """Videos of two classes."""
    write_files(
        root, {f"actions/{'ab'[number % 2]}/{number}.mp4": video(2, size=(64, 96), seed=number) for number in range(20)}
    )


def webdataset(root: Path) -> None:
    """Four tars of photos with captions; a folder of one."""
    for name in ("cc3m", "shards"):
        (root / name).mkdir()
        for part in range(4):
            members = [(f"{part}{n}.{kind}", data) for n in range(5) for kind, data in (("jpg", jpeg()), ("txt", b"a"))]
            write_tar(root / name / f"train-{part:05d}.tar", members)


def zarrs(root: Path) -> None:
    """Images with labels, in a folder and in a zip file; a series of one store, and one of two variables."""
    for store in (root / "train.zarr", zarr.storage.ZipStore(root / "train.zarr.zip", mode="w")):
        group = zarr.create_group(store)
        for name, data in (("images", np.zeros((20, 4, 4), np.float32)), ("labels", np.arange(20))):
            group.create_array(name, data=data)
        if not isinstance(store, Path):
            store.close()
    group = zarr.create_group(root / "era5.zarr")
    t2m, time = np.zeros((20, 4), np.int16), np.arange(20)
    group.create_array("t2m", data=t2m, attributes={"scale_factor": 0.5}, dimension_names=("time", "place"))
    group.create_array("time", data=time, attributes={"units": "hours since 2000-01-01"}, dimension_names=("time",))
    for variable in ("u10", "v10"):
        group = zarr.create_group(root / "wind" / f"{variable}.zarr")
        group.create_array(variable, data=np.zeros((20, 4), np.float32), dimension_names=("time", "place"))
        group.create_array("time", data=time, dimension_names=("time",))


DATA: dict[str, Callable[[Path], None]] = {
    "arrayfolder": arrayfolder, "audiofolder": audiofolder, "cifar": cifar, "coco": coco, "filelist": filelist,
    "hdf5": hdf5, "huggingface": huggingface, "idx": idx, "imagefolder": imagefolder, "litdata": litdata, "lmdb": lmdbs,
    "mds": mds, "numpy": numpy, "parquet": parquet, "text": text, "tfrecord": tfrecord, "torch": torch,
    "videofolder": videofolder, "webdataset": webdataset, "yolo": yolo, "zarr": zarrs,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", sources.names())
def test_every_example_works(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line can be copied as it is, and makes a dataset (or several)."""
    DATA[name](tmp_path)
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"^    (shardio convert .*)$", here("convert", name, "--help"), re.MULTILINE)
    assert len(examples) >= 7
    for line in examples:
        here(*shlex.split(line)[1:])
        assert "--dry-run" in line or all(len(shardio.open(path.parent)) for path in Path("data").rglob("shardio.json"))
        assert Path("data").exists() is ("--dry-run" not in line), line
        shutil.rmtree("data", ignore_errors=True)
    appends = re.findall(r"^    (shardio append .*)$", here("append", name, "--help"), re.MULTILINE)
    for line in (examples[0], *appends):
        here(*shlex.split(line)[1:])
    assert len(appends) == 5
    assert all(shardio.open(path.parent).earlier for path in Path("data").rglob("shardio.json"))


def test_every_option_has_an_example() -> None:
    """Each option of `shardio convert` occurs in an example, of a source or of the command itself."""
    helps = [here("convert", name, "--help").partition("Arguments:") for name in DATA]
    shown = here("convert", "--help") + "".join(examples for examples, _, _ in helps)
    for _, _, options in helps:
        for option in re.findall(r"^  (--[a-z-]+)", options, re.MULTILINE):
            assert option == "--help" or re.search(rf"({option}|{option.replace('--', '--no-')})\s", shown), option
