"""Converts the records of a batch, of one or several schemas, to Arrow columns; bad records get a reason.

A worker of Spark does this for every batch of messages. All records of a schema are converted together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from weft.streams.formats.convert import Field, Unmarked, declared_field, to_array
from weft.streams.formats.source_type import SourceType


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """How records of one schema are converted to the declared fields."""

    fields: tuple[Field, ...]


def make_reader(row_schema: pa.Schema, source: SourceType, unmarked: Unmarked) -> Reader:
    """Make the reader of records of one type.

    Args:
        row_schema: Declared fields and types.
        source: Type of the records: a struct, or `ANY`.
        unmarked: How values without a schema are interpreted.
    """
    fields = (declared_field(column.name, column.type, source.field(column.name), unmarked) for column in row_schema)
    return Reader(tuple(fields))


@dataclass(slots=True)
class Rows:
    """Records of a batch; each list has one entry per message.

    Attributes:
        records: Values by name of the field; a missing name means NULL. None if there is no record.
        readers: Reader of the record; None if there is no record.
        reasons: Why the message cannot be decoded; None if it can.
    """

    records: list[Mapping[str, Any] | None] = field(default_factory=list)
    readers: list[Reader | None] = field(default_factory=list)
    reasons: list[str | None] = field(default_factory=list)

    def add(self, record: Mapping[str, Any], reader: Reader) -> None:
        """Add a message with a record."""
        self.records.append(record)
        self.readers.append(reader)
        self.reasons.append(None)

    def refuse(self, reason: str | None) -> None:
        """Add a message without a record."""
        self.records.append(None)
        self.readers.append(None)
        self.reasons.append(reason)


def to_struct(rows: Rows, row_schema: pa.Schema) -> pa.StructArray:
    """Convert the records to structs of the declared fields, with NULL in all fields if there is no record.

    Values that cannot be converted become NULL, and set the reason of their message in ``rows.reasons``.
    """
    groups: dict[Reader, list[int]] = {}
    for row, reader in enumerate(rows.readers):
        if reader is not None:
            groups.setdefault(reader, []).append(row)
    parts: list[list[pa.Array]] = [[] for _ in row_schema]
    order: list[int] = []
    for reader, members in groups.items():
        records = rows.records if len(members) == len(rows.records) else [rows.records[row] for row in members]
        for number, declared in enumerate(reader.fields):
            name = declared.name
            values = [record.get(name) for record in records]  # type: ignore[union-attr]
            array, problems = to_array(values, declared)
            parts[number].append(array)
            _note(rows.reasons, members, problems)
        order.extend(members)
    columns = [
        _in_order(part, column.type, order, len(rows.records)) for part, column in zip(parts, row_schema, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=list(row_schema))


def rows_type(row_schema: pa.Schema) -> pa.DataType:
    """Return the type of the result of `rows_array`."""
    fields = [("message", pa.struct(list(row_schema))), ("reason", pa.string()), ("schema_id", pa.int32())]
    return pa.struct(fields)


def rows_array(rows: Rows, ids: Sequence[int | None], row_schema: pa.Schema) -> pa.StructArray:
    """Convert the records of a batch, see `to_struct`, to structs with the reasons and the ids of the schemas."""
    columns = [to_struct(rows, row_schema), pa.array(rows.reasons, pa.string()), pa.array(ids, pa.int32())]
    return pa.StructArray.from_arrays(columns, fields=list(rows_type(row_schema)))


def _note(reasons: list[str | None], members: Sequence[int], problems: Mapping[int, str]) -> None:
    for position, reason in problems.items():
        row = members[position]
        before = reasons[row]
        reasons[row] = reason if before is None else f"{before}; {reason}"


def _in_order(parts: Sequence[pa.Array], kind: pa.DataType, order: Iterable[int], rows: int) -> pa.Array:
    """Combine arrays of groups of rows to one array in the order of the rows; rows without a group are NULL."""
    if len(parts) == 1 and len(parts[0]) == rows:
        return parts[0]
    places = np.full(rows, -1, np.int64)
    places[np.fromiter(order, np.int64)] = np.arange(sum(len(part) for part in parts))
    values = pa.concat_arrays(parts) if parts else pa.nulls(0, kind)
    return values.take(pa.array(places, mask=places < 0))
