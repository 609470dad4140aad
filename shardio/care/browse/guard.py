"""The guard of the pages: it answers only GET requests to this machine's own names with the server's token.

The token comes once, in the URL that the server prints, and is a cookie from then on. Other sites that the browser
shows cannot send that cookie (SameSite=Strict), and no name of theirs that is made to lead here (DNS rebinding) is
accepted. Browsers send cookies to all ports of a host: the pages are below a path that nobody guesses, and the cookie
is for that path alone.
"""

import secrets
from collections.abc import MutableMapping
from typing import Any, final
from urllib.parse import quote, urlencode

from ...system.html import escaped

_OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; img-src 'self' data:; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@final
class Guard:
    """An ASGI application around another one that refuses strangers and adds the headers of every answer.

    Args:
        app: the pages.
        token: what whoever may see them knows.
        port: the server's port, in the name of its cookie so that other servers of this machine have others.
    """

    def __init__(self, app: Any, token: str, port: int) -> None:
        self._app, self._token, self._cookie = app, token.encode(), f"shardio-{port}"
        self._root = f"/{secrets.token_urlsafe(16)}"

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        from starlette.requests import Request
        from starlette.responses import HTMLResponse, PlainTextResponse

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message["headers"]}
                more = [(n.encode(), v.encode()) for n, v in _HEADERS.items() if n.encode() not in own]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        request = Request(scope)
        answer: Any
        given = request.query_params.getlist("token")
        if _host(request.headers.get("host", "")) not in _OWN_NAMES:
            answer = PlainTextResponse("These pages are for 127.0.0.1 and localhost alone.", 403)
        elif request.method != "GET":
            answer = PlainTextResponse("Pages are only read: GET.", 405, {"allow": "GET"})
        elif given and self._is_token(given[0]):
            rest = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "token"])
            place = f"{self._root}/{quote(scope['path'].lstrip('/'))}{'?' * bool(rest)}{rest}"
            # A page that goes on, and no redirect: after one, a link from another site would not bring the cookie.
            cookie = f"{self._cookie}={self._token.decode()}; HttpOnly; SameSite=Strict; Path={self._root}/"
            text = f'<!doctype html><meta http-equiv="refresh" content="0;url={escaped(place)}"><title>shardio</title>'
            answer = HTMLResponse(f'{text}<a href="{escaped(place)}">Go on</a>', headers={"set-cookie": cookie})
        elif self._is_token(request.cookies.get(self._cookie, "")):
            answer = self._app
        else:
            answer = PlainTextResponse("Open the address that `shardio browse` printed, with its token.", 403)
        await answer({**scope, "root_path": self._root}, receive, with_headers)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(errors="replace"), self._token)


def _host(header: str) -> str:
    """Return the name of a Host header without its port."""
    name, colon, port = header.rpartition(":")
    return name if colon and port.isdigit() else header
