"""Serves the page ``weft ui`` until it is stopped. START HERE.

serve         checks what was given, opens the table, listens, and runs the application
application   the routes; guard: who may ask; site: what pages need, and templates
listed_tables the tables of a page that shows several; table_summaries: what its start_page says of each
*_pages       one function for each page: it asks the table, and renders a template
assets        style and scripts; vendor: htmx, idiomorph and uPlot as published, with their licences
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Final

import uvicorn

from weft.storage.errors import InvalidInput, NotFound
from weft.streams.ui.application import build_application, build_list_application
from weft.streams.ui.guard import Access, parse_authority
from weft.streams.ui.listed_tables import TableList, Target, is_folder, open_site
from weft.streams.ui.site import Site

LOCAL: Final = "127.0.0.1"
TOKEN_VARIABLE: Final = "WEFT_UI_TOKEN"  # noqa: S105 - the name of a variable
_SHORTEST_TOKEN: Final = 16
_STOP_SECONDS: Final = 5


@dataclass(frozen=True, slots=True)
class Serving:
    """Where and how the page is served.

    Attributes:
        host: Address to listen on.
        port: Port; 0 for any free one.
        token: Whether requests from this machine need a token, too. On other addresses requests always need one.
        allow_hosts: Further names of this server.
        write: Whether the page may change something.
    """

    host: str = LOCAL
    port: int = 0
    token: bool = False
    allow_hosts: Sequence[str] = ()
    write: bool = False


def serve(targets: Sequence[Target], serving: Serving, on_ready: Callable[[str], None]) -> None:
    """Serve the page until SIGINT or SIGTERM.

    Args:
        targets: Tables, and folders of tables. With a single table there is no list of tables.
        serving: Where and how.
        on_ready: Called with the address of the page, which contains the token.

    Raises:
        NotFound: There is no table.
        StoreUnavailable: A store does not answer.
        InvalidInput: The address or the port cannot be used, or the token is too short.
    """
    pages = _open(targets, write=serving.write)
    with _listening(serving.host, serving.port) as listener:
        port = listener.getsockname()[1]
        access = access_of(serving, port)
        name = "localhost" if _is_any(serving.host) else serving.host
        host = f"[{name}]" if ":" in name else name
        on_ready(f"http://{host}:{port}/" + (f"?token={access.token}" if access.token else ""))
        config = uvicorn.Config(
            build_application(pages, access) if isinstance(pages, Site) else build_list_application(pages, access),
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after it has shut down
            _Server(config, pages.end).run(sockets=[listener])


def _open(targets: Sequence[Target], *, write: bool) -> Site | TableList:
    """Open the pages of one table, or the list of several."""
    if len(targets) == 1:
        try:
            return open_site(targets[0], write=write)
        except NotFound:
            if not is_folder(targets[0]):
                raise
    return TableList(targets, write=write)


class _Server(uvicorn.Server):
    """Tells pages that follow a table that the server stops."""

    def __init__(self, config: uvicorn.Config, end: Callable[[], None]) -> None:
        super().__init__(config)
        self._end = end

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._end()
        super().handle_exit(sig, frame)


def access_of(serving: Serving, port: int) -> Access:
    """Decide which requests a server accepts.

    Raises:
        InvalidInput: The token in the environment is too short, or an allowed host is not a host name.
    """
    local = _is_loopback(serving.host)
    names = {_allowed_name(name) for name in serving.allow_hosts} | {"localhost", serving.host.lower()}
    names |= {LOCAL, "::1"} if local or _is_any(serving.host) else set()
    if not local:
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    token = ""
    if serving.token or not local:
        token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
        if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or set(token) & set(' ;,"\\'):
            raise InvalidInput(
                f"{TOKEN_VARIABLE} is not usable as a token",
                hint=f"give at least {_SHORTEST_TOKEN} letters, digits, - and _, or unset it to get a new token",
            )
    return Access(frozenset(names), any_address=not local, token=token, cookie=f"weft_{port}")


def _allowed_name(text: str) -> str:
    authority = parse_authority(text)
    if authority is None or authority.port is not None:
        raise InvalidInput(
            f"--allow-host {text} is not a host name", hint="give the name without scheme and port: weft.example.org"
        )
    return authority.name


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """Open a socket that listens, and close it after the block."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise InvalidInput(
            f"--host {host}: {error.strerror}", hint=f"give an address of this machine, such as {LOCAL}"
        ) from error
    with contextlib.closing(socket.socket(family, kind, protocol)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(128)
        except OSError as error:
            raise InvalidInput(
                f"cannot listen at {host}:{port}: {error.strerror}",
                hint="choose another --port; with 0 the system chooses a free one",
            ) from error
        yield listener


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
