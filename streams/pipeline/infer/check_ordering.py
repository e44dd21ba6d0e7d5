"""Finds messages without an ordering value: their rows change nothing, and only a count says so.

An expression of ``select`` is understood if it is a field, or a function or cast of one field (`timestamp_millis(ts)`):
it is NULL if the field is missing or null. Other expressions need Spark (`weft doctor`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import format_type
from weft.storage.errors import InvalidInput
from weft.storage.plural import counted
from weft.streams.pipeline.file.model import WriterSpec
from weft.streams.pipeline.infer.nested_fields import value_at

Row = Mapping[str, Any]
IsNull = Callable[[Row], bool]

_NAME: Final = r"`?([A-Za-z_][\w.]*)`?"
_STRICT: Final = re.compile(
    rf"\s*(?:{_NAME}|(?!(?:coalesce|nvl|ifnull|if|isnull|isnotnull|greatest|least)\b)\w+\(\s*{_NAME}\s*\)"
    rf"|cast\(\s*{_NAME}\s+as\s+[\w(), ]+\))\s*",
    re.IGNORECASE,
)
"""Expressions that are NULL if the field is, and perhaps only then."""
_OF_KAFKA: Final[Mapping[str, str]] = {"timestamp": "_kafka.timestamp", "bigint": "unix_millis(_kafka.timestamp)"}


def unordered_messages(
    writer: WriterSpec, schema: TableSchema, rows: Sequence[Row], source: str
) -> Iterator[InvalidInput]:
    """One error for each group whose ordering columns have no value in some messages.

    Args:
        writer: The writer.
        schema: Schema of the table.
        rows: Messages, as values by field.
        source: Where they are from, in words.
    """
    groups = [schema.group_by_name[name] for name in schema.stream(writer.stream).groups]
    for group in groups:
        tests = [_null_test(writer, name) for name in group.ordering]
        known_tests = [test for test in tests if test is not None]
        if not known_tests or len(known_tests) < len(tests):
            continue
        # With several groups, a message may be meant for the others only: then it has no value of this one either.
        values = [_null_test(writer, name) for name in group.values] if len(groups) > 1 else []
        lost = sum(all(test(row) for test in known_tests) and _has_value(row, values) for row in rows)
        if lost:
            text, hint = unordered_text(writer, schema, group.name, lost, len(rows))
            yield InvalidInput(f"writers.{writer.name}.select.{group.ordering[0]}: {text} ({source})", hint=hint)


def unordered_text(writer: WriterSpec, schema: TableSchema, group_name: str, lost: int, count: int) -> tuple[str, str]:
    """The text and the hint of a warning about messages without an ordering value.

    Args:
        writer: The writer.
        schema: Schema of the table.
        group_name: The group whose ordering columns are NULL.
        lost: Number of such messages.
        count: Number of all messages.
    """
    group = schema.group_by_name[group_name]
    first = group.ordering[0]
    names = " and ".join(group.ordering)
    several = len(schema.stream(writer.stream).groups) > 1
    what = f"do not change group {group.name}" if several else "change nothing: they would not be in the table"
    text = f"{lost:,} of {counted(count, 'message')} have no value in {names}, which orders the events, and {what}"
    hint = "send the value"
    kafka_time = _OF_KAFKA.get(format_type(schema.column_by_name[first].type))
    if kafka_time is not None and writer.file_format is None:
        expression = (writer.select or {}).get(first, first)
        hint += f", or take another one where it is missing, in select: {first}: coalesce({expression}, {kafka_time})"
    return text, f"{hint} (guide: deploy/docs/modelling.md#orderings)"


def _null_test(writer: WriterSpec, column: str) -> IsNull | None:
    """A test whether a column is NULL in the row of a message; None if only Spark can evaluate its expression."""
    expression = column if writer.select is None else writer.select.get(column, "")
    match = _STRICT.fullmatch(expression)
    name = "" if match is None else next(filter(None, match.groups()))
    parts = [name] if name in (writer.message or {}) else name.split(".")
    if parts[0] not in (writer.message or {}):
        return None
    folded = writer.file_format not in {None, "json"}  # Spark's readers of files ignore the case of names

    def is_null(row: Row) -> bool:
        if not folded:
            return value_at(row, parts) is None
        return value_at({key.lower(): value for key, value in row.items()}, [part.lower() for part in parts]) is None

    return is_null


def _has_value(row: Row, tests: Sequence[IsNull | None]) -> bool:
    """Whether one of the tests finds a value in a row; also true if there is no test."""
    return not tests or any(test is not None and not test(row) for test in tests)
