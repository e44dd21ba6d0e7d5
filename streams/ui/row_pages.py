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
    MAX_DOWNLOADED,
    MAX_SHOWN,
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
    """Show the rows of a snapshot that match a filter. The search ends when the browser cancels it or disconnects."""
    cancelled = threading.Event()

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        cancelled.set()

    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        try:
            response = await run_in_threadpool(_data, request, cancelled)
        except Exception as error:  # the task group would wrap it in an ExceptionGroup, for which there is no handler
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return response


def _data(request: Request, cancelled: threading.Event) -> Response:
    site = site_of(request)
    look = site.look()
    values: dict[str, Any] = {"problem": None, "answer": None, "query": None}
    try:
        values["query"] = query = parse_query(fields_of(request))
        values["answer"] = answer(site.watched.table, query, cancelled)
    except TableError as error:
        values["problem"] = error
    query = values["query"]
    clauses = query.clauses if query is not None else ()
    return render(
        request,
        "data.html",
        view="data",
        schema=site.watched.table.snapshot().schema,
        key=look.overview.schema.key,
        groups=[group.name for group in look.overview.schema.groups],
        savepoints=site.watched.table.savepoints(),
        operators=OPERATORS,
        clauses=[*clauses, *[Clause("", "=", "")] * _EMPTY_CLAUSES],
        most=MAX_SHOWN,
        downloaded=MAX_DOWNLOADED,
        download=request.url.query,
        **values,
    )


def download(request: Request) -> Response:
    """Send the rows of a query as a file."""
    site, form = site_of(request), request.path_params["form"]
    schema, rows = batches(site.watched.table, parse_query({**fields_of(request), "limit": []}))
    return send_table(schema, rows, form, site.watched.name)


def send_table(schema: pa.Schema, batches: Iterator[pa.RecordBatch], form: str, name: str) -> Response:
    """Send rows as a file that the browser stores. CSV has cells that are safe in spreadsheets, Parquet exact values.

    Raises:
        InvalidInput: ``form`` is neither csv nor parquet.
    """
    headers = {"Content-Disposition": f'attachment; filename="{name}.{form}"'}
    if form == "csv":
        return StreamingResponse(_csv_parts(schema, batches), media_type="text/csv; charset=utf-8", headers=headers)
    if form == "parquet":
        target = io.BytesIO()
        with pq.ParquetWriter(target, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return Response(target.getvalue(), media_type="application/vnd.apache.parquet", headers=headers)
    raise InvalidInput(f"rows cannot be downloaded as {form!r}", hint="use csv or parquet")


def _csv_parts(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[str]:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([spreadsheet_cell(name) for name in schema.names])
    for batch in batches:
        writer.writerows([spreadsheet_cell(value) for value in row] for row in python_rows(batch))
        yield text.getvalue()
        text.seek(0)
        text.truncate()
    yield text.getvalue()


def row(request: Request) -> Response:
    """Show the values of a row, and why it has them."""
    site = site_of(request)
    fields = fields_of(request)
    as_of = request.query_params.get("as_of", "").strip()
    history = request.query_params.get("history") == "1"
    key_texts = [text for text in fields.get("key", []) if text]
    values: dict[str, Any] = {"problem": None, "explanation": None, "pictures": [], "marks": [], "plans": {}}
    if key_texts:
        try:
            snapshot = site.watched.table.snapshot(page_point(as_of))
            explanation = snapshot.explain(parse_key(snapshot.table_schema, key_texts, "key"), history=history)
            inspection = Inspection.of(snapshot)
            merged = {version.file for version in explanation.versions if version.stored_in != "log"}
            values["marks"], values["plans"] = inspection.streams(), {file: inspection.plan_of(file) for file in merged}
            values["explanation"], values["pictures"] = explanation, draw_groups(explanation)
        except TableError as error:
            values["problem"] = error
    key = site.look().overview.schema.key
    return render(
        request,
        "row.html",
        view="data",
        key=key,
        key_values=dict(split_key(key, text) for text in key_texts),
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
    """Show the rows that differ between two snapshots."""
    site = site_of(request)
    table = site.watched.table
    since, until = (request.query_params.get(name, "").strip() for name in ("since", "until"))
    values: dict[str, Any] = {"problem": None, "changes": None}
    if since:
        try:
            limit = parse_limit(request.query_params.get("limit", ""), _CHANGES, MAX_SHOWN)
            values["changes"] = find_changes(table, since, until, limit, site.look().overview.created_at_ms)
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
