"""What a statement that writes means: which stream, which columns, which rows it deletes.

    INSERT INTO weft.shop.orders_wide.payments (...)   appends to the stream payments
    INSERT INTO weft.shop.orders_wide (...)            the same, if the table has only one stream
    DELETE FROM weft.shop.orders_wide.orders WHERE     deletes of the stream, with the ordering values of the rows

An INSERT of a key that exists is an update. UPDATE and MERGE are refused: they would have to make up ordering values.
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
"""Why constraints are refused, and what to do instead."""
_MODES_WITH_DELETES: Final = ("latest", "latest_non_null")


def choose_stream(schema: TableSchema, table: str, part: str) -> Stream:
    """The stream that a statement writes to.

    Args:
        schema: The table's schema.
        table: Name of the table, for messages.
        part: Name of the stream in the statement; empty if it names the table.

    Raises:
        InvalidInput: The statement names the table, and the table has several streams.
        NotFound: The table has no such stream.
    """
    streams = ", ".join(f"{table}.{stream.name}" for stream in schema.streams)
    if part:
        found = next((stream for stream in schema.streams if stream.name == part), None)
        if found is None:
            raise NotFound(f"{table} has no stream {part!r}", hint=f"write to {streams}")
        return found
    if len(schema.streams) > 1:
        raise InvalidInput(f"{table} is written by streams, and the statement names none", hint=f"write to {streams}")
    return schema.streams[0]


def check_statement(text: str, table: str, privileges: frozenset[str], target: str | None = None) -> None:
    """Refuse statements that a table does not support, with what to use instead.

    Args:
        text: The statement; empty for a DataFrame.
        table: Name of the table or stream in the statement.
        privileges: What Spark wants to do: INSERT, UPDATE, DELETE.
        target: What the hints write to instead; ``table`` by default.

    Raises:
        InvalidInput: It is UPDATE, MERGE or INSERT OVERWRITE.
    """
    word = _first_word(text)
    target = target or table
    if "UPDATE" in privileges or word in {"UPDATE", "MERGE"}:
        raise InvalidInput(
            f"{word or 'UPDATE'} of {table}: an update needs an ordering value, which the statement cannot give",
            hint=f"INSERT INTO {target} (...) SELECT ...: a row of an existing key is an update, and the one with the "
            "larger ordering value wins",
        )
    if privileges >= {"INSERT", "DELETE"}:
        raise InvalidInput(
            f"INSERT OVERWRITE of {table}: rows are not replaced as a whole",
            hint="INSERT INTO updates rows by key; DELETE FROM ... WHERE deletes rows",
        )


def check_delete(text: str, condition: str, schema: TableSchema, stream: Stream, table: str, part: str) -> None:
    """Refuse a DELETE with a subquery, with the INSERT that does the same.

    Args:
        text: The statement; empty for a DataFrame.
        condition: What follows the name in the statement: an alias, if there is one, and WHERE.
        schema: The table's schema.
        stream: The stream of which the statement deletes.
        table: Name of the table, as in SQL.
        part: Name of the stream in the statement, as in SQL; empty if it names the table.

    Raises:
        InvalidInput: The condition has a subquery; or see `delete_rows`.
    """
    words = _words(text)
    if words[:1] != ["DELETE"] or not any(
        sign == "(" and word in _QUERY_WORDS for sign, word in itertools.pairwise(words)
    ):
        return
    _check_deletable(schema, stream)
    columns = ", ".join(quoted(name) for name in columns_of(schema, stream))
    target = f"{table}.{part}" if part else table
    # The condition may name columns by the stream.
    alias = f" AS {part}" if part and _first_word(condition) == "WHERE" else ""
    rows = f"SELECT {columns}, 'delete' AS {OP_COLUMN} FROM {table}{alias} {condition.strip()}"  # noqa: S608 - only shown
    raise InvalidInput(f"DELETE of {target}: the condition has a subquery", hint=f"INSERT INTO {target} BY NAME {rows}")


def check_readable(text: str, table: str) -> None:
    """Refuse statements that look a table up as a query does, and then do what no table can.

    Args:
        text: The statement; empty for a DataFrame.
        table: Name of the table.

    Raises:
        InvalidInput: It is ALTER TABLE ... ADD CONSTRAINT ... CHECK.
    """
    words = _words(text)
    if words[:2] == ["ALTER", "TABLE"] and "ADD" in words and "CHECK" in words[words.index("ADD") :]:
        what, hint = NO_CONSTRAINTS
        raise InvalidInput(f"ALTER TABLE {table}: {what}", hint=hint)


def _first_word(text: str) -> str:
    return next(iter(_words(text)), "")


def _words(text: str) -> list[str]:
    """Words, quoted texts and signs of a statement, without comments; words in upper case."""
    words: list[str] = []
    for kind, start, end in parts(text):
        if kind is Kind.QUOTED:
            words.append(text[start:end])
        elif kind is not Kind.COMMENT:
            words += re.findall(r"\w+|\S", text[start:end].upper())
    return words


def is_by_position(text: str, head: str) -> bool:
    """Whether a statement gives values by position: an INSERT with neither a list of columns nor BY NAME.

    Args:
        text: The statement; empty for a DataFrame, whose columns have names.
        head: Its part from INSERT up to the query, as Spark's parser divides it.
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
    """Delete the rows that the newest snapshot shows and that satisfy a condition, as events of a stream.

    Each delete has the ordering values that its row has now. It comes after the event that it deletes, so it wins over
    that one, and over every older event that comes later. An event with a larger ordering value wins over the delete,
    also one that is committed meanwhile.

    Args:
        table: The table. Writers continue.
        stream: A stream of the table. Its policy says whether the groups of the stream are deleted, or the row.
        condition: Condition on the columns of the stream.

    Returns:
        The commit; None if no row satisfies the condition.

    Raises:
        InvalidInput: The stream ignores deletes, or a group of it aggregates; or the stream has no event of one of the
            rows, and so no ordering value. The table is unchanged.
    """
    schema = table.schema
    _check_deletable(schema, stream)
    groups = [schema.group(name) for name in stream.groups]
    ordering = [name for group in groups for name in group.ordering]
    present = [f"_present_{group.name}" for group in groups]
    found = table.snapshot(references=False).to_arrow([*schema.key, *ordering, *present], condition)
    known = [any(row) for row in zip(*(found[name].to_pylist() for name in present), strict=True)]
    if all(group.ordering for group in groups):
        if stream.on_delete == "row" and not all(known):
            raise InvalidInput(
                f"DELETE: stream {stream.name!r} has no event of {known.count(False)} of {len(known)} rows, and so no "
                "ordering value for their deletes",
                hint="use INSERT with ordering values and _op = 'delete', or delete with another stream",
            )
        found = found.filter(pa.array(known, pa.bool_()))
    if not found.num_rows:
        return None
    kinds = schema.event_schema([name for name in schema.stream_columns(stream) if name not in schema.key])
    rows = found.select([*schema.key, *ordering])
    for field in kinds:
        if field.name not in ordering:
            rows = rows.append_column(field.name, pa.nulls(rows.num_rows, field.type))
    rows = rows.append_column(OP_COLUMN, pa.array(["delete"] * rows.num_rows))
    with table.batch_writer(stream.name) as writer:
        return writer.append(rows)


def _check_deletable(schema: TableSchema, stream: Stream) -> None:
    """Check that a stream can delete rows that are only known by what the table shows.

    Raises:
        InvalidInput: The stream ignores deletes, or a group of it aggregates.
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
    """The columns that a stream writes, in the order of the table."""
    written = set(schema.stream_columns(stream))
    return [column.name for column in schema.columns if column.name in written]


def column_order(schema: TableSchema, stream: Stream, given: Sequence[str], *, by_position: bool) -> list[str]:
    """The column of the stream for each column of a query, by name or by position.

    Args:
        schema: The table's schema.
        stream: The stream.
        given: Names of the query's columns, in order. By position they do not matter, and may be equal.
        by_position: Whether the first value is that of the first column, and so on.

    Raises:
        InvalidInput: By position, the number of columns is not that of the stream. By name, one is not that of a
            column, or two are that of the same column.
    """
    known = columns_of(schema, stream)
    hint = f"name the columns, INSERT INTO ... (...): {', '.join(known)}; also {OP_COLUMN}"
    if by_position:
        if len(given) != len(known):
            raise InvalidInput(
                f"the query has {len(given)} columns, and stream {stream.name!r} {len(known)}: {', '.join(known)}",
                hint=hint,
            )
        return known
    allowed = {name.lower(): name for name in (*known, OP_COLUMN, "_supplied")}
    for name in given:
        if name.lower() not in allowed:
            raise InvalidInput(f"column {name!r} is not one of stream {stream.name!r}", hint=hint)
    chosen = [allowed[name.lower()] for name in given]
    for name in chosen:
        if chosen.count(name) > 1:
            raise InvalidInput(f"the query has column {name!r} twice", hint="keep one of them")
    return chosen
