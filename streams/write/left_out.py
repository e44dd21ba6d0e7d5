"""Events that lack values of their row: which columns keep their present value.

Messages of some formats lack values of the row (`weft.streams.formats.message_format.Extras`): a value is *unavailable*
(Debezium's placeholder for a column that Postgres stores out of line and that did not change), or the field is *absent*
from the message. An expression of `select` may use several fields.

- In a group of mode ``latest_non_null``, a column that uses an unavailable field is NULL in the event and not listed in
  ``_supplied``, so it keeps its present value. A column that uses an absent field is not listed, either, so a NULL of
  it keeps the present value. All other columns are listed, so that their NULL is a value.
- Other groups, the key and the ordering columns need all values. So a message with an unavailable field of theirs gets
  a reason why it cannot be stored; both the placeholder and NULL would be wrong values. A delete needs no values, so it
  gets no such reason. An absent field is NULL there, as in JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from weft.storage.core.merge.events import OP_COLUMN
from weft.storage.core.model import Stream
from weft.storage.core.schema.table_schema import TableSchema

REASON: Final = "__weft_reason"
"""Column with the reason why a message is undecodable; NULL if it was decoded."""
OPERATION: Final = "__weft_operation"
UNAVAILABLE: Final = "__weft_unavailable"
ABSENT: Final = "__weft_absent"
SUPPLIED: Final = "_supplied"

HINT: Final = (
    "its group needs all columns: give the group merge: latest_non_null, or the source table REPLICA IDENTITY FULL"
)


def partial_columns(schema: TableSchema, stream: Stream) -> frozenset[str]:
    """Return the columns that an event of a stream may lack: value columns of groups of mode ``latest_non_null``."""
    groups = [schema.group_by_name[name] for name in stream.groups]
    return frozenset(
        name
        for group in groups
        if group.merge == "latest_non_null"
        for name in group.columns
        if name not in group.ordering
    )


def leave_out(
    messages: DataFrame, columns: Mapping[str, Column | str], fields: AbstractSet[str], partial: AbstractSet[str]
) -> tuple[DataFrame, dict[str, Column | str]]:
    """Apply the rules of this module.

    Args:
        messages: Fields of the message, the columns `REASON`, `UNAVAILABLE`, `ABSENT`, and optionally `OPERATION`.
        columns: The columns of the stream: name to expression.
        fields: Names of the fields of the message.
        partial: See `partial_columns`.

    Returns:
        The messages, with reasons for those that cannot be stored; and the columns, with ``_supplied`` if some are
        partial.
    """
    uses = {
        name: _uses(messages, column) & fields for name, column in columns.items() if name not in {OP_COLUMN, SUPPLIED}
    }
    required = {name: fields_used for name, fields_used in uses.items() if name not in partial and fields_used}
    incomplete = F.col(UNAVAILABLE).isNotNull() & F.col(REASON).isNull()
    if OPERATION in messages.columns:
        incomplete = incomplete & (F.col(OPERATION) != "delete")
    reason = F.lit(None).cast("string")
    for name, fields_used in required.items():
        message = f"column {name!r}: the event does not have its value (unavailable); {HINT}"
        reason = F.when(_overlaps(UNAVAILABLE, fields_used), message).otherwise(reason)
    messages = messages.withColumn(REASON, F.when(incomplete, reason).otherwise(F.col(REASON)))
    result = dict(columns)
    supplied = []
    for name, fields_used in uses.items():
        if name not in partial:
            continue
        column = columns[name]
        value = F.expr(column) if isinstance(column, str) else column
        if fields_used:
            result[name] = F.when(~_overlaps(UNAVAILABLE, fields_used), value)
            is_left_out = _overlaps(UNAVAILABLE, fields_used) | _overlaps(ABSENT, fields_used)
            supplied.append(F.when(~is_left_out, F.lit(name)))
        else:
            supplied.append(F.lit(name))
    if supplied and SUPPLIED not in columns:
        result[SUPPLIED] = F.array_compact(F.array(*supplied))
    return messages, result


def _overlaps(names: str, fields_used: AbstractSet[str]) -> Column:
    """Whether a column with a list of field names, which may be NULL, contains one of the fields."""
    return F.coalesce(F.arrays_overlap(F.col(names), F.array(*map(F.lit, sorted(fields_used)))), F.lit(False))


def _uses(messages: DataFrame, column: Column | str) -> frozenset[str]:
    """Return the columns that an expression uses; empty if the expression is invalid, which `select` reports."""
    value = F.expr(column) if isinstance(column, str) else column
    try:
        plan: Any = messages.select(value.alias("value"))._jdf.queryExecution().analyzed()  # noqa: SLF001 - pyspark has no other way to ask
    except PySparkException:
        return frozenset()
    names, attributes = set(), plan.references().iterator()
    while attributes.hasNext():
        names.add(attributes.next().name())
    return frozenset(names)
