"""A plain HTTP server of files, of the standard library: with or without ranges and ETags."""

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal


@dataclass
class Manners:
    """The parts of HTTP that the server supports.

    Attributes:
        ranges: whether it answers the Range header, or with the whole file, as `http.server` does.
        etags: what ETags it gives; weak ones fulfil no If-Match (RFC 9110, 13.1.1).
    """

    ranges: bool = True
    etags: Literal["strong", "weak", "none"] = "strong"


@contextmanager
def file_server(folder: Path, manners: Manners) -> Iterator[str]:
    """Serve the files below a folder in the `with` block; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            path = folder / self.path.lstrip("/")
            if not path.is_file():
                return self._send(404, b"", {}, body)
            data = path.read_bytes()
            headers = {"Last-Modified": formatdate(path.stat().st_mtime, usegmt=True)}
            etag = None
            if manners.etags != "none":
                etag = ("W/" if manners.etags == "weak" else "") + f'"{hashlib.sha1(data).hexdigest()}"'
                headers["ETag"] = etag
            wanted = self.headers.get("If-Match")
            if wanted is not None and etag is not None and (manners.etags == "weak" or wanted != etag):
                return self._send(412, b"", headers, body)
            found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if found is None or not manners.ranges:
                return self._send(200, data, headers, body)
            start, stop = int(found[1]), min(int(found[2]) + 1 if found[2] else len(data), len(data))
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            return self._send(206, data[start:stop], headers, body)

        def _send(self, status: int, data: bytes, headers: dict[str, str], body: bool) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
