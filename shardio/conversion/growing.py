"""A dataset that a conversion adds shards to: its options (they apply to new shards), its fields, its digest so far."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, final

import numpy as np

from ..cache.fetcher import Fetcher
from ..cache.location import usual_limit
from ..cache.node_cache import NodeCache
from ..dataset.dataset import Dataset
from ..dataset.remote_shards import RemoteShards
from ..errors import ConfigError, DatasetError, Message, Option
from ..format import cf, checksums
from ..format.fields import CHECKSUM, describe_fields, with_hidden
from ..format.manifest import Manifest
from ..output import Output
from ..output.shard_writer import Before
from ..output.store import STAGING, StoreOutput
from ..system.replacement import temporary_folder
from ..views.classes import difference as class_difference
from .dataset_source import plain
from .reencode import ReencodeOptions
from .reencode_video import VideoOptions
from .runners import Progress
from .source import Source

_Options = TypeVar("_Options", ReencodeOptions, VideoOptions)

_SHARDS_AT_ONCE = 64  # whose indexes are fetched together
_SAMPLES_AT_ONCE = 1 << 20
_OF_FIELDS = ("dtype", "as_image", "squeeze", "store_pixels", "keep_alpha", "optional", "mask", "ragged")
"""Options that make other fields of a source's; plans have them by these names."""


@final
@dataclass(frozen=True, slots=True)
class Growing:
    """A dataset at an output that shards are added to.

    Raises ConfigError for one whose shards other programs wrote.
    """

    out: Output
    manifest: Manifest

    def __post_init__(self) -> None:
        if self.manifest.adopted:
            raise ConfigError(
                f"{self.out.path}: its shards are files of other programs: `shardio index` makes the dataset anew with "
                "more of them, and only a converted one can be appended to"
            )

    def container_options(self, container: str | None, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the container and its options, which are the dataset's; ConfigError if others are given."""
        self._keep("container", container, self.manifest.container)
        if not self._is_recorded:
            return self.manifest.container, dict(given)
        recorded = self.manifest.conversion.get("options")
        kept = dict(recorded) if isinstance(recorded, Mapping) else {}
        for name in {**kept, **given}:
            self._keep(name, str(given[name]) if name in given else None, kept.get(name))
        return self.manifest.container, {name: None if value == "None" else value for name, value in kept.items()}

    def shard_bytes(self, given: int | None, default: int) -> int:
        """Return the size of shards; ConfigError unless the given one is the dataset's."""
        recorded = self.manifest.conversion.get("shard_size")
        if not isinstance(recorded, int):
            return default if given is None else given
        self._keep("shard_size", given, recorded)
        return recorded

    def images(self, given: ReencodeOptions) -> ReencodeOptions:
        """Return how images are re-encoded; ConfigError unless options that are given are the dataset's."""
        return self._reencoding("images", given)

    def videos(self, given: VideoOptions) -> VideoOptions:
        """Return how videos are encoded anew, if the dataset has some; raises as `images`."""
        has_videos = any(field.kind == "video" for field in self.manifest.fields.values())
        return self._reencoding("encoding", given) if has_videos else given

    def _reencoding(self, key: str, given: _Options) -> _Options:
        if not self._is_recorded:
            return given
        usual: _Options = type(given)()
        recorded = self.manifest.conversion.get(key)
        names = [one.name for one in fields(usual) if one.name != "max_image_pixels"]
        known = {name: recorded[name] for name in names if name in recorded} if isinstance(recorded, Mapping) else {}
        kept = replace(usual, **known)
        for name in names:
            value = getattr(given, name)
            self._keep(name, None if value == getattr(usual, name) else value, getattr(kept, name) or None)
        return replace(kept, max_image_pixels=given.max_image_pixels)

    @property
    def _fitting(self) -> dict[str, Any]:
        """The options that made the dataset's fields of those of its source."""
        made = self.manifest.conversion
        found = {name: made[name] for name in _OF_FIELDS if made.get(name) is not None}
        size = found.get("store_pixels")
        return found | ({"store_pixels": True} if "store_pixels" in found else {}) | ({"resize": size} if size else {})

    @property
    def _is_recorded(self) -> bool:
        """Whether the manifest says with which options the dataset was made."""
        return "shard_size" in self.manifest.conversion

    def _keep(self, name: str, given: object, kept: object) -> None:
        """Raise ConfigError if an option is given that is not that of the dataset."""
        if given is None or given == kept:
            return
        made = Message("without {}", Option(name)) if kept is None else Message("with {}", Option(name, kept))
        raise ConfigError(
            "{}: the dataset was made {}, and appends keep to that; got {}",
            self.out.path,
            made,
            Option(name, given),
        )

    def check(self, source: Source) -> None:
        """Raise ConfigError unless a source has the dataset's fields, and its numbers and labels mean the same."""
        mine, others = self.manifest.fields, source.fields
        if list(plain(mine).items()) != list(plain(others).items()):
            made = [Option(name, value) for name, value in self._fitting.items()]
            advice = Message("; the dataset was made with" + " and".join([" {}"] * len(made)), *made) if made else ""
            raise ConfigError(
                "{}: what is appended must have the same fields in the same order: the dataset has {}, and the source "
                "has {}{}",
                self.out.path,
                describe_fields(mine),
                describe_fields(others),
                advice,
            )
        for name, field in mine.items():
            if found := cf.difference(field.attributes, others[name].attributes):
                raise ConfigError(
                    f"{self.out.path}: equal numbers must mean equal values: of field {name!r}, "
                    f"{found.between('the dataset', 'the source')}"
                )
        named = {"the dataset": self.manifest.metadata, "the source": source.metadata}
        if words := class_difference(named, mine):
            raise ConfigError(
                f"{self.out.path}: {words}: give a source that names the same classes, or convert it to a dataset of "
                "its own, and `shardio merge` both by names"
            )

    def before(self, progress: Progress) -> Before:
        """Read the checksums of the samples that are there, and nothing else of them.

        Raises DatasetError if they cannot be read, or are not those of the dataset.
        """
        with ExitStack() as resources:
            return Before(self.manifest, self._digest(self._open(resources), progress))

    def _open(self, resources: ExitStack) -> Dataset:
        if not isinstance(self.out, StoreOutput):
            return Dataset(self.manifest, self.out.path)
        # A cache of its own: what it holds of the dataset nobody reads again.
        folder = resources.enter_context(temporary_folder(STAGING))
        fetcher = Fetcher(NodeCache(folder, usual_limit(folder)))
        hidden = with_hidden(self.manifest.fields)
        dataset = Dataset(
            self.manifest, self.out.path, RemoteShards(self.manifest, self.out.path, hidden, self.out.store, fetcher)
        )
        resources.callback(dataset.close)
        return dataset

    def _digest(self, dataset: Dataset, progress: Progress) -> checksums.Digest:
        digest, starts, count = checksums.Digest(self.manifest.fields), self.manifest.shards.starts, len(dataset)
        first = 0
        while first < count:
            shard = int(np.searchsorted(starts, first, side="right")) - 1
            stop = min(first + _SAMPLES_AT_ONCE, int(starts[min(shard + _SHARDS_AT_ONCE, len(starts) - 1)]))
            digest.update(dataset.selection(np.arange(first, stop)).column(CHECKSUM))
            progress("reading checksums", stop, count)
            first = stop
        if digest.text() != self.manifest.digest:
            raise DatasetError(
                f"{self.out.path}: the checksums of its samples give the digest {digest.text()}, and its manifest says "
                f"{self.manifest.digest}: `shardio verify` names what has changed"
            )
        return digest
