"""A missing package is an error with a command that installs it, wherever shardio came from."""

import pytest

from shardio.errors import MissingDependency
from shardio.system.optional import load


@pytest.mark.parametrize(
    ("extra", "distribution", "command"),
    [
        ("zarr", "shardio-data", r"pip install 'zarr>=[\d.]+'"),
        (
            "cuda13",
            "shardio-data",
            r"pip install 'nvidia-dali-cuda130>=[\d.]+' 'nvidia-nvimgcodec-cu13\[all\]>=[\d.]+'",
        ),
        ("nothing", "shardio-data", r"pip install 'shardio-data\[nothing\]'"),
    ],
)
def test_the_command_names_the_packages_of_the_extra(extra: str, distribution: str, command: str) -> None:
    """The packages of an extra are named, as its distribution may be a wheel or a checkout that no index has."""
    with pytest.raises(MissingDependency, match=f"^a test needs shardio_test_absent: {command}$"):
        load("shardio_test_absent", purpose="a test", extra=extra, distribution=distribution)
