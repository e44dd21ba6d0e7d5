"""Change events of Debezium, as Python objects: which row they change, how, and their position in the source.

    {"before": {...}, "after": {...}, "source": {"lsn": 7, ...}, "op": "u", "ts_ms": 1700000000000}

The row is ``after`` of a create (c), update (u) or read of a snapshot (r), and ``before`` of a delete (d). A truncate
(t) concerns all rows of a table, and a message (m) none: neither has a row.

An update lacks the values of columns that Postgres stores out of line (TOAST) and that did not change. Debezium puts a
placeholder in their place, whose form depends on the type of the column. Such a column is *unavailable*. A declared
field that the event does not have at all is *absent*, for example if it was added to the table later.
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Any, Final

import pyarrow as pa

from weft.streams.formats.convert import Unmarked
from weft.streams.formats.records import Reader, Rows, make_reader, to_struct
from weft.streams.formats.source_type import ANY, SourceType

METADATA: Final = "_debezium"
"""Name of a struct: ``op``, ``ts_ms``, ``source``, ``transaction``, ``before`` and ``unavailable`` of the event."""
METADATA_PARTS: Final = ("ts_ms", "source", "transaction", "before")
"""The parts of the struct that are left out unless they are used."""
PLACEHOLDER: Final = "__debezium_unavailable_value"
"""Default of Debezium's setting ``unavailable.value.placeholder``."""

NOT_AN_EVENT: Final = (
    "the value is not a change event of Debezium: it has no op (a flattened event has the format json)"
)
TRUNCATE: Final = "a truncate of the source table (op t) cannot be applied: delete the rows of the table yourself"
MESSAGE: Final = "a message of the database (op m) changes no row"
UNKNOWN_OPERATION: Final = "the op of the change event is not one of c, u, d, r, t, m"
_ROW_OF: Final = {"c": "after", "u": "after", "r": "after", "d": "before"}

SOURCE: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("version", "connector", "name", "snapshot", "db", "schema", "table")),
        *((name, pa.string()) for name in ("collection", "sequence", "txId", "file", "gtid", "change_lsn")),
        *((name, pa.string()) for name in ("commit_lsn", "rs_id")),
        *((name, pa.int64()) for name in ("ts_ms", "ts_us", "ts_ns", "lsn", "xmin", "pos", "row", "server_id")),
        *((name, pa.int64()) for name in ("thread", "event_serial_no", "ord", "ssn")),
        *((name, pa.decimal128(38, 0)) for name in ("scn", "commit_scn")),
    ]
)
"""Fields of ``source`` that `select` can use, of all connectors; NULL if a connector does not have the field.

``scn`` and ``commit_scn`` are numbers here, so that they can order events; Debezium writes them as text.
"""
TRANSACTION: Final = pa.schema(
    [("id", pa.string()), ("total_order", pa.int64()), ("data_collection_order", pa.int64())]
)


@dataclass(frozen=True, slots=True, eq=False)
class EventReader:
    """Readers of the rows before and after, for the events of one schema."""

    before: Reader
    after: Reader


def event_reader(row_schema: pa.Schema, source: SourceType, unmarked: Unmarked) -> EventReader:
    """Make the reader of events; ``source`` is the type of the whole event, or `ANY`."""
    before, after = (make_reader(row_schema, source.field(name), unmarked) for name in ("before", "after"))
    return EventReader(before, after)


def events_type(row_schema: pa.Schema, metadata: frozenset[str]) -> pa.DataType:
    """Return the type of the result of `decode_events`."""
    fields = [
        pa.field("message", pa.struct(list(row_schema))),
        pa.field("reason", pa.string()),
        pa.field("op", pa.string()),
        pa.field("unavailable", pa.list_(pa.string())),
        pa.field("absent", pa.list_(pa.string())),
    ]
    return pa.struct([*fields, *(pa.field(name, kind) for name, kind in _metadata_types(row_schema, metadata).items())])


def _metadata_types(row_schema: pa.Schema, metadata: frozenset[str]) -> dict[str, pa.DataType]:
    types = {
        "ts_ms": pa.int64(),
        "source": pa.struct(list(_used_source(metadata))),
        "transaction": pa.struct(list(TRANSACTION)),
        "before": pa.struct(list(row_schema)),
    }
    return {name: kind for name, kind in types.items() if name in metadata or (name == "source" and kind.num_fields)}


def _used_source(metadata: frozenset[str]) -> pa.Schema:
    """Return the requested fields of ``source``."""
    return pa.schema([field for field in SOURCE if not metadata.isdisjoint({"source", f"source.{field.name}"})])


def used_metadata(expressions: tuple[str, ...]) -> frozenset[str]:
    """Return the parts of `METADATA` that expressions may use: those whose names they contain, or all.

    For ``source`` these are single fields, because it has many: ``source.lsn``.
    """
    requested: set[str] = set()
    names = {f"source.{name}".lower(): f"source.{name}" for name in SOURCE.names}
    for text in expressions:
        for part, inner in re.findall(
            rf"\b{METADATA}\b`?(?:\s*\.\s*`?(\w+)`?(?:\s*\.\s*`?(\w+))?)?", text, re.IGNORECASE
        ):
            source_field = names.get(f"{part}.{inner}".lower())
            requested.update([source_field] if source_field else [part.lower()] if part else METADATA_PARTS)
    return frozenset(requested & {*METADATA_PARTS, *names.values()})


def decode_events(
    events: Sequence[tuple[Any, EventReader] | str | None],
    row_schema: pa.Schema,
    *,
    placeholder: str = PLACEHOLDER,
    metadata: frozenset[str] = frozenset(),
) -> pa.StructArray:
    """Decode the events of a batch.

    Args:
        events: For each message its event and reader, the reason why it is not an event, or None if it has no value.
        row_schema: Declared fields of the row.
        placeholder: Text that stands for an unavailable value.
        metadata: Further parts to return: ``ts_ms``, ``source`` or single fields of it (``source.lsn``),
            ``transaction``, ``before``.

    Returns:
        Structs of `events_type`. ``op`` is Debezium's letter. ``unavailable`` and ``absent`` contain names of declared
        fields, and are NULL if there are none.
    """
    rows = Rows()
    payloads: list[Mapping[str, Any]] = []
    for event in events:
        if not isinstance(event, tuple):
            rows.refuse(event)
            payloads.append({})
            continue
        payload, reader = event
        reason = _problem(payload)
        if reason is not None:
            rows.refuse(reason)
        elif payload["op"] == "d":
            rows.add(payload["before"], reader.before)
        else:
            rows.add(payload["after"], reader.after)
        payloads.append(payload if isinstance(payload, dict) else {})
    unavailable = _take_unavailable(rows, row_schema, placeholder)
    names = row_schema.names  # a new list each time
    absent = [None if record is None else _missing(record, names) or None for record in rows.records]
    message = to_struct(rows, row_schema)
    operations = [
        None if record is None else payload["op"] for record, payload in zip(rows.records, payloads, strict=True)
    ]
    columns: dict[str, pa.Array] = {
        "message": message,
        "op": pa.array(operations, pa.string()),
        "unavailable": pa.array(unavailable, pa.list_(pa.string())),
        "absent": pa.array(absent, pa.list_(pa.string())),
    }
    for name in _metadata_types(row_schema, metadata):
        fields = {"source": _used_source(metadata), "transaction": TRANSACTION, "before": row_schema}.get(name)
        columns[name] = _metadata(name, fields, events, payloads, rows, placeholder)
    columns["reason"] = pa.array(rows.reasons, pa.string())
    kind = events_type(row_schema, metadata)
    return pa.StructArray.from_arrays([columns[field.name] for field in kind], fields=list(kind))


def _problem(payload: Any) -> str | None:
    """Return why a payload does not have a row; None if it has one."""
    if not isinstance(payload, dict) or not isinstance(payload.get("op"), str):
        return NOT_AN_EVENT
    operation = payload["op"]
    if operation in {"t", "m"}:
        return TRUNCATE if operation == "t" else MESSAGE
    where = _ROW_OF.get(operation)
    if where is None:
        return UNKNOWN_OPERATION
    if not isinstance(payload.get(where), dict):
        return f"the change event has op {operation}, but its {where} is not an object"
    return None


def _missing(record: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [name for name in names if name not in record]


def _take_unavailable(rows: Rows, row_schema: pa.Schema, placeholder: str) -> list[list[str] | None]:
    """Replace placeholders by None, and return the names of the fields for each message."""
    names_by_row: list[list[str] | None] = [None] * len(rows.records)
    for field in row_schema:
        forms = _forms(field.type, placeholder)
        values = [None if record is None else record.get(field.name) for record in rows.records]
        if not any(form in values for form in forms):
            continue
        for row, value in enumerate(values):
            if value is not None and any(value == form for form in forms):
                rows.records[row] = {**(rows.records[row] or {}), field.name: None}
                names_by_row[row] = [*(names_by_row[row] or []), field.name]
    return names_by_row


def _forms(kind: pa.DataType, placeholder: str) -> list[Any]:
    """Return the values that stand for an unavailable value in a column of a type."""
    raw = placeholder.encode()
    forms: list[Any] = [placeholder]
    if pa.types.is_binary(kind):
        forms += [raw, base64.b64encode(raw).decode("ascii")]
    elif pa.types.is_list(kind):
        # Java's UUID.nameUUIDFromBytes, without a namespace.
        uuid_form = uuid.UUID(bytes=md5(raw, usedforsecurity=False).digest(), version=3)
        texts = [placeholder, base64.b64encode(raw).decode("ascii"), str(uuid_form)]
        forms += [*([text] for text in texts), [raw], list(raw)]
    elif pa.types.is_map(kind):
        # A map of Avro is read as pairs, see `weft.streams.formats.avro_schema.native_schema`.
        forms += [{placeholder: placeholder}, [{"key": placeholder, "value": placeholder}]]
    return forms


def _metadata(
    name: str,
    fields: pa.Schema | None,
    events: Sequence[Any],
    payloads: Sequence[Mapping[str, Any]],
    rows: Rows,
    placeholder: str,
) -> pa.Array:
    """Return a column of the metadata, and set the reason of messages whose metadata cannot be converted."""
    if fields is None:
        times = [payload.get(name) for payload in payloads]
        return pa.array([at if type(at) is int and abs(at) < 1 << 63 else None for at in times], pa.int64())
    parts, reader = Rows(), make_reader(fields, ANY, Unmarked(decimals="text"))
    texts = [field.name for field in fields if pa.types.is_string(field.type)] if name == "source" else []
    for event, payload in zip(events, payloads, strict=True):
        record = payload.get(name)
        if not isinstance(record, dict):
            parts.refuse(None)
        elif name == "before":
            parts.add(record, event[1].before)
        else:
            parts.add(_as_text(record, texts) if texts else record, reader)
    if name == "before":
        _take_unavailable(parts, fields, placeholder)
    array = to_struct(parts, fields)
    for row, reason in enumerate(parts.reasons):
        if reason is not None and rows.reasons[row] is None:
            rows.reasons[row] = f"{name}: {reason}"
    return array


def _as_text(source: Mapping[str, Any], texts: Sequence[str]) -> Mapping[str, Any]:
    """Convert fields of ``source`` to text that are text for one connector and a number for another (``txId``)."""
    converted = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name in texts
        if isinstance(value := source.get(name), bool | int)
    }
    return {**source, **converted} if converted else source
