"""The exceptions and warnings that shardio raises on purpose.

Every message names the rule, the value and the place. Options in it stay values: see `Option` and `Message`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from string import Formatter
from types import MappingProxyType
from typing import Any

_MOST_TEXT = 10_000


@dataclass(frozen=True, slots=True)
class Option:
    """An option that a message names. `str()` spells it as in Python, `max_bad=3`; the command line, as `--max-bad 3`.

    Attributes:
        name: the keyword of the Python interface.
        value: the value that goes with it; None names the option alone.
    """

    name: str
    value: Any = None

    def __str__(self) -> str:
        value = f"{self.value:g}" if isinstance(self.value, float) else repr(self.value)
        return self.name if self.value is None else f"{self.name}={value}"


class Message(str):
    """A text that names options: a str in the words of Python, which keeps the options as values.

    Attributes:
        parts: the texts and options that it is made of.
    """

    __slots__ = ("parts",)
    parts: tuple[str | Option, ...]

    def __new__(cls, template: str, *values: object) -> "Message":
        """Fill in a template, as str.format does.

        Args:
            template: `{}` stands for the next of `values`, `{max_bad}` for the option of this name, and
                `{on_error:skip}` for an option and its value.
            values: their options are kept, if they are options, messages or errors.
        """
        parts: list[str | Option] = []
        following = iter(values)
        for text, name, spec, conversion in Formatter().parse(template):
            value = next(following) if name == "" else Option(name, _SWITCH.get(spec, spec or None)) if name else ""
            value = value.wording if isinstance(value, ShardioError) else value
            if isinstance(value, Option | Message):
                parts += (text, *(value.parts if isinstance(value, Message) else [value]))
            else:
                parts.append(text + format(repr(value) if conversion == "r" else value, spec or ""))
        return cls.of(parts)

    @classmethod
    def of(cls, parts: Iterable[str | Option]) -> "Message":
        """Return the message that consists of these parts."""
        kept = tuple(parts)
        message = super().__new__(cls, "".join(map(str, kept)))
        message.parts = kept
        return message

    def __add__(self, other: str) -> "Message":
        return Message("{}{}", self, other)

    def __reduce__(self) -> tuple[Any, ...]:
        return Message.of, (self.parts,)

    def spelled(self, spell: Callable[[Option], str]) -> str:
        """Return the text with each option as `spell` writes it."""
        return "".join(spell(part) if isinstance(part, Option) else part for part in self.parts)


spelling: ContextVar[Callable[[Option], str]] = ContextVar("spelling", default=str)
"""How the interface that runs spells options: as in Python, unless it says otherwise."""


def worded(text: str) -> str:
    """Return a text with its options, if it is a message, as the interface that runs spells them."""
    return text.spelled(spelling.get()) if isinstance(text, Message) else text


_SWITCH: Mapping[str | None, bool] = MappingProxyType({"True": True, "False": False})


class ShardioError(Exception):
    """The base class of all exceptions that shardio raises on purpose.

    Its arguments are a text, or as in logging, a template and its values (see `Message`).

    Attributes:
        wording: the message, in which options are values.
    """

    def __init__(self, text: object = "", *values: object) -> None:
        super().__init__(Message(str(text), *values) if values else text)

    @property
    def wording(self) -> Message:
        text = self.args[0] if self.args else ""
        return text if isinstance(text, Message) else Message.of((str(text),))

    def __str__(self) -> str:
        # Messages quote what files claim, such as a type's name of a megabyte, and end up in logs.
        text = super().__str__()
        more = len(text) - _MOST_TEXT
        return f"{text[:_MOST_TEXT]}... and {more} more characters" if more > 0 else text


class ConfigError(ShardioError, ValueError):
    """An argument breaks a rule; the message names the rule and the value."""


class MissingDependency(ShardioError, ImportError):
    """An optional package is not installed; the message gives the command that installs it."""


class DatasetError(ShardioError):
    """The base class of errors in a dataset on disk."""


class NotADataset(DatasetError, FileNotFoundError):
    """The path holds no `shardio.json`."""


class ManifestError(DatasetError):
    """A manifest cannot be read, or contradicts itself or its shards."""


class ShardCorrupt(DatasetError):
    """A shard is missing, is cut short, or has changed since it was written."""


class BadSample(DatasetError):
    """One sample cannot be stored or decoded; the message names the sample and the reason.

    Attributes:
        storable: whether an option that the message names would store it.
    """

    storable: bool = False


class TooManyBad(DatasetError):
    """More samples are bad than `max_bad` allows; the message gives their number and the reason of the last one.

    Attributes:
        skipped: the samples that a conversion has left out so far.
    """

    skipped: Sequence[Any] = ()


class MapError(ShardioError, RuntimeError):
    """The user's own map function failed; the message names the function and the sample.

    `__cause__` is the exception that the function raised, if it raised one.
    """


class SourceError(ShardioError):
    """The input of a converter is missing, unreadable or inconsistent."""


class StoreError(ShardioError, OSError):
    """A store did not do what it was asked for; the message names the URL, the request, and how often it was tried."""


class StoreUnavailable(StoreError):
    """A store, or the network to it, failed in a way that may pass; requests are tried again for some minutes."""


class ObjectNotFound(StoreError, FileNotFoundError):
    """A store has no object of that name."""


class AccessDenied(StoreError, PermissionError):
    """A store refuses the credentials that it was given, or it was given none."""


class ObjectChanged(StoreError):
    """An object was replaced while it was in use, or is not in the state that a write requires."""


class CacheError(ShardioError):
    """The cache of a node cannot be used, or is too small; the message names its folder and what would do."""


class StateMismatch(ShardioError, ValueError):
    """A loader's state belongs to another dataset, seed or version; the message holds both values."""


class CacheWarning(UserWarning):
    """The cache of a node makes do with less room than it was given, or with memory in place of its folder."""


class EngineWarning(UserWarning):
    """An engine refused a batch of images although none of them is bad, or gives other pixels than those asked for."""


class MaskWarning(UserWarning):
    """The images of a field hold so few values that they may be masks, and its transforms resize them with a filter.

    The message names the field and what to do.
    """


class NativeWarning(UserWarning):
    """The compiled part of shardio is missing; the message says why, what that costs and how to get it."""


class PairingWarning(UserWarning):
    """Two fields have random crops, flips or turns of the same kind, but lists that draw different ones.

    Or the contrary: they hold the same bytes, as for two views of each sample, and draw alike. Or one is named as boxes
    or points of an image are, and doesn't move with it; or has points, and doesn't say which of them a flip exchanges.
    The message names the fields and what pairs them.
    """


class SourceWarning(UserWarning):
    """A conversion leaves some of its source out, or stores it under another name; the message says what and why."""


class SplitWarning(UserWarning):
    """A part of a split is larger or smaller than its share, as groups stay whole; the message says by how much."""


class StateWarning(UserWarning):
    """A loader delivers other samples than you may expect.

    `strict=False` loaded a state that belongs to something else: the message holds both values and what is lost. Or a
    state's loader delivered a field in another role, such as a mask that is an image now. Or three loops in a row were
    left after one batch, and so delivered the same one; or Lightning resumed in the middle of an epoch with another
    batch size, and will end it early: the message says what to do instead. Or whole turns give a source of a mixture
    another share than its weight.
    """


class PipelineStalled(ShardioError, TimeoutError):
    """No batch arrived within the time limit; the message says what each worker is doing."""


class WorkerDied(ShardioError, RuntimeError):
    """A worker process ended unexpectedly; the message names the process and its exit code."""


class PipelineClosed(ShardioError, RuntimeError):
    """A closed iterator was asked for a batch."""


class Preempted(ShardioError, RuntimeError):
    """A signal asked a training run to stop, and it has saved a checkpoint; the message names both."""
