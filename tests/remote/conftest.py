"""A real S3 server for the tests of this folder."""

from collections.abc import Iterator

import pytest
from _s3 import S3Server, s3_server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running server."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server
