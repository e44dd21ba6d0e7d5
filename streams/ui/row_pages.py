"""The pages about rows: filter and download, one row with its picture, and changes between two snapshots."""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Iterator
from typing import Any, Final

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from weft.storage.core.python_values import python_rows
from weft.storage.errors import InvalidInput, TableError
from weft.storage.operations.row_keys import parse_key, split_key
from weft.storage.services.inspect.inspect import Inspection
from weft.streams.read.plain_values import spreadsheet_cell
from weft.streams.ui.page_times import page_point
from weft.streams.ui.row_changes import find_changes
from weft.streams.ui.row_picture import BELOW, LINE, LOWER, UPPER, draw_groups
from weft.streams.ui.row_query import (
    MOST_DOWNLOADED,
    MOST_SHOWN,
    OPERATORS,
    Clause,
    answer,
    batches,
    parse_limit,
    parse_query,
)
from weft.streams.ui.site import fields_of, render, site_of

_CHANGES: Final = 200
_EMPTY_CLAUSES: Final = 2


async def data(request: Request) -> Response:
    """Rows of a snapshot, found by Arrow. The search ends when the browser goes away, or cancels it."""
    cancelled = threading.Event()

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        cancelled.set()

    failure: Exception | None = None
    async with anyio.create_task_group() as both:
        both.start_soon(watch)
        try:
            shown = await run_in_threadpool(_data, request, cancelled)
        except Exception as error:  # a task group would raise a group of it, which no handler of errors knows
            failure = error
        both.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return shown


def _data(request: Request, cancelled: threading.Event) -> Response:
    site = site_of(request)
    look = site.look()
    values: dict[str, Any] = {"problem": None, "found": None, "query": None}
    try:
        values["query"] = query = parse_query(fields_of(request))
        values["found"] = answer(site.watched.table, query, cancelled)
    except TableError as error:
        values["problem"] = error
    query = values["query"]
    given = query.clauses if query is not None else ()
    return render(
        request,
        "data.html",
        view="data",
        schema=site.watched.table.snapshot().schema,
        key=look.overview.schema.key,
        groups=[group.name for group in look.overview.schema.groups],
        savepoints=site.watched.table.savepoints(),
        operators=OPERATORS,
        clauses=[*given, *[Clause("", "=", "")] * _EMPTY_CLAUSES],
        most=MOST_SHOWN,
        downloaded=MOST_DOWNLOADED,
        download=request.url.query,
        **values,
    )


def download(request: Request) -> Response:
    """The rows of a question as a file."""
    site, form = site_of(request), request.path_params["form"]
    schema, found = batches(site.watched.table, parse_query({**fields_of(request), "limit": []}))
    return send_table(schema, found, form, site.watched.name)


def send_table(schema: pa.Schema, found: Iterator[pa.RecordBatch], form: str, name: str) -> Response:
    """Rows as a file that the browser stores. Cells of CSV are safe in spreadsheets; Parquet has the exact values.

    Raises:
        InvalidInput: The form is neither csv nor parquet.
    """
    headers = {"Content-Disposition": f'attachment; filename="{name}.{form}"'}
    if form == "csv":
        return StreamingResponse(_csv_parts(schema, found), media_type="text/csv; charset=utf-8", headers=headers)
    if form == "parquet":
        target = io.BytesIO()
        with pq.ParquetWriter(target, schema) as writer:
            for batch in found:
                writer.write_batch(batch)
        return Response(target.getvalue(), media_type="application/vnd.apache.parquet", headers=headers)
    raise InvalidInput(f"{form!r} is no form of a download", hint="csv or parquet")


def _csv_parts(schema: pa.Schema, found: Iterator[pa.RecordBatch]) -> Iterator[str]:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([spreadsheet_cell(name) for name in schema.names])
    for batch in found:
        writer.writerows([spreadsheet_cell(value) for value in row] for row in python_rows(batch))
        yield text.getvalue()
        text.seek(0)
        text.truncate()
    yield text.getvalue()


def row(request: Request) -> Response:
    """One row: its values, and why it has them."""
    site = site_of(request)
    fields = fields_of(request)
    as_of = request.query_params.get("as_of", "").strip()
    history = request.query_params.get("history") == "1"
    given = [text for text in fields.get("key", []) if text]
    values: dict[str, Any] = {"problem": None, "found": None, "pictures": [], "marks": [], "plans": {}}
    if given:
        try:
            snapshot = site.watched.table.snapshot(page_point(as_of))
            found = snapshot.explain(parse_key(snapshot.table_schema, given, "key"), history=history)
            inspection = Inspection.of(snapshot)
            merged = {version.file for version in found.versions if version.stored_in != "log"}
            values["marks"], values["plans"] = inspection.streams(), {file: inspection.plan_of(file) for file in merged}
            values["found"], values["pictures"] = found, draw_groups(found)
        except TableError as error:
            values["problem"] = error
    key = site.look().overview.schema.key
    return render(
        request,
        "row.html",
        view="data",
        key=key,
        given=dict(split_key(key, text) for text in given),
        as_of=as_of,
        history=history,
        savepoints=site.watched.table.savepoints(),
        upper=UPPER,
        lower=LOWER,
        below=BELOW,
        line=LINE,
        **values,
    )


def changes(request: Request) -> Response:
    """What differs between two snapshots."""
    site = site_of(request)
    table = site.watched.table
    since, until = (request.query_params.get(name, "").strip() for name in ("since", "until"))
    values: dict[str, Any] = {"problem": None, "found": None}
    if since:
        try:
            limit = parse_limit(request.query_params.get("limit", ""), _CHANGES, MOST_SHOWN)
            values["found"] = find_changes(table, since, until, limit, site.look().overview.created_at_ms)
        except TableError as error:
            values["problem"] = error
    return render(
        request,
        "changes.html",
        view="changes",
        since=since,
        until=until,
        limit=_CHANGES,
        savepoints=table.savepoints(),
        **values,
    )


ROUTES: Final[list[Any]] = [
    Route("/data", data),
    Route("/data/rows.{form}", download),
    Route("/row", row),
    Route("/changes", changes),
]
