"""A proxy between a client and an HTTP server: it delays, throttles, cuts, corrupts and refuses by a seeded script.

In a process of its own, with which other programs share it; the first line that it prints is its URL:

    python tests/attacks/_faulty_proxy.py http://127.0.0.1:8333 --latency 0.01 --bandwidth 125e6
    python tests/attacks/_faulty_proxy.py http://127.0.0.1:8333 --faults '{"cut": 0.05, "slow_down": 0.1}' --seed 7

`GET URL/_proxy/counts` says what it did and what passed; `PUT URL/_proxy/script` takes other settings, as JSON with the
names of `Script`. The Host header passes unchanged, so signatures that name the proxy's address are right behind it,
too. It speaks plain HTTP/1.1 with Content-Length, and passes anything else on until the server closes.
"""

import argparse
import json
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlsplit

_CHUNK = 1 << 17
_HEAD_LIMIT = 1 << 16
_ADMIN = "/_proxy/"
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
_FAILED = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"


@dataclass(frozen=True)
class Script:
    """The faults, delays and limits of a proxy. Faults are shares of the requests, between 0 and 1, in all at most 1.

    Attributes:
        latency: seconds that each connection and each request wait, as for a round trip.
        bandwidth: the most bytes of answers per second over all connections; None for any.
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
        methods: the methods that have faults.
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
    methods: tuple[str, ...] = ("GET", "HEAD")


FAULTS = ("slow_down", "failed", "expired", "reset", "cut", "corrupt", "late", "gone")


class Proxy:
    """The proxy, on threads of this process.

    Args:
        upstream: the server's URL.
        script: what to do to requests.
        seed: decides which requests have which fault, by their number.

    Attributes:
        url: the proxy's URL.
        counts: faults by name; `requests`, `connections`, `bytes` of bodies sent to clients.
    """

    def __init__(self, upstream: str, script: Script, seed: int = 0) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.script, self._seed = script, seed
        self._lock, self.counts = threading.Lock(), Counter[str]()
        self._gone_until = self._free_at = 0.0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @property
    def faults(self) -> int:
        """The faults until now."""
        return sum(self.counts[name] for name in FAULTS)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if time.monotonic() < self._gone_until:
                self._count("refused_while_gone")
                _reset(client)
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Pass the requests of a connection on, one after the other."""
        self._count("connections")
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        time.sleep(self.script.latency)
        server: socket.socket | None = None
        try:
            buffered = b""
            while True:
                head, buffered = _read_head(client, buffered)
                if not head:
                    return None
                method, path = head.split(b" ", 2)[:2]
                length = _content_length(head)
                if path.decode().startswith(_ADMIN):
                    body, buffered = _read_body(client, buffered, length)
                    self._administer(client, path.decode(), body)
                    continue
                if server is None:
                    server = socket.create_connection(self._upstream)
                    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                fault = self._fault(method.decode())
                time.sleep(self.script.latency)
                if time.monotonic() < self._gone_until or fault == "reset":
                    return _reset(client)
                if fault == "late":
                    time.sleep(self._draw() * self.script.late_seconds)
                if refusal := _refusal(fault):
                    _, buffered = _read_body(client, buffered, length)
                    client.sendall(refusal if method != b"HEAD" else refusal.split(b"\r\n\r\n")[0] + b"\r\n\r\n")
                    continue
                server.sendall(head)
                buffered = _pass_body(client, server, buffered, length)
                if not self._answer(client, server, method == b"HEAD", fault):
                    return None
        except OSError:
            _reset(client)
        finally:
            client.close()
            if server is not None:
                server.close()

    def _answer(self, client: socket.socket, server: socket.socket, is_head: bool, fault: str | None) -> bool:
        """Pass the answer to a request on; return whether the connection goes on."""
        head, rest = _read_head(server, b"")
        while head.split(b" ", 2)[1:2] == [b"100"]:
            client.sendall(head)
            head, rest = _read_head(server, rest)
        if not head:
            return False
        client.sendall(head)
        status = int(head.split(b" ", 2)[1])
        sized = b"\r\ncontent-length:" in head.lower()
        left = 0 if is_head or status in (204, 304) else _content_length(head) if sized else -1
        if left == 0:
            return b"connection: close" not in head.lower()
        stop = int(left * self._draw()) if fault == "cut" and left > 0 else None
        flaw = int(left * self._draw()) if fault == "corrupt" and left > 0 and status in (200, 206) else None
        done, buffer = 0, bytearray(_CHUNK)
        while left < 0 or done < left:
            if rest:
                data: memoryview = memoryview(bytearray(rest))
                rest = b""
            else:
                got = server.recv_into(buffer, min(_CHUNK, left - done) if left > 0 else _CHUNK)
                if not got:
                    return False
                data = memoryview(buffer)[:got]
            if stop is not None and done + len(data) > stop:
                client.sendall(data[: stop - done])
                return False
            if flaw is not None and done <= flaw < done + len(data):
                data[flaw - done] ^= 0x55
            self._throttle(len(data))
            client.sendall(data)
            done += len(data)
            self._count("bytes", len(data))
        return b"connection: close" not in head.lower() and left >= 0

    def _fault(self, method: str) -> str | None:
        """Return the fault that the next request has."""
        with self._lock:
            self.counts["requests"] += 1
            if method not in self.script.methods:
                return None
            left = random.Random(self._seed << 32 | self.counts["requests"]).random()
            for name in FAULTS:
                left -= getattr(self.script, name)
                if left < 0:
                    self.counts[name] += 1
                    if name == "gone":
                        self._gone_until = time.monotonic() + self.script.gone_seconds
                    return name
        return None

    def _throttle(self, size: int) -> None:
        """Wait until `size` more bytes may pass."""
        if self.script.bandwidth is None:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + size / self.script.bandwidth
            wait = self._free_at - now
        time.sleep(wait)

    def _draw(self) -> float:
        with self._lock:
            return random.Random(self._seed << 33 | self.counts["requests"]).random()

    def _count(self, name: str, more: int = 1) -> None:
        with self._lock:
            self.counts[name] += more

    def _administer(self, client: socket.socket, path: str, body: bytes) -> None:
        if path == f"{_ADMIN}script" and body:
            self.script = _script(json.loads(body), self.script)
        with self._lock:
            text = json.dumps(
                {"faults": self.faults, **self.counts} if path == f"{_ADMIN}counts" else asdict(self.script)
            )
        client.sendall(_plain("200 OK", text.encode()))


@contextmanager
def proxy(upstream: str, script: Script | None = None, seed: int = 0) -> Iterator[Proxy]:
    """Run a proxy in this process in the `with` block."""
    running = Proxy(upstream, script or Script(), seed)
    try:
        yield running
    finally:
        running.close()


@dataclass(frozen=True)
class ProxyProcess:
    """A proxy in a process of its own.

    Attributes:
        url: its URL.
    """

    url: str

    def counts(self) -> dict[str, int]:
        """Return what it did and what passed until now, see `Proxy.counts`."""
        found: dict[str, int] = self._ask("counts", None)
        return found

    def set(self, **changes: Any) -> None:
        """Change the script."""
        self._ask("script", json.dumps(changes).encode())

    def _ask(self, what: str, data: bytes | None) -> Any:
        request = urllib.request.Request(f"{self.url}{_ADMIN}{what}", data, method="PUT" if data else "GET")
        for _ in range(50):
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    return json.load(answer)
            except OSError:  # it is gone for a while
                time.sleep(0.2)
        raise TimeoutError(f"{self.url}: the proxy does not answer")


@contextmanager
def proxy_process(upstream: str, script: Script | None = None, seed: int = 0) -> Iterator[ProxyProcess]:
    """Run a proxy in a process of its own in the `with` block."""
    settings = json.dumps(asdict(script or Script()))
    command = [sys.executable, __file__, upstream, "--faults", settings, "--seed", str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield ProxyProcess(process.stdout.readline().strip())
        finally:
            process.kill()


def _script(changes: Mapping[str, Any], before: Script) -> Script:
    changes = {name: tuple(value) if name == "methods" else value for name, value in changes.items()}
    return replace(before, **changes)


def _refusal(fault: str | None) -> bytes | None:
    if fault == "slow_down":
        return _plain("503 Slow Down", _SLOW_DOWN)
    if fault == "failed":
        return _plain("500 Internal Server Error", _FAILED)
    return _plain("403 Forbidden", _EXPIRED) if fault == "expired" else None


def _plain(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nContent-Type: application/xml\r\n\r\n".encode() + body


def _read_head(source: socket.socket, buffered: bytes) -> tuple[bytes, bytes]:
    """Read up to the empty line; return that and what came after it. Empty at the end of the connection."""
    while (end := buffered.find(b"\r\n\r\n")) < 0:
        if len(buffered) > _HEAD_LIMIT or not (got := source.recv(_CHUNK)):
            return b"", b""
        buffered += got
    return buffered[: end + 4], buffered[end + 4 :]


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


def _read_body(source: socket.socket, buffered: bytes, length: int) -> tuple[bytes, bytes]:
    while len(buffered) < length and (got := source.recv(_CHUNK)):
        buffered += got
    return buffered[:length], buffered[length:]


def _pass_body(client: socket.socket, server: socket.socket, buffered: bytes, length: int) -> bytes:
    """Pass the body of a request on; return what came after it."""
    server.sendall(buffered[:length])
    left = length - len(buffered)
    while left > 0 and (got := client.recv(min(_CHUNK, left))):
        server.sendall(got)
        left -= len(got)
    return buffered[length:]


def _reset(connection: socket.socket) -> None:
    """Close a connection with RST."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def main() -> None:
    """Run a proxy until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("upstream", help="the server's URL")
    parser.add_argument("--latency", type=float, help="seconds per connection and request")
    parser.add_argument("--bandwidth", type=float, help="bytes per second over all connections")
    parser.add_argument("--faults", type=json.loads, default={}, help="a script as JSON")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    script = _script(given.faults, Script())
    for name in ("latency", "bandwidth"):
        if (value := getattr(given, name)) is not None:
            script = replace(script, **{name: value})
    print(Proxy(given.upstream, script, given.seed).url, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
