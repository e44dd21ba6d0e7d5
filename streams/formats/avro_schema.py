"""Resolves schemas of Avro: every name is replaced by its type, and every logical type by its meaning. Pure functions.

Names follow Avro's specification. A name without a dot is in the namespace of the enclosing type (Java also looks for
one without a namespace, and so does this module); a name with a dot is a full name, and its ``namespace`` is ignored. A
reference may also use an alias of a type. A logical type applies only to the types for which Avro defines it, and only
with the attributes that it needs; otherwise, as the specification says, the underlying type is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from weft.streams.formats.source_type import MEANINGS, Kind, Meaning, SourceType

AVRO_TYPES: Final[Mapping[str, tuple[Kind, str]]] = {
    "null": ("null", ""),
    "boolean": ("boolean", "boolean"),
    "int": ("number", "int"),
    "long": ("number", "bigint"),
    "float": ("number", "float"),
    "double": ("number", "double"),
    "bytes": ("bytes", "binary"),
    "string": ("string", "string"),
    "fixed": ("bytes", "binary"),
    "enum": ("enum", "string"),
    "record": ("struct", ""),
    "array": ("array", ""),
    "map": ("map", ""),
    "union": ("union", ""),
}
"""Types of Avro: the kind of their values, and the SQL type; empty if that depends on the parts of the type."""
_PRIMITIVE: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_LOGICAL: Final[Mapping[tuple[str, str], tuple[Meaning, bool | None]]] = {
    ("int", "date"): ("date", None),
    ("long", "timestamp-millis"): ("millis", False),
    ("long", "timestamp-micros"): ("micros", False),
    ("long", "timestamp-nanos"): ("nanos", False),
    ("long", "local-timestamp-millis"): ("millis", True),
    ("long", "local-timestamp-micros"): ("micros", True),
    ("long", "local-timestamp-nanos"): ("nanos", True),
    ("bytes", "decimal"): ("decimal", None),
    ("fixed", "decimal"): ("decimal", None),
    ("bytes", "big-decimal"): ("big_decimal", None),
    ("fixed", "uuid"): ("uuid", None),
}
"""Type and logical type of Avro to the meaning, and whether it is a time without a time zone.

Times of day, durations and UUIDs as text are left out: their values are plain numbers, bytes and texts.
"""
_CONNECT_TYPES: Final[Mapping[Meaning, frozenset[str]]] = {
    "date": frozenset({"int"}),
    "millis": frozenset({"long"}),
    "micros": frozenset({"long"}),
    "nanos": frozenset({"long"}),
    "decimal": frozenset({"bytes"}),
    "variable_decimal": frozenset({"record"}),
}
_UUID_BYTES: Final = 16
PAIR: Final = ("key", "value")
"""Names of the fields of an entry of a map, in the result of `native_schema` and in messages of Kafka Connect."""
LARGEST_DEPTH: Final = 100
"""Largest depth of nested records, arrays and maps, as in the decoders of Protobuf."""
_LARGEST_SCHEMA: Final = 100_000


class TooDeep(ValueError):
    """A value has more than `LARGEST_DEPTH` levels."""


@dataclass(slots=True, eq=False)
class AvroType:
    """A type of Avro. A recursive type contains itself as the same object.

    Attributes:
        kind: Name of the type in Avro, or ``union``, but never a reference. An ``error`` is a ``record``.
        name: Full name of a record, enum or fixed; otherwise "".
        attributes: Members of its schema as JSON.
        fields: Fields of a record.
        items: Type of the items of an array, or of the values of a map.
        branches: Branches of a union.
    """

    kind: str
    name: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict, repr=False)
    fields: list[AvroField] = field(default_factory=list, repr=False)
    items: AvroType | None = None
    branches: list[AvroType] = field(default_factory=list)

    @property
    def value(self) -> AvroType:
        """The other type of a union of null and one type; for anything else this type."""
        others = [branch for branch in self.branches if branch.kind != "null"]
        return others[0] if len(others) == 1 else self


@dataclass(frozen=True, slots=True, eq=False)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    doc: Any = None


def parse_avro(texts: Sequence[str]) -> AvroType:
    """Parse a schema.

    Args:
        texts: Schemas as JSON: the schema is the last one, after the schemas that it refers to.

    Raises:
        ValueError: The text is not a schema of Avro, or it names a type that is not defined.
        RecursionError: The schema is nested too deep.
    """
    schemas = [json.loads(text) for text in texts]
    types = _Types()
    for schema in schemas:
        types.collect(schema, "")
    return types.resolve(schemas[-1], "")


def _full_name(name: str, namespace: str) -> str:
    return f"{namespace}.{name}" if namespace and "." not in name else name


class _Types:
    """The named types of some schemas."""

    def __init__(self) -> None:
        self._definitions: dict[str, tuple[Mapping[str, Any], str]] = {}
        self._aliases: dict[str, str] = {}
        self._resolved: dict[str, AvroType] = {}

    def collect(self, schema: Any, namespace: str) -> None:
        """Remember the named types within a schema; ``namespace`` is that of the enclosing type."""
        if isinstance(schema, list):
            for part in schema:
                self.collect(part, namespace)
        if not isinstance(schema, dict):
            return
        if schema.get("type") in _NAMED:
            name, namespace = _name_of(schema, namespace)
            definition = self._definitions.setdefault(name, (schema, namespace))
            if definition[0] != schema:
                raise ValueError(f"the type {name} is defined twice")
            for alias in _list_of(schema, "aliases"):
                self._aliases.setdefault(_full_name(str(alias), namespace), name)
        for part in _list_of(schema, "fields"):
            if isinstance(part, dict):
                self.collect(part.get("type"), namespace)
        for inner in ("type", "items", "values"):
            if isinstance(schema.get(inner), dict | list):
                self.collect(schema[inner], namespace)

    def resolve(self, schema: Any, namespace: str) -> AvroType:
        """Return the type that a schema means within a namespace."""
        if isinstance(schema, str):
            return AvroType(schema) if schema in _PRIMITIVE else self._resolve_name(self._find(schema, namespace))
        if isinstance(schema, list):
            branches = [self.resolve(part, namespace) for part in schema]
            if not branches or any(branch.kind == "union" for branch in branches):
                raise ValueError("a union has no types, or another union")
            return AvroType("union", branches=branches)
        kind = schema.get("type") if isinstance(schema, dict) else None
        if isinstance(kind, dict | list):
            return self.resolve(kind, namespace)
        if kind in _NAMED:
            return self._resolve_name(_name_of(schema, namespace)[0])
        if kind in {"array", "map"}:
            inner = "items" if kind == "array" else "values"
            if inner not in schema:
                raise ValueError(f"its type {kind} has no {inner}")
            return AvroType(kind, items=self.resolve(schema[inner], namespace), attributes=schema)
        if kind in _PRIMITIVE:
            return AvroType(kind, attributes=schema)
        if isinstance(kind, str):
            return self.resolve(kind, namespace)
        raise ValueError(f"{json.dumps(schema)[:80]} is not a type")

    def _find(self, name: str, namespace: str) -> str:
        for full in (_full_name(name, namespace), name):
            if full in self._definitions:
                return full
            if full in self._aliases:
                return self._aliases[full]
        raise ValueError(f"its type {name} is not defined")

    def _resolve_name(self, name: str) -> AvroType:
        if name in self._resolved:
            return self._resolved[name]
        schema, namespace = self._definitions[name]
        kind = str(schema["type"])
        avro_type = self._resolved[name] = AvroType("record" if kind == "error" else kind, name, schema)
        if kind == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
                raise ValueError(f"the enum {name} has no symbols")
        elif kind == "fixed":
            if type(schema.get("size")) is not int or schema["size"] < 0:
                raise ValueError(f"the type {name} has no size")
        else:
            for part in _list_of(schema, "fields"):
                if not isinstance(part, dict) or not isinstance(part.get("name"), str) or "type" not in part:
                    raise ValueError(f"a field of {name} has no name or no type")
                avro_type.fields.append(AvroField(part["name"], self.resolve(part["type"], namespace), part.get("doc")))
            if len({part.name for part in avro_type.fields}) < len(avro_type.fields):
                raise ValueError(f"two fields of {name} have the same name")
        return avro_type


def _name_of(schema: Mapping[str, Any], namespace: str) -> tuple[str, str]:
    """Return the full name of a named type, and the namespace of the names within it."""
    name = schema.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"its type {schema['type']} has no name")
    if "." in name:
        return name, name.rpartition(".")[0]
    namespace_of_type = str(schema.get("namespace", namespace))
    return _full_name(name, namespace_of_type), namespace_of_type


def _list_of(schema: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = schema.get(name)
    return value if isinstance(value, list) else ()


def source_type(avro: AvroType) -> SourceType:
    """Return the type of values that are read with `native_schema`, with logical types of Avro and Kafka Connect.

    A union of null and one type becomes that type. Values of another union name their branch, see `native_schema`.
    """
    converted: dict[int, SourceType] = {}

    def convert(inner: AvroType) -> SourceType:
        inner = inner.value
        if id(inner) in converted:
            return converted[id(inner)]
        fields: dict[str, SourceType] = {}
        meaning, local = meaning_of(inner)
        result = SourceType(
            AVRO_TYPES[inner.kind][0],
            meaning,
            decimal_scale(inner),
            fields,
            None if inner.items is None else convert(inner.items),
            SourceType("string") if inner.kind == "map" else None,
            local,
            bits=32 if inner.kind == "int" else 64,
        )
        converted[id(inner)] = result
        for part in inner.fields:
            fields[part.name] = convert(part.type)
        for number, branch in enumerate(inner.branches):
            fields[str(number)] = convert(branch)
        return result

    return convert(avro)


def meaning_of(avro: AvroType) -> tuple[Meaning, bool | None]:
    """Return the meaning of the values of a type, and whether they are times without a zone (None if not specified)."""
    connect = MEANINGS.get(str(avro.attributes.get("connect.name")), "")
    if connect and avro.kind in _CONNECT_TYPES[connect]:
        return connect, None
    meaning, local = _LOGICAL.get((avro.kind, str(avro.attributes.get("logicalType"))), ("", None))
    if meaning == "uuid" and avro.attributes.get("size") != _UUID_BYTES:
        return "", None
    if meaning == "decimal":
        precision, scale = avro.attributes.get("precision"), decimal_scale(avro)
        if type(precision) is not int or scale is None or not 0 <= scale <= precision:
            return "", None
    return meaning, local


def decimal_scale(avro: AvroType) -> int | None:
    """Return the scale in the schema of a decimal; the default is 0, or None in Kafka Connect's schemas."""
    scale = avro.attributes.get("scale")
    if scale is None and MEANINGS.get(str(avro.attributes.get("connect.name"))) == "decimal":
        parameters = avro.attributes.get("connect.parameters")
        text = str(parameters.get("scale", "")) if isinstance(parameters, Mapping) else ""
        return int(text) if text.removeprefix("-").isdecimal() else None
    if scale is None:
        return 0
    return scale if type(scale) is int else None


class _NoSymbols(dict[int, str]):
    """The symbols of an enum that stands for a type beyond `LARGEST_DEPTH`."""

    def __missing__(self, index: int) -> str:
        raise TooDeep


class FixedSize(int):
    """The size of a fixed type as a type of its own, by which a reader distinguishes it from the size of a number."""


def native_schema(avro: AvroType) -> tuple[Any, bool]:
    """Return the schema with which fastavro reads values, in the form that its ``parse_schema`` returns.

    It describes the same bytes as the schema of Avro, but values contain more details, and reading has limits:

    - A value of a union of several types is a dictionary with one member, whose name is the number of the branch. (A
      record adds no bytes, so each branch becomes a record.)
    - A map is an array of records of `PAIR`, so that a repeated key is visible.
    - Symbols and branches are looked up by number in a dictionary. In a list, -1 would mean the last one.
    - A recursive type is repeated up to `LARGEST_DEPTH`, where reading ends with `TooDeep`. fastavro itself recurses in
      C without a limit, and would end the process.
    - Every value reads bytes from the file: null (outside a union) reads zero bytes. So the file can count values.

    Returns:
        The schema of a record (a value that is not a record becomes the only field, ``value``), and whether there may
        be values without bytes.

    Raises:
        ValueError: The schema is too large.
    """
    converted: dict[tuple[int, int], Any] = {}
    size, without_bytes = 0, False

    def record(fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        return {"type": "record", "name": "", "fields": [{"name": name, "type": kind} for name, kind in fields]}

    def convert(inner: AvroType, depth: int) -> Any:
        nonlocal size, without_bytes
        if not inner.fields and inner.items is None and not inner.branches:
            plain, is_empty = _plain(inner)
            without_bytes |= is_empty
            return plain
        if depth > LARGEST_DEPTH:
            return {"type": "enum", "name": "", "symbols": _NoSymbols()}
        place = id(inner), depth
        if place in converted:
            return converted[place]
        size += 1 + len(inner.fields) + len(inner.branches)
        if size > _LARGEST_SCHEMA:
            raise ValueError(f"it has more than {_LARGEST_SCHEMA:,} parts")
        result: dict[Any, Any]
        if inner.branches:
            several = inner.value is inner
            result = {"type": "union"}
            for number, branch in enumerate(inner.branches):
                if branch.kind == "null":
                    result[number] = "null"
                else:
                    part = convert(branch, depth)
                    result[number] = record([(str(number), part)]) if several else part
        elif inner.items is not None:
            part = convert(inner.items, depth + 1)
            if inner.kind == "map":
                part = record([(PAIR[0], "string"), (PAIR[1], part)])
            result = {"type": "array", "items": part}
        else:
            result = record([(part.name, convert(part.type, depth + 1)) for part in inner.fields])
        converted[place] = result
        return result

    native = convert(avro, 0) if avro.kind == "record" else record([("value", convert(avro, 0))])
    return {**native, "__fastavro_parsed": True, "__named_schemas": {}}, without_bytes


def _plain(avro: AvroType) -> tuple[Any, bool]:
    """Return the native schema of a type without parts, and whether its values may have no bytes."""
    if avro.kind == "enum":
        return {"type": "enum", "name": "", "symbols": dict(enumerate(avro.attributes["symbols"]))}, False
    if avro.kind in {"fixed", "null"}:
        size = FixedSize(avro.attributes["size"] if avro.kind == "fixed" else 0)
        return {"type": "fixed", "name": "", "size": size}, size == 0
    if avro.kind == "record":
        nothing = {"type": "fixed", "name": "", "size": FixedSize(0)}
        return {"type": "record", "name": "", "fields": [{"name": "", "type": nothing}]}, True
    return avro.kind, False
