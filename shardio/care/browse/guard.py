"""The guard of the pages, which answers requests by GET, to this machine's own names, with the token of the server.

The token comes once, in the URL that the server prints, and is a cookie from then on. Other sites that the browser
shows cannot send that cookie (SameSite=Strict), and no name of theirs that is made to lead here (DNS rebinding) is
accepted. Browsers send cookies to all ports of a host: the pages are below a path that nobody guesses, and the cookie
is for that path alone.
"""

import secrets
from collections.abc import Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, final
from urllib.parse import parse_qsl, quote, urlencode

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
    """An ASGI application around another one, which refuses strangers, and adds the headers of every answer.

    Args:
        app: the pages.
        token: what whoever may see them knows.
        port: the server's port, which tells its cookie from those of other servers of this machine.
    """

    def __init__(self, app: Any, token: str, port: int) -> None:
        self._app, self._token, self._cookie = app, token.encode(), f"shardio-{port}"
        self._root = f"/{secrets.token_urlsafe(16)}"

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message["headers"]}
                more = [(n.encode(), v.encode()) for n, v in _HEADERS.items() if n.encode() not in own]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if _host(headers.get("host", "")) not in _OWN_NAMES:
            await _answer(with_headers, 403, "These pages are for 127.0.0.1 and localhost alone.")
        elif scope["method"] != "GET":
            await _answer(with_headers, 405, "Pages are only read: GET.", {"allow": "GET"})
        elif given and self._is_token(given[0]):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            place = f"{self._root}/{quote(scope['path'].lstrip('/'))}{'?' * bool(rest)}{rest}"
            # A page that goes on, and no redirect: after one, a link from another site would not bring the cookie.
            cookie = f"{self._cookie}={self._token.decode()}; HttpOnly; SameSite=Strict; Path={self._root}/"
            text = f'<!doctype html><meta http-equiv="refresh" content="0;url={escaped(place)}"><title>shardio</title>'
            html = {"content-type": "text/html; charset=utf-8", "set-cookie": cookie}
            await _answer(with_headers, 200, f'{text}<a href="{escaped(place)}">Go on</a>', html)
        elif self._is_token(self._cookie_in(headers.get("cookie", ""))):
            await self._app({**scope, "root_path": self._root}, receive, with_headers)
        else:
            await _answer(with_headers, 403, "Open the address that `shardio browse` printed, with its token.")

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(errors="replace"), self._token)

    def _cookie_in(self, header: str) -> str:
        try:
            found = SimpleCookie(header).get(self._cookie)
        except CookieError:
            return ""
        return "" if found is None else found.value


def _host(header: str) -> str:
    """Return the name of a Host header without its port."""
    name, colon, port = header.rpartition(":")
    return name if colon and port.isdigit() else header


async def _answer(send: Any, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
    own = {"content-type": "text/plain; charset=utf-8"} | dict(headers or {})
    listed = [(name.encode(), value.encode("latin-1")) for name, value in own.items()]
    await send({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": text.encode()})
