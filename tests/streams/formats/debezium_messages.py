"""Change events as Debezium writes them through Kafka Connect's JSON converter, made from Python values.

This is an independent description of the wire format: it goes from values to messages, and shares no code with the
decoder.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
PLACEHOLDER = "__debezium_unavailable_value"


@dataclass(frozen=True)
class Kind:
    """One kind of column: its declared type in weft, its schema in Kafka Connect, and how a value is written.

    `unmarked` says what a message without a schema needs: options of the format. None: nothing, or it cannot be told.
    """

    declared: str
    schema: Mapping[str, Any]
    values: st.SearchStrategy[Any]
    write: Callable[[Any], Any] = field(default=lambda value: value)
    unmarked: Mapping[str, str] | None = field(default_factory=dict)


def twos_complement(number: int) -> bytes:
    """Java's `BigInteger.toByteArray`: the shortest form with a sign bit, big-endian."""
    length = 1
    while not -(1 << (8 * length - 1)) <= number < 1 << (8 * length - 1):
        length += 1
    return number.to_bytes(length, "big", signed=True)


def base64_text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def unscaled(value: Decimal, scale: int) -> str:
    return base64_text(twos_complement(int(value * 10**scale)))


def micros(value: dt.datetime) -> int:
    return (value.replace(tzinfo=dt.UTC) - EPOCH) // dt.timedelta(microseconds=1)


def whole_millis(value: dt.datetime) -> dt.datetime:
    return value.replace(microsecond=value.microsecond // 1000 * 1000)


def connect(kind: str, name: str | None = None, **parameters: str) -> dict[str, Any]:
    named = {} if name is None else {"name": name, "version": 1}
    return {"type": kind, "optional": True, **named, **({"parameters": parameters} if parameters else {})}


def special(value: float) -> float | str:
    """As Jackson writes a number for Kafka Connect: what JSON lacks is a text."""
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda text: text != PLACEHOLDER)
AMOUNTS = st.integers(-(10**12) + 1, 10**12 - 1).map(lambda number: Decimal(number).scaleb(-2))
INSTANTS = st.datetimes(timezones=st.just(dt.UTC))
LOCAL = st.datetimes()
ZONES = st.integers(-18 * 60, 18 * 60).map(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes)))
DATES = st.dates()
TIME = "io.debezium.time."
CONNECT = "org.apache.kafka.connect.data."

KINDS: Mapping[str, Kind] = {
    "bigint": Kind("bigint", connect("int64"), st.integers(-(2**63), 2**63 - 1)),
    "int": Kind("int", connect("int32"), st.integers(-(2**31), 2**31 - 1)),
    "text": Kind("string", connect("string"), TEXTS),
    "boolean": Kind("boolean", connect("boolean"), st.booleans()),
    "tinyint(1)": Kind("boolean", connect("int16"), st.booleans(), int),
    "double": Kind("double", connect("double"), st.floats(), special),
    "real": Kind("float", connect("float"), st.floats(width=32), special),
    "bytes": Kind("binary", connect("bytes"), st.binary(max_size=8), base64_text),
    "precise": Kind(
        "decimal(12,2)",
        connect("bytes", f"{CONNECT}Decimal", scale="2"),
        AMOUNTS,
        lambda value: unscaled(value, 2),
        {"decimals": "base64"},
    ),
    "precise integer": Kind(
        "bigint",
        connect("bytes", f"{CONNECT}Decimal", scale="0"),
        st.integers(-(2**63), 2**63 - 1),
        lambda value: unscaled(Decimal(value), 0),
        None,
    ),
    "variable scale": Kind(
        "decimal(12,2)",
        connect("struct", "io.debezium.data.VariableScaleDecimal"),
        AMOUNTS,
        lambda value: {"scale": 2, "value": unscaled(value, 2)},
    ),
    "decimal as text": Kind("decimal(12,2)", connect("string"), AMOUNTS, str, {"decimals": "text"}),
    "decimal as double": Kind("decimal(12,2)", connect("double"), AMOUNTS, float),
    "date": Kind("date", connect("int32", f"{TIME}Date"), DATES, lambda value: (value - EPOCH.date()).days),
    "connect date": Kind("date", connect("int32", f"{CONNECT}Date"), DATES, lambda value: (value - EPOCH.date()).days),
    "iso date": Kind("date", connect("string", f"{TIME}IsoDate"), DATES, lambda value: value.isoformat() + "Z"),
    "millis": Kind(
        "timestamp",
        connect("int64", f"{TIME}Timestamp"),
        INSTANTS.map(whole_millis),
        lambda value: micros(value) // 1000,
        {"timestamps": "millis"},
    ),
    "micros": Kind("timestamp", connect("int64", f"{TIME}MicroTimestamp"), INSTANTS, micros, {"timestamps": "micros"}),
    "nanos": Kind(
        "timestamp_ntz",
        connect("int64", f"{TIME}NanoTimestamp"),
        LOCAL,
        lambda value: micros(value) * 1000 + 7,
        {"timestamps": "nanos"},
    ),
    "connect timestamp": Kind(
        "timestamp_ntz",
        connect("int64", f"{CONNECT}Timestamp"),
        LOCAL.map(whole_millis),
        lambda value: micros(value) // 1000,
        {"timestamps": "millis"},
    ),
    "zoned": Kind(
        "timestamp",
        connect("string", f"{TIME}ZonedTimestamp"),
        st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1), timezones=ZONES),  # noqa: DTZ001
        dt.datetime.isoformat,
    ),
    "micro time": Kind("bigint", connect("int64", f"{TIME}MicroTime"), st.integers(0, 86_400_000_000 - 1)),
    "array": Kind(
        "array<string>", {**connect("array"), "items": connect("string")}, st.lists(st.none() | TEXTS, max_size=3)
    ),
    "map": Kind(
        "map<string,int>",
        {**connect("map"), "keys": connect("string"), "values": connect("int32")},
        st.dictionaries(TEXTS, st.integers(0, 9), max_size=3),
    ),
}

SOURCE_SCHEMA = {
    "type": "struct",
    "optional": False,
    "field": "source",
    "name": "io.debezium.connector.postgresql.Source",
    "fields": [{**connect("string"), "field": "connector"}, {**connect("int64"), "field": "lsn"}],
}


def event_schema(columns: Mapping[str, Kind]) -> dict[str, Any]:
    row = [{**kind.schema, "field": name} for name, kind in columns.items()]
    rows = [
        {"type": "struct", "fields": row, "optional": True, "name": "shop.Value", "field": name}
        for name in ("before", "after")
    ]
    rest = [{**connect("string"), "field": "op"}, {**connect("int64"), "field": "ts_ms"}]
    return {"type": "struct", "fields": [*rows, SOURCE_SCHEMA, *rest], "optional": False, "name": "shop.Envelope"}


def write_row(columns: Mapping[str, Kind], row: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if row is None:
        return None
    return {name: None if value is None else columns[name].write(value) for name, value in row.items()}


def write_event(
    columns: Mapping[str, Kind],
    operation: str,
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    source: Mapping[str, Any] | None = None,
    envelope: bool = True,
) -> bytes:
    """The value of a message."""
    payload = {
        "before": write_row(columns, before),
        "after": write_row(columns, after),
        "source": source or {"connector": "postgresql", "lsn": 7},
        "op": operation,
        "ts_ms": 1_700_000_000_000,
    }
    message = {"schema": event_schema(columns), "payload": payload} if envelope else payload
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()


def columns_of(kinds: Sequence[str]) -> dict[str, Kind]:
    """Columns ``c0``, ``c1``, ... of these kinds."""
    return {f"c{number}": KINDS[kind] for number, kind in enumerate(kinds)}
