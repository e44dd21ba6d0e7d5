"""The start page of several tables: a line for each of them, the worst first."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from weft.streams.ui.listed_tables import MAX_TABLES, PREFIX, TableList
from weft.streams.ui.live_events import follow
from weft.streams.ui.site import render
from weft.streams.ui.table_summaries import TableSummaries, worst_first


def start(request: Request) -> Response:
    """List all tables, or those whose names contain a text."""
    tables, summaries = _tables(request), _summaries(request)
    by_name = summaries.ask()
    text = request.query_params.get("name", "").strip()
    names = [name for name in tables.by_name if text.lower() in name.lower()]
    return render(
        request,
        "start.html",
        view="tables",
        tables=[(name, f"{PREFIX}/{quote(name)}/", summary) for name, summary in worst_first(names, by_name)],
        total=len(tables.by_name),
        wrong=sum(bool(summary.problems) for name, summary in by_name.items() if name in tables.by_name),
        text=text,
        problem=summaries.problem,
        most=MAX_TABLES if tables.cut_off else None,
    )


async def events(request: Request) -> Response:
    """Send a stream of events: ``table`` when a line has changed."""
    tables, summaries = _tables(request), _summaries(request)

    def state() -> tuple[str, str]:
        by_name = summaries.ask()
        newest = max((summary.at_ms for summary in by_name.values()), default=0)
        return "table", f"{summaries.rounds} {len(tables.by_name)} {len(by_name)} {newest}"

    return StreamingResponse(follow(tables.ending, state), media_type="text/event-stream")


def _tables(request: Request) -> TableList:
    tables: TableList = request.app.state.tables
    return tables


def _summaries(request: Request) -> TableSummaries:
    summaries: TableSummaries = request.app.state.summaries
    return summaries


ROUTES: Final[list[Any]] = [Route("/", start), Route("/events", events)]
