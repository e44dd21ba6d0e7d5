"""A weft table in Delta's terms: its schema, and base files as data files with statistics and deletion vectors.

Source: Delta transaction log protocol: "Schema Serialization Format", "Add File and Remove File", "Per-file
Statistics".
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa

from weft.storage.core.names import BASES
from weft.storage.core.plan.current_files import CurrentFile
from weft.storage.core.predicate import ColumnRange
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import format_type
from weft.storage.errors import InvalidInput
from weft.storage.files.footers import Footer
from weft.storage.files.row_group_statistics import column_ranges
from weft.storage.publish.deletion_vector import inline_deletion_vector
from weft.storage.publish.upper_bound import cut_up

INDEXED: Final = 32
"""Number of columns with statistics, from the first on; the default of Delta's own writers."""
BOUND_LENGTH: Final = 32
"""Maximum length of a text bound in characters; the default of Delta's own writers."""

_OTHER_NAMES: Final = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}
"""Delta's names of types, by Spark SQL's name where that differs."""
_FORBIDDEN: Final = re.compile(r"[ ,;{}()\n\t=]")


def delta_schema(schema: TableSchema, columns: Sequence[str]) -> dict[str, Any]:
    """The schema of a published table as JSON values.

    Every column is nullable, key columns too: columns that are not would require the reader feature ``invariants``.

    Raises:
        InvalidInput: A name has a character that Delta allows only with column mapping.
    """
    wrong_names = [name for name in columns if _FORBIDDEN.search(name)]
    if wrong_names:
        raise InvalidInput(
            f"column {', '.join(map(repr, wrong_names))} has a name that Delta does not allow",
            hint="publish the other columns; names in Delta have none of ' ,;{}()=', tab and newline",
        )
    struct = _struct([pa.field(name, schema.column(name).type) for name in columns])
    for field in struct["fields"]:
        if comment := schema.column(field["name"]).comment:
            field["metadata"]["comment"] = comment
    return struct


def delta_type(arrow_type: pa.DataType) -> str | dict[str, Any]:
    """The type of a column as JSON values."""
    if pa.types.is_struct(arrow_type):
        return _struct(list(arrow_type))
    if pa.types.is_list(arrow_type):
        return {"type": "array", "elementType": delta_type(arrow_type.value_type), "containsNull": True}
    if pa.types.is_map(arrow_type):
        key, value = delta_type(arrow_type.key_type), delta_type(arrow_type.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    name = format_type(arrow_type)
    return _OTHER_NAMES.get(name, name)


def _struct(fields: Sequence[pa.Field]) -> dict[str, Any]:
    items = [{"name": field.name, "type": delta_type(field.type), "nullable": True, "metadata": {}} for field in fields]
    return {"type": "struct", "fields": items}


def relative_path(current: CurrentFile) -> str:
    """The path of a base file relative to the folder of base files, percent-encoded as a URI."""
    return quote(current.file.path.removeprefix(f"{BASES}/"))


def add_action(
    current: CurrentFile, footer: Footer, schema: TableSchema, columns: Sequence[str], now_ms: int
) -> dict[str, Any]:
    """The content of the action that adds a base file.

    Args:
        current: The file.
        footer: Its footer.
        schema: The schema of the weft table.
        columns: The published columns.
        now_ms: Unix milliseconds.
    """
    vector = inline_deletion_vector(current.unused)
    return {
        "path": relative_path(current),
        "partitionValues": {},
        "size": current.file.size,
        "modificationTime": now_ms,
        "dataChange": True,
        "stats": _statistics(current, footer, schema, columns[:INDEXED], tight=vector is None),
        **({} if vector is None else {"deletionVector": vector}),
    }


def _statistics(
    current: CurrentFile, footer: Footer, schema: TableSchema, columns: Sequence[str], *, tight: bool
) -> str:
    """Statistics of all rows of a file, including deleted ones, as JSON. Unknown bounds are left out."""
    least: dict[str, str] = {}
    largest: dict[str, str] = {}
    nulls: dict[str, str] = {}
    for name in columns:
        ranges = column_ranges(footer, schema, name)
        usable = [item for item in ranges if item is not None and item.nulls is not None]
        if name not in footer.leaves or len(usable) < len(ranges):
            continue
        nulls[name] = str(sum(item.nulls or 0 for item in usable))
        bounds = _bounds(schema.column(name).type, [item for item in usable if item.nulls != item.rows])
        for values, limit in zip((least, largest), bounds, strict=True):
            if limit is not None:
                values[name] = limit
    members = {
        "numRecords": str(current.file.rows),
        "tightBounds": json.dumps(tight),
        "minValues": _object(least),
        "maxValues": _object(largest),
        "nullCount": _object(nulls),
    }
    return _object(members)


def _object(members: dict[str, str]) -> str:
    """A JSON object of encoded values. Encoded, because a decimal would lose digits as a float."""
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in members.items()) + "}"


def _bounds(kind: pa.DataType, ranges: Sequence[ColumnRange]) -> tuple[str | None, str | None]:
    """A lower and an upper bound as JSON, ignoring nulls; None for an unknown bound."""
    least = [column_range.least for column_range in ranges]
    largest = [column_range.largest for column_range in ranges]
    if not least or None in least or None in largest or pa.types.is_boolean(kind) or pa.types.is_binary(kind):
        return None, None
    smallest, longest = min(least), max(largest)
    if pa.types.is_floating(kind):
        # Parquet's statistics leave NaN out, and Spark orders it after all numbers.
        return json.dumps(smallest), None
    if pa.types.is_string(kind):
        end = cut_up(longest, BOUND_LENGTH)
        return json.dumps(smallest[:BOUND_LENGTH]), None if end is None else json.dumps(end)
    return _encode(smallest, up=False), _encode(longest, up=True)


def _encode(value: Any, *, up: bool) -> str:
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, dt.datetime):
        zone = "" if value.tzinfo is None else "Z"
        # Statistics have times in milliseconds.
        if up and value.microsecond % 1000 and value.replace(tzinfo=None) < _LATEST:
            value += dt.timedelta(milliseconds=1)
        return json.dumps(value.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone)
    return json.dumps(value.isoformat() if isinstance(value, dt.date) else value)


_LATEST: Final = dt.datetime.max.replace(microsecond=0)  # noqa: DTZ901 - compared with times without a zone
