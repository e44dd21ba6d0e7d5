"""Messages without a value, messages that cannot be stored, and good messages in the same batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from tests.streams.kafka.topics import topic_numbers
from tests.streams.support.awkward_texts import AWKWARD
from tests.streams.write.sink.rig import TEST_SECONDS, WAIT_SECONDS, run
from tests.streams.write.test_decode import SEEN
from weft import Table
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.kafka import register
from weft.streams.write.dead_letter import IGNORED, SOURCE
from weft.streams.write.decode import TOMBSTONE, decode_messages
from weft.streams.write.sink import CommitReport
from weft.streams.write.tombstones import NO_KEY

pytestmark = pytest.mark.timeout(TEST_SECONDS)

SCHEMA = {"id": "bigint", "name": "string"}
KEY = {"id": "bigint"}
Message = tuple[bytes | None, bytes | None]
"""Key and value."""


def messages(spark: SparkSession, given: Sequence[Message]) -> DataFrame:
    """A frame as the Kafka source gives it: topic ``orders``, partition 3, offsets from 100."""
    rows = [
        (*(None if part is None else bytearray(part) for part in message), "orders", 3, 100 + i, SEEN)
        for i, message in enumerate(given)
    ]
    return spark.createDataFrame(
        rows, "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
    )


def decode(spark: SparkSession, given: Sequence[Message], schema: Any = None, **settings: Any) -> list[Row]:
    settings = {"select": None, "where": None, "keep_source": True, **settings}
    return decode_messages(messages(spark, given), schema or SCHEMA, **settings).collect()


def test_tombstones_by_setting(spark: SparkSession) -> None:
    given = [(b'{"id": 7}', None), (b"x", b'{"id": 1}')]
    for tombstones, reason in (("ignore", IGNORED), ("dead_letter", TOMBSTONE)):
        first, second = decode(spark, given, tombstones=tombstones)
        assert (first.id, first[SOURCE].reason) == (None, reason)
        assert (second.id, second[SOURCE].reason) == (1, None)
    first, second = decode(spark, given, tombstones="delete", key=KEY)
    assert (first.id, first.name, first._op, first[SOURCE].reason) == (7, None, "delete", None)
    assert (second.id, second._op, second[SOURCE].reason) == (1, None, None)
    source = first[SOURCE]
    assert (bytes(source.key), source.timestamp) == (b'{"id": 7}', int(SEEN.timestamp()) * 1000)


def test_without_a_source_ignored_tombstones_are_dropped(spark: SparkSession) -> None:
    given = [(b"7", None), (b"x", b'{"id": 1}')]
    assert [row.id for row in decode(spark, given, keep_source=False)] == [1]
    with pytest.raises(PySparkException, match="tombstone"):
        decode(spark, given, keep_source=False, tombstones="dead_letter")


def envelope(payload: Any) -> bytes:
    fields = [{"type": "int64", "optional": False, "field": "id"}]
    return json.dumps({"schema": {"type": "struct", "fields": fields, "optional": False}, "payload": payload}).encode()


ONE: list[tuple[bytes | None, int | None]] = [
    (b'{"id": 7}', 7),
    (b' {"id": 7, "more": [1]} ', 7),
    (b"7", 7),
    (b" -7\n", -7),
    (envelope({"id": 7}), 7),
    (envelope(7), 7),
    (None, None),
    (b"", None),
    (b"null", None),
    (b"{}", None),
    (b'{"ID": 7}', None),
    (b'{"id": null}', None),
    (b'{"id": "7"}', None),
    (b'{"id": 7', None),
    (b'{"id": 7} {"id": 8}', None),
    (b'{"id": 7},"x":{"id": 8}', None),
    (b'{"id": 7}}', None),
    (b"7 8", None),
    (b'7,"x":8', None),
    (b"7}", None),
    (b"7.5", None),
    (b"seven", None),
    (b"\xff\xfe", None),
    (b"[7]", None),
    (envelope(None), None),
    (b"1" * 40, None),
]


def test_the_key_of_a_tombstone(spark: SparkSession) -> None:
    rows = decode(spark, [(key, None) for key, _ in ONE], tombstones="delete", key=KEY)
    assert [(key, row.id) for (key, _), row in zip(ONE, rows, strict=True)] == ONE
    assert [row[SOURCE].reason for row in rows] == [NO_KEY if found is None else None for _, found in ONE]


def test_a_text_key_is_used_unchanged(spark: SparkSession) -> None:
    texts = [b"a-7", b'"a-7"', b'{"id": "a-7"}', envelope("a-7"), b"007", b"1e3", b"a b"]
    rows = decode(spark, [(text, None) for text in texts], {"id": "string"}, tombstones="delete", key={"id": "string"})
    assert [row.id for row in rows] == ["a-7", "a-7", "a-7", "a-7", "007", "1e3", "a b"]


def test_texts_that_differ_are_different_keys(spark: SparkSession) -> None:
    schema: dict[str, Any] = {"schema": {"id": "string"}, "tombstones": "delete", "key": {"id": "string"}}
    plain = [(text.encode(), None) for text in AWKWARD]
    assert [row.id for row in decode(spark, plain, **schema)] == list(AWKWARD)
    for write in (json.dumps, envelope, lambda text: json.dumps({"id": text}), lambda text: envelope({"id": text})):
        given = [(as_bytes(write(text)), None) for text in [*AWKWARD, '"a"', '{"id": 1}']]
        assert [row.id for row in decode(spark, given, **schema)] == [*AWKWARD, '"a"', '{"id": 1}']


def as_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


NO_KEYS = {
    "string": [r'"\ud800"', r'{"id": "\udc00"}', '"a"b', "{", '{"id": "a", "id": "b"}', '{"payload": "a"}'],
    "decimal(10,2)": ["1.005", '{"id": 1.001}', '"1,5"', "1e9"],
    "timestamp": ['"2024-01-01T00:00:00.0000001Z"'],
    "date": ['"2024-01-01T05:00:00Z"'],
}
GOOD_KEYS = {"string": ['"a"'], "decimal(10,2)": ["1.10", "1.1000", '"1.1"'], "date": ['"2024-01-01"']}


@pytest.mark.parametrize("kind", NO_KEYS)
def test_a_key_is_never_rounded(spark: SparkSession, kind: str) -> None:
    good = GOOD_KEYS.get(kind, [])
    given: list[Message] = [(text.encode(), None) for text in [*good, *NO_KEYS[kind]]]
    rows = decode(spark, given, {"id": kind}, tombstones="delete", key={"id": kind})
    found = [(row[SOURCE].reason, row.id is None) for row in rows]
    assert found == [(None, False)] * len(good) + [(NO_KEY, True)] * len(NO_KEYS[kind])


def test_a_key_of_several_fields_is_an_object(spark: SparkSession) -> None:
    key = {"shop": "string", "id": "bigint"}
    given = [(b'{"shop": "eu", "id": 7}', None), (envelope({"shop": "eu", "id": 8}), None), (b"7", None)]
    rows = decode(spark, given, {**SCHEMA, "shop": "string"}, tombstones="delete", key=key)
    assert [(row.shop, row.id) for row in rows] == [("eu", 7), ("eu", 8), (None, None)]
    assert rows[2][SOURCE].reason == NO_KEY


def test_select_and_where_see_the_key_and_kafkas_metadata(spark: SparkSession) -> None:
    schema = {"op": "string", "after": "struct<id:bigint,name:string>", "ts_ms": "bigint"}
    select = {
        "id": "coalesce(after.id, _key.id)",
        "name": "lower(after.name)",
        "seq": "coalesce(ts_ms, unix_millis(_kafka.timestamp))",
        "_op": "op",
    }
    given = [
        (b'{"id": 7}', b'{"op": "c", "after": {"id": 7, "name": "NEW"}, "ts_ms": 5}'),
        (b'{"id": 7}', None),
        (b'{"id": 8}', None),
    ]
    rows = decode(spark, given, schema, select=select, where="_kafka.offset < 102", tombstones="delete", key=KEY)
    at = int(SEEN.timestamp()) * 1000
    assert [tuple(row)[:-1] for row in rows] == [(7, "new", 5, "c"), (7, None, at, "delete")]


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("name <> 'internal'", [7, 1]),  # unknown for a tombstone: a delete is not lost because a field is missing
        ("id > 5", [7]),
        ("id IS NOT NULL", [7, 1]),
        ("name IS NOT NULL", [1]),
        ("_kafka.key <> '7'", [1]),
    ],
)
def test_where_drops_a_tombstone_only_if_it_is_false(spark: SparkSession, where: str, kept: list[int]) -> None:
    given = [(b"7", None), (b"1", b'{"id": 1, "name": "x"}')]
    rows = decode(spark, given, where=where, tombstones="delete", key=KEY)
    assert [row.id for row in rows] == kept
    assert [row[SOURCE].reason for row in rows] == [None] * len(kept)


def test_a_failing_expression_refuses_only_the_message(spark: SparkSession) -> None:
    schema = {"id": "bigint", "name": "string"}
    given = [(None, f'{{"id": {i}, "name": "{name}"}}'.encode()) for i, name in enumerate(("5", "x", "0", "9"))]
    # The same cast in two columns and the condition: Spark would evaluate it once, before all three.
    select = {"id": "id", "a": "CAST(name AS int)", "b": "10 DIV CAST(name AS int)"}
    rows = decode(spark, given, schema, select=select)
    assert [(row.id, row.a, row.b, row[SOURCE].reason) for row in rows] == [
        (0, 5, 2, None),
        (1, None, None, "select: column 'a' fails: CAST(name AS int)"),
        (2, 0, None, "select: column 'b' fails: 10 DIV CAST(name AS int)"),
        (3, 9, 1, None),
    ]
    where = "10 DIV CAST(name AS int) < 2"
    rows = decode(spark, given, schema, select=select, where=where)
    assert [(row.id, row[SOURCE].reason) for row in rows] == [
        (None, f"where fails: {where}"),
        (None, f"where fails: {where}"),
        (3, None),
    ]
    assert [row[SOURCE].offset for row in rows] == [101, 102, 103]
    with pytest.raises(PySparkException, match=r"CAST_INVALID_INPUT|DIVIDE_BY_ZERO"):
        decode(spark, given, schema, select=select, keep_source=False)


# From here on: into a table.

CONFIG = {
    "key": ["id"],
    "buckets": 2,
    "columns": {"id": "bigint", "name": "string", "at": "timestamp", "tags": "string", "note": "string"},
    "groups": {
        "order": {"columns": ["name", "at"], "ordering": ["at"]},
        "notes": {"columns": ["tags", "note"], "merge": "latest_non_null"},
    },
    "streams": {"orders": {"groups": ["order"], "on_delete": "row"}, "notes": {"groups": ["notes"]}},
}


def topic_of(broker: EmbeddedBroker, given: Sequence[Message], **rest: Any) -> str:
    topic = f"tombstones-{next(topic_numbers)}"
    broker.create_topics({topic: 1})
    producer = broker.producer()
    for key, value in given:
        producer.produce(topic, value=value, key=key, **rest)
    assert producer.flush(WAIT_SECONDS) == 0
    return topic


def kafka(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> DataFrame:
    register(spark)
    return (
        spark.readStream.format("weft_kafka")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load()
    )


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "table", CONFIG)


def stored(table: Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.snapshot().to_arrow(["id", "name"]).to_pylist())


def letters(tmp_path: Path) -> list[dict[str, Any]]:
    files = sorted(tmp_path.rglob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def change(op: str, key: int, name: str | None, ms: int) -> Message:
    row = {"id": key, "name": name}
    value = {"op": op, "before": row if op == "d" else None, "after": None if op == "d" else row, "ts_ms": ms}
    return envelope({"id": key}), json.dumps(value).encode()


def test_a_debezium_stream_needs_no_setting(
    spark: SparkSession, broker: EmbeddedBroker, table: Table, tmp_path: Path
) -> None:
    given = [change("c", 1, "a", 10), change("c", 2, "b", 10), change("d", 1, "a", 20), (envelope({"id": 1}), None)]
    given.append(change("u", 2, "B", 30))
    kind = "struct<id:bigint,name:string>"
    df = decode_messages(
        kafka(spark, broker, topic_of(broker, given)),
        {"op": "string", "before": kind, "after": kind, "ts_ms": "bigint"},
        select={
            "id": "coalesce(after.id, before.id)",
            "name": "after.name",
            "at": "timestamp_millis(ts_ms)",
            "_op": "op",
        },
        where=None,
        keep_source=True,
    )
    reports: list[CommitReport] = []
    run(df, table, tmp_path, on_commit=reports.append)
    assert stored(table) == [(2, "B")]
    assert letters(tmp_path) == []
    assert sum(report.tombstones for report in reports) == 1
    assert sum(report.rows_refused for report in reports) == 0


def test_deletes_of_a_compacted_topic_have_only_a_key(
    spark: SparkSession, broker: EmbeddedBroker, table: Table, tmp_path: Path
) -> None:
    def message(key: int, name: str) -> Message:
        return b"%d" % key, json.dumps({"id": key, "name": name}).encode()

    given = [message(1, "a"), message(2, "b"), (b"1", None), message(3, "c"), (b"3", None), message(3, "d")]
    given += [(b"nobody", None), (None, None)]
    topic = topic_of(broker, given, headers=[("trace", b"\x01")])
    df = decode_messages(
        kafka(spark, broker, topic),
        SCHEMA,
        # Several messages may have the same time: the offset breaks the tie.
        select={"id": "id", "name": "name", "at": "timestamp_micros(unix_millis(_kafka.timestamp) + _kafka.offset)"},
        where="_kafka.headers[0].key = 'trace'",
        keep_source=True,
        tombstones="delete",
        key=KEY,
    )
    run(df, table, tmp_path)
    assert stored(table) == [(2, "b"), (3, "d")]
    found = letters(tmp_path)
    assert [(letter["offset"], letter["reason"], letter["key"]) for letter in found] == [
        (6, NO_KEY, "nobody"),
        (7, NO_KEY, None),
    ]
    assert found[0]["headers"] == [{"key": "trace", "value": "\x01", "encoding": "utf-8"}]
    assert found[0]["timestamp_ms"] > 0
    folder = tmp_path / "table_dead_letters/orders"
    assert [path.is_relative_to(folder) for path in tmp_path.rglob("*.jsonl")] == [True], "beside the table, by default"


def field(**changes: Any) -> bytes:
    return json.dumps({"id": 9, "name": "bad", "at": "2024-01-01T00:00:00Z", **changes}).encode()


BAD: dict[str, bytes] = {
    "no JSON": b"no json",
    "empty": b"",
    "cut off": b'{"id": 9',
    "an array": b"[]",
    "wrong type": field(id="nine"),
    "number out of range": field(id=1 << 70),
    "number that never ends": b'{"id": ' + b"9" * 10_000 + b"}",
    "exponent": b'{"id": 9, "name": "bad", "at": 1e999999999}',
    "no key": field(id=None),
    "not UTF-8": b'{"id": 9, "name": "\xff"}',
    "deep": b'{"id": 9, "name": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep, of objects": b'{"x": ' * 50_000 + b"1" + b"}" * 50_000,
    "unknown operation": field(_op="merge"),
    "operation of a wrong type": field(_op={"a": [1]}),
    "delete without an order": field(at=None, _op="delete"),
    "before the calendar": field(shift=-200_000),
    "after the calendar": field(shift=200_000),
    "an expression fails": field(shift="x"),
    "huge": field(name="x" * 900_000, id=None),
}


def test_no_message_prevents_others_from_being_stored(
    spark: SparkSession, broker: EmbeddedBroker, table: Table, tmp_path: Path
) -> None:
    given: list[Message] = []
    for number, value in enumerate(BAD.values()):
        given += [(None, value), (None, field(id=1000 + number, name="good"))]
    df = decode_messages(
        kafka(spark, broker, topic_of(broker, given)),
        {"id": "bigint", "name": "string", "at": "timestamp", "_op": "string", "shift": "string"},
        select={
            "id": "id",
            "name": "name",
            "at": "at + make_ym_interval(coalesce(CAST(shift AS int), 0), 0)",
            "_op": "_op",
        },
        where=None,
        keep_source=True,
    )
    run(df, table, tmp_path)
    assert stored(table) == [(1000 + number, "good") for number in range(len(BAD))]
    found = {letter["offset"]: letter for letter in letters(tmp_path)}
    assert [name for number, name in enumerate(BAD) if 2 * number not in found] == []
    assert len(found) == len(BAD)
    assert all(letter["reason"] for letter in found.values())


def test_rows_without_a_kafka_message_are_refused_alone_too(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    folder = tmp_path / "feed"
    folder.mkdir()
    lines = [
        {"id": 1, "name": "good", "shift": 0},
        {"id": 2, "name": "before the calendar", "shift": -200_000},
        {"id": None, "name": "no key", "shift": 0},
    ]
    (folder / "1.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = spark.readStream.schema("id bigint, name string, shift int").json(str(folder))
    df = rows.selectExpr("id", "name", "timestamp'2024-01-01' + make_ym_interval(shift, 0) AS at")
    run(df, table, tmp_path)
    assert stored(table) == [(1, "good")]
    found = {json.loads(letter["value"])["name"]: letter for letter in letters(tmp_path)}
    assert found.keys() == {"before the calendar", "no key"}
    assert "calendar" in found["before the calendar"]["reason"]


def test_an_unknown_column_in_supplied_refuses_only_the_row(
    spark: SparkSession, broker: EmbeddedBroker, table: Table, tmp_path: Path
) -> None:
    given = [
        (None, json.dumps({"id": number, "tags": "t", "note": None, "_supplied": names}).encode())
        for number, names in enumerate((["note"], ["nobody"], [None], None, []))
    ]
    df = decode_messages(
        kafka(spark, broker, topic_of(broker, given)),
        {"id": "bigint", "tags": "string", "note": "string", "_supplied": "array<string>"},
        select=None,
        where=None,
        keep_source=True,
    )
    run(df, table, tmp_path, "notes")
    assert [row[0] for row in stored(table)] == [0, 3, 4]
    assert [letter["offset"] for letter in letters(tmp_path)] == [1, 2]
    assert "'_supplied'" in letters(tmp_path)[0]["reason"]
