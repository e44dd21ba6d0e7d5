"""The meaning of statements that write: the stream, the columns, and the rows to delete.

    INSERT INTO weft.shop.orders_wide.payments (...)   appends to the stream payments
    INSERT INTO weft.shop.orders_wide (...)            the same, if the table has only one stream
    DELETE FROM weft.shop.orders_wide.orders WHERE     appends deletes to the stream, with the rows' ordering values

An INSERT of an existing key is an update. UPDATE and MERGE are refused, because they have no ordering values.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from weft.storage import Commit, Table
from weft.storage.core.merge.events import OP_COLUMN
from weft.storage.core.model import Stream
from weft.storage.core.predicate import Condition
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import InvalidInput, NotFound
from weft.streams.spark.sql_parts import Kind, parts
from weft.streams.spark.sql_text import quoted

_QUERY_WORDS: Final = ("SELECT", "WITH", "FROM", "TABLE", "VALUES")
NO_CONSTRAINTS: Final = (
    "a table has no constraints",
    "leave out wrong rows where they are written: the WHERE of an INSERT, or where: in the pipeline file",
)
"""Reason and hint of the error for constraints."""
_MODES_WITH_DELETES: Final = ("latest", "latest_non_null")


def choose_stream(schema: TableSchema, table: str, part: str) -> Stream:
    """Choose the stream to which a statement writes.

    Args:
        schema: The table's schema.
        table: Name of the table, for messages.
        part: Name of the stream in the statement; empty if the statement names the table.

    Raises:
        InvalidInput: The statement names the table, and the table has several streams.
        NotFound: The table has no such stream.
    """
    streams = ", ".join(f"{table}.{stream.name}" for stream in schema.streams)
    if part:
        stream = next((stream for stream in schema.streams if stream.name == part), None)
        if stream is None:
            raise NotFound(f"{table} has no stream {part!r}", hint=f"write to {streams}")
        return stream
    if len(schema.streams) > 1:
        raise InvalidInput(f"{table} is written by streams, and the statement names none", hint=f"write to {streams}")
    return schema.streams[0]


def check_statement(text: str, table: str, privileges: frozenset[str], target: str | None = None) -> None:
    """Refuse statements that a table does not support, with a hint for a supported one.

    Args:
        text: The statement; empty for a DataFrame.
        table: Name of the table or stream in the statement.
        privileges: Privileges that Spark requests: INSERT, UPDATE, DELETE.
        target: Name of the table or stream in hints; ``table`` by default.

    Raises:
        InvalidInput: The statement is UPDATE, MERGE or INSERT OVERWRITE.
    """
    word = _first_word(text)
    target = target or table
    if "UPDATE" in privileges or word in {"UPDATE", "MERGE"}:
        raise InvalidInput(
            f"{word or 'UPDATE'} of {table}: an update needs an ordering value, which the statement cannot give",
            hint=f"use INSERT INTO {target} (...) SELECT ...: a row of an existing key is an update, and the one with "
            "the larger ordering value wins",
        )
    if privileges >= {"INSERT", "DELETE"}:
        raise InvalidInput(
            f"INSERT OVERWRITE of {table}: a statement cannot replace all rows",
            hint="use INSERT INTO to update rows by key, and DELETE FROM ... WHERE to delete rows",
        )


def check_delete(text: str, condition: str, schema: TableSchema, stream: Stream, table: str, part: str) -> None:
    """Refuse a DELETE with a subquery. The hint is an INSERT with the same effect.

    Args:
        text: The statement; empty for a DataFrame.
        condition: The statement after the name of the table: WHERE, perhaps after an alias.
        schema: The table's schema.
        stream: The stream that gets the deletes.
        table: Name of the table, as in SQL.
        part: Name of the stream in the statement, as in SQL; empty if the statement names the table.

    Raises:
        InvalidInput: The condition has a subquery; or the stream cannot delete, see `delete_rows`.
    """
    words = _words(text)
    if words[:1] != ["DELETE"] or not any(
        sign == "(" and word in _QUERY_WORDS for sign, word in itertools.pairwise(words)
    ):
        return
    _check_deletable(schema, stream)
    columns = ", ".join(quoted(name) for name in columns_of(schema, stream))
    target = f"{table}.{part}" if part else table
    # The condition may qualify columns with the name of the stream.
    alias = f" AS {part}" if part and _first_word(condition) == "WHERE" else ""
    rows = f"SELECT {columns}, 'delete' AS {OP_COLUMN} FROM {table}{alias} {condition.strip()}"  # noqa: S608 - only shown
    raise InvalidInput(
        f"DELETE of {target}: the condition has a subquery", hint=f"use INSERT INTO {target} BY NAME {rows}"
    )


def check_readable(text: str, table: str) -> None:
    """Refuse ALTER TABLE ... ADD CONSTRAINT ... CHECK, for which Spark loads the table as for a query.

    Args:
        text: The statement; empty for a DataFrame.
        table: Name of the table.

    Raises:
        InvalidInput: The statement adds a constraint.
    """
    words = _words(text)
    if words[:2] == ["ALTER", "TABLE"] and "ADD" in words and "CHECK" in words[words.index("ADD") :]:
        what, hint = NO_CONSTRAINTS
        raise InvalidInput(f"ALTER TABLE {table}: {what}", hint=hint)


def _first_word(text: str) -> str:
    return next(iter(_words(text)), "")


def _words(text: str) -> list[str]:
    """Split a statement into words (in upper case), quoted texts and signs, without comments."""
    words: list[str] = []
    for kind, start, end in parts(text):
        if kind is Kind.QUOTED:
            words.append(text[start:end])
        elif kind is not Kind.COMMENT:
            words += re.findall(r"\w+|\S", text[start:end].upper())
    return words


def is_by_position(text: str, head: str) -> bool:
    """Whether an INSERT assigns values to columns by position: it has neither a list of columns nor BY NAME.

    Args:
        text: The statement; empty for a DataFrame, whose columns are matched by name.
        head: The part of the statement from INSERT up to the query, as Spark's parser divides it.
    """
    if not head or _first_word(text) in {"", "CREATE", "REPLACE"}:
        return False
    words = _words(head)
    if words[-2:] == ["BY", "NAME"]:
        return False
    if words[-1] != ")":
        return True
    depth = 0
    for index in reversed(range(len(words))):
        depth += (words[index] == ")") - (words[index] == "(")
        if depth == 0:
            before = words[:index]
            return before[-1] in {"WITH", "IDENTIFIER", "PARTITION"} and before[-2] != "."
    raise AssertionError(f"Spark has parsed {head!r}")


def delete_rows(table: Table, stream: Stream, condition: Condition) -> Commit | None:
    """Delete the rows of the newest snapshot that satisfy a condition, by appending deletes to a stream.

    Each delete has the ordering values that its row has now. As it arrives later, it wins over the event that the row
    shows, and over every older event, even one that arrives afterwards. An event with a larger ordering value wins over
    the delete, even one that is committed at the same time.

    Args:
        table: The table. Its writers may continue.
        stream: A stream of the table. Its ``on_delete`` determines whether its groups or whole rows are deleted.
        condition: Condition on the columns of the stream.

    Returns:
        The commit; None if no row satisfies the condition.

    Raises:
        InvalidInput: The stream ignores deletes, or one of its groups aggregates; or the stream has no event for one of
            the rows, and so no ordering value. The table is unchanged.
    """
    schema = table.schema
    _check_deletable(schema, stream)
    groups = [schema.group(name) for name in stream.groups]
    ordering = [name for group in groups for name in group.ordering]
    present = [f"_present_{group.name}" for group in groups]
    rows = table.snapshot(references=False).to_arrow([*schema.key, *ordering, *present], condition)
    has_event = [any(flags) for flags in zip(*(rows[name].to_pylist() for name in present), strict=True)]
    if all(group.ordering for group in groups):
        if stream.on_delete == "row" and not all(has_event):
            raise InvalidInput(
                f"DELETE: stream {stream.name!r} has no event for {has_event.count(False)} of {len(has_event)} rows, "
                "and so no ordering value for their deletes",
                hint="use INSERT with ordering values and _op = 'delete', or delete with another stream",
            )
        rows = rows.filter(pa.array(has_event, pa.bool_()))
    if not rows.num_rows:
        return None
    deletes = rows.select([*schema.key, *ordering])
    for field in schema.event_schema([name for name in schema.stream_columns(stream) if name not in schema.key]):
        if field.name not in ordering:
            deletes = deletes.append_column(field.name, pa.nulls(deletes.num_rows, field.type))
    deletes = deletes.append_column(OP_COLUMN, pa.array(["delete"] * deletes.num_rows))
    with table.batch_writer(stream.name) as writer:
        return writer.append(deletes)


def _check_deletable(schema: TableSchema, stream: Stream) -> None:
    """Check that a stream can delete rows without their original events.

    Raises:
        InvalidInput: The stream ignores deletes, or one of its groups aggregates.
    """
    if stream.on_delete == "ignore":
        raise InvalidInput(
            f"DELETE: deletes of stream {stream.name!r} are ignored",
            hint="name a stream whose on_delete is row or group",
        )
    for group in (schema.group(name) for name in stream.groups):
        if group.merge not in _MODES_WITH_DELETES:
            raise InvalidInput(
                f"DELETE: group {group.name!r} is merged by {group.merge!r}, whose deletes take back the values of one "
                "event",
                hint="use INSERT with the values to take back, and _op = 'delete'",
            )


def columns_of(schema: TableSchema, stream: Stream) -> list[str]:
    """List the columns that a stream writes, in the order of the table."""
    names = set(schema.stream_columns(stream))
    return [column.name for column in schema.columns if column.name in names]


def match_columns(schema: TableSchema, stream: Stream, names: Sequence[str], *, by_position: bool) -> list[str]:
    """Find the column of the stream for each column of a query.

    Args:
        schema: The table's schema.
        stream: The stream.
        names: Names of the query's columns, in order. By position they are ignored, and may be equal.
        by_position: Whether columns are matched by position; otherwise by name, in any case.

    Returns:
        Names of columns of the stream, in the order of the query.

    Raises:
        InvalidInput: By position, the query and the stream have different numbers of columns. By name, the stream has
            no such column, or two columns of the query match the same one.
    """
    columns = columns_of(schema, stream)
    hint = f"name the columns, INSERT INTO ... (...): {', '.join(columns)}; also {OP_COLUMN}"
    if by_position:
        if len(names) != len(columns):
            raise InvalidInput(
                f"the query has {len(names)} columns, and stream {stream.name!r} {len(columns)}: {', '.join(columns)}",
                hint=hint,
            )
        return columns
    column_by_lower_name = {name.lower(): name for name in (*columns, OP_COLUMN, "_supplied")}
    for name in names:
        if name.lower() not in column_by_lower_name:
            raise InvalidInput(f"column {name!r} is not one of stream {stream.name!r}", hint=hint)
    matches = [column_by_lower_name[name.lower()] for name in names]
    for name in matches:
        if matches.count(name) > 1:
            raise InvalidInput(f"the query has column {name!r} twice", hint="keep one of them")
    return matches
