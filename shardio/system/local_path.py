"""Paths that users give. A URL is an error, because `Path` would make a local folder of it."""

import os
import re
from pathlib import Path

from ..errors import ConfigError

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/{1,2}(?P<rest>[^/].*|/.*|)", re.DOTALL)  # Path makes // a /


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return `path`, which must be a local one; raise ConfigError for `scheme://...`, and for `pipe:...` of webdataset.

    Also for text that no file's name can have: half of a surrogate pair.

    A local folder whose name looks like the start of one can be given as `./s3:/photos`.
    """
    text = os.fspath(path)
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ConfigError(f"a path must be text that a file system takes, got {text!r}") from error
    if isinstance(text, str) and text.startswith("pipe:"):
        raise ConfigError(
            f"a path must be that of a file, got the command {text}: write what it prints to a file first"
        )
    found = _URL.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return Path(path)
    scheme, rest = found["scheme"], found["rest"].lstrip("/")
    if scheme.lower() == "file":
        raise ConfigError(f"a path must have no scheme, got file:///{rest}: give /{rest}")
    raise ConfigError(
        f"a path must be local, got the URL {scheme}://{rest}: copy what is to be read from there to a local disk "
        "first, and what is written locally to there afterwards"
    )
