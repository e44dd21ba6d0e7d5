"""Fields within fields of a message: ``device.id`` of ``{"device": {"id": 7}}``. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from weft.storage.core.types import format_type, parse_type


def nested_fields(schema: Mapping[str, str]) -> dict[str, str]:
    """Fields within structs and their types, by path.

    Paths that are also the name of a field of the message, and fields with a dot in their names, are left out.

    Args:
        schema: Fields of the message and their SQL types.
    """
    kinds: dict[str, str] = {}
    for name, kind in schema.items():
        if kind.startswith("struct<"):
            kinds |= {path: format_type(inner) for path, inner in _inner(name, parse_type(kind))}
    return {path: kind for path, kind in kinds.items() if path not in schema}


def _inner(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    for part in kind:
        if "." in part.name:
            continue
        name = f"{path}.{part.name}"
        yield name, part.type
        if pa.types.is_struct(part.type):
            yield from _inner(name, part.type)


def value_of(row: Mapping[str, Any], name: str) -> Any:
    """The value of a field of a message, or of a field within it; None if the message has no such field."""
    return row[name] if name in row else value_at(row, name.split("."))


def value_at(row: Mapping[str, Any], path: Sequence[str]) -> Any:
    """The value at a path of nested fields; None if the message has no such field."""
    value: Any = row
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
