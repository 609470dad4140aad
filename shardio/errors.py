"""Every error that shardio raises on purpose.

ShardioError
├── ConfigError (ValueError)        an argument breaks a rule
├── MissingDependency (ImportError) an optional package is not installed
├── DatasetError
│   ├── NotADataset                 no manifest where one was looked for
│   ├── ManifestError               a manifest that cannot be trusted
│   ├── ShardCorrupt                a shard is not what the manifest says
│   ├── BadSample                   one sample cannot be stored or decoded
│   └── TooManyBad                  more bad samples than a loader may pass over
├── MapError (RuntimeError)         the user's own map function failed
├── SourceError                     what a converter was pointed at cannot be converted
├── StateMismatch (ValueError)      a loader's state belongs to something else
├── PipelineStalled (TimeoutError)  no batch came within the time limit
├── ProducerDied (RuntimeError)     a process that makes batches ended by itself
└── PipelineClosed (RuntimeError)   an iterator was used after it was closed

StateWarning (UserWarning)          what `strict=False` gives up

A message names the rule, the value and the place.
"""

from collections.abc import Sequence
from typing import Any


class ShardioError(Exception):
    """The root: `except ShardioError` catches all that shardio raises on purpose."""


class ConfigError(ShardioError, ValueError):
    """An argument breaks a rule; the message names the rule and the value."""


class MissingDependency(ShardioError, ImportError):
    """An optional package is not installed; the message says how to get it."""


class DatasetError(ShardioError):
    """Something about a dataset on disk."""


class NotADataset(DatasetError, FileNotFoundError):
    """There is no `shardio.json` at the path."""


class ManifestError(DatasetError):
    """A manifest cannot be read, or contradicts itself or its shards."""


class ShardCorrupt(DatasetError):
    """A shard is missing, cut short or changed since it was written."""


class BadSample(DatasetError):
    """One sample cannot be stored or decoded; the message names it and says why."""


class TooManyBad(DatasetError):
    """More samples are bad than `max_bad` allows; the message says how many, and what is wrong with the last one.

    Attributes:
        skipped: of a conversion, what was left out of it so far.
    """

    skipped: Sequence[Any] = ()


class MapError(ShardioError, RuntimeError):
    """The user's own map function failed; the message names it and the sample, the cause is what it raised."""


class SourceError(ShardioError):
    """What a converter was pointed at is missing, unreadable or inconsistent."""


class StateMismatch(ShardioError, ValueError):
    """A loader's state was made with another dataset, seed or version; the message holds both values."""


class EngineWarning(UserWarning):
    """An engine refused a batch of images none of which is bad."""


class StateWarning(UserWarning):
    """A state of something else was loaded with `strict=False`; the message holds both values and what is lost."""


class PipelineStalled(ShardioError, TimeoutError):
    """No batch came within the time limit; the message says what each worker is doing."""


class WorkerDied(ShardioError, RuntimeError):
    """A process that makes batches ended by itself or was killed; the message names it and its exit code."""


class PipelineClosed(ShardioError, RuntimeError):
    """A batch was asked of an iterator that has been closed."""
