"""A real S3 server for the tests of this folder."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _s3 import S3Server, s3_server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running server."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server
