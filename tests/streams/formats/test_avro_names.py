"""Names of Avro: a type is found by its full name, as fastavro and Java find it."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.formats.registry_server import SchemaRegistry
from tests.streams.formats.test_avro import decode
from tests.streams.formats.test_avro_meanings import number, sized
from weft.streams.formats.avro_schema import parse_avro
from weft.streams.formats.schema_fields import avro_fields


def record(name: str, fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    parts = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, **more, "fields": parts}


LINES = record(
    "Row",
    {
        "a": record("Line", {"n": "long"}, namespace="orders"),
        "b": record("Line", {"n": "string"}, namespace="bills"),
        "c": "orders.Line",
        "d": "bills.Line",
    },
    namespace="shop",
)


def test_two_types_with_one_last_name(registry: SchemaRegistry) -> None:
    fields = avro_fields(parse_avro([json.dumps(LINES)]))
    assert fields is not None
    types = {name: field.type for name, field in fields.items()}
    assert types == {
        "a": "struct<n:bigint>", "b": "struct<n:string>", "c": "struct<n:bigint>", "d": "struct<n:string>",
    }  # fmt: skip
    schema_id = registry.register("rows-value", json.dumps(LINES))
    value = b"\0" + schema_id.to_bytes(4, "big") + number(1) + sized(b"x") + number(2) + sized(b"y")
    [row] = decode(registry, types, [value])
    assert (row["reason"], row["message"]) == (None, {"a": {"n": 1}, "b": {"n": "x"}, "c": {"n": 2}, "d": {"n": "y"}})


@pytest.mark.parametrize(
    ("schema", "reference", "full"),
    [
        (record("Line", {}), "Line", "shop.Line"),
        (record("Line", {}), "shop.Line", "shop.Line"),
        (record("other.Line", {}, namespace="ignored"), "other.Line", "other.Line"),
        (record("Line", {}, namespace="other"), "other.Line", "other.Line"),
        (record("Line", {}, namespace=""), "Line", "Line"),
        (record("Line", {}, aliases=["Old"]), "Old", "shop.Line"),
        (record("Line", {}, namespace="other", aliases=["shop.Old"]), "Old", "other.Line"),
        (record("Line", {}), {"type": "Line"}, "shop.Line"),
    ],
)
def test_what_a_name_means(schema: Any, reference: Any, full: str) -> None:
    row = record("Row", {"a": schema, "b": reference}, namespace="shop")
    first, second = parse_avro([json.dumps(row)]).fields
    assert first.type is second.type
    assert first.type.name == full


def test_names_within_a_type_are_in_its_namespace() -> None:
    inner = record("Line", {"n": "long"})
    outer = record("Order", {"first": inner, "second": "Line"}, namespace="other")
    fields = parse_avro([json.dumps(record("shop.Row", {"order": outer, "line": "other.Line"}))]).fields
    assert fields[0].type.fields[1].type is fields[1].type
    with pytest.raises(ValueError, match=r"its type Line is not defined"):
        parse_avro([json.dumps(record("shop.Row", {"order": outer, "line": "Line"}))])


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("None", "its type None is not defined"),
        (record("R", {"a": record("A", {}), "b": record("A", {"x": "int"})}), "the type A is defined twice"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2},
            "two fields of R have the same name",
        ),
        ({"type": "record"}, "its type record has no name"),
        ({"type": "enum", "name": "E"}, "the enum E has no symbols"),
        ({"type": "fixed", "name": "F", "size": -1}, "the type F has no size"),
        ({"type": "array"}, "its type array has no items"),
        ([["null"]], "a union has no types, or another union"),
        ({"type": "record", "name": "R", "fields": [{"name": "a"}]}, "a field of R has no name or no type"),
        (7, "7 is not a type"),
    ],
)
def test_what_is_not_a_schema(schema: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_avro([json.dumps(schema)])


NAMESPACES = st.sampled_from(["", "a", "b", "a.b"])


@st.composite
def schemas(draw: st.DrawFn) -> tuple[Any, Any]:
    """A schema whose records have few names in few namespaces and are used several times, and a value of it."""
    defined: dict[str, Any] = {}
    begun: set[str] = set()

    def one(namespace: str, depth: int) -> tuple[Any, Any]:
        usable = [name for name in defined if "." in name or not namespace]
        if usable and draw(st.booleans()):
            name = draw(st.sampled_from(sorted(usable)))
            short = name.rpartition(".")[2]
            spelled = short if name == f"{namespace}.{short}" and draw(st.booleans()) else name
            return spelled, defined[name]
        last = draw(st.sampled_from(["Line", "Item", "Part", "Unit"]))
        own = draw(NAMESPACES)
        inherits = draw(st.booleans())
        inner = namespace if inherits else own
        full = f"{inner}.{last}" if inner else last
        if depth > 3 or full in begun:
            kind = draw(st.sampled_from(["long", "string"]))
            return kind, 1 if kind == "long" else "x"
        begun.add(full)
        fields, values = {}, {}
        for name in draw(st.sampled_from([["p"], ["p", "q"]])):
            fields[name], values[name] = one(inner, depth + 1)
        fields[f"tag{len(defined)}"], values[f"tag{len(defined)}"] = "string", full
        defined[full] = values
        return record(last, fields, **({} if inherits else {"namespace": own})), values

    parts, values = {}, {}
    for name in "cdefg":
        parts[name], values[name] = one("top", 0)
    return record("Row", parts, namespace="top"), values


def declared_type(value: Any) -> str:
    """The declared type of a value, from the value alone."""
    if isinstance(value, dict):
        return f"struct<{','.join(f'{name}:{declared_type(inner)}' for name, inner in value.items())}>"
    return "bigint" if isinstance(value, int) else "string"


@pytest.mark.laws
@given(schemas())
def test_names_mean_what_fastavro_says(registry: SchemaRegistry, drawn: tuple[Any, Any]) -> None:
    """Each record says its full name, so that one that is taken for another is seen."""
    schema, value = drawn
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), value)
    schema_id = registry.register("rows-value", json.dumps(schema))
    fields = avro_fields(parse_avro([json.dumps(schema)]))
    assert fields is not None
    types = {name: field.type for name, field in fields.items()}
    assert types == {name: declared_type(inner) for name, inner in value.items()}
    [row] = decode(registry, types, [b"\0" + schema_id.to_bytes(4, "big") + file.getvalue()])
    assert (row["reason"], row["message"]) == (None, value)
