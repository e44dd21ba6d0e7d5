"""Access control: an ASGI middleware that checks Host, Origin and token of each request, and adds security headers.

1. **Host.** A page of another site whose name resolves to this machine (DNS rebinding) sends its own name as Host. Only
   the names of this server are accepted. If the server listens on an address that other machines reach, any IP address
   is accepted, too, because it cannot be rebound. Browsers send exactly one Host, in the form of RFC 9110. Every other
   request is refused: a URL parser would find ``localhost`` in ``localhost:80.evil.example``, in
   ``localhost/.evil.example`` and in ``user@localhost``.
2. **Origin.** A request that may change something (every method except GET and HEAD) must come from a page of this
   server; browsers send its Origin. Browsers also report with Sec-Fetch-Site when another site embeds or loads a page.
3. **Token.** If a token is set, a request needs it: as ``?token=``, which sets a cookie that scripts cannot read, as
   that cookie, or as a bearer token.
4. **Headers.** The content security policy allows scripts and styles from files of this server only.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN: Final = "token"  # noqa: S105 - the name of the parameter
_SAFE: Final = frozenset({"GET", "HEAD"})
_AUTHORITY: Final = re.compile(
    r"(?:\[(?P<address>[0-9A-Fa-f]*:[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?))(?::(?P<port>[0-9]{1,5}))?"
)
"""Host and port as browsers send them: names are ASCII (Punycode), and IPv6 addresses have brackets and no zone."""
_MAX_PORT: Final = 65_535
_PORTS: Final = {"http": 80, "https": 443}
_FROM_HERE: Final = frozenset({"same-origin", "none"})  # values of Sec-Fetch-Site; "none": the user typed the address
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Authority(NamedTuple):
    """The host and port that a request names.

    Attributes:
        name: Host name or address in lower case, without the dot at its end; an IPv6 address without brackets.
        port: Port; `None` if the request names only a host.
    """

    name: str
    port: int | None


@dataclass(frozen=True, slots=True)
class Access:
    """Which requests are accepted.

    Attributes:
        names: Host names and addresses of this server, in lower case and without a port.
        any_address: Whether Host may also be any IP address.
        token: The token that requests need; "" if they need none.
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
        """Pass a request to the application, or refuse it."""
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
        hosts = headers.getlist("host")
        host = parse_authority(hosts[0]) if len(hosts) == 1 else None
        if host is None or not self._is_name(host.name):
            called = " and ".join(map(repr, hosts)) or "nothing"
            return _refuse(
                HTTPStatus.MISDIRECTED_REQUEST, f"this server is not called {called}; --allow-host adds a name"
            )
        site, origins = headers.get("sec-fetch-site"), headers.getlist("origin")
        if scope["method"] in _SAFE:
            visit = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
            if site is not None and site not in _FROM_HERE and not visit:
                return _refuse(HTTPStatus.FORBIDDEN, "another site must not load this page")
            return None
        is_own = len(origins) == 1 and _is_origin_of(origins[0], host)
        if (site is not None and site not in _FROM_HERE) or not is_own:
            return _refuse(HTTPStatus.FORBIDDEN, "only pages of this server may send this request: its Origin is not")
        return None

    def _is_name(self, name: str) -> bool:
        return name in self._access.names or (self._access.any_address and _is_address(name))

    def _login(self, scope: Scope) -> Response | None:
        """Return None if the request may pass, a redirection that sets the cookie, or a refusal."""
        access = self._access
        if not access.token:
            return None
        headers = Headers(scope=scope)
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if _equal(bearer, access.token) or any(_equal(cookie, access.token) for cookie in self._cookies(headers)):
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
                cookies = SimpleCookie(header)
            except CookieError:
                continue
            if self._access.cookie in cookies:
                yield cookies[self._access.cookie].value


def parse_authority(text: str) -> Authority | None:
    """Parse a Host header, or the host and port of an origin.

    Returns:
        `None` if the text is not a host name or an IP address, with or without a port.
    """
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        return None
    port = None if match["port"] is None else int(match["port"])
    address = match["address"]
    if (address and not _is_address(address)) or (port or 0) > _MAX_PORT:
        return None
    return Authority((address or match["name"].removesuffix(".")).lower(), port)


def _is_origin_of(origin: str, host: Authority) -> bool:
    """Whether an origin is the server that the request names as its Host."""
    scheme, separator, rest = origin.partition("://")
    default, authority = _PORTS.get(scheme), parse_authority(rest)
    if not separator or default is None or authority is None:
        return False
    return authority.name == host.name and (authority.port or default) == (host.port or default)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _equal(text: str, token: str) -> bool:
    return hmac.compare_digest(text.encode(), token.encode())


def _refuse(status: HTTPStatus, why: str) -> Response:
    return PlainTextResponse(f"{why}\n", status)
