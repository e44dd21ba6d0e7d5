"""Server-sent events: they tell a page that the table has changed, and the page then renews its live part."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from weft.storage.errors import TableError
from weft.streams.ui.site import Site, site_of

_EVERY_SECONDS: Final = 1.0
SLOW_SECONDS: Final = 10.0  # a slow read is reported to the page after this time
_SLOW: Final = f"The table could not be read for {SLOW_SECONDS:.0f} s: its store answers slowly, or not at all"
_ALIVE_SECONDS: Final = 15.0  # a comment tells proxies and the browser that the connection lives


async def events(request: Request) -> Response:
    """A stream of events ``table`` (it has changed) and ``trouble`` (it cannot be read)."""
    site = site_of(request)
    return StreamingResponse(follow(site.ending, partial(_state, site)), media_type="text/event-stream")


async def follow(ending: threading.Event, state: Callable[[], tuple[str, str]]) -> AsyncIterator[str]:
    """Yield an event whenever a state has changed.

    Args:
        ending: Ends the stream when it is set.
        state: Returns the name of the event and the state. If it takes longer than `SLOW_SECONDS`, an event
            ``trouble`` says so.
    """
    last, sent_at = "", time.monotonic()
    yield "retry: 2000\n\n"
    while not ending.is_set():
        answer = asyncio.ensure_future(anyio.to_thread.run_sync(state, abandon_on_cancel=True))
        try:
            if not (await asyncio.wait({answer}, timeout=SLOW_SECONDS))[0]:
                last = _SLOW  # so that the state is sent when it comes, even if it is the same
                yield f"event: trouble\ndata: {json.dumps(_SLOW)}\n\n"
            name, text = await answer
        finally:
            answer.cancel()  # the browser has gone away
        if text != last:
            last, sent_at = text, time.monotonic()
            yield f"event: {name}\ndata: {json.dumps(text)}\n\n"
        elif time.monotonic() - sent_at > _ALIVE_SECONDS:
            sent_at = time.monotonic()
            yield ": alive\n\n"
        await anyio.sleep(_EVERY_SECONDS)


def _state(site: Site) -> tuple[str, str]:
    """Return the cut of the table, or why it cannot be read; all listeners share one `Look`."""
    try:
        return "table", site.watched.look().cut
    except TableError as error:
        return "trouble", f"{error.message}: {error.hint}" if error.hint else error.message


ROUTES: Final[list[Any]] = [Route("/events", events)]
