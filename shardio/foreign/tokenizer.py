"""Tokenizers of Hugging Face's tokenizers, whose tokens converters store and loaders deliver."""

import os
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample, ConfigError
from ..system.local_path import local_path
from ..system.optional import load
from ..system.strict_json import read_bytes
from .names import printable


@final
class TextEncoder:
    """A tokenizer, and the token that ends each text. Texts are never truncated or padded, whatever it says.

    A text never becomes a special token: only the tokenizer's template and `eod` add these. Threads may encode at once:
    that releases the GIL. It pickles with its tokenizer, not as a path.

    Args:
        tokenizer: a path of a tokenizer.json, or a `tokenizers.Tokenizer`, which is copied.
        eod: the token that ends each text, or None; it is appended unless the tokenizer's template ends with it.

    Attributes:
        vocabulary: a number that every token is below.
        dtype: "uint16" if that holds every token, else "uint32".

    Raises:
        MissingDependency: tokenizers is not installed.
        ConfigError: the tokenizer cannot be used, or does not know `eod`.
    """

    def __init__(self, tokenizer: Any, eod: str | None = None) -> None:
        library = load("tokenizers", purpose="the option tokenizer", extra="text")
        if isinstance(tokenizer, library.Tokenizer):
            place, content = "tokenizer", tokenizer.to_str()
        elif not isinstance(tokenizer, str | os.PathLike):
            raise ConfigError(
                "{tokenizer} must be the path of a tokenizer.json or a tokenizers.Tokenizer, such as the "
                "backend_tokenizer of a fast tokenizer of transformers, got {}",
                type(tokenizer).__name__,
            )
        else:
            path = local_path(tokenizer)
            place = printable(path)
            try:
                content = read_bytes(path).decode()
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise ConfigError(
                    "{tokenizer} must be a tokenizer.json: {}: {}; "
                    "tokenizers.Tokenizer.from_pretrained(NAME).save(PATH) writes that of a model",
                    place,
                    reason,
                ) from error
        try:
            self._tokenizer = library.Tokenizer.from_str(content)
        except Exception as error:  # the library raises no other type
            raise ConfigError("{tokenizer} must be a tokenizer.json, {} is none: {}", place, error) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        known = self._tokenizer.get_vocab(with_added_tokens=True)
        if not known:
            raise ConfigError("{tokenizer} must have a vocabulary, that of {} is empty", place)
        if eod is not None and eod not in known:
            raise ConfigError("{eod} must be in the vocabulary of {}, got {!r}", place, eod)
        added = self._tokenizer.get_added_tokens_decoder()
        if eod in {token.content for token in added.values()}:
            self._tokenizer.add_special_tokens([eod])  # which some tokenizers add without saying that it is one
        self._tokenizer.encode_special_tokens = True  # as the text that they are
        special = {number: token.content for number, token in added.items() if token.special or token.content == eod}
        unknown = self._of_text("\U0010ffff")
        self._spelled = {n: text for n, text in special.items() if n not in unknown and n in self._of_text(text)}
        self.vocabulary = max(known.values()) + 1
        self.dtype = "uint16" if self.vocabulary <= 1 << 16 else "uint32"
        self._eod, self._end = eod, [] if eod is None else [known[eod]]

    def __reduce__(self) -> tuple[Any, ...]:
        return TextEncoder, (self._tokenizer, self._eod)

    def encode(self, text: str) -> NDArray[Any]:
        """Return a text's tokens, and the one that ends it, `[n]` of `dtype`; BadSample if it cannot be encoded."""
        try:
            (encoded,) = self._tokenizer.encode_batch_fast([text])  # unlike `encode`, it releases the GIL
        except Exception as error:  # the library raises no other type
            raise BadSample(f"the tokenizer refuses it: {error}") from error
        ids, end = encoded.ids, self._end
        if self._spelled and not self._spelled.keys().isdisjoint(ids):
            for number, of_template in zip(ids, encoded.special_tokens_mask, strict=True):
                if number in self._spelled and not of_template:
                    raise BadSample(f"the tokenizer's model makes a special token of its {self._spelled[number]!r}")
        if end and ids[-1:] == end and encoded.special_tokens_mask[-1]:
            end = []  # the template has ended it
        return np.array([*ids, *end], self.dtype)

    def _of_text(self, text: str) -> list[int]:
        """Return the model's tokens for a text; none if the model refuses it."""
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        except Exception:  # noqa: BLE001  # the library raises no other type
            return []
        return ids

    def decode(self, tokens: NDArray[Any]) -> str:
        """Return the text of tokens `[n]`, with special ones such as ends; unknown ones have no text."""
        known = tokens[(tokens >= 0) & (tokens < self.vocabulary)].tolist()
        found: str = self._tokenizer.decode(known, skip_special_tokens=False)
        return found
