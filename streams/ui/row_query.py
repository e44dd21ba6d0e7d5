"""A query for rows of a snapshot that needs no Spark: columns, conditions and a limit, from the fields of a form."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from weft.storage import Snapshot, Table
from weft.storage.core.types import format_type
from weft.storage.errors import InvalidInput
from weft.streams.ui.page_times import EXAMPLE, page_point, page_time

OPERATORS: Final = ("=", "!=", "<", "<=", ">", ">=", "in", "contains", "starts with", "is null", "is not null")
_COMPARE: Final = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
DEFAULT_ROWS: Final = 100
MAX_SHOWN: Final = 1_000
MAX_DOWNLOADED: Final = 1_000_000
SECONDS: Final = 20.0  # for a page; a download has no limit of time


@dataclass(frozen=True, slots=True)
class Clause:
    """One condition of the filter; several conditions are joined by AND."""

    column: str
    operator: str
    value: str


@dataclass(frozen=True, slots=True)
class RowQuery:
    """A query for rows.

    Attributes:
        as_of: A time, savepoint or cut; "" for now.
        columns: Columns of the result; empty for all.
        clauses: The filter.
        require: Groups that must be present.
        limit: Largest number of rows.
    """

    as_of: str = ""
    columns: tuple[str, ...] = ()
    clauses: tuple[Clause, ...] = ()
    require: tuple[str, ...] = ()
    limit: int = DEFAULT_ROWS


@dataclass(frozen=True, slots=True)
class RowAnswer:
    """The rows that a query returns.

    Attributes:
        snapshot: The snapshot that was read.
        rows: The rows.
        more: Whether more rows match.
        stopped: Whether the search was stopped before its end, because it took too long or was cancelled.
        seconds: Duration of the search.
    """

    snapshot: Snapshot
    rows: pa.Table
    more: bool
    stopped: bool
    seconds: float


def parse_query(fields: Mapping[str, Sequence[str]]) -> RowQuery:
    """Parse the fields of a form into a query.

    Args:
        fields: ``as_of``, ``limit``, any number of ``show`` and ``require``, and for each line of the filter one
            ``column``, one ``operator`` and one ``value``. A line without a column is ignored.

    Raises:
        InvalidInput: A line of the filter lacks a field, an operator is unknown, or the limit is out of range.
    """
    columns, operators, values = (fields.get(name, ()) for name in ("column", "operator", "value"))
    if not len(columns) == len(operators) == len(values):
        raise InvalidInput("the filter is incomplete", hint="give column, operator and value in each line")
    clauses = tuple(
        Clause(column, operator, value)
        for column, operator, value in zip(columns, operators, values, strict=True)
        if column
    )
    for clause in clauses:
        if clause.operator not in OPERATORS:
            raise InvalidInput(f"unknown operator {clause.operator!r}", hint=f"use one of {', '.join(OPERATORS)}")
    return RowQuery(
        as_of=_first(fields, "as_of").strip(),
        columns=tuple(fields.get("show", ())),
        clauses=clauses,
        require=tuple(fields.get("require", ())),
        limit=parse_limit(_first(fields, "limit"), DEFAULT_ROWS, MAX_SHOWN),
    )


def parse_limit(text: str, default: int, maximum: int) -> int:
    """Parse a number of rows; ``default`` if the text is empty.

    Raises:
        InvalidInput: The text is not a number from 1 to ``maximum``.
    """
    if not text:
        return default
    if not text.isdecimal() or not 1 <= int(text) <= maximum:
        raise InvalidInput(f"limit is {text!r}", hint=f"give a number from 1 to {maximum:,}")
    return int(text)


def take_snapshot(table: Table, as_of: str) -> Snapshot:
    """Take the snapshot that a field ``as_of`` names; raises what `weft.Table.snapshot` raises."""
    return table.snapshot(page_point(as_of))


def answer(table: Table, query: RowQuery, cancelled: threading.Event | None = None) -> RowAnswer:
    """Read rows until the limit is reached, `SECONDS` have passed, or the query is cancelled.

    Args:
        table: The table.
        query: The query.
        cancelled: Set when the query is cancelled.

    Raises:
        InvalidInput: A value does not have the type of its column.
        NotFound: There is no such column, group, savepoint or cut.
        SnapshotExpired: Cleaning has removed the snapshot.
    """
    began = time.monotonic()
    snapshot = take_snapshot(table, query.as_of)
    reader = _reader(snapshot, query)
    batches: list[pa.RecordBatch] = []
    rows, stopped = 0, False
    for batch in reader:
        batches.append(batch)
        rows += len(batch)
        if rows > query.limit:
            break
        if time.monotonic() - began > SECONDS or (cancelled is not None and cancelled.is_set()):
            stopped = True
            break
    whole = pa.Table.from_batches(batches, reader.schema)
    return RowAnswer(snapshot, whole.slice(0, query.limit), rows > query.limit, stopped, time.monotonic() - began)


def batches(table: Table, query: RowQuery) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema and the rows of a download, at most `MAX_DOWNLOADED`. Raises what `answer` raises."""
    reader = _reader(take_snapshot(table, query.as_of), query)

    def read() -> Iterator[pa.RecordBatch]:
        remaining = MAX_DOWNLOADED
        for batch in reader:
            if remaining <= 0:
                return
            yield batch.slice(0, remaining)
            remaining -= len(batch)

    return reader.schema, read()


def _reader(snapshot: Snapshot, query: RowQuery) -> pa.RecordBatchReader:
    schema = snapshot.schema
    conditions = [_condition(schema, clause) for clause in query.clauses]
    combined = conditions[0] if conditions else None
    for condition in conditions[1:]:
        combined = combined & condition
    columns = None
    if query.columns:
        key = snapshot.table_schema.key  # always included: the page links each row by its key
        columns = [*key, *(name for name in query.columns if name not in key)]
    return snapshot.to_reader(columns, combined, query.require or None)


def _condition(schema: pa.Schema, clause: Clause) -> pc.Expression:
    if clause.column not in schema.names:
        raise InvalidInput(f"there is no column {clause.column!r}", hint=f"columns: {', '.join(schema.names)}")
    kind, field = schema.field(clause.column).type, pc.field(clause.column)
    match clause.operator:
        case "is null":
            return field.is_null()
        case "is not null":
            return ~field.is_null()
        case "contains" | "starts with" if not pa.types.is_string(kind):
            raise InvalidInput(f"{clause.column} is {format_type(kind)}, not a string", hint="compare it with =")
        case "contains":
            return pc.match_substring(field, clause.value)
        case "starts with":
            return pc.starts_with(field, clause.value)
        case "in":
            values = [_value(clause.column, kind, text.strip()) for text in clause.value.split(",")]
            return field.isin(pa.array(values, kind))
    return _COMPARE[clause.operator](field, pa.scalar(_value(clause.column, kind, clause.value), kind))


def _value(column: str, kind: pa.DataType, text: str) -> Any:
    try:
        if pa.types.is_timestamp(kind):
            return _moment(text, kind)
        return bytes.fromhex(text) if pa.types.is_binary(kind) else pa.scalar(text).cast(kind).as_py()
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise InvalidInput(f"{column}: expected {format_type(kind)}, got {text!r}", hint=_example(kind)) from error


def _moment(text: str, kind: pa.DataType) -> dt.datetime:
    """Parse a time for a column of this type. Raises ValueError."""
    time = page_time(text)
    return time if kind.tz is not None else time.replace(tzinfo=None)


def _example(kind: pa.DataType) -> str:
    """Return a hint with an example of a value of a type."""
    if pa.types.is_binary(kind):
        return "write binary values in hexadecimal: 00ff"
    if pa.types.is_timestamp(kind):
        return f"for example {EXAMPLE}"
    if pa.types.is_date(kind):
        return "for example 2026-11-20"
    if pa.types.is_boolean(kind):
        return "use true or false"
    return "for example 42" if pa.types.is_integer(kind) else "for example 9.5"


def _first(fields: Mapping[str, Sequence[str]], name: str) -> str:
    return next(iter(fields.get(name, ())), "")
