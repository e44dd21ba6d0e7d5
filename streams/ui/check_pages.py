"""The page with the checks of ``weft doctor``."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from weft.streams.doctor.finding import Level
from weft.streams.ui.site import render, site_of


def checks(request: Request) -> Response:
    """Show the results of the last run, and a button for the next one."""
    site = site_of(request)
    return render(
        request, "checks.html", view="checks", last=site.checks.last, level=Level, target=site.pipeline or "URI"
    )


def start(request: Request) -> Response:
    """Start a run of the checks."""
    site_of(request).checks.start()
    return RedirectResponse(f"{site_of(request).root}/checks", HTTPStatus.SEE_OTHER)


ROUTES: Final[list[Any]] = [Route("/checks", checks), Route("/checks/start", start, methods=["POST"])]
