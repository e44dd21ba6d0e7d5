"""Who may ask: an ASGI middleware that checks Host, Origin and token of each request, and adds security headers.

1. **Host.** A page of another site whose name resolves to this machine (DNS rebinding) sends its own name as Host. Only
   the names of this server are answered; on an address that others reach also any IP address, which cannot be rebound.
2. **Origin.** A request that may change something, which is any but GET and HEAD, must come from a page of this server:
   browsers send Origin with it. Browsers also say with Sec-Fetch-Site when another site embeds or loads something.
3. **Token.** If one is set, it is needed once as ``?token=``, which sets a cookie that no script can read, or as a
   bearer token.
4. **Headers.** The content security policy allows scripts and styles from files of this server only.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN: Final = "token"  # noqa: S105 - the name of the parameter
_SAFE: Final = frozenset({"GET", "HEAD"})
_FROM_HERE: Final = frozenset({"same-origin", "none"})  # values of Sec-Fetch-Site; none: typed in by the user
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask.

    Attributes:
        names: Host names and addresses of this server, in lower case and without a port.
        any_address: Whether any IP address may be asked for.
        token: The token that is needed; "" for none.
        cookie: Name of the cookie that holds it. Cookies do not depend on the port, so it has the port in its name.
    """

    names: frozenset[str]
    any_address: bool = False
    token: str = ""
    cookie: str = "weft"


class Guard:
    """The middleware."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        """Guard an application."""
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        answer = self._refusal(scope) or self._login(scope)
        await (answer or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_name(host_name(host)):
            return _refuse(
                HTTPStatus.MISDIRECTED_REQUEST, f"this server is not called {host!r}; --allow-host adds a name"
            )
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if scope["method"] in _SAFE:
            visit = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
            if site is not None and site not in _FROM_HERE and not visit:
                return _refuse(HTTPStatus.FORBIDDEN, "another site must not load this page")
            return None
        if (site is not None and site not in _FROM_HERE) or origin is None or urlsplit(origin).netloc != host:
            return _refuse(HTTPStatus.FORBIDDEN, "only pages of this server may send this request: its Origin is not")
        return None

    def _is_name(self, name: str) -> bool:
        return name in self._access.names or (self._access.any_address and _is_address(name))

    def _login(self, scope: Scope) -> Response | None:
        """None if the token is known; a redirection that sets the cookie, or a refusal."""
        access = self._access
        if not access.token:
            return None
        headers = Headers(scope=scope)
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if _equal(bearer, access.token) or any(_equal(each, access.token) for each in self._cookies(headers)):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if scope["method"] in _SAFE and any(name == TOKEN and _equal(value, access.token) for name, value in query):
            rest = urlencode([(name, value) for name, value in query if name != TOKEN])
            target = f"/{scope['path'].lstrip('/')}" + (f"?{rest}" if rest else "")
            response = Response(status_code=HTTPStatus.SEE_OTHER, headers={"Location": target})
            response.set_cookie(access.cookie, access.token, httponly=True, samesite="strict", path="/")
            return response
        return _refuse(HTTPStatus.UNAUTHORIZED, "a token is needed: open the address that weft ui printed")

    def _cookies(self, headers: Headers) -> Iterable[str]:
        for header in headers.getlist("cookie"):
            try:
                found = SimpleCookie(header)
            except CookieError:
                continue
            if self._access.cookie in found:
                yield found[self._access.cookie].value


def host_name(host: str) -> str:
    """The name in a Host header, without the port, in lower case; an IPv6 address without brackets."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _refuse(status: HTTPStatus, why: str) -> Response:
    return PlainTextResponse(f"{why}\n", status)
