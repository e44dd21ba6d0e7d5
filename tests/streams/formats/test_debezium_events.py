"""Change events of Debezium as JSON, decoded without Spark: against messages that an independent encoder wrote."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.formats.debezium_messages import KINDS, Kind, columns_of, connect, event_schema, special, write_event
from weft.storage.core.types import parse_type
from weft.streams.formats.convert import Unmarked
from weft.streams.formats.debezium_event import MESSAGE, NOT_AN_EVENT, PLACEHOLDER, TRUNCATE, UNKNOWN_OPERATION
from weft.streams.formats.debezium_json import NOT_AN_OBJECT, NOT_UTF8, TOO_DEEP, decode_json_events
from weft.streams.formats.format_options import FormatSettings


def declared(types: Mapping[str, str]) -> pa.Schema:
    return pa.schema([(name, parse_type(kind)) for name, kind in types.items()])


def decode(values: list[bytes | None], types: Mapping[str, str], **settings: Any) -> list[dict[str, Any]]:
    found = decode_json_events(FormatSettings(declared(types), **settings), pa.array(values, pa.binary()))
    return found.to_pylist()


def plain(value: Any, kind: str) -> Any:
    """Arrow shows maps as lists of pairs. NaN, which equals nothing, as a text."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return dict(value) if kind.startswith("map") and value is not None else value


@given(st.data())
def test_every_value_of_every_type_arrives_as_it_was(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6))
    columns = columns_of(names)
    types = {name: kind.declared for name, kind in columns.items()}
    rows = st.fixed_dictionaries({name: st.none() | kind.values for name, kind in columns.items()})
    events = data.draw(st.lists(st.tuples(st.sampled_from("cur"), rows, rows), max_size=5))
    messages = [write_event(columns, op, before=before, after=after) for op, before, after in events]
    found = decode(list(messages), types, metadata=frozenset(["before"]))
    for (op, before, after), row in zip(events, found, strict=True):
        assert row["reason"] is None
        assert (row["op"], row["unavailable"], row["absent"]) == (op, None, None)
        for shown, wanted in ((row["message"], after), (row["before"], before)):
            assert {name: plain(value, types[name]) for name, value in shown.items()} == {
                name: plain(value, types[name]) for name, value in wanted.items()
            }


@given(st.data())
def test_without_a_schema_the_options_say_what_a_value_means(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([name for name, kind in sorted(KINDS.items()) if kind.unmarked is not None]))
    kind = KINDS[name]
    assert kind.unmarked is not None
    value = data.draw(kind.values)
    message = write_event({"c": kind}, "c", after={"c": value}, envelope=False)
    [row] = decode([message], {"c": kind.declared}, unmarked=Unmarked(**kind.unmarked))
    assert row["reason"] is None
    assert plain(row["message"]["c"], kind.declared) == plain(value, kind.declared)
    if kind.unmarked:
        [row] = decode([message], {"c": kind.declared})
        assert "the message has no schema" in row["reason"]
        assert next(iter(kind.unmarked)) in row["reason"]


@given(st.lists(st.sampled_from(["order", "wide", "bare", "spaced"]), max_size=12))
def test_messages_of_several_schemas_in_any_order(order: list[str]) -> None:
    """A remembered schema must not be used for a message of another one."""
    number, text = KINDS["bigint"], KINDS["text"]
    layouts = {"order": {"id": number}, "wide": {"id": number, "note": text}, "bare": {"id": number}}
    values, expected = [], []
    for row, name in enumerate(order):
        columns = layouts.get(name, layouts["order"])
        after = {"id": row} | ({"note": f"n{row}"} if "note" in columns else {})
        value = write_event(columns, "c", after=after, envelope=name != "bare")
        if name == "spaced":  # not the form in which Kafka Connect writes it
            value = json.dumps(json.loads(value), indent=1).encode()
        values.append(value)
        expected.append(({"id": row, "note": after.get("note")}, None if "note" in after else ["note"]))
    found = decode(list(values), {"id": "bigint", "note": "string"})
    assert [(row["message"], row["absent"]) for row in found] == expected
    assert [row["reason"] for row in found] == [None] * len(order)


ORDER = {"id": KINDS["bigint"], "body": KINDS["text"]}
TYPES = {"id": "bigint", "body": "string"}
GOOD = write_event(ORDER, "c", after={"id": 1, "body": "x"})


def test_the_row_of_each_operation() -> None:
    old, new = {"id": 1, "body": "old"}, {"id": 1, "body": "new"}
    found = decode(
        [
            write_event(ORDER, "c", after=new),
            write_event(ORDER, "u", before=old, after=new),
            write_event(ORDER, "r", after=new),
            write_event(ORDER, "d", before=old),
            None,
        ],
        TYPES,
    )
    assert [(row["op"], row["message"], row["reason"]) for row in found] == [
        ("c", new, None),
        ("u", new, None),
        ("r", new, None),
        ("d", old, None),
        (None, {"id": None, "body": None}, None),
    ]


BAD: list[tuple[bytes, str]] = [
    (b"\xff", NOT_UTF8),
    (b"", NOT_AN_OBJECT),
    (b"7", NOT_AN_OBJECT),
    (b"{", NOT_AN_OBJECT),
    (GOOD + b"x", NOT_AN_OBJECT),
    (GOOD[:-1], NOT_AN_OBJECT),
    (GOOD[:-1] + b',"op":"c"}', "the change event has op c, but its after is not an object"),
    (b"[" * 100_000, TOO_DEEP),
    (b'{"id": 1}', NOT_AN_EVENT),
    (b'{"schema": null, "payload": null}', NOT_AN_EVENT),
    (b'{"op": 7}', NOT_AN_EVENT),
    (write_event(ORDER, "t"), TRUNCATE),
    (write_event(ORDER, "m", envelope=False), MESSAGE),
    (write_event(ORDER, "x"), UNKNOWN_OPERATION),
    (write_event(ORDER, "c"), "the change event has op c, but its after is not an object"),
    (write_event(ORDER, "d", after={"id": 1}), "the change event has op d, but its before is not an object"),
    (b'{"op": "c", "after": "{}"}', "the change event has op c, but its after is not an object"),
    (b'{"op": "c", "after": {"id": "1"}}', "field 'id': a text is not bigint"),
    (b'{"op": "c", "after": {"id": 1.5}}', "field 'id': a number is not bigint"),
    (b'{"op": "c", "after": {"id": true}}', "field 'id': a boolean is not bigint"),
    (b'{"op": "c", "after": {"id": 9223372036854775808}}', "field 'id': a number is out of the range of bigint"),
    (
        b'{"op": "c", "after": {"body": "\\ud800"}}',
        "field 'body' has half of a surrogate pair, which is not a character",
    ),
    (
        b'{"op": "c", "after": {"id": [], "body": {}}}',
        "field 'id': an array is not bigint; field 'body': an object is not string",
    ),
]


def test_a_message_that_is_no_event_has_a_reason_and_others_are_decoded() -> None:
    values = [value for value, _ in BAD]
    found = decode([GOOD, *values, GOOD], TYPES)
    assert [row["reason"] for row in found] == [None, *(reason for _, reason in BAD), None]
    assert found[0]["message"] == found[-1]["message"] == {"id": 1, "body": "x"}
    assert [row["reason"] for row in decode(list(values), TYPES)] == [reason for _, reason in BAD]


@pytest.mark.parametrize(
    ("kind", "schema", "value", "reason"),
    [
        ("decimal(12,2)", connect("string"), "1.005", "a number has more digits after the point than decimal(12,2)"),
        ("decimal(12,2)", connect("string"), "NaN", "a number that is not finite is not decimal(12,2)"),
        ("decimal(12,2)", connect("string"), "12345678901", "a number is out of the range of decimal(12,2)"),
        ("decimal(12,2)", connect("string"), "9999999999.999", "a number has more digits after the point"),
        ("decimal(12,2)", connect("double"), 9999999999.999, "a number is out of the range of decimal(12,2)"),
        ("decimal(12,2)", connect("string"), "twelve", "a text is not decimal(12,2)"),
        ("decimal(12,2)", {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}, "1.5", "not Base64"),
        (
            "decimal(12,2)",
            connect("bytes", "org.apache.kafka.connect.data.Decimal", scale="999999999"),
            "BOI=",
            "a decimal has no usable scale",
        ),
        ("binary", connect("string"), "AAH/", "a text is not binary: declare the field as string"),
        ("boolean", connect("int16"), 2, "a number is not boolean"),
        ("timestamp", connect("int64"), 5, "a number is not timestamp"),
        ("timestamp", connect("string"), "yesterday", "a text is not timestamp"),
        ("timestamp_ntz", connect("string"), "2024-01-01T00:00:00Z", "an offset from UTC is not timestamp_ntz"),
        ("timestamp", connect("int64", "io.debezium.time.Timestamp"), 2**62, "a number does not fit timestamp"),
        ("date", connect("int32", "io.debezium.time.Date"), 2**40, "a number does not fit date"),
        ("date", connect("string"), "2024-13-01", "a text is not date"),
        ("array<int>", {**connect("array"), "items": connect("int32")}, [1, "x"], "a text is not int"),
        ("struct<a:int>", connect("struct"), [1], "an array is not struct<a:int>"),
        ("map<string,int>", connect("map"), [["a", 1, 2]], "an array is not map<string,int>"),
    ],
)
def test_a_value_that_does_not_have_its_declared_type(
    kind: str, schema: dict[str, Any], value: Any, reason: str
) -> None:
    row = {"type": "struct", "field": "after", "fields": [{**schema, "field": "c"}]}
    event = {"schema": {"type": "struct", "fields": [row]}, "payload": {"op": "c", "after": {"c": value}}}
    [found] = decode([json.dumps(event).encode()], {"c": kind})
    assert reason in found["reason"]
    assert "field 'c': " in found["reason"]
    assert found["message"] == {"c": None}


@pytest.mark.parametrize("envelope", [True, False])
@pytest.mark.parametrize("kind", ["double", "real"])
def test_numbers_that_json_lacks_are_texts(kind: str, *, envelope: bool) -> None:
    columns = {
        "c": KINDS[kind],
        "inner": Kind(
            f"array<{KINDS[kind].declared}>",
            {"type": "array", "optional": True, "items": dict(KINDS[kind].schema)},
            None,
        ),
    }
    values = [math.nan, math.inf, -math.inf]
    messages = [
        write_event(columns, "c", after={"c": value, "inner": [special(value)]}, envelope=envelope) for value in values
    ]
    found = decode(list(messages), {name: one.declared for name, one in columns.items()})
    assert [row["reason"] for row in found] == [None] * 3
    assert repr([row["message"] for row in found]) == repr([{"c": value, "inner": [value]} for value in values])


def event(**after: str) -> bytes:
    """An event without a schema, with these characters as the values of its row."""
    row = ", ".join(f'"{name}": {text}' for name, text in after.items())
    return f'{{"op": "c", "after": {{{row}}}}}'.encode()


EXACT = [
    ("bigint", "9007199254740993", 9007199254740993),
    ("bigint", "1e3", "a number is not bigint"),
    ("bigint", "1.0", "a number is not bigint"),
    ("decimal(38,10)", "12345678901234567890.1234567890", Decimal("12345678901234567890.1234567890")),
    ("decimal(38,10)", "1e999999999", "a number is out of the range of decimal(38,10)"),
    ("decimal(38,10)", "1e-999999999", Decimal("0E-10")),
    ("double", "1E400", "a number is out of the range of double"),
    ("float", "1e39", "a number is out of the range of float"),
    ("double", '"1.5"', "a text is not double"),
    ("bigint", "9" * 5_000, "a number has more than 4,300 digits"),
    ("string", "1.10", "a number is not string"),
    ("string", '{"a": 1.10}', "an object is not string"),
    ("string", r'"\ud800"', "half of a surrogate pair"),
    ("map<string,string>", r'{"\udc00": "a"}', "half of a surrogate pair"),
    ("array<string>", r'["\ud800"]', "half of a surrogate pair"),
    ("map<string,string>", '["ab", "cd"]', "an array is not map<string,string>"),
    ("map<string,string>", '[["a", "b"], ["a", "c"]]', "a key twice"),
]


@pytest.mark.parametrize(("kind", "text", "wanted"), EXACT)
def test_a_value_is_exact_or_has_a_reason(kind: str, text: str, wanted: Any) -> None:
    good, found, other = decode([event(c="null"), event(c=text), event(c="null")], {"c": kind})
    assert (good["reason"], other["reason"]) == (None, None)
    if isinstance(wanted, str):
        assert wanted in found["reason"], found
    else:
        assert (found["reason"], found["message"]["c"]) == (None, wanted)


def test_a_message_beyond_a_limit_harms_no_other() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    bad = {
        b'{"op": "c", "after": {"c": ' + deep + b"}}": "too many arrays and objects within each other",
        event(c="1", d="2" * 5_000): "a number has more than 4,300 digits",
        rb'{"op": "\ud800", "after": {"c": 1}}': "the op of the change event is not one of",
        b'{"op": ["c"], "after": {"c": 1}}': "not a change event",
    }
    late = b'{"op": "c", "after": {"c": 1}, "ts_ms": 9223372036854775808}'
    found = decode([event(c="1"), *bad, late], {"c": "int"}, metadata=frozenset(["ts_ms", "source", "transaction"]))
    assert [row["message"]["c"] for row in found] == [1, *[None] * len(bad), 1]
    for row, words in zip(found[1:-1], bad.values(), strict=True):
        assert words in row["reason"]


def test_a_double_is_rounded_to_the_declared_scale() -> None:
    after = b'{"op": "c", "after": {"c": 0.30000000000000004}}'
    assert decode([after], {"c": "decimal(12,2)"})[0]["message"] == {"c": Decimal("0.30")}
    half = b'{"op": "c", "after": {"c": 0.125}}'
    assert decode([half], {"c": "decimal(12,2)"})[0]["message"] == {"c": Decimal("0.13")}


def test_a_numeric_decimal_keeps_all_its_digits() -> None:
    """Kafka Connect's decimal.format=NUMERIC: more digits than a binary floating-point number has."""
    schema = event_schema({"c": KINDS["precise"]})
    text = f'{{"schema":{json.dumps(schema)},"payload":{{"op":"c","after":{{"c":1234567890123456789.12}}}}}}'
    [row] = decode([text.encode()], {"c": "decimal(38,2)"})
    assert row["message"] == {"c": Decimal("1234567890123456789.12")}


# Java's UUID.nameUUIDFromBytes
NAME_UUID = uuid.UUID(bytes=hashlib.md5(PLACEHOLDER.encode()).digest(), version=3)
PLACEHOLDERS: list[tuple[str, Any]] = [
    ("string", PLACEHOLDER),
    ("binary", base64.b64encode(PLACEHOLDER.encode()).decode()),
    ("decimal(12,2)", PLACEHOLDER),
    ("array<string>", [PLACEHOLDER]),
    ("array<binary>", [base64.b64encode(PLACEHOLDER.encode()).decode()]),
    ("array<int>", list(PLACEHOLDER.encode())),
    ("array<bigint>", list(PLACEHOLDER.encode())),
    ("array<string>", [str(NAME_UUID)]),
    ("map<string,string>", {PLACEHOLDER: PLACEHOLDER}),
]


@pytest.mark.parametrize(("kind", "value"), PLACEHOLDERS)
def test_an_unavailable_value_is_null_and_named(kind: str, value: Any) -> None:
    after = {"id": 1, "c": value}
    event = json.dumps({"op": "u", "before": after, "after": after}).encode()
    other = json.dumps({"op": "u", "after": {"id": 2}}).encode()
    first, second = decode([event, other], {"id": "bigint", "c": kind}, metadata=frozenset(["before"]))
    assert (first["reason"], first["message"], first["unavailable"]) == (None, {"id": 1, "c": None}, ["c"])
    assert (first["absent"], first["before"]) == (None, {"id": 1, "c": None})
    assert (second["reason"], second["message"], second["unavailable"]) == (None, {"id": 2, "c": None}, None)
    assert second["absent"] == ["c"]


def test_the_placeholder_can_be_another_text() -> None:
    event = json.dumps({"op": "u", "after": {"id": 1, "body": "n/a"}}).encode()
    [row] = decode([event], TYPES, placeholder="n/a")
    assert (row["message"], row["unavailable"]) == ({"id": 1, "body": None}, ["body"])
    [row] = decode([event], TYPES)
    assert (row["message"], row["unavailable"]) == ({"id": 1, "body": "n/a"}, None)


@pytest.mark.parametrize(
    ("source", "name", "value"),
    [
        ({"connector": "postgresql", "lsn": 2**62, "txId": 777}, "lsn", 2**62),
        ({"connector": "postgresql", "lsn": 1, "txId": 777}, "txId", "777"),
        ({"connector": "mysql", "file": "bin.000003", "pos": 154, "row": 1}, "pos", 154),
        ({"connector": "oracle", "scn": "18446744073709551616"}, "scn", Decimal(2**64)),
        ({"connector": "sqlserver", "commit_lsn": "00000025:00000d98:00a2"}, "commit_lsn", "00000025:00000d98:00a2"),
        ({"connector": "mysql", "snapshot": True}, "snapshot", "true"),
        ({"connector": "mysql", "ts_ms": 1}, "ts_ms", 1),
    ],
)
def test_the_position_in_the_source(source: dict[str, Any], name: str, value: Any) -> None:
    [row] = decode([write_event(ORDER, "c", after={"id": 1}, source=source)], TYPES, metadata=frozenset(["source"]))
    assert row["reason"] is None
    assert row["source"][name] == value


def test_a_position_that_is_no_number_has_a_reason() -> None:
    message = write_event(ORDER, "c", after={"id": 1}, source={"lsn": "7"})
    [row] = decode([message], TYPES, metadata=frozenset(["source", "ts_ms"]))
    assert row["reason"] == "source: field 'lsn': a text is not bigint"
    assert row["ts_ms"] == 1_700_000_000_000
    assert decode([message], TYPES)[0]["reason"] is None
