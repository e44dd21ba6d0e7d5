"""The schema of a weft table as an Iceberg schema. Base files carry the ids of the columns, so ids stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, NestedField

from weft.storage.core.model import FIELD_ID
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import InvalidInput


def iceberg_type(arrow_type: pa.DataType) -> IcebergType | None:
    """The Iceberg type of a column type; None for nested types, whose inner fields have no ids in base files."""
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    if pa.types.is_nested(arrow_type):
        return None
    field = pa.field("column", arrow_type, metadata={FIELD_ID: b"1"})
    return pyarrow_to_schema(pa.schema([field])).fields[0].field_type


def iceberg_schema(schema: TableSchema, columns: Sequence[str], schema_id: int) -> Schema:
    """The schema of a published table.

    Args:
        schema: The schema of the weft table.
        columns: Columns of the published table, in this order, with all key columns.
        schema_id: Id of the Iceberg schema.

    Raises:
        InvalidInput: A column has a nested type.
    """
    selected_columns = [schema.column(name) for name in columns]
    types = {column.name: iceberg_type(column.type) for column in selected_columns}
    nested_columns = [name for name, kind in types.items() if kind is None]
    if nested_columns:
        raise InvalidInput(
            f"column {', '.join(nested_columns)} has a nested type, and base files have no field ids inside of it",
            hint="name the other columns",
        )
    fields = [
        NestedField(column.id, column.name, kind, required=column.name in schema.key, doc=column.comment or None)
        for column in selected_columns
        if (kind := types[column.name]) is not None
    ]
    ids = [schema.column(name).id for name in schema.key]
    return Schema(*fields, schema_id=schema_id, identifier_field_ids=ids)
