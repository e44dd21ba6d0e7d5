"""Kafka as a Spark source without a JVM connector: the data source ``weft_kafka`` over librdkafka.

    streams.kafka.register(spark)
    spark.readStream.format("weft_kafka").option("kafka.bootstrap.servers", ...).option("subscribe", "orders").load()

Rooms, from pure to Spark: `errors` · `identity` (which topic offsets are of) · `options` (text to values) · `plan`
(offset arithmetic, no I/O) · `topic_ids` and `cluster` (what the brokers hold) · `fetch` (one offset range to Arrow) ·
`source` (what Spark calls). Offsets live in Spark's checkpoint and nowhere else: nothing is ever committed to Kafka.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from streams.kafka.errors import DataLoss, SourceUnavailable
from streams.kafka.kafka_source import FORMAT, KafkaSource
from streams.spark.for_workers import source_for_workers

__all__ = ["FORMAT", "DataLoss", "KafkaSource", "SourceUnavailable", "register"]


def register(spark: SparkSession) -> None:
    """Make ``spark.read`` and ``spark.readStream.format("weft_kafka")`` known to this session."""
    spark.dataSource.register(source_for_workers(KafkaSource))
