"""URLs of stores, such as `s3://bucket/photos`, and how they differ from local paths."""

import os
import re
from dataclasses import dataclass
from typing import final

from ..errors import ConfigError

SCHEMES = ("s3", "gs", "az", "abfss", "http", "https")
"""The schemes of stores."""

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/{1,2}(?P<rest>[^/].*|/.*|)", re.DOTALL)  # Path makes // a /
_UNUSABLE = re.compile(r"[\\\x00-\x1f\x7f]")  # obstore writes a backslash as another character, or refuses them
_SECRETS = re.compile(r"[?#].*|(?<=://)[^/@]*@", re.DOTALL)


@final
@dataclass(frozen=True, slots=True)
class Url:
    """A path in a store.

    Attributes:
        root: the store: the scheme, and the bucket or host, such as `s3://bucket`; of a `FolderStore`, its path.
        path: the path in it, without `/` at its ends: `photos/train`; "" for the store itself.
    """

    root: str
    path: str

    def __str__(self) -> str:
        return f"{self.root}/{self.path}" if self.path else self.root

    def __fspath__(self) -> str:
        return str(self)

    def __truediv__(self, name: str) -> "Url":
        return Url(self.root, f"{self.path}/{name}" if self.path else name)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def is_remote(self) -> bool:
        """Whether it is in a store, and not in a `FolderStore`."""
        return "://" in self.root

    @property
    def parent(self) -> "Url":
        """The URL that this one is directly in."""
        return Url(self.root, self.path.rpartition("/")[0])


def without_secrets(text: str) -> str:
    """Return the text of a URL without its query and its user."""
    return _SECRETS.sub("...", text)


def as_url(place: str | os.PathLike[str]) -> Url | None:
    """Return the URL that `place` is; None if it is a local path.

    A local folder whose name looks like the start of a URL can be given as `./s3:/photos`.

    Raises:
        ConfigError: it is a URL of no store that shardio knows, or it names no bucket or host, or it has a backslash or
            a control character, or a query or a password, which would end up in messages.
    """
    text = os.fspath(place)
    found = _URL.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    scheme, rest = found["scheme"].lower(), found["rest"].strip("/")
    if scheme == "file":
        raise ConfigError(f"a path must have no scheme, got file:///{rest}: give /{rest}")
    if scheme not in SCHEMES:
        known = ", ".join(f"{one}://" for one in SCHEMES)
        raise ConfigError(f"the scheme of a URL must be one of {known}, got {scheme}://")
    if _SECRETS.search(f"{scheme}://{rest}"):
        raise ConfigError(
            f"a URL must have no query and no user, got {without_secrets(f'{scheme}://{rest}')}: give keys as store "
            "options"
        )
    if _UNUSABLE.search(rest):
        raise ConfigError(f"a URL must have no backslash and no control character, got {f'{scheme}://{rest}'!r}")
    bucket, _, path = rest.partition("/")
    parts = path.split("/") if path else []
    if not bucket or any(part in ("", ".", "..") for part in parts):
        raise ConfigError(f"a URL must be {scheme}://BUCKET/PATH without empty, . or .. parts, got {scheme}://{rest}")
    return Url(f"{scheme}://{bucket}", path)
