"""The targets of `fuzz.py`: small datasets, sources, journals and checkpoints that the formats' own libraries write."""

import csv
import gzip
import io
import json
import multiprocessing
import os
import re
import sys
import tarfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import h5py
import hdf5plugin
import lmdb
import nibabel
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import scipy.io
import tifffile
import zarr
from _builders import class_folders, encode, idx_pair, jpeg, pixels, png, webp
from _datasets import packed
from _dicom_files import write_dicom
from _foreign import Datum, example, write_tar, write_tfrecord
from _videos import video
from astropy.io import fits

import shardio
from shardio.conversion.adopt import adopt
from shardio.format import manifest
from shardio.source import Converter, WrappedSource, find
from shardio.views.key_table import key_table

COUNT = 12


@dataclass(frozen=True)
class Target:
    """Something to damage.

    Attributes:
        name: what to call it.
        write: writes it into an empty folder.
        uses: what is done with it afterwards: names in `_fuzz_uses.USES`.
        converter: the converter that reads it, if it is a source; `path` is what that is given.
        path: the path of the source within the folder.
        exact: whether the format's own checksums find every change of a sample.
        trusted: whether it may name other files to read, as the documentation says.
        files: a pattern of the paths to damage.
    """

    name: str
    write: Callable[[Path], object]
    uses: Sequence[str]
    converter: str = ""
    path: str = ""
    exact: bool = False
    trusted: bool = False
    files: str = ""


@cache
def converter(name: str) -> Converter:
    """An installed converter, looked up once."""
    return find(name)


def image(number: int) -> bytes:
    """An image file of one of three formats."""
    return (jpeg, jpeg, png, webp)[number % 4](16 + number, 20, seed=number)


def samples() -> list[dict[str, Any]]:
    """Samples with a field of every kind."""
    random = np.random.default_rng(0)
    return [
        {
            "image": image(n),
            "label": n % 3,
            "key": f"class/{n:03d}",
            "note": {"n": n, "odd": bool(n % 2)},
            "points": random.normal(size=(n % 4, 2)).astype(np.float32),
            "row": random.integers(0, 99, 5).astype(np.int16),
            "raw": bytes(range(n)),
        }
        for n in range(COUNT)
    ]


FIELDS: dict[str, Any] = {
    "image": "image",
    "label": "int64",
    "key": "text",
    "note": "json",
    "points": shardio.Field("array", dtype="float32"),
    "row": ("int16", (5,)),
    "raw": "bytes",
}


def dataset(container: str, **options: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        packed(folder, samples(), FIELDS, container=container, shard_size="3KB", **options)

    return write


def keyed(folder: Path) -> None:
    """A dataset with an index of its keys."""
    dataset("hdf5")(folder)
    key_table(shardio.open(folder), "key", always=True)


VIDEOS = ("h264.mp4", "hevc_open.mp4", "vp9.webm", "h264_open.mkv", "av1.mp4", "turned.mp4")


def videos(container: str) -> Callable[[Path], None]:
    """A dataset of videos, and of numbers."""

    def write(folder: Path) -> None:
        made = ({"video": video(name), "label": number} for number, name in enumerate(VIDEOS))
        packed(folder, made, {"video": "video", "label": "int64"}, container=container, shard_size="100KB")

    return write


def many_shards(folder: Path) -> None:
    """A dataset whose shards are listed in a file of their own."""
    most, manifest.MOST_INLINE = manifest.MOST_INLINE, 2
    try:
        dataset("tar")(folder)
    finally:
        manifest.MOST_INLINE = most


def tars(folder: Path) -> None:
    for part in range(2):
        members = []
        for n in range(part * 6, part * 6 + 6):
            array = io.BytesIO()
            np.save(array, np.arange(n))
            members += [
                (f"{n:03d}.jpg", jpeg(seed=n)),
                (f"{n:03d}.cls", b"%d" % n),
                (f"{n:03d}.json", b'{"n": [%d]}' % n),
            ]
            members += [(f"{n:03d}.caption.txt", f"größe {n}".encode()), (f"{n:03d}.npy", array.getvalue())]
        write_tar(folder / f"train-{part}.tar", members, ("ustar", "pax")[part])


def zipped_tar(folder: Path) -> None:
    with tarfile.open(folder / "train.tar.gz", "w:gz") as tar:
        for n in range(6):
            member = tarfile.TarInfo(f"{n:03d}.jpg")
            member.size = len(data := jpeg(seed=n))
            tar.addfile(member, io.BytesIO(data))


def records(folder: Path) -> None:
    made = [
        example({"image": [jpeg(seed=n)], "label": [n], "box": [0.5, float(n)], "name": [b"n%d" % n]})
        for n in range(COUNT)
    ]
    write_tfrecord(folder / "train.tfrecord-00000-of-00002", made[:6])
    write_tfrecord(folder / "train.tfrecord-00001-of-00002", made[6:])


def zipped_records(folder: Path) -> None:
    records(folder)
    for path in list(folder.iterdir()):
        path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))


def entries(folder: Path, datums: bool) -> None:
    path = str(folder / "in.lmdb")
    with lmdb.open(path, map_size=1 << 20, subdir=False) as file, file.begin(write=True) as transaction:
        for n in range(COUNT):
            encoded = jpeg(seed=n) if n % 3 else encode("png", pixels(80, 90, seed=n))  # on overflow pages
            data = Datum(data=encoded, label=n, encoded=True).SerializeToString() if datums else encoded
            transaction.put(b"key %d" % n, data)
    (folder / "in.lmdb-lock").unlink(missing_ok=True)


def tables(folder: Path) -> None:
    """Plain, chunked, ragged and compound data, texts, and soft links within the file."""
    for part in range(2):
        with h5py.File(folder / f"part{part}.h5", "w") as file:
            rows = np.arange(part * 6, part * 6 + 6)
            file.create_dataset(
                "data/images", data=np.stack([pixels(8, 9, seed=n) for n in rows.tolist()]), chunks=(2, 8, 9, 3)
            )
            file.create_dataset("data/boxes", data=rows[:, None] * np.ones((1, 2), ">f4"))
            file["labels"] = h5py.SoftLink("/data/numbers")
            file["data/numbers"] = rows.astype(np.uint8)
            file["names"] = [f"größe {n}" for n in rows.tolist()]
            files = file.create_dataset("jpegs", 6, h5py.vlen_dtype(np.uint8))
            for row, n in enumerate(rows.tolist()):
                files[row] = np.frombuffer(jpeg(seed=n), np.uint8)
            values = [jpeg(seed=n) for n in rows.tolist()]
            file["ragged/data"] = np.frombuffer(b"".join(values), np.uint8)
            file["ragged/offsets"] = np.cumsum([0, *map(len, values)])
            pairs = np.zeros(6, [("score", "<f8"), ("kind", "i2")])
            pairs["kind"] = rows
            file["pairs"] = pairs


def filters(folder: Path) -> None:
    """A dataset through every filter, alone and in combination."""
    values = np.cumsum(np.random.default_rng(3).integers(0, 3, (COUNT, 9, 8)), axis=1).astype(np.uint16)
    ways: dict[str, dict[str, Any]] = {
        "gzip": {"compression": "gzip", "shuffle": True, "fletcher32": True},
        "lzf": {"compression": "lzf", "shuffle": True},
        "zstd": dict(hdf5plugin.Zstd()),
        "lz4": dict(hdf5plugin.LZ4(nbytes=64)),
        "bitshuffle": dict(hdf5plugin.Bitshuffle(nelems=16)),
        "bitshuffle_zstd": dict(hdf5plugin.Bitshuffle(cname="zstd")),
        "blosc": dict(hdf5plugin.Blosc(cname="lz4", shuffle=hdf5plugin.Blosc.SHUFFLE)),
        "blosc_zstd": dict(hdf5plugin.Blosc(cname="zstd", shuffle=hdf5plugin.Blosc.BITSHUFFLE)),
        "blosclz": dict(hdf5plugin.Blosc(cname="blosclz")),
        "blosc_zlib": dict(hdf5plugin.Blosc(cname="zlib")),
        "blosc2": {**hdf5plugin.Blosc2(), "fletcher32": True},
        "bzip2": dict(hdf5plugin.BZip2()),
        "scaleoffset": {"scaleoffset": 0},
        "plain": {},
    }
    with h5py.File(folder / "train.h5", "w", libver="latest") as file:
        for name, options in ways.items():
            file.create_dataset(name, data=values, chunks=(5, 9, 8), **options)


def months(folder: Path) -> None:
    """Two files of netCDF, each packed in its own way."""
    for number in range(2):
        with h5py.File(folder / f"month{number}.h5", "w") as file:
            rows = np.arange(number * 6, number * 6 + 6)
            file.create_dataset("t2m", data=(rows[:, None] * np.ones((1, 4))).astype(">i2"), chunks=(2, 4))
            packing = {"scale_factor": np.float32(0.1 + number), "add_offset": np.float32(273), "units": "K"}
            file["t2m"].attrs.update({**packing, "_FillValue": np.int16(number * 6)})
            file["time"] = rows.astype("i4")
            file["time"].attrs.update({"units": f"days since 200{number}-01-01", "calendar": "gregorian"})


def classic(folder: Path) -> None:
    """A file of netCDF's classic format, with records of several variables."""
    with scipy.io.netcdf_file(folder / "a.nc", "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 5)
        file.createVariable("t2m", "i2", ("time", "x"))[:] = np.arange(5 * COUNT).reshape(COUNT, 5)
        file.variables["t2m"].units, file.variables["t2m"].scale_factor = "K", np.float32(0.5)
        file.createVariable("time", "i4", ("time",))[:] = np.arange(COUNT)
        file.variables["time"].units = "hours since 2020-01-01"


def adopted(write: Callable[[Path], None], kind: str, path: str = "", **options: Any) -> Callable[[Path], None]:
    """Files of others with an index beside them."""

    def index(folder: Path) -> None:
        write(folder)
        adopt(converter(kind)(str(folder / path), **options), folder)

    return index


def parquet_files(folder: Path) -> None:
    table = pa.table(
        {
            "image": pa.array([jpeg(seed=n) for n in range(COUNT)]),
            "label": pa.array(list(range(COUNT))),
            "caption": pa.array([f"größe {n}" for n in range(COUNT)]),
            "box": pa.array([[float(n)] * 4 for n in range(COUNT)], pa.list_(pa.float32(), 4)),
            "tags": pa.array([[{"name": "x", "n": n}] * (n % 3) for n in range(COUNT)]),
        }
    )
    pyarrow.parquet.write_table(table, folder / "train-00000-of-00001.parquet", row_group_size=5, compression="zstd")


def text_lines(folder: Path) -> None:
    rows = [{"text": f"größe {n}", "n": n, "tags": ["x"] * (n % 3)} for n in range(COUNT)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def zipped_text(folder: Path) -> None:
    text_lines(folder)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress((folder / "a.jsonl").read_bytes(), mtime=0))
    (folder / "a.jsonl").unlink()


def hugging_face(folder: Path) -> None:
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["a", "b"]),
            "box": datasets.Array2D((2, 2), "float32"),
        }
    )
    rows = {
        "image": [{"bytes": jpeg(seed=n), "path": None} for n in range(COUNT)],
        "label": [n % 2 for n in range(COUNT)],
        "box": [[[n, 1.0], [2.0, 3.0]] for n in range(COUNT)],
    }
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(rows, features).save_to_disk(folder / "train")


def stores(form: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        group = zarr.open_group(folder / "train.zarr", mode="w", zarr_format=form)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for types that the Zarr 3 specification does not define yet
            for name, data in {
                "images": np.stack([pixels(8, 9, seed=n) for n in range(COUNT)]),
                "label": np.arange(COUNT),
                "names": np.array([f"n{n}" for n in range(COUNT)]),
            }.items():
                array = group.create_array(name, shape=data.shape, dtype=data.dtype, chunks=(5, *data.shape[1:]))
                array[...] = data

    return write


def arrays(folder: Path) -> None:
    np.save(folder / "image.npy", np.stack([pixels(8, 9, seed=n) for n in range(COUNT)]))
    np.save(folder / "label.npy", np.arange(COUNT, dtype=">i2"))
    np.save(folder / "names.npy", np.array([f"n{n}" for n in range(COUNT)]))


def array_files(folder: Path) -> None:
    """Files of one array each, and a table of them."""
    names = []
    for n in range(COUNT):
        array = pixels(8, 9, 1, seed=n, dtype=np.uint16)
        name = f"{n}.{('tif', 'npy', 'png', 'nii', 'fits', 'mat', 'dcm')[n % 7]}"
        match name.partition(".")[2]:
            case "tif":
                tifffile.imwrite(folder / name, array, compression=(None, "zlib")[n % 2])
            case "npy":
                np.save(folder / name, array)
            case "png":
                (folder / name).write_bytes(encode("png", array))
            case "nii":
                nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), folder / name)
            case "fits":
                fits.PrimaryHDU(array).writeto(folder / name)
            case "mat":
                scipy.io.savemat(folder / name, {"x": array}, do_compression=True)
            case _:
                write_dicom(folder / name, array)
        names.append(name)
    rows = [f"{name},{n % 3},größe {n}" for n, name in enumerate(names)]
    (folder / "list.csv").write_text("\n".join(["path,label,caption", *rows]))


def zipped_arrays(folder: Path) -> None:
    images = np.stack([pixels(8, 9, seed=n) for n in range(COUNT)])
    np.savez_compressed(folder / "train.npz", image=images, label=np.arange(COUNT))
    np.savez(folder / "plain.npz", box=np.ones((COUNT, 4), ">f4"), label=np.arange(COUNT))


def cifar_files(folder: Path) -> None:
    for number in range(1, 3):
        random = np.random.default_rng(number)
        rows = [bytes([n]) + random.integers(0, 99, 3072, np.uint8).tobytes() for n in range(3)]
        (folder / f"data_batch_{number}.bin").write_bytes(b"".join(rows))
    (folder / "batches.meta.txt").write_text("cat\ndog\nowl\n")


def listed(folder: Path, suffix: str) -> None:
    (folder / "images").mkdir()
    rows = []
    for n in range(COUNT):
        (folder / "images" / f"{n}.jpg").write_bytes(image(n))
        rows.append({"path": f"images/{n}.jpg", "label": n % 3, "weight": n / 4, "caption": f"größe {n}"})
    with open(folder / f"train.{suffix}", "w", newline="") as file:
        if suffix == "csv":
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json.dumps({**row, "tags": [row["label"]]}) + "\n" for row in rows)


def instances(folder: Path) -> None:
    """COCO's JSON beside its images."""
    images, annotations = [], []
    for n in range(COUNT):
        (folder / f"{n}.jpg").write_bytes(image(n))
        images.append({"id": n, "file_name": f"{n}.jpg", "height": 16 + n, "width": 20})
        box = {
            "id": n,
            "image_id": n,
            "category_id": 7,
            "bbox": [n, 1, 3, 4],
            "area": 12,
            "segmentation": [[1, 2, 3, 4]],
        }
        annotations += [{**box, "id": 10 * n + one} for one in range(n % 3)]
    parts = {"images": images, "annotations": annotations, "categories": [{"id": 7, "name": "cat"}]}
    (folder / "instances.json").write_text(json.dumps(parts))


def labelled(folder: Path) -> None:
    """Images with files of labels, and YAML that lists them."""
    for name in ("images", "labels"):
        (folder / name).mkdir()
    for n in range(COUNT):
        (folder / "images" / f"{n}.jpg").write_bytes(image(n))
        (folder / "labels" / f"{n}.txt").write_text("0 0.5 0.5 0.25 0.5\n" * (n % 3))
    (folder / "data.yaml").write_text("train: images\nnames: [cat]\n")


class Interrupted(WrappedSource):
    """A source that ends its process once a shard is finished, as kill -9 does; it is read sample by sample."""

    def __init__(self, source: Any, out: Path) -> None:
        super().__init__(source)
        self.fields, self._out = source.fields, out

    @property
    def adoption(self) -> Any:
        return self.source.adoption

    def __getitem__(self, index: int) -> Any:
        if any(self._out.glob(".converting/*/*.done")):
            os._exit(0)
        return self.source[index]


def convert_source(folder: Path, *, interrupt: bool = False, container: str = "tar", **options: Any) -> None:
    """Convert the images in `folder/in` to `folder/out`."""
    source, out = converter("imagefolder")(str(folder / "in")), folder / "out"
    source = Interrupted(source, out) if interrupt else source
    shardio.convert(source, out, container=container, shard_size="2KB", **options)


def convert_to_hdf5(folder: Path, **options: Any) -> None:
    """The same, to HDF5."""
    convert_source(folder, container="hdf5", **options)


def index_source(folder: Path, *, interrupt: bool = False, **options: Any) -> None:
    """Adopt the tars in `folder/in` at `folder/out`."""
    source, out = converter("webdataset")(str(folder / "in"), key=False), folder / "out"
    adopt(Interrupted(source, out) if interrupt else source, out, **options)


def journal(write: Callable[[Path], None], work: Callable[..., None]) -> Callable[[Path], None]:
    """A source in `in`, and in `out` what is left of a conversion that was killed."""

    def interrupt(folder: Path) -> None:
        (folder / "in").mkdir()
        write(folder / "in")
        for path in (folder / "in").rglob("*"):
            os.utime(path, (10**9, 10**9))  # which the plan holds
        process = multiprocessing.get_context("fork").Process(target=work, args=(folder,), kwargs={"interrupt": True})
        process.start()
        process.join()
        plan = folder / "out" / ".converting" / "plan.json"
        text = plan.read_text()
        name = re.findall(r"run-[0-9a-f]{8}", text)[0]
        plan.write_text(text.replace(name, "run-00000000"))  # so that replayed files fit
        os.rename(plan.parent / name, plan.parent / "run-00000000")
        for path in plan.parent.rglob(".writing-*"):
            os.rename(path, path.with_name(".writing-0"))

    return interrupt


def photos(folder: Path) -> None:
    class_folders(folder, {name: [f"{n}.jpg" for n in range(4)] for name in ("cat", "dog", "owl")})


def train(folder: Path, **options: Any) -> None:
    """Train a tiny model on `folder/data/train`, with checkpoints in `folder/out`."""
    sys.path.append(str(Path(__file__).parents[1] / "train"))
    from _tiny import config  # here: it needs torch, as training does, and the other targets don't

    from shardio.train import run

    with open(folder / "log", "w") as file, redirect_stdout(file), redirect_stderr(file):
        run(config(folder, **options))


def trained(folder: Path) -> None:
    """The output of a training run, and its dataset."""
    (folder / "data").mkdir()
    train(folder, epochs=1)


def labels(folder: Path) -> shardio.Loader:
    """A loader of numbers, whose state is damaged."""
    return shardio.Loader(folder, 5, fields=["label"], seed=3, world=shardio.World(), tail="pad", threads=1)


def state(folder: Path) -> None:
    """A dataset, and the state of a loader in the middle of an epoch."""
    dataset("hdf5")(folder)
    loader = labels(folder)
    batches = iter(loader)
    next(batches)
    (folder / "state.json").write_text(json.dumps(loader.state_dict()))
    batches.close()


READ = ("load", "load", "load", "load_again", "read", "read", "verify", "verify_deep", "repair", "stats", "reshard")
CONVERT = ("convert", "convert", "convert_all")
ADOPT = (*CONVERT, "adopt")

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("tar", dataset("tar"), READ),
        Target("hdf5", dataset("hdf5"), READ),
        Target("hdf5_compressed", dataset("hdf5", compression="gzip"), READ),
        Target("lmdb", dataset("lmdb"), READ),
        Target("keys", keyed, ("find",), files=r"keys"),
        Target("videos_tar", videos("tar"), READ),
        Target("videos_hdf5", videos("hdf5"), READ),
        Target("videos_lmdb", videos("lmdb"), READ),
        Target("many_shards", many_shards, READ, files=r"shardio\.|idx"),
        Target("adopted_tar", adopted(tars, "webdataset", key=False), READ),
        Target("adopted_tfrecord", adopted(records, "tfrecord"), READ),
        Target("adopted_lmdb", adopted(lambda folder: entries(folder, True), "lmdb", "in.lmdb"), READ),
        Target("adopted_hdf5", adopted(tables, "hdf5"), READ),
        Target("adopted_filters", adopted(filters, "hdf5"), READ),
        Target("adopted_netcdf", adopted(months, "hdf5", decode_cf=True), READ),
        Target("webdataset", tars, ADOPT, "webdataset"),
        Target("webdataset_gz", zipped_tar, CONVERT, "webdataset", exact=True),
        Target("tfrecord", records, ADOPT, "tfrecord", exact=True),
        Target("tfrecord_gz", zipped_records, CONVERT, "tfrecord", exact=True),
        Target("lmdb_datums", lambda folder: entries(folder, True), ADOPT, "lmdb", "in.lmdb"),
        Target("lmdb_images", lambda folder: entries(folder, False), ADOPT, "lmdb", "in.lmdb"),
        Target("hdf5_tables", tables, ADOPT, "hdf5"),
        Target("hdf5_filters", filters, ADOPT, "hdf5"),
        Target("netcdf3", classic, CONVERT, "hdf5", "a.nc"),
        Target("parquet", parquet_files, CONVERT, "parquet"),
        Target("text", text_lines, CONVERT, "text"),
        Target("text_gz", zipped_text, CONVERT, "text", exact=True),
        Target("huggingface", hugging_face, CONVERT, "huggingface", "train", trusted=True),
        Target("zarr2", stores(2), CONVERT, "zarr", "train.zarr"),
        Target("zarr3", stores(3), CONVERT, "zarr", "train.zarr"),
        Target("npy", arrays, CONVERT, "numpy"),
        Target("arrayfolder", array_files, CONVERT, "arrayfolder", "list.csv", trusted=True),
        Target("npz", zipped_arrays, CONVERT, "numpy", "train.npz", exact=True),
        Target("npz_plain", zipped_arrays, CONVERT, "numpy", "plain.npz", exact=True),
        Target("idx", lambda folder: idx_pair(folder, prefix="train-"), CONVERT, "idx"),
        Target("idx_gz", lambda folder: idx_pair(folder, prefix="train-", zipped=True), CONVERT, "idx", exact=True),
        Target("cifar", cifar_files, CONVERT, "cifar"),
        Target("csv", lambda folder: listed(folder, "csv"), CONVERT, "filelist", "train.csv", trusted=True),
        Target("jsonl", lambda folder: listed(folder, "jsonl"), CONVERT, "filelist", "train.jsonl", trusted=True),
        Target("imagefolder", photos, CONVERT, "imagefolder"),
        Target("coco", instances, CONVERT, "coco", "instances.json"),
        Target("yolo", labelled, CONVERT, "yolo", "data.yaml", trusted=True),
        Target("journal", journal(photos, convert_source), ("resume", "resume", "overwrite"), files="^out/"),
        Target("journal_hdf5", journal(photos, convert_to_hdf5), ("resume_hdf5",), files="^out/"),
        Target("journal_index", journal(tars, index_source), ("resume_index", "overwrite_index"), files="^out/"),
        Target("checkpoint", trained, ("load_checkpoint", "load_checkpoint", "train"), files="^out/.*pt$"),
        Target("state", state, ("load_state",), files=r"^state\.json$"),
    )
}
