"""Server-sent events: a page is told when the table has changed, and then renews its living part."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from storage.errors import TableError
from streams.ui.site import Site, site_of

_EVERY_SECONDS: Final = 1.0
_ALIVE_SECONDS: Final = 15.0  # a comment tells proxies and the browser that the connection lives


async def events(request: Request) -> Response:
    """A stream of events ``table`` (it has changed) and ``trouble`` (it cannot be read)."""
    return StreamingResponse(_events(site_of(request)), media_type="text/event-stream")


async def _events(site: Site) -> AsyncIterator[str]:
    last, spoke = "", time.monotonic()
    yield "retry: 2000\n\n"
    while not site.ending.is_set():
        name, state = await anyio.to_thread.run_sync(_state, site)
        if state != last:
            last, spoke = state, time.monotonic()
            yield f"event: {name}\ndata: {json.dumps(state)}\n\n"
        elif time.monotonic() - spoke > _ALIVE_SECONDS:
            spoke = time.monotonic()
            yield ": alive\n\n"
        await anyio.sleep(_EVERY_SECONDS)


def _state(site: Site) -> tuple[str, str]:
    """The cut of the table, or why it cannot be read; all listeners share one look."""
    try:
        return "table", site.watched.look().cut
    except TableError as error:
        return "trouble", error.message


ROUTES: Final[list[Any]] = [Route("/events", events)]
