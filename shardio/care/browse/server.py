"""The server: pages by path, errors as pages, on the loopback interface until Ctrl-C."""

from __future__ import annotations

import re
import secrets
import socket
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...errors import ConfigError, ShardioError
from ...foreign.tokenizer import TextEncoder
from ...format.fields import Field
from ...system.html import STYLE, escaped
from ...system.optional import load
from ...transforms import Transform
from ...views.readable import ReadableDataset
from ..values import thumbnail
from .batch_page import batch_page
from .batches import Job
from .grid import classes, grid, state_of
from .guard import Guard
from .page import as_integer, error, framed
from .pictures import FRAMES, SIDE, as_error, image, small, strip, whole
from .sample import sample
from .scan import Scans

HOST = "127.0.0.1"
_CONNECTIONS = 64  # beyond that, the one made first is dropped: idle ones must not take all descriptors
_THREADS = 6  # pages and pictures that are made at once
_TOLD = (ShardioError, OSError, MemoryError)  # shown on the page; others are also printed on the terminal
_ADDRESS = re.compile(r'\b(href|src|action|data-url)="/')  # in no text, whose quotes are escaped
_OWN = files(__package__)


def serve(
    dataset: ReadableDataset,
    *,
    job: Job | None = None,
    transforms: Mapping[str, Sequence[Transform]] | None = None,
    tokenizer: TextEncoder | None = None,
    port: int = 0,
    open_browser: bool = True,
    told: Callable[[str], None] = print,
) -> None:
    """Show a dataset to the browser of this machine until an interrupt.

    Args:
        dataset: the dataset or view.
        job: the batch that is shown first.
        transforms: the transforms of batches, by field.
        tokenizer: the tokenizer that made the tokens, to show them as text.
        port: the port to listen on; 0 takes a free one.
        open_browser: open a graphical browser, if there is one.
        told: called with the address, including the token.

    Raises MissingDependency without the extra `browse`, ConfigError if the port cannot be had.
    """
    uvicorn = load("uvicorn", purpose="shardio browse", extra="browse")
    load("starlette", purpose="shardio browse", extra="browse")
    token, scans = secrets.token_urlsafe(32), Scans()
    try:
        listener = socket.create_server((HOST, port))
    except (OSError, OverflowError) as failed:
        raise ConfigError("{port} must be a free port of {}, got {}: {}", HOST, port, failed) from failed
    with listener, ExitStack() as stack:
        stack.callback(scans.stop)
        own = listener.getsockname()[1]
        app = Guard(pages(dataset, scans, job or Job(), transforms or {}, tokenizer), token, own)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            http=_protocol(),
            ws="none",
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        address = f"http://{HOST}:{own}/?token={token}"
        told(address)
        if open_browser:
            _open(address, stack)
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def _protocol() -> Any:
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.made = time.monotonic()
            while len(self.connections) > _CONNECTIONS:
                first: Any = min(self.connections, key=lambda each: getattr(each, "made", 0.0))
                self.connections.discard(first)
                first.transport.abort()

    return Protocol


def pages(
    dataset: ReadableDataset,
    scans: Scans,
    job: Job,
    transforms: Mapping[str, Sequence[Transform]],
    tokenizer: TextEncoder | None,
) -> Any:
    """Return the pages of a dataset as an ASGI application; `Guard` is what protects it."""
    from anyio import CapacityLimiter, to_thread
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route

    limiter = CapacityLimiter(_THREADS)

    def answers(make: Callable[[Request], Response]) -> Callable[[Request], Any]:
        """Return an endpoint that makes its answer on one of a few threads."""

        async def endpoint(request: Request) -> Response:
            return await to_thread.run_sync(make, request, limiter=limiter)

        return endpoint

    def html(make: Callable[[Request], str]) -> Callable[[Request], Any]:
        return answers(lambda request: HTMLResponse(rooted(request, make(request))))

    def rooted(request: Request, page: str) -> str:
        """Return a page with its own addresses below the path that the guard has chosen, if that asked for it."""
        root = request.scope["root_path"]
        return _ADDRESS.sub(rf'\1="{root}/', page) if request.scope["path"].startswith(f"{root}/") else page

    def place(request: Request) -> tuple[str, int]:
        """Return the field and the number of a sample that a path names."""
        name, number = request.path_params.get("field", ""), as_integer(request.path_params["number"], -1)
        if not 0 <= number < dataset.numbers or (name and name not in dataset.fields):
            raise HTTPException(404)
        return name, number

    def of_sample(request: Request) -> str:
        _, number = place(request)
        return sample(dataset, scans, number, request.query_params, tokenizer)

    def picture(make: Callable[[str, int, Request], tuple[bytes, str]]) -> Callable[[Request], Any]:
        def answer(request: Request) -> Response:
            name, number = place(request)
            try:
                data, kind = make(name, number, request)
            except Exception as failed:  # noqa: BLE001  # a page shows whatever a sample holds
                data, kind = as_error(f"{failed}" or type(failed).__name__), "image/svg+xml"
            return Response(data, media_type=kind)

        return answers(answer)

    def full(name: str, number: int, request: Request) -> tuple[bytes, str]:
        value = image(dataset, name, number, as_integer(request.query_params.get("n", ""), 0))
        return whole(value, dataset.fields[name])

    def frames(name: str, number: int, _: Request) -> tuple[bytes, str]:
        shown = strip(dataset, name, number, FRAMES)
        return thumbnail(shown, Field("image"), FRAMES * SIDE), "image/jpeg"

    async def failed(request: Request, exception: Exception) -> Response:
        status = exception.status_code if isinstance(exception, HTTPException) else 422
        words = "There is no such page." if status == 404 else f"{exception}" or type(exception).__name__
        return HTMLResponse(rooted(request, framed("shardio", f"<h1>{status}</h1>{error(words)}")), status)

    def file(text: str, kind: str) -> Callable[[Request], Response]:
        return lambda request: Response(text, media_type=f"text/{kind}")

    routes = [
        Route("/", html(lambda request: grid(dataset, scans, request.query_params))),
        Route("/classes", html(lambda request: classes(dataset, scans, request.query_params))),
        Route("/batches", html(lambda request: batch_page(dataset, job, transforms, request.query_params))),
        Route("/sample/{number}", html(of_sample)),
        Route("/small/{field}/{number}", picture(lambda name, number, _: (small(dataset, name, number), "image/jpeg"))),
        Route("/image/{field}/{number}", picture(full)),
        Route("/frames/{field}/{number}", picture(frames)),
        Route("/progress", answers(lambda request: JSONResponse(state_of(dataset, scans, request.query_params)))),
        Route("/static/browse.css", file(STYLE + (_OWN / "browse.css").read_text(), "css")),
        Route("/static/browse.js", file((_OWN / "browse.js").read_text(), "javascript")),
    ]
    return Starlette(routes=routes, exception_handlers=dict.fromkeys((HTTPException, *_TOLD), failed))


def _open(address: str, stack: ExitStack) -> None:
    """Open a graphical browser, by way of a file of this user alone: other users see the arguments of processes."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return
    if type(browser) is webbrowser.GenericBrowser:  # one of the terminal
        return
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardio-browse-")))
    page = folder / "open.html"
    page.write_text(
        f'<!doctype html><meta http-equiv="refresh" content="0;url={escaped(address)}"><title>shardio</title>'
    )
    threading.Thread(target=browser.open, args=(page.as_uri(),), daemon=True).start()
