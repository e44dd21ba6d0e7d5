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
from weft.streams.ui.sql_box import LONGEST, MOST_ROWS, MOST_WHOLE, SqlAnswer

_LIMIT: Final = 1_000
SYSTEM_TABLES: Final = ("commits", "streams", "files", "slices", "savepoints", "snapshots", "watermarks")
"""Those of `weft.streams.catalog.system_tables`, which needs Spark; a test compares them."""
SHOWN: Final = 200


def sql(request: Request) -> Response:
    """The box, and the history."""
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
        most=MOST_ROWS,
        started=site.sql.started,
    )


async def run(request: Request) -> Response:
    """Begin a query; the answer asks for itself until it is there."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > 4 * LONGEST:
            raise InvalidInput("the query is too long", hint=f"at most {LONGEST:,} characters")
    fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
    given = {name: values[0] for name, values in fields.items()}
    whole = given.get("whole") == "1"
    limit = MOST_WHOLE if whole else parse_limit(given.get("limit", "").strip(), _LIMIT, MOST_ROWS)
    made = site_of(request).sql.ask(given.get("sql", ""), given.get("as_of", "").strip(), limit)
    return await run_in_threadpool(_render_answer, request, made)


def answer(request: Request) -> Response:
    """How far a query is, or its rows."""
    return _render_answer(request, site_of(request).sql.answer(request.path_params["number"]))


def cancel(request: Request) -> Response:
    """Cancel a query."""
    return _render_answer(request, site_of(request).sql.cancel(request.path_params["number"]))


def _render_answer(request: Request, found: SqlAnswer) -> Response:
    wait = site_of(request).sql.wait(found)
    return render(request, "sql_answer.html", found=found, wait=wait, shown=SHOWN, most_whole=MOST_WHOLE)


def download(request: Request) -> Response:
    """The rows of an answer as a file."""
    site = site_of(request)
    found = site.sql.answer(request.path_params["number"])
    if found.rows is None:
        raise NotFound(f"the answer of query {found.number} is not kept any more", hint="run it again")
    name = f"{site.watched.name}-query-{found.number}"
    return send_table(found.rows.schema, iter(found.rows.to_batches()), request.path_params["form"], name)


ROUTES: Final[list[Any]] = [
    Route("/sql", sql),
    Route("/sql/run", run, methods=["POST"]),
    Route("/sql/answers/{number:int}", answer),
    Route("/sql/answers/{number:int}/cancel", cancel, methods=["POST"]),
    Route("/sql/answers/{number:int}/rows.{form}", download),
]
