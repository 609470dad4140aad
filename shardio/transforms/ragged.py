"""Transforms that batch values of several lengths, padded or end to end, and that tokenize strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from ..errors import BadSample, ConfigError
from ..foreign.tokenizer import TextEncoder
from ..system.rules import at_least_one
from ..system.units import shown
from .validation import check_flag

if TYPE_CHECKING:
    import os

    import tokenizers

Side: TypeAlias = Literal["right", "left"]
End: TypeAlias = Literal["end", "start"]


@dataclass(frozen=True, slots=True)
class PadTo:
    """Make one tensor `[B, L, ...]` of values of several lengths, and `NAME_length`, int64 [B], of their lengths.

    PadTo is for fields whose first axis has any length, such as `("float32", (None, 12))`, and comes last. A missing or
    masked value has length 0.

    Args:
        length: L, before it is rounded up; None takes the longest value of each batch. A longer value is a bad sample,
            unless `cut` says what to do with it.
        multiple_of: L is rounded up to a multiple of this.
        value: the padding: a number that the dtype of the values holds.
        side: where the padding goes, `"right"` (after the values) or `"left"`.
        cut: which end of a value longer than `length` to cut off, `"end"` or `"start"`.

    Raises:
        ConfigError: if an argument is out of range, or `cut` has no `length`. The loader raises it for other fields.
    """

    length: int | None = None
    multiple_of: int = 1
    value: float = 0
    side: Side = "right"
    cut: End | None = None

    def __post_init__(self) -> None:
        for name in ("multiple_of",) if self.length is None else ("length", "multiple_of"):
            object.__setattr__(self, name, at_least_one(getattr(self, name), name))
        if not isinstance(self.value, (bool, int, float, np.number, np.bool_)):
            raise ConfigError(f"value must be a number, got {self.value!r}")
        if self.side not in get_args(Side):
            raise ConfigError(f"side must be 'right' or 'left', got {self.side!r}")
        if self.cut is not None and self.cut not in get_args(End):
            raise ConfigError(f"cut must be 'end', 'start' or None, got {self.cut!r}")
        if self.cut is not None and self.length is None:
            raise ConfigError(f"cut={self.cut!r} needs a length to cut to")

    @property
    def padded_length(self) -> int | None:
        """L, where it is the same for all batches."""
        return None if self.length is None else self.padded(self.length)

    def padded(self, longest: int) -> int:
        """Return L for values whose longest has this length."""
        return -(-longest // self.multiple_of) * self.multiple_of


@dataclass(frozen=True, slots=True)
class Ragged:
    """Lay values of several lengths end to end, `[sum, ...]`, and add `NAME_offsets`, int64 [B + 1]: their bounds.

    It is for fields whose first axis has any length, such as `("float32", (None, 12))`, and comes last. A missing or
    masked value has length 0.

    Args:
        nested: deliver one `torch.nested` tensor of layout `torch.jagged` under the field's name instead. A function
            given as `map` gets the values and offsets, and the two that it returns are nested.

    Raises:
        ConfigError: if an argument is out of range. The loader raises it for other fields.
    """

    nested: bool = False

    def __post_init__(self) -> None:
        check_flag(self.nested, "nested")


Collation: TypeAlias = PadTo | Ragged
"""A rule for joining values of several lengths in a batch."""


@dataclass(frozen=True, slots=True)
class RandomItem:
    """Choose one string of a list at random, each with the same probability, such as one of an image's captions.

    It is for JSON fields of lists of strings, and Tokenize follows it. A value that is no such list, or an empty one,
    is a bad sample.
    """

    def choose(self, listed: Any, draw: float) -> str:
        """Return the string of a list that a number in [0, 1) stands for; BadSample if it is no list of strings."""
        if not isinstance(listed, list) or not listed or not all(isinstance(text, str) for text in listed):
            raise BadSample(f"RandomItem takes a list of strings, got {shown(listed)}")
        text: str = listed[int(draw * len(listed))]
        return text


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Make tokens of a string, int64 `[n]`, by one of Hugging Face's `tokenizers`.

    Workers encode. Special tokens are added as the tokenizer says, a string never becomes one, and nothing is truncated
    or padded: PadTo does that. Unless the environment sets TOKENIZERS_PARALLELISM, this sets it to `false`, as
    workers are threads enough.

    Args:
        tokenizer: the path of a tokenizer.json, or a `tokenizers.Tokenizer`.
        then: PadTo or Ragged, for what a batch makes of the tokens; None makes a list of tensors.
        eod: a token that ends each string, such as `"<|endoftext|>"`, if the tokenizer doesn't add it itself.

    Raises:
        MissingDependency: tokenizers is not installed.
        ConfigError: if an argument is none of these, or `eod` is not in the vocabulary. The loader raises it for fields
            that are no text.
    """

    tokenizer: str | os.PathLike[str] | tokenizers.Tokenizer | TextEncoder
    then: Collation | None = None
    eod: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.then, Collation | None):
            raise ConfigError(f"then must be a PadTo or Ragged, got {self.then!r}")
        if not isinstance(self.tokenizer, TextEncoder):
            object.__setattr__(self, "tokenizer", TextEncoder(self.tokenizer, self.eod))

    @property
    def encoder(self) -> TextEncoder:
        """The tokenizer, with what it appends."""
        assert isinstance(self.tokenizer, TextEncoder)
        return self.tokenizer


def tokenizing(transforms: Sequence[object], *, listed: bool) -> tuple[tuple[Collation, ...], TextEncoder]:
    """Return what follows the tokens of a field of strings, or of lists if `listed`, and what makes them.

    Raises ConfigError unless that is one Tokenize, with RandomItem before it if `listed`.
    """
    *before, tokenize = transforms or [None]
    if not isinstance(tokenize, Tokenize) or [type(each) for each in before] != [RandomItem] * listed:
        takes = "RandomItem and then one Tokenize" if listed else "one Tokenize"
        kind = "field of JSON" if listed else "text field"
        raise ConfigError(f"a {kind} takes {takes}, and nothing else, got {list(transforms)}")
    return () if tokenize.then is None else (tokenize.then,), tokenize.encoder
