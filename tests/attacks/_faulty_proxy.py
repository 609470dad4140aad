"""A proxy between a client and an HTTP server: it delays, throttles, cuts, corrupts and refuses by a seeded script."""

import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.managers import BaseManager
from typing import Any
from urllib.parse import urlsplit

_CHUNK = 1 << 16
_ERROR = "<Error><Code>{}</Code><Message>{}</Message></Error>"
_REFUSALS = {
    "slow_down": (503, _ERROR.format("SlowDown", "Please reduce your request rate.")),
    "failed": (500, _ERROR.format("InternalError", "We encountered an internal error.")),
    "expired": (403, _ERROR.format("ExpiredToken", "The provided token has expired.")),
}


@dataclass(frozen=True)
class Script:
    """The faults, delays and limits of a proxy. Faults are shares of the requests, between 0 and 1, in all at most 1.

    Attributes:
        latency: seconds that each request waits, as for a round trip.
        bandwidth: the most bytes per second of an answer; None for any.
        slow_down: answered with 503 Slow Down.
        failed: answered with 500.
        expired: answered with 403 ExpiredToken.
        reset: the connection is reset in place of an answer.
        cut: the answer ends before its last byte.
        corrupt: a byte of the answer's body is another one.
        late: the answer waits up to `late_seconds` more.
        late_seconds: see `late`.
        gone: begins a time of `gone_seconds` in which every connection is refused.
        gone_seconds: see `gone`.
    """

    latency: float = 0.0
    bandwidth: float | None = None
    slow_down: float = 0.0
    failed: float = 0.0
    expired: float = 0.0
    reset: float = 0.0
    cut: float = 0.0
    corrupt: float = 0.0
    late: float = 0.0
    late_seconds: float = 0.3
    gone: float = 0.0
    gone_seconds: float = 1.0


FAULTS = ("slow_down", "failed", "expired", "reset", "cut", "corrupt", "late", "gone")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512
    proxy: "Proxy"

    def verify_request(self, request: Any, client_address: object) -> bool:
        if self.proxy.is_gone:
            _reset(request)
        return not self.proxy.is_gone

    def handle_error(self, request: Any, client_address: object) -> None:
        """Say nothing of a connection that a client or the server has ended."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server
    upstream: HTTPConnection | None = None

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self) -> None:
        """Pass a request on, and its answer back, with the fault that the script has for it."""
        proxy, script = self.server.proxy, self.server.proxy.script
        fault, draw = proxy.next_fault(self.command)
        time.sleep(script.latency)
        if proxy.is_gone or fault == "reset":
            self.close_connection = True
            _reset(self.connection)
            return
        if fault == "late":
            time.sleep(draw * script.late_seconds)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if fault in _REFUSALS:
            status, text = _REFUSALS[fault]
            self.send(status, {"Content-Length": str(len(text))}, text.encode())
            return
        if self.upstream is None:
            self.upstream = HTTPConnection(proxy.upstream)
        self.upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            self.upstream.putheader(name, value)
        self.upstream.endheaders(body)
        answer = self.upstream.getresponse()
        data = bytearray(answer.read())
        headers = {name: value for name, value in answer.getheaders() if name.lower() != "transfer-encoding"}
        if self.command != "HEAD" and answer.status not in (204, 304):
            headers["Content-Length"] = str(len(data))
        if data and fault == "corrupt" and answer.status in (200, 206):
            data[int(len(data) * draw)] ^= 0x55
        if data and fault == "cut":
            del data[int(len(data) * draw) :]
            self.close_connection = True
        self.send(answer.status, headers, data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def send(self, status: int, headers: dict[str, str], data: bytes | bytearray) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        for start in range(0, len(data), _CHUNK):
            part = data[start : start + _CHUNK]
            time.sleep(len(part) / (self.server.proxy.script.bandwidth or float("inf")))
            self.wfile.write(part)
            self.server.proxy.count("bytes", len(part))

    def finish(self) -> None:
        super().finish()
        if self.upstream is not None:
            self.upstream.close()


class Proxy:
    """The proxy, on threads of this process.

    Args:
        upstream: the server's URL.
        script: what to do to requests.
        seed: decides which requests have which fault, by their number.
    """

    def __init__(self, upstream: str, script: Script, seed: int = 0) -> None:
        self.upstream, self.script, self._seed = urlsplit(upstream).netloc, script, seed
        self._lock, self._counts, self._gone_until = threading.Lock(), Counter[str](), 0.0
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def url(self) -> str:
        """Return the proxy's URL."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def counts(self) -> Counter[str]:
        """Return the faults until now, by name and all together; `requests`; `bytes` of bodies sent to clients."""
        with self._lock:
            return Counter(self._counts, faults=sum(self._counts[name] for name in FAULTS))

    def set(self, **changes: Any) -> None:
        """Change the script."""
        self.script = replace(self.script, **changes)

    @property
    def is_gone(self) -> bool:
        return time.monotonic() < self._gone_until

    def next_fault(self, method: str) -> tuple[str | None, float]:
        """Return the fault that the next request has, and a number in [0, 1) that says how."""
        with self._lock:
            self._counts["requests"] += 1
            chance = random.Random(self._seed << 32 | self._counts["requests"])
            left, draw = chance.random(), chance.random()
            for name in FAULTS if method in ("GET", "HEAD") else ():
                left -= getattr(self.script, name)
                if left < 0:
                    self._counts[name] += 1
                    if name == "gone":
                        self._gone_until = time.monotonic() + self.script.gone_seconds
                    return name, draw
        return None, draw

    def count(self, name: str, more: int) -> None:
        with self._lock:
            self._counts[name] += more

    def close(self) -> None:
        """Take no more connections."""
        self._server.shutdown()
        self._server.server_close()


def _reset(connection: socket.socket) -> None:
    """Close a connection with RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    os.close(connection.detach())


@contextmanager
def proxy(upstream: str, script: Script, seed: int = 0) -> Iterator[Proxy]:
    """Run a proxy in this process in the `with` block."""
    running = Proxy(upstream, script, seed)
    try:
        yield running
    finally:
        running.close()


class _Processes(BaseManager):
    """Starts a process that holds a proxy, whose methods others call."""


_Processes.register("Proxy", Proxy, exposed=("url", "counts", "set"))


@contextmanager
def proxy_process(upstream: str, script: Script, seed: int = 0) -> Iterator[Proxy]:
    """Run a proxy in a process of its own in the `with` block: its `url`, `counts` and `set` may be called."""
    with _Processes(ctx=get_context("spawn")) as manager:
        yield manager.Proxy(upstream, script, seed)  # type: ignore[attr-defined]
