"""The web application: its routes, its guard, and how errors are shown."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from storage.errors import TableError
from streams.ui import check_pages, letter_pages, live_events, row_pages, sql_pages, table_pages
from streams.ui.guard import SECURITY_HEADERS, Access, Guard
from streams.ui.site import Site, render, render_error

ASSETS: Final = Path(__file__).with_name("assets")


def build_application(site: Site, access: Access) -> Starlette:
    """The application; it changes nothing unless ``site.write``.

    Args:
        site: What it shows.
        access: Who may ask.
    """

    @contextlib.asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(site.sql.close)
        await run_in_threadpool(site.history.close)
        if site.lag is not None:
            site.lag.close()

    application = Starlette(
        routes=[
            *table_pages.ROUTES,
            *row_pages.ROUTES,
            *sql_pages.ROUTES,
            *letter_pages.ROUTES,
            *check_pages.ROUTES,
            *live_events.ROUTES,
            Mount("/assets", StaticFiles(directory=ASSETS), name="assets"),
        ],
        middleware=[Middleware(Guard, access=access)],
        exception_handlers={TableError: render_error, HTTPException: _http_error, Exception: _unexpected_error},
        lifespan=running,
    )
    application.state.site = site
    return application


def _unexpected_error(request: Request, error: Exception) -> Response:
    """An error that is none of weft: the server raises it again after this answer, so its log has the rest."""
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    hint = "what weft ui has printed says more; please report it"
    answer = render(request, "error.html", status, message=f"the page failed: {type(error).__name__}", hint=hint)
    answer.headers.update(SECURITY_HEADERS)  # the guard is within this handler
    return answer


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    message = f"there is no page {request.url.path}" if status is HTTPStatus.NOT_FOUND else status.phrase
    return render(request, "error.html", status, message=message, hint="the menu has all pages")
