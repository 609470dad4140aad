"""Did you mean? What shardio has for the words of other libraries, and for files that are no dataset, in messages."""

import difflib
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

Asked: TypeAlias = Literal["kind of field", "converter", "argument of convert", "argument of Loader", "transform"]
"""What a word is used for."""

OF_YOUR_OWN = (
    "Call it in a function of your own, def f(sample): return "
    "{**sample, 'image': it(sample['image'].permute(2, 0, 1))}, and give the Loader map=f, map_by='sample', "
    "isolate=True (see 'A transform of your own' in docs/tutorials/from-imagefolder.md)"
)
"""What to do with a transform that shardio lacks."""
_DIVIDES = "leave it out: a Loader divides the samples among the ranks itself, whatever the number of shards"

_WORDS: dict[Asked, dict[str, str]] = {
    "kind of field": {
        "str string strings utf8 utf-8 varchar caption txt": "text",
        "img jpg jpeg png webp picture photo": "image",
        "binary blob raw bytearray buffer": "bytes",
        "dict list object mapping": "json",
        "ndarray tensor volume": "array",
        "number integer int float bool": "scalar",
    },
    "converter": {
        "npz npy array arrays": "numpy",
        "h5 hdf he5 h5py nc nc3 nc4 netcdf netcdf3 netcdf4": "hdf5",
        "csv tsv json jsonl": "filelist",
        "tar tars wds": "webdataset",
        "image images folder folders jpg jpeg png": "imagefolder",
        "mnist ubyte": "idx",
        "hf arrow datasets": "huggingface",
        "streaming mosaic mosaicml": "mds",
        "tf tfrecords": "tfrecord",
        "pytorch pt": "torch",
        "mdb": "lmdb",
        "tif tiff nii nifti dcm dicom fits fit mat matlab": "arrayfolder",
        "video videos mp4 mkv webm mov": "videofolder",
        "audio sound sounds wav flac mp3 ogg": "audiofolder",
    },
    "argument of convert": {"to": "container", "compress": "compression", "fields": "converter_options"},
    "argument of Loader": {
        "num_workers": "threads= takes its place, or with isolate=True processes; leave it out for 'auto'",
        "prefetch_factor": "prefetch= takes its place, in batches of all workers; leave it out for 'auto'",
        "drop_last": "tail= takes its place: 'drop' is the default, 'pad' delivers every sample",
        "collate_fn": "map= takes a function of whole batches, or with map_by='sample' of samples",
        "generator": "seed= takes its place",
        "worker_init_fn": "map= takes a function with the parameter rng, which is the same on every worker",
        "multiprocessing_context": "isolate=True takes processes instead of threads",
        "transform": "transforms= takes its place",
        "sampler batch_sampler": (
            "a Loader divides the samples among the ranks itself; weighted(), balanced() and select() of its dataset "
            "say which ones, and shardio.TorchDataset, under a DataLoader, takes samplers"
        ),
        "pin_memory pin_memory_device": "with device='cuda' batches arrive on the GPU, copied from pinned memory",
        "persistent_workers in_order": "leave it out: workers stay for all epochs, and batches come in order",
        "resampled": "leave it out: an epoch is len(loader) steps on every rank, and every sample comes once",
        "shardshuffle": "leave it out: shuffle= is 'global', a permutation of all samples, or 'block'",
        "nodesplitter workersplitter empty_check": _DIVIDES,
        "handler": "on_bad_sample= takes its place: 'replace' or 'mask', with max_bad=",
        "where filter": "where() of a dataset chooses samples, as in Loader(shardio.open(path).where(condition), ...)",
        "rank world_size num_replicas shard_id num_shards": (
            "torchrun, Slurm and MPI tell it; without them, world=shardio.World(rank, size) does"
        ),
        "cache_dir": "cache= takes its place, for a dataset at a URL; local shards are read from where they lie",
    },
    "transform": {
        "ToTensor ToDtype ConvertImageDtype ConvertDtype": "shardio.ToFloat takes its place",
        "ToImage ToPILImage PILToTensor ToPureTensor": (
            "leave it out, a Loader delivers images as tensors; shardio.ToFloat makes them floats"
        ),
        "Compose Sequential": (
            "a Loader's transforms= takes a list of transforms: give what it holds one by one, as a list of shardio's; "
            "a function of your own goes to a Loader's map="
        ),
        "AugMix AutoAugment ElasticTransform FiveCrop GaussianNoise Grayscale JPEG Lambda "
        "LinearTransformation Pad RandomAdjustSharpness RandomAffine RandomAutocontrast RandomEqualize RandomInvert "
        "RandomOrder RandomPerspective RandomPhotometricDistort RandomPosterize RandomSolarize "
        "TenCrop": f"it is torchvision's. {OF_YOUR_OWN}",
    },
}
"""By what a word is used for: words of other libraries, separated by spaces, and the name or the advice for them."""

_BY_WORD: Mapping[Asked, Mapping[str, str]] = MappingProxyType(
    {use: {word: said for words, said in table.items() for word in words.split()} for use, table in _WORDS.items()}
)


def did_you_mean(word: str, use: Asked, known: Collection[str] = (), cutoff: float = 0.6) -> str:
    """Return shardio's name for a word of another library, or what to do instead; "" if nothing is known.

    Args:
        word: the word.
        use: what it is used for.
        known: the names that exist; one of them may be misspelled.
        cutoff: how alike a misspelled one must be, 0 to 1.
    """
    near = _BY_WORD[use].get(word) or next(iter(difflib.get_close_matches(word[:40], known, 1, cutoff)), "")
    return near if not known or near in known else ""


def near_path(path: Path) -> str:
    """Return the end of a message on a path that does not exist: the nearest that does; "" if none is near."""
    folder = next((folder for folder in path.parents if folder.is_dir()), None)
    if folder is None:
        return ""
    name, *rest = path.relative_to(folder).parts
    near = difflib.get_close_matches(name[:80], _entries(folder), 1)
    found = folder.joinpath(near[0], *rest) if near else path
    shown = os.fsencode(found).decode("utf-8", "backslashreplace")
    return f"; did you mean {shown}?" if found.exists() else ""


_INDEX = "shardio index {} -o OUT"


class _Files(NamedTuple):
    """A kind of files that shardio makes datasets of: what they are called, and the command, with `{}`."""

    many: str
    suffixes: tuple[str, ...]
    command: str = _INDEX

    def makes(self, path: Path, made: str) -> str:
        """Return the command for a path, and what it makes."""
        return f"`{self.command.format(_quoted(path))}` makes {made}"


_IMAGES = _Files("images", (".jpg", ".jpeg", ".png", ".webp", ".bmp"), "shardio convert imagefolder {} OUT")
_TARS = _Files("tar files", (".tar",))
_ARRAYS = _Files(
    "files of arrays",
    (".tif", ".tiff", ".nii", ".nii.gz", ".hdr", ".dcm", ".fits", ".fits.gz", ".fit", ".mat"),
    "shardio convert arrayfolder {} OUT",
)
_VIDEOS = _Files(
    "videos",
    (".avi", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm", ".wmv"),
    "shardio convert videofolder {} OUT",
)
_SOUNDS = _Files(
    "sounds", (".flac", ".m4a", ".mp3", ".ogg", ".opus", ".wav"), "shardio convert audiofolder {} OUT --rate 16000"
)
_FOLDERS = (_IMAGES, _VIDEOS, _SOUNDS)
"""The kinds whose command takes a folder, of folders for each class."""
_KINDS = (
    *_FOLDERS,
    _TARS,
    _Files(
        "compressed tar files",
        (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst"),
        "shardio convert webdataset {} OUT",
    ),
    _Files("TFRecord files", (".tfrecord", ".tfrecords")),
    _Files("HDF5 files", (".h5", ".hdf5")),
    _Files("an LMDB", (".mdb",)),
    _Files("Parquet files", (".parquet",), "shardio convert parquet {} OUT"),
    _Files("NumPy files", (".npy", ".npz"), "shardio convert numpy {} OUT"),
    _Files("NetCDF files", (".nc", ".nc4", ".cdf"), "shardio convert hdf5 {} OUT"),
    _ARRAYS,
)
_MAGIC = re.compile(r"[*?\[]|\{\d+\.\.\d+\}")  # what `shardio index` takes as a pattern
_MOST_ENTRIES, _MOST_NAMED = 200, 5


def for_folder(folder: Path, manifest_name: str) -> str:
    """Return what a directory without a manifest holds instead, and what to do, in at most a sentence."""
    names = list(_entries(folder))
    if inside := sorted(name for name in names if (folder / name / manifest_name).is_file()):
        return f"it holds the datasets {_listed(inside)}: give one of them, such as {folder / inside[0]}"
    if ".converting" in names:
        return "a conversion was cut off in it: run the same command with --resume"
    if linked := sorted(name for name in names if name.startswith("shard-") and (folder / name).is_symlink()):
        return for_links(folder, linked[0])
    if any(name.startswith("shard-") for name in names):
        return f"a conversion may have been cut off; `shardio repair {_quoted(folder)}` saves what its shards hold"
    if kind := _kind_of(names):
        return f"it holds {kind.many}: {kind.makes(folder, 'a dataset of them')}"
    folders, inner = _inner_kinds(folder, names)
    for first, kind in inner.items():
        if kind in _FOLDERS:  # a folder for each class
            return f"it holds {kind.many}: {kind.makes(folder, 'a dataset of them')}"
        made = kind.makes(folder / first, f"a dataset of those in {first}")
        return f"it holds {kind.many} in {_listed([name for name in inner if inner[name] is kind])}: {made}"
    if parts := [name for name in folders if has_class_folders(folder / name)]:
        return f"it holds folders of images in {_listed(parts)}: give one of them, such as {folder / parts[0]}"
    if folders:
        return f"it holds no shards, but folders: {_listed(folders)}"
    empty = all(name.startswith(".") for name in names)
    return "it is empty: a conversion may have been cut off" if empty else "it holds no shards"


def has_class_folders(folder: Path) -> bool:
    """Return whether a path that is no dataset, finished or not, is a folder of folders that hold images."""
    names = list(_entries(folder))
    ours = any(name == ".converting" or name.startswith(("shard-", "shardio.json")) for name in names)
    return not (ours or _kind_of(names)) and next(iter(_inner_kinds(folder, names)[1].values()), None) is _IMAGES


def _inner_kinds(folder: Path, names: Iterable[str]) -> tuple[list[str], dict[str, _Files]]:
    """Return the folders in a folder, with the kind of files that each of them holds."""
    folders = sorted(name for name in names if not name.startswith(".") and (folder / name).is_dir())
    return folders, {name: kind for name in folders[:_MOST_ENTRIES] if (kind := _kind_of(_entries(folder / name)))}


def for_links(folder: Path, name: str) -> str:
    """Return what to do with a directory without a manifest whose shards, such as `name`, are links to files."""
    files = f"its shards are links to files of other programs, such as {os.path.realpath(folder / name)}"
    return f"{files}: `shardio index FILES -o {_quoted(folder)} --overwrite` makes a dataset of these anew"


def for_file(path: Path, manifest_name: str) -> str | None:
    """Return what a file is if it can be no manifest, and what to do; None if it may be one."""
    with path.open("rb") as file:
        head = file.read(100)
    if path.name == manifest_name or head.lstrip().startswith(b"{"):
        return None
    if (path.parent / manifest_name).is_file():
        return f"it lies in one: give {path.parent}"
    kind = _kind_of([path.name])
    if kind is None:
        return "this file is of another kind"
    if kind in _FOLDERS:
        return kind.makes(path.parent, "a dataset of its folder")
    return kind.makes(path, "a dataset of it")


def for_pattern(path: Path) -> str:
    """Return what to do with a path that does not exist, but looks like a pattern; "" if it does not."""
    if not _MAGIC.search(str(path)):
        return ""
    kind = _kind_of([path.name]) or _TARS
    if kind in _FOLDERS:
        path = next(folder for folder in path.parents if not _MAGIC.search(str(folder)))
    return f"patterns name no dataset; {kind.makes(path, f'one of {kind.many}')}"


def for_paths(paths: Sequence[str | os.PathLike[str]], manifest_name: str) -> str | None:
    """Return what to do with a list of files or patterns; None if none of `paths` is a file that can be no manifest."""
    given = [Path(path) for path in paths]
    if not any(path.name != manifest_name and (path.is_file() or _MAGIC.search(str(path))) for path in given):
        return None
    kind = _kind_of([given[0].name]) or _TARS
    more = " ..." if len(given) > _MOST_NAMED else ""
    sources = " ".join(map(_quoted, given[:_MOST_NAMED])) + more if kind.command == _INDEX else "SRC"
    return f"`{kind.command.format(sources)}` makes one dataset of {kind.many}"


def to_convert(paths: Iterable[Path]) -> str:
    """Return the end of a message on files that can only be converted, by their names; "" if none can."""
    for path in paths:
        kind = _kind_of(_entries(path) if path.is_dir() else [path.name])
        if kind and kind.command != _INDEX and (kind not in _FOLDERS or path.is_dir()):
            return f"; `{kind.command.format(_quoted(path))}` takes {kind.many}"
    return ""


def for_media(suffixes: Iterable[str], taken: str) -> str:
    """Return the end of a message on files of these suffixes if some are videos or sounds; "" if none is.

    Args:
        suffixes: the suffixes of files that are not taken.
        taken: what is: `image`, `video` or `sound`.
    """
    suffixes = list(suffixes)
    for kind in (_VIDEOS, _SOUNDS):
        found = [suffix for suffix in suffixes if suffix in kind.suffixes]
        if found and kind.many != f"{taken}s":
            return f": `{kind.command.format('...')}` takes {kind.many} ({', '.join(found)})"
    return ""


def are_arrays(name: str) -> bool:
    """Return whether a file holds an array of imaging or astronomy, by its name."""
    return name.lower().endswith(_ARRAYS.suffixes)


def are_sounds(name: str) -> bool:
    """Return whether a file holds sound, by its name."""
    return name.lower().endswith(_SOUNDS.suffixes)


def _kind_of(names: Iterable[str]) -> _Files | None:
    """Return the kind of the first file that is of a known one, by its name."""
    return next((kind for name in names for kind in _KINDS if name.lower().endswith(kind.suffixes)), None)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")


def _entries(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry.name for entry in islice(entries, _MOST_ENTRIES))
    except OSError:  # a folder that may not be read has no suggestions
        return


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
