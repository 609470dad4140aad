"""URLs of stores, told apart from local paths."""

from pathlib import Path

import pytest

from shardio.errors import ConfigError
from shardio.stores.url import Url, as_url

PLACES = [
    ("s3://bucket/photos/train", Url("s3://bucket", "photos/train")),
    ("S3://bucket/photos/", Url("s3://bucket", "photos")),  # the scheme's case does not matter, nor does a slash
    (Path("s3://bucket/photos"), Url("s3://bucket", "photos")),  # Path makes one slash of two
    ("gs://bucket", Url("gs://bucket", "")),
    ("https://host:8080/a/b", Url("https://host:8080", "a/b")),
    ("data/train", None),
    ("/s3/photos", None),
    ("./s3:/photos", None),
    ("c:/photos", None),  # a drive's letter is no scheme
]


@pytest.mark.parametrize(("place", "url"), PLACES, ids=[str(place) for place, _ in PLACES])
def test_urls_and_paths(place: str | Path, url: Url | None) -> None:
    """A text with the scheme of a store is a URL, any other text is a path."""
    assert as_url(place) == url


REFUSED = [
    ("file:///data", "give /data"),
    ("hdfs://host/data", "one of s3://"),
    ("s3://", "BUCKET/PATH"),
    ("s3://bucket/a//b", "empty, . or .. parts"),
    ("s3://bucket/../other", "empty, . or .. parts"),
    ("s3://bucket/a\\b", "no backslash"),  # written, it could not be listed
    ("s3://bucket/a\nb", "no control character"),
    ("s3://key:secret@bucket/a", "store options"),
    ("https://host/a?X-Amz-Signature=secret", "store options"),
]


@pytest.mark.parametrize(("place", "words"), REFUSED, ids=[place for place, _ in REFUSED])
def test_what_is_refused(place: str, words: str) -> None:
    """A URL of no store, of no place in it, of unusable characters or with secrets is refused, without the secrets."""
    with pytest.raises(ConfigError) as found:
        as_url(place)
    assert words in str(found.value)
    assert "secret" not in str(found.value)
