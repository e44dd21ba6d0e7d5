"""The start page of several tables: a line for each of them, the worst first."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from weft.streams.ui.listed_tables import MOST_TABLES, PREFIX, TableList
from weft.streams.ui.live_events import follow
from weft.streams.ui.site import render
from weft.streams.ui.table_summaries import TableSummaries, worst_first


def start(request: Request) -> Response:
    """All tables, or those whose name has a text."""
    tables, summaries = _tables(request), _summaries(request)
    found = summaries.ask()
    text = request.query_params.get("name", "").strip()
    names = [name for name in tables.known if text.lower() in name.lower()]
    return render(
        request,
        "start.html",
        view="tables",
        tables=[(name, f"{PREFIX}/{quote(name)}/", each) for name, each in worst_first(names, found)],
        total=len(tables.known),
        wrong=sum(bool(each.problems) for name, each in found.items() if name in tables.known),
        text=text,
        problem=summaries.problem,
        most=MOST_TABLES if tables.cut_off else None,
    )


async def events(request: Request) -> Response:
    """A stream of events: ``table`` when a line has changed."""
    tables, summaries = _tables(request), _summaries(request)

    def state() -> tuple[str, str]:
        found = summaries.ask()
        newest = max((each.at_ms for each in found.values()), default=0)
        return "table", f"{summaries.rounds} {len(tables.known)} {len(found)} {newest}"

    return StreamingResponse(follow(tables.ending, state), media_type="text/event-stream")


def _tables(request: Request) -> TableList:
    found: TableList = request.app.state.tables
    return found


def _summaries(request: Request) -> TableSummaries:
    found: TableSummaries = request.app.state.summaries
    return found


ROUTES: Final[list[Any]] = [Route("/", start), Route("/events", events)]
