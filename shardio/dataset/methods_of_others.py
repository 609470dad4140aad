"""Methods that loaders of other libraries have, and what shardio has in their place."""

from collections.abc import Mapping
from types import MappingProxyType

_MAP = "a Loader's map= takes a function of whole batches, or with map_by='sample' of samples"
WEBDATASET: Mapping[str, str] = MappingProxyType(
    {
        "shuffle": "a Loader's shuffle= is 'global' by default: each epoch is another permutation of all samples",
        "batched": "a Loader's batch_size= takes its place",
        "with_epoch": "a Loader's epoch is len(loader) steps on every rank, and every sample comes once",
        "decode": "a Loader decodes images by itself, and its transforms= says what becomes of them",
        "map": _MAP,
        "map_tuple": _MAP,
        "map_dict": _MAP,
        "to_tuple": "a Loader's batch is a dict by field, of which fields= chooses some",
        "select": "where= of shardio.convert chooses samples by their scalar fields",
    }
)
"""Methods of webdataset's pipelines, with what to use instead."""


def no_attribute(owner: object, name: str, instead: Mapping[str, str]) -> AttributeError:
    """Return the error to raise for an attribute that `owner` lacks, with what to use `instead` of some."""
    advice = f": {instead[name]}" if name in instead else ""
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{advice}")
