"""Lists the fields that a JSON Schema declares, with the types of weft's JSON reader. Pure functions.

See `weft.streams.formats.schema_fields`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from weft.streams.formats.schema_fields import (
    SEVERAL_TYPES,
    WITHIN_ITSELF,
    NoType,
    SchemaFields,
    schema_field,
    struct_type,
)


def json_schema_fields(schema: Any, documents: Mapping[str, Any]) -> SchemaFields | None:
    """Return the properties of an object of JSON Schema; None for a schema that is not an object.

    Args:
        schema: A schema, as JSON.
        documents: Schemas that the schema refers to, by the name of the reference.
    """
    root, whole = _json_target(schema, schema, documents, frozenset())
    properties = root.get("properties") if isinstance(root, Mapping) else None
    if not isinstance(properties, Mapping):
        return None
    required = root.get("required")
    names = set(required) if isinstance(required, list) else set()
    fields = {}
    for name, part in properties.items():
        nullable = _may_be_null(part)
        text = part.get("description") or "" if isinstance(part, Mapping) else ""
        find = partial(_json_sql, part, whole, documents, frozenset())
        fields[str(name)] = schema_field(find, text, required=name in names and not nullable)
    return fields


def _may_be_null(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return True
    kind = schema.get("type")
    if kind == "null" or (isinstance(kind, list) and "null" in kind):
        return True
    choices = schema.get("oneOf") or schema.get("anyOf") or ()
    return any(_may_be_null(part) for part in choices)


def _json_target(schema: Any, whole: Any, documents: Mapping[str, Any], within: frozenset[str]) -> tuple[Any, Any]:
    """Return the schema that a reference means, and the document that contains it."""
    if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
        return schema, whole
    reference = str(schema["$ref"])
    if reference in within:
        raise NoType(WITHIN_ITSELF)
    name, _, pointer = reference.partition("#")
    if name:
        if name not in documents:
            raise NoType(f"it refers to {name}, which is not known")
        whole = documents[name]
    target = whole
    for part in pointer.strip("/").split("/") if pointer.strip("/") else ():
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, Mapping) or key not in target:
            raise NoType(f"it refers to {reference}, which does not exist")
        target = target[key]
    return _json_target(target, whole, documents, within | {reference})


def _json_sql(schema: Any, whole: Any, documents: Mapping[str, Any], within: frozenset[str]) -> str:
    if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
        reference = str(schema["$ref"])
        if reference in within:
            raise NoType(WITHIN_ITSELF)
        within |= {reference}
    schema, whole = _json_target(schema, whole, documents, frozenset())
    if not isinstance(schema, Mapping):
        raise NoType("its schema allows any value")
    choices = schema.get("oneOf") or schema.get("anyOf")
    if isinstance(choices, list):
        parts = [part for part in choices if not (isinstance(part, Mapping) and part.get("type") == "null")]
        if len(parts) != 1:
            raise NoType(SEVERAL_TYPES)
        return _json_sql(parts[0], whole, documents, within)
    type_name = schema.get("type")
    kinds = [kind for kind in (type_name if isinstance(type_name, list) else [type_name]) if kind not in {None, "null"}]
    if not kinds:
        kinds = _kinds_of_values(schema.get("enum") if "enum" in schema else [schema.get("const")])
    if set(kinds) == {"integer", "number"}:
        kinds = ["number"]
    if len(kinds) != 1:
        raise NoType(SEVERAL_TYPES if kinds else "its schema allows any value")
    [kind] = kinds
    if kind == "array":
        return f"array<{_json_sql(schema.get('items'), whole, documents, within)}>"
    if kind == "object":
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and properties:
            return struct_type({name: _json_sql(part, whole, documents, within) for name, part in properties.items()})
        values = schema.get("additionalProperties")
        if isinstance(values, Mapping):
            return f"map<string,{_json_sql(values, whole, documents, within)}>"
        return "string"  # the JSON text of any object
    if kind == "string":
        if schema.get("contentEncoding") == "base64":
            return "binary"
        return {"date-time": "timestamp", "date": "date"}.get(str(schema.get("format")), "string")
    plain = {"integer": "bigint", "number": "double", "boolean": "boolean"}
    if kind not in plain:
        raise NoType(f"its type {kind} is not known")
    return plain[kind]


def _kinds_of_values(values: Any) -> list[str]:
    names: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
    valid_values = [value for value in values if value is not None] if isinstance(values, list) else []
    return sorted({names.get(type(value), "") for value in valid_values} - {""})
