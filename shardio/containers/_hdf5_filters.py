"""Filters of HDF5 by their numbers, and the pipeline of a dataset's filters."""

from collections.abc import Callable
from typing import Any

from . import chunk_codecs as codecs
from .chunk_codecs import Undo
from .chunk_filters import FilterPipeline

_FILTERS: dict[int, tuple[str, Callable[[tuple[int, ...]], Undo | None]]] = {
    1: ("deflate", codecs.undo_gzip),
    2: ("shuffle", lambda values: codecs.undo_shuffle(values[0] if values else 0)),
    3: ("fletcher32", lambda _: codecs.undo_fletcher32),
    307: ("bzip2", lambda _: codecs.undo_bzip2),
    32000: ("lzf", codecs.undo_lzf),
    32001: ("blosc", codecs.undo_blosc),
    32004: ("lz4", codecs.undo_lz4),
    32008: ("bitshuffle", codecs.undo_bitshuffle),
    32015: ("zstd", codecs.undo_zstd),
    32026: ("blosc2", codecs.undo_blosc2),
}
"""By HDF5's number of a filter: its name, and a function of its settings that returns what undoes it."""


def pipeline_of(dataset: Any, size: int) -> FilterPipeline | None:
    """Return the filters of an h5py dataset with chunks of `size` bytes; None if only libhdf5 can undo one of them."""
    properties = dataset.id.get_create_plist()
    filters = []
    for i in range(properties.get_nfilters()):
        code, _, values, _ = properties.get_filter(i)
        name, make = _FILTERS.get(code, ("", None))
        try:
            undo = None if make is None else make(values)
        except (ImportError, OSError, AttributeError):
            return None  # its library is not installed, built for another machine, or without the functions
        if undo is None:
            return None
        filters.append((name, undo))
    return FilterPipeline(tuple(filters), size)
