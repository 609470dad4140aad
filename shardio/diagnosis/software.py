"""The packages that shardio needs or can use: which are installed, and whether they import."""

import platform
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from .. import __version__, native
from ..bench.machine import installed
from ..errors import MissingDependency
from ..system.optional import load
from .machine import Finding


@dataclass(frozen=True, slots=True)
class Package:
    """A package that shardio uses.

    Attributes:
        name: what its users call it.
        module: what is imported.
        distributions: the names that it may be installed under.
        purpose: what it is for; empty if shardio does not work without it.
        install: what `pip install` takes, if it is not the first of the distributions.
        more: returns what else is worth knowing of the imported module.
    """

    name: str
    module: str
    distributions: tuple[str, ...]
    purpose: str = ""
    install: str = ""
    more: Callable[[ModuleType], str] = lambda module: ""


def _cuda(torch: ModuleType) -> str:
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"


def _libavcodec(av: ModuleType) -> str:
    return f"libavcodec {'.'.join(map(str, av.library_versions['libavcodec']))}"


PACKAGES = (
    Package("NumPy", "numpy", ("numpy",)),
    Package("PyTorch", "torch", ("torch",), more=_cuda),
    Package("h5py", "h5py", ("h5py",), more=lambda h5py: f"HDF5 {h5py.version.hdf5_version}"),
    Package("lmdb", "lmdb", ("lmdb",), more=lambda lmdb: f"LMDB {'.'.join(map(str, lmdb.version()))}"),
    Package("Pillow", "PIL", ("pillow",)),
    Package("msgspec", "msgspec", ("msgspec",)),
    Package("xxhash", "xxhash", ("xxhash",)),
    Package(
        *("DALI", "nvidia.dali", ("nvidia-dali-cuda130", "nvidia-dali-cuda120")),
        *("images decoded and transformed on a GPU", "nvidia-dali-cuda130, or nvidia-dali-cuda120"),
    ),
    Package(
        *("nvImageCodec", "nvidia.nvimgcodec", ("nvidia-nvimgcodec-cu13", "nvidia-nvimgcodec-cu12")),
        *("images decoded on a GPU", "'nvidia-nvimgcodec-cu13[all]', or 'nvidia-nvimgcodec-cu12[all]'"),
    ),
    Package(
        *("OpenCV", "cv2", ("opencv-python-headless", "opencv-python")),
        "PNGs made of pixels, and images other than JPEGs shrunk or encoded anew",
    ),
    Package("hdf5plugin", "hdf5plugin", ("hdf5plugin",), "zstd, lz4, bitshuffle and blosc in HDF5 files"),
    Package("webdataset", "webdataset", ("webdataset",), "other programs that read shardio's tars, not shardio"),
    Package("pyarrow", "pyarrow", ("pyarrow",), "Parquet and Arrow files"),
    Package("datasets", "datasets", ("datasets",), "data sets of Hugging Face"),
    Package("google-crc32c", "google_crc32c", ("google-crc32c",), "the checksums of TFRecord files"),
    Package("zarr", "zarr", ("zarr",), "Zarr arrays"),
    Package("PyAV", "av", ("av",), "videos", more=_libavcodec),
    Package("Dask", "distributed", ("distributed",), "conversion on a Dask cluster", "'dask[distributed]'"),
    Package("pytorch_optimizer", "pytorch_optimizer", ("pytorch_optimizer",), "LARS, LARC and LAMB in shardio train"),
    Package("Starlette", "starlette", ("starlette",), "shardio browse", "starlette uvicorn"),
    Package("TensorBoard", "tensorboard", ("tensorboard",), "shardio train --tensorboard"),
)


def version_line() -> str:
    """Return what `shardio --version` prints; nothing is imported for it but the compiled part."""
    jpeg = native.jpeg_version()
    compiled = "not compiled" if jpeg is None else f"compiled, libjpeg-turbo {jpeg}"
    torch = installed(("torch",)) or "not installed"
    return f"shardio {__version__} ({compiled}; Python {platform.python_version()}, torch {torch})"


def software() -> list[Finding]:
    """Import each package, and return what was found: shardio, Python, the compiled part, then `PACKAGES`."""
    return [
        Finding("shardio", "ok", __version__),
        Finding("Python", "ok", f"{platform.python_version()}, {platform.system()} {platform.release()}"),
        _compiled_part(),
        *map(look_at, PACKAGES),
    ]


def _compiled_part() -> Finding:
    name, loaded = "compiled part", native.load()
    if not isinstance(loaded, str):
        return Finding(name, "ok", f"libjpeg-turbo {native.jpeg_version()}")
    if loaded == native.OFF:
        return Finding(name, "missing", loaded, "unset it: JPEG photos load at about a quarter of the rate without")
    advice = f"JPEG photos load at about a quarter of the rate: {native.HOW_TO_GET}"
    return Finding(name, "broken" if native.FILE.is_file() else "missing", loaded, advice)


def look_at(package: Package) -> Finding:
    """Import a package; one that fails to import is broken, and so is an absent one that shardio needs."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # theirs, about each other
            module = load(package.module, purpose="", extra="")
            more = package.more(module)
    except MissingDependency as error:
        cause = error.__cause__
        if not _is_absent(package.module, cause):
            return _broken(package, cause)
        advice = f"pip install {package.install or package.distributions[0]}"
        if not package.purpose:
            return Finding(package.name, "broken", "not installed", advice)
        return Finding(package.name, "optional", "not installed", f"for {package.purpose}: {advice}")
    except Exception as error:  # noqa: BLE001  a broken package may raise anything while it is imported
        return _broken(package, error)
    version = installed(package.distributions) or str(getattr(module, "__version__", "version unknown"))
    return Finding(package.name, "ok", f"{version}, {more}" if more else version)


def _broken(package: Package, error: BaseException | None) -> Finding:
    told = " ".join(f"{type(error).__name__}: {error}".split())
    return Finding(package.name, "broken", f"installed, but it fails to import: {told}", "install it anew")


def _is_absent(module: str, error: BaseException | None) -> bool:
    """Return whether an import failed because the module itself, or a package around it, is not installed."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return name is not None and f"{module}.".startswith(f"{name}.")
