"""The web application: its routes, its guard, and how errors are shown."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from weft.storage.errors import TableError
from weft.streams.ui import check_pages, letter_pages, live_events, row_pages, sql_pages, start_page, table_pages
from weft.streams.ui.guard import SECURITY_HEADERS, Access, Guard
from weft.streams.ui.listed_tables import PREFIX, TableList
from weft.streams.ui.site import SITE, Site, render, render_error
from weft.streams.ui.table_summaries import TableSummaries

ASSETS: Final = Path(__file__).with_name("assets")


def build_application(site: Site, access: Access) -> Starlette:
    """Build the application for one table; it changes nothing unless ``site.write``.

    Args:
        site: The table and what its pages need.
        access: Who may send requests.
    """
    application = _guarded([*_TABLE_ROUTES, _assets()], access, site.close)
    application.state.site = site
    return application


def build_list_application(tables: TableList, access: Access) -> Starlette:
    """Build the application for several tables: a list of them, and the pages of each table below its own prefix.

    Args:
        tables: The tables.
        access: Who may send requests.
    """
    of_table = Starlette(routes=_TABLE_ROUTES, exception_handlers=_HANDLERS)
    routes = [*start_page.ROUTES, Mount(PREFIX, _Tables(tables, of_table)), _assets()]
    application = _guarded(routes, access, tables.close)
    application.state.tables, application.state.summaries = tables, TableSummaries(tables)
    application.state.frame = tables.frame
    return application


class _Tables:
    """Passes a request to the pages of the table that its address names."""

    def __init__(self, tables: TableList, pages: ASGIApp) -> None:
        self._tables, self._pages = tables, pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name, rest = await run_in_threadpool(self._tables.find, scope["path"].removeprefix(scope["root_path"]))
        if not rest:
            query = scope["query_string"].decode("latin-1")
            target = f"{PREFIX}/{quote(name)}/" + (f"?{query}" if query else "")
            await RedirectResponse(target)(scope, receive, send)
            return
        site = await run_in_threadpool(self._tables.site, name)
        inner = {**scope, SITE: site, "root_path": f"{scope['root_path']}/{name}"}
        await self._pages(inner, receive, send)


def _assets() -> Mount:
    return Mount("/assets", StaticFiles(directory=ASSETS), name="assets")


def _guarded(routes: Sequence[BaseRoute], access: Access, close: Callable[[], None]) -> Starlette:
    @contextlib.asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(close)

    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, access=access)],
        exception_handlers=_HANDLERS,
        lifespan=running,
    )


def _unexpected_error(request: Request, error: Exception) -> Response:
    """Answer an error that weft did not raise. The server raises it again afterwards, so its log has the stack."""
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    hint = "please report it with the output of weft ui"
    table_error = TableError(f"the page failed: {type(error).__name__}", hint=hint)
    answer = render(request, "error.html", status, error=table_error, waits=False)
    answer.headers.update(SECURITY_HEADERS)  # this handler is outside of the guard
    return answer


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    message = f"there is no page {request.url.path}" if status is HTTPStatus.NOT_FOUND else status.phrase
    return render(
        request, "error.html", status, error=TableError(message, hint="choose a page from the menu"), waits=False
    )


_TABLE_ROUTES: Final[list[BaseRoute]] = [
    *table_pages.ROUTES,
    *row_pages.ROUTES,
    *sql_pages.ROUTES,
    *letter_pages.ROUTES,
    *check_pages.ROUTES,
    *live_events.ROUTES,
]
_HANDLERS: Final[dict[Any, Any]] = {
    TableError: render_error,
    HTTPException: _http_error,
    Exception: _unexpected_error,
}
