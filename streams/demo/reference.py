"""Computes the wide table of the demo with Spark SQL alone, and compares it with the table of weft.

The topics are read from their beginning, decoded by Spark's JSON reader, deduplicated with a window function and joined
with full outer joins: the SQL that one would write without weft. Its rules are the merge semantics of the demo's table.
In each stream the newest event of a key wins. If that is a delete, the columns of the stream are null, and for orders
the row does not exist. Deletes of clicks are ignored. A row exists if any stream has values for its key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

import weft.streams.kafka

MAX_EXAMPLES: Final = 5

_SCHEMAS: Final[Mapping[str, str]] = {
    "orders": (
        "op string, ts_ms bigint, source struct<lsn: bigint>, before struct<order_id: bigint>, "
        "after struct<order_id: bigint, customer_id: bigint, status: string, country: string, currency: string, "
        "amount: decimal(12,2), skus: array<string>, gift: boolean, ordered_on: date>"
    ),
    "payments": (
        "order bigint, event string, no bigint, at timestamp, method string, amount decimal(12,2), fee double"
    ),
    "shipments": (
        "order_id bigint, rev int, event_at timestamp, cancelled boolean, carrier string, tracking string, "
        "address struct<city: string, zip: string>, weight_kg double, delivered boolean, promised date"
    ),
    "clicks": (
        "order_id bigint, n bigint, us bigint, expired boolean, views bigint, seconds double, page string, "
        "devices array<string>, bounce boolean"
    ),
}

_JOIN: Final = """
WITH orders AS (
  SELECT * FROM (
    SELECT *, coalesce(after.order_id, before.order_id) AS k,
           row_number() OVER (PARTITION BY coalesce(after.order_id, before.order_id)
                              ORDER BY ts_ms DESC, source.lsn DESC) AS place
    FROM topic_orders) WHERE place = 1),
payments AS (
  SELECT * FROM (
    SELECT *, `order` AS k, row_number() OVER (PARTITION BY `order` ORDER BY at DESC, no DESC) AS place
    FROM topic_payments) WHERE place = 1 AND event <> 'voided'),
shipments AS (
  SELECT * FROM (
    SELECT *, order_id AS k, row_number() OVER (PARTITION BY order_id ORDER BY event_at DESC, rev DESC) AS place
    FROM topic_shipments) WHERE place = 1 AND NOT cancelled),
clicks AS (
  SELECT * FROM (
    SELECT *, order_id AS k, row_number() OVER (PARTITION BY order_id ORDER BY us DESC, n DESC) AS place
    FROM topic_clicks WHERE NOT expired) WHERE place = 1)
SELECT coalesce(o.k, p.k, s.k, c.k) AS order_id,
       o.after.customer_id, o.after.status AS order_status, o.after.country, o.after.currency, o.after.amount,
       o.after.skus, o.after.gift, o.after.ordered_on, timestamp_millis(o.ts_ms) AS order_at,
       o.source.lsn AS order_lsn,
       p.event AS pay_event, p.method AS pay_method, p.amount AS paid, p.fee AS pay_fee, p.at AS paid_at,
       p.no AS pay_no,
       s.carrier, s.tracking, s.address, s.weight_kg, s.delivered, s.promised AS promised_on,
       s.event_at AS shipped_at, s.rev AS ship_rev,
       CASE WHEN c.k IS NULL THEN 0 ELSE c.views END AS page_views, c.seconds AS seconds_on_site, c.page AS last_page,
       c.devices, c.bounce AS bounced, timestamp_micros(c.us) AS clicked_at, c.n AS click_no
FROM orders o
FULL OUTER JOIN payments p ON o.k = p.k
FULL OUTER JOIN shipments s ON coalesce(o.k, p.k) = s.k
FULL OUTER JOIN clicks c ON coalesce(o.k, p.k, s.k) = c.k
WHERE o.op IS NULL OR o.op <> 'd'
"""


def load_topics(spark: SparkSession, bootstrap_servers: str, folder: Path) -> int:
    """Read the four topics from their beginning, and write them decoded as Parquet files.

    This creates the views that `join_query` reads. They read Parquet files, so that the time of the join does not
    include Kafka and JSON.

    Returns:
        The number of messages.

    Raises:
        pyspark.errors.PySparkException: A message could not be decoded, or the broker has deleted messages.
    """
    weft.streams.kafka.register(spark)
    raw = (
        spark.read.format("weft_kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", ",".join(_SCHEMAS))
        .option("startingOffsets", "earliest")
        .load()
        .select("topic", F.col("value").cast("string").alias("value"))
        .persist()
    )
    try:
        for topic, schema in _SCHEMAS.items():
            # The default mode returns null for a message that it cannot decode, which would look like data.
            event = F.from_json("value", schema, {"mode": "FAILFAST"}).alias("event")
            path = str(folder / topic)
            raw.where(F.col("topic") == topic).select(event).select("event.*").write.mode("overwrite").parquet(path)
            spark.read.parquet(path).createOrReplaceTempView(f"topic_{topic}")
        return raw.count()
    finally:
        raw.unpersist()


def join_query(spark: SparkSession) -> DataFrame:
    """Compute the wide table with Spark from the views of `load_topics`."""
    return spark.sql(_JOIN)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of two tables as multisets of rows.

    Attributes:
        rows: Number of rows of the first and of the second table.
        columns: Number of columns of the first table.
        schema_differences: Columns that only one table has, or that differ in type or position.
        only: Number of rows that only the first, and only the second table has; copies of a row count separately.
        examples: Some of these rows, of the first and of the second table.
    """

    rows: tuple[int, int]
    columns: int
    schema_differences: tuple[str, ...]
    only: tuple[int, int] = (0, 0)
    examples: tuple[Sequence[Row], Sequence[Row]] = ((), ())

    @property
    def equal(self) -> bool:
        """Whether both tables have the same columns and the same rows, including copies."""
        return not self.schema_differences and self.only == (0, 0) and self.rows[0] == self.rows[1]


def compare(first: DataFrame, second: DataFrame) -> Comparison:
    """Compare two tables as multisets of rows.

    Raises:
        pyspark.errors.AnalysisException: A column is a map, which Spark cannot group by.
    """
    differences = _schema_differences(first, second)
    comparison = Comparison((first.count(), second.count()), len(first.columns), differences)
    if differences:
        return comparison
    only = [rows_of.exceptAll(others).persist() for rows_of, others in ((first, second), (second, first))]
    try:
        counts, examples = [rows.count() for rows in only], [rows.head(MAX_EXAMPLES) for rows in only]
    finally:
        for rows in only:
            rows.unpersist()
    return replace(comparison, only=(counts[0], counts[1]), examples=(examples[0], examples[1]))


def _schema_differences(first: DataFrame, second: DataFrame) -> tuple[str, ...]:
    """Compare names, types and positions of columns, but not nullability."""
    left = [(field.name, field.dataType.simpleString()) for field in first.schema]
    right = [(field.name, field.dataType.simpleString()) for field in second.schema]
    if left == right:
        return ()
    wrong = [f"only in the first: {name} {kind}" for name, kind in left if (name, kind) not in right]
    wrong += [f"only in the second: {name} {kind}" for name, kind in right if (name, kind) not in left]
    return tuple(wrong or ["the same columns in another order"])
