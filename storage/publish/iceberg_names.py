"""The name mapping of a published table whose base files have nested columns.

Base files have ids of columns, but no ids of the fields inside nested columns. pyiceberg then ignores all ids of a file
and finds columns by the table's name mapping; without a mapping it refuses the file. Readers that use the ids that
exist, such as Iceberg for Java, do not need the mapping. A name is never given to another column, so both find the same
columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pyarrow as pa
from pyiceberg.table.name_mapping import MappedField, NameMapping

from weft.storage.core.model import FIELD_ID
from weft.storage.core.schema.table_schema import TableSchema


def name_mapping(schema: TableSchema) -> str | None:
    """The text of the property ``schema.name-mapping.default``; None if no column of a base file is nested.

    It names all columns of base files, including unpublished and hidden ones, because pyiceberg refuses a file with a
    field that the mapping does not have.
    """
    fields = list(schema.slice)
    if not any(pa.types.is_nested(field.type) for field in fields):
        return None
    ids = [int(field.metadata[FIELD_ID]) for field in fields]
    inner = itertools.count(max(ids) + 1)
    mapped = [_mapped_field(number, field.name, field.type, inner) for field, number in zip(fields, ids, strict=True)]
    return NameMapping(mapped).model_dump_json()


def _mapped_field(number: int, name: str, arrow_type: pa.DataType, ids: Iterator[int]) -> MappedField:
    inside = _inside(arrow_type, ids)
    return MappedField.model_validate({"field-id": number, "names": [name], "fields": inside})


def _inside(arrow_type: pa.DataType, ids: Iterator[int]) -> list[MappedField]:
    """The fields inside a nested type, with Iceberg's names for them and ids that no column has."""
    if pa.types.is_map(arrow_type):
        inside = [("key", arrow_type.key_type), ("value", arrow_type.item_type)]
    elif pa.types.is_list(arrow_type):
        inside = [("element", arrow_type.value_type)]
    elif pa.types.is_struct(arrow_type):
        inside = [(field.name, field.type) for field in arrow_type]
    else:
        return []
    return [_mapped_field(next(ids), name, kind, ids) for name, kind in inside]
