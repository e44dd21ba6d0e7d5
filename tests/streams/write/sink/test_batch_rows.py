"""How many rows a writer gets from Spark at once."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from weft.streams.write.dead_letter import SOURCE
from weft.streams.write.decode import decode_messages
from weft.streams.write.sink import BATCH_ROWS, LIST_BATCH_ROWS, set_batch_rows

ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.mark.parametrize(
    ("schema", "before", "after"),
    [
        ("id bigint, name string", 10_000, BATCH_ROWS),
        ("id bigint, name string", 100_000, 100_000),
        ("id bigint, name string", 0, 0),  # no limit
        ("id bigint, tags array<string>", 10_000, LIST_BATCH_ROWS),
        ("id bigint, tags array<string>", 0, LIST_BATCH_ROWS),
        ("id bigint, tags array<string>", 7, 7),
        ("id bigint, address struct<city: string, phones: map<string, string>>", 100_000, LIST_BATCH_ROWS),
        ("id bigint, address struct<city: string>", 10_000, BATCH_ROWS),
    ],
)
def test_frames_with_lists_are_handed_over_in_small_batches(
    spark: SparkSession, schema: str, before: int, after: int
) -> None:
    session = spark.newSession()
    session.conf.set(ROWS, before)
    set_batch_rows(session.createDataFrame([], schema))
    assert int(session.conf.get(ROWS) or "") == after


def test_the_list_of_headers_of_a_message_is_never_null(spark: SparkSession) -> None:
    """Spark would need time that grows with the square of the rows of a batch."""
    session = spark.newSession()
    session.conf.set(ROWS, 10_000)
    headers = "array<struct<key: string, value: binary>>"
    for more in ("", f", headers {headers}"):
        messages = session.createDataFrame([], f"value binary, topic string{more}")
        decoded = decode_messages(messages, {"id": "bigint"}, select=None, where=None, keep_source=True)
        set_batch_rows(decoded)
        assert int(session.conf.get(ROWS) or "") == BATCH_ROWS
        assert not decoded.select(f"{SOURCE}.headers").schema[0].nullable
