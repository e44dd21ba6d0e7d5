"""The page with queries in Spark SQL."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from weft.storage.errors import InvalidInput, NotFound
from weft.streams.ui.row_pages import send_table
from weft.streams.ui.row_query import parse_limit
from weft.streams.ui.site import render, site_of
from weft.streams.ui.sql_box import MAX_DOWNLOADED_ROWS, MAX_QUERY_CHARS, MAX_ROWS, SqlAnswer

_LIMIT: Final = 1_000
SYSTEM_TABLES: Final = ("commits", "streams", "files", "slices", "savepoints", "snapshots", "watermarks")
"""The names in `weft.streams.catalog.system_tables`, whose import needs Spark; a test compares them."""
SHOWN_ROWS: Final = 200


def sql(request: Request) -> Response:
    """Show the box for a query, and the history of queries."""
    site = site_of(request)
    look = site.look()
    return render(
        request,
        "sql.html",
        view="sql",
        history=site.sql.history(),
        schema=site.watched.table.snapshot().schema,
        savepoints=site.watched.table.savepoints(),
        names=["t"] if site.watched.name.lower() == "t" else ["t", site.watched.name],
        parts=SYSTEM_TABLES,
        groups=[group.name for group in look.overview.schema.groups],
        limit=_LIMIT,
        most=MAX_ROWS,
        started=site.sql.started,
    )


async def run(request: Request) -> Response:
    """Start a query; the response requests itself again until the query has ended."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > 4 * MAX_QUERY_CHARS:
            raise InvalidInput("the query is too long", hint=f"use at most {MAX_QUERY_CHARS:,} characters")
    fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
    form = {name: values[0] for name, values in fields.items()}
    is_download = form.get("whole") == "1"
    limit = MAX_DOWNLOADED_ROWS if is_download else parse_limit(form.get("limit", "").strip(), _LIMIT, MAX_ROWS)
    query = site_of(request).sql.ask(form.get("sql", ""), form.get("as_of", "").strip(), limit)
    return await run_in_threadpool(_render_answer, request, query)


def answer(request: Request) -> Response:
    """Show the progress of a query, or its rows."""
    return _render_answer(request, site_of(request).sql.answer(request.path_params["number"]))


def cancel(request: Request) -> Response:
    """Cancel a query."""
    return _render_answer(request, site_of(request).sql.cancel(request.path_params["number"]))


def _render_answer(request: Request, query: SqlAnswer) -> Response:
    wait = site_of(request).sql.wait(query)
    return render(
        request, "sql_answer.html", query=query, wait=wait, most_shown=SHOWN_ROWS, most_whole=MAX_DOWNLOADED_ROWS
    )


def download(request: Request) -> Response:
    """Send the rows of an answer as a file."""
    site = site_of(request)
    query = site.sql.answer(request.path_params["number"])
    if query.rows is None:
        raise NotFound(f"the answer of query {query.number} is not kept any more", hint="run it again")
    name = f"{site.watched.name}-query-{query.number}"
    return send_table(query.rows.schema, iter(query.rows.to_batches()), request.path_params["form"], name)


ROUTES: Final[list[Any]] = [
    Route("/sql", sql),
    Route("/sql/run", run, methods=["POST"]),
    Route("/sql/answers/{number:int}", answer),
    Route("/sql/answers/{number:int}/cancel", cancel, methods=["POST"]),
    Route("/sql/answers/{number:int}/rows.{form}", download),
]
