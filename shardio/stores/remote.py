"""Buckets of S3, Google Cloud Storage and Azure, and files behind HTTP, through obstore."""

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

from ..errors import AccessDenied, ConfigError, ObjectChanged, ObjectNotFound, StoreError, StoreUnavailable
from ..system import optional
from ..system.types import Buffer
from .base import Condition, Content, ObjectInfo
from .url import without_secrets

CONNECT_SECONDS = 10
READ_SECONDS = 20
"""The longest silence within an answer."""

TOTAL_SECONDS = 300
"""The longest that one request takes with its answer; at 8 MiB, that is less than 30 KB/s."""

_ENDPOINT_OPTION = re.compile(r"((aws|azure|google)_)?endpoint(_url)?", re.IGNORECASE)
_ENDPOINT = re.compile(r"https?://([\w.~-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?(/[!-~]*)?", re.ASCII)
_STATUS = re.compile(r"status code: (\d{3})")
_WORTH_TRYING_AGAIN = (408, 425, 429)  # of those below 500
_CLIENT_OPTIONS = frozenset(
    ("allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "read_timeout", "timeout")
)


@final
class RemoteStore:
    """A bucket, or the files of an HTTP server.

    obstore does not survive a fork, so each process opens its own connections, when it first needs them.

    Args:
        root: the store, as in `Url.root`.
        options: obstore's options by name, such as `endpoint`, `region`, `access_key_id` or `skip_signature`; `profile`
            names one of AWS's. The environment's usual variables say what they leave open.

    Raises:
        MissingDependency: obstore is not installed.
    """

    def __init__(self, root: str, options: Mapping[str, str] = MappingProxyType({})) -> None:
        _library(root)
        self.__setstate__((root, dict(options)))

    @property
    def url(self) -> str:
        return self._root

    def read(self, name: str, start: int = 0, stop: int | None = None, *, etag: str | None = None) -> Content:
        what = f"bytes {start} to {'the end' if stop is None else stop - 1}"
        if stop is not None and stop <= start:
            return Content(b"", start, self.info(name))
        options: dict[str, Any] = {}
        if start or stop is not None:
            options["range"] = {"offset": start} if stop is None else (start, stop)
        if etag is not None and not etag.startswith("W/"):  # weak ones fulfil no If-Match (RFC 9110, 13.1.1)
            options["if_match"] = etag
        with self._naming(name, what):
            result = self._call("get", name, options=options)
            found = _info(result.meta)
            begin, end = result.range
            if begin != start:
                raise StoreError(f"{self._place(name)}: {what} were asked for, bytes {begin} to {end - 1} came")
            data = memoryview(result.bytes())
        if len(data) != end - begin:
            raise StoreUnavailable(f"{self._place(name)}: {what}: {end - begin} bytes were announced, {len(data)} came")
        if etag is not None and found.etag is not None and found.etag != etag:  # a server that knows no conditions
            raise ObjectChanged(f"{self._place(name)}: has been replaced: its ETag is {found.etag}, not {etag}")
        return Content(data, start, found)

    def info(self, name: str) -> ObjectInfo:
        with self._naming(name, "size"):
            return _info(self._call("head", name))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._naming(prefix, "list"):
            for found in self._call("list", prefix=f"{prefix}/" if prefix else None):
                yield from sorted(map(_info, found), key=lambda info: info.name)

    def write(self, name: str, data: Buffer, *, condition: Condition = None) -> ObjectInfo:
        mode: Any = "create" if condition == "new" else "overwrite" if condition is None else {"e_tag": condition}
        with self._naming(name, f"{len(data)} bytes written"):
            written = self._call("put", name, bytes(data), mode=mode, use_multipart=False)
        return ObjectInfo(name, len(data), written["e_tag"])

    def upload(self, name: str, path: Path) -> ObjectInfo:
        with self._naming(name, f"{path} written"):
            written = self._call("put", name, path, max_concurrency=4)
        return ObjectInfo(name, path.stat().st_size, written["e_tag"])

    def delete(self, names: Sequence[str]) -> None:
        if names:
            with self._naming(names[0], f"{len(names)} objects deleted"):
                try:
                    self._call("delete", list(names))
                except FileNotFoundError:  # another process deleted one of them, and perhaps not the others
                    for name in names:
                        with suppress(FileNotFoundError):
                            self._call("delete", name)

    def renew(self) -> None:
        with self._lock:
            self._opened = None

    def _call(self, function: str, *arguments: Any, **keywords: Any) -> Any:
        return getattr(_library(self._root), function)(self._obstore(), *arguments, **keywords)

    def _obstore(self) -> Any:
        """Return the store of obstore, opened in this process."""
        if self._pid != os.getpid():  # after a fork: a thread of the parent may have held the lock
            self.__setstate__(self.__getstate__())
        with self._lock:
            if self._opened is None:
                self._opened = _open(self._root, self._options)
            return self._opened

    def _place(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _naming(self, name: str, what: str) -> Iterator[None]:
        """Turn obstore's exceptions into those of `Store`."""
        exceptions = _library(self._root).exceptions
        try:
            yield
        except (StoreError, ConfigError):
            raise
        except FileNotFoundError as error:
            raise ObjectNotFound(f"{self._place(name)}: there is no such object") from error
        except (exceptions.PreconditionError, exceptions.AlreadyExistsError) as error:
            raise ObjectChanged(f"{self._place(name)}: {what}: the object is not in the state that it was") from error
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise AccessDenied(f"{self._place(name)}: {what}: {_words(error)}") from error
        except (exceptions.BaseError, OSError, ValueError) as error:
            status = _STATUS.search(str(error))
            refused = status is not None and 400 <= int(status[1]) < 500 and int(status[1]) not in _WORTH_TRYING_AGAIN
            permanent = refused or isinstance(
                error, (exceptions.InvalidPathError, exceptions.NotSupportedError, ValueError)
            )
            words = _words(error)
            if "Range request not supported" in words:
                words = "the server knows no ranges: it sends whole files only, and shardio needs parts of them"
            text = f"{self._place(name)}: {what}: {words}"
            raise (StoreError(text) if permanent else StoreUnavailable(text)) from error

    def __getstate__(self) -> tuple[str, dict[str, str]]:
        return self._root, self._options

    def __setstate__(self, state: tuple[str, dict[str, str]]) -> None:
        self._root, self._options = state
        self._lock, self._pid, self._opened = threading.Lock(), os.getpid(), None


def _library(root: str) -> Any:
    return optional.load("obstore", purpose=f"reading from {root}", extra="remote")


def _open(root: str, options: Mapping[str, str]) -> Any:
    """Open obstore's store."""
    obstore = _library(root)
    client: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "read_timeout": timedelta(seconds=READ_SECONDS),
        "timeout": timedelta(seconds=TOTAL_SECONDS),
        **{name: value for name, value in options.items() if name in _CLIENT_OPTIONS},
    }
    if root.startswith("http://"):
        client["allow_http"] = True
    settings = {name: value for name, value in options.items() if name not in _CLIENT_OPTIONS and name != "profile"}
    endpoints = {name: value for name, value in settings.items() if _ENDPOINT_OPTION.fullmatch(name)}
    if root.startswith("s3://") and not endpoints and "AWS_ENDPOINT_URL" in os.environ:
        endpoints["$AWS_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    for name, value in endpoints.items():
        _check_endpoint(name, value)
    if any(value.startswith("http://") for value in endpoints.values()):
        client.setdefault("allow_http", True)
    keywords: dict[str, Any] = {"client_options": client, "retry_config": {"max_retries": 0}}
    if root.startswith("s3://") and (profile := options.get("profile", os.environ.get("AWS_PROFILE"))):
        keywords["credential_provider"] = _credentials_of_profile(profile)
    try:
        return obstore.store.from_url(root, **({"config": settings} if settings else {}), **keywords)
    except (obstore.exceptions.BaseError, ValueError) as error:
        raise ConfigError(f"{root}: cannot be opened: {_words(error)}") from error


def _check_endpoint(name: str, value: str) -> None:
    """Raise ConfigError unless `value` is the URL of a server: obstore panics at what is none."""
    found = _ENDPOINT.fullmatch(value)
    if found is None or int(found["port"] or 0) > 65535:
        got = without_secrets(value)
        raise ConfigError(f"{name} must be the URL of a server, such as http://10.0.0.1:9000, got {got!r}")


def _credentials_of_profile(profile: str) -> Any:
    boto3 = optional.load("boto3", purpose=f"the AWS profile {profile}", extra="aws")
    provider = optional.load("obstore.auth.boto3", purpose=f"the AWS profile {profile}", extra="aws")
    return provider.Boto3CredentialProvider(boto3.Session(profile_name=profile))


def _info(meta: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(meta["path"], int(meta["size"]), meta["e_tag"], meta["last_modified"].timestamp())


def _words(error: BaseException) -> str:
    """Return an exception's text in one line, without obstore's debugging output."""
    return " ".join(str(error).split("\n\nDebug source:")[0].split())[:500]
