"""Format debezium in Spark, and from messages to the rows of a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from tests.streams.formats.debezium_messages import KINDS, write_event
from tests.streams.write.test_decode import messages
from weft import Table
from weft.storage.errors import InvalidInput
from weft.streams.formats.debezium_event import PLACEHOLDER, TRUNCATE
from weft.streams.write.dead_letter import IGNORED, SOURCE
from weft.streams.write.decode import decode_messages
from weft.streams.write.left_out import HINT, partial_columns
from weft.streams.write.write_batch import write_batch

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

COLUMNS = {"id": KINDS["bigint"], "body": KINDS["text"], "amount": KINDS["precise"]}
SCHEMA = {"id": "bigint", "body": "string", "amount": "decimal(12,2)"}
PLAIN = {"id": 1, "body": "b", "amount": None}


def decode(spark: SparkSession, values: list[bytes | None], **given: Any) -> list[Row]:
    given = {"select": None, "where": None, "keep_source": True, **given}
    frame = decode_messages(messages(spark, values), SCHEMA, message_format="debezium", **given)
    return frame.collect()


def update(after: dict[str, Any], lsn: int = 7, operation: str = "u") -> bytes:
    return json.dumps({"op": operation, "after": after, "source": {"lsn": lsn}}).encode()


def test_operations_and_metadata_in_select_and_where(spark: SparkSession) -> None:
    values = [
        write_event(COLUMNS, "c", after=PLAIN),
        write_event(COLUMNS, "d", before=PLAIN, source={"lsn": 8}, envelope=False),
        write_event(COLUMNS, "u", before=PLAIN, after={**PLAIN, "body": "new"}, source={"lsn": 9}),
        write_event(COLUMNS, "r", after=PLAIN),
        write_event(COLUMNS, "t"),
        None,
    ]
    select = {"id": "id", "body": "upper(body)", "seq": "_debezium.source.lsn", "was": "_debezium.before.body"}
    rows = decode(spark, values, select=select, where="_debezium.op <> 'r'")
    assert [(*row[:5], row[SOURCE].reason) for row in rows] == [
        (1, "B", 7, None, "upsert", None),
        (1, "B", 8, "b", "delete", None),
        (1, "NEW", 9, "b", "upsert", None),
        (None, None, None, None, None, TRUNCATE),
        (None, None, None, None, None, IGNORED),
    ]
    assert [field for field in rows[0].asDict() if field != SOURCE] == [*select, "_op"]


def test_without_a_source_the_first_message_that_is_no_event_fails_the_query(spark: SparkSession) -> None:
    values = [write_event(COLUMNS, "c", after=PLAIN), write_event(COLUMNS, "t")]
    with pytest.raises(PySparkException, match=r"truncate.*offset 101"):
        decode(spark, values, keep_source=False)


def test_the_operation_of_select_is_used(spark: SparkSession) -> None:
    rows = decode(spark, [write_event(COLUMNS, "d", before=PLAIN)], select={"id": "id", "_op": "'upsert'"})
    assert [(row.id, row._op) for row in rows] == [(1, "upsert")]


def test_values_are_decoded_once_and_without_a_shuffle(spark: SparkSession) -> None:
    frame = decode_messages(
        messages(spark, []),
        SCHEMA,
        message_format="debezium",
        select={"a": "id", "b": "id + 1", "c": "_debezium.source.lsn"},
        where="id > 1",
        keep_source=True,
        partial={"b"},
    )
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert plan.count("ArrowEvalPython") == 1
    assert "Exchange" not in plan


def test_a_column_whose_value_the_event_does_not_have(spark: SparkSession) -> None:
    after = {"id": 1, "body": PLACEHOLDER, "amount": 2}
    select = {"id": "id", "body": "coalesce(upper(body), 'none')", "amount": "amount", "both": "concat(body, id)"}
    everything = {"body", "amount", "both"}
    values = [update(after), update({"id": 2, "body": None, "amount": None}), update({"id": 3, "body": "x"})]
    rows = decode(spark, list(values), select=select, partial=everything)
    assert [(row.id, row.body, row.amount, row.both, row._supplied, row[SOURCE].reason) for row in rows] == [
        (1, None, 2, None, ["amount"], None),
        (2, "none", None, None, ["body", "amount", "both"], None),
        (3, "X", None, "x3", ["body", "both"], None),
    ]
    # In a group that is stored as a whole, the message is a dead letter; a delete needs no values.
    gone = json.dumps({"op": "d", "before": after}).encode()
    rows = decode(spark, [values[0], gone, values[2]], select={"id": "id", "body": "body"})
    reason = f"column 'body': the event does not have its value (unavailable); {HINT}"
    assert [(row.id, row._op, row[SOURCE].reason) for row in rows] == [
        (None, None, reason),
        (1, "delete", None),
        (3, "upsert", None),
    ]
    with pytest.raises(PySparkException, match="does not have its value"):
        decode(spark, [values[0]], select={"id": "id", "body": "body"}, keep_source=False)


def test_options_of_the_format(spark: SparkSession) -> None:
    message = json.dumps({"op": "c", "after": {"id": 1, "body": "n/a", "amount": "1.50"}}).encode()
    options = {"decimals": "text", "unavailable_value": "n/a"}
    [row] = decode(spark, [message], format_options=options, partial={"body"}, select={"id": "id", "body": "body"})
    assert (row.body, row._supplied, row[SOURCE].reason) == (None, [], None)
    [row] = decode(spark, [message])
    assert "the message has no schema" in row[SOURCE].reason
    with pytest.raises(InvalidInput, match="decimals: unknown value 'precise'"):
        decode(spark, [message], format_options={"decimals": "precise"})
    with pytest.raises(InvalidInput, match=r"'_debezium'.*reserved"):
        decode_messages(messages(spark, []), {"_debezium": "int"}, message_format="debezium", select=None, where=None)


def test_a_table_follows_its_source(spark: SparkSession, tmp_path: Path) -> None:
    """Events out of order and twice: creates, updates that leave a column out, NULLs, deletes, a truncate."""
    table = Table.create(
        tmp_path / "t",
        {
            "key": ["id"],
            "columns": {"id": "bigint", "body": "string", "amount": "decimal(12,2)", "lsn": "bigint"},
            "groups": {"row": {"columns": ["body", "amount", "lsn"], "ordering": ["lsn"], "merge": "latest_non_null"}},
            "streams": {"orders": {"groups": ["row"], "on_delete": "row"}},
        },
    )
    values = [
        update({"id": 1, "body": "long", "amount": 1}, 1, "c"),
        update({"id": 1, "body": PLACEHOLDER, "amount": 2}, 2),
        update({"id": 1, "body": PLACEHOLDER, "amount": None}, 3),
        update({"id": 2, "body": "x", "amount": 1}, 1, "r"),
        json.dumps({"op": "d", "before": {"id": 2}, "source": {"lsn": 5}}).encode(),
        update({"id": 2, "body": "late", "amount": 9}, 4),
        update({"id": 3, "body": "x", "amount": 1}, 1, "c"),
        update({"id": 3, "body": None, "amount": 1}, 2),
        write_event(COLUMNS, "t"),
        None,
    ]
    stream = table.schema.stream("orders")
    partial = partial_columns(table.schema, stream)
    assert partial == {"body", "amount"}
    select = {"id": "id", "body": "body", "amount": "amount", "lsn": "_debezium.source.lsn"}
    for order in (values, values[::-1], values[3:]):
        frame = decode_messages(
            messages(spark, order),
            SCHEMA,
            message_format="debezium",
            select=select,
            where=None,
            keep_source=True,
            partial=partial,
        )
        write_batch(frame, str(table.uri), "orders", dead_letter=str(tmp_path / "dead"))
    found = Table.open(tmp_path / "t").snapshot().to_arrow().sort_by("id").to_pylist()
    assert found == [
        {"id": 1, "body": "long", "amount": None, "lsn": 3},
        {"id": 3, "body": None, "amount": 1, "lsn": 2},
    ]
    letters = [json.loads(line) for file in (tmp_path / "dead").rglob("*.jsonl") for line in file.open()]
    assert [letter["reason"] for letter in letters] == [TRUNCATE] * 3
