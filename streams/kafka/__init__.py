"""Kafka as a Spark source without a JVM connector: the data source ``weft_kafka`` over librdkafka.

    weft.streams.kafka.register(spark)
    spark.readStream.format("weft_kafka").option("kafka.bootstrap.servers", ...).option("subscribe", "orders").load()

Modules: `errors`; `options` (parses options); `recreated_topic` (decides whether offsets belong to a topic);
`offset_plan` (decides which offsets a batch reads; no I/O); `topic_ids` and `cluster` (send requests to the brokers);
`fetch` (reads one offset range into Arrow); `kafka_source` (the data source that Spark calls). Offsets are stored in
Spark's checkpoint only; nothing is committed to Kafka.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from weft.streams.kafka.errors import DataLoss, SourceUnavailable
from weft.streams.kafka.kafka_source import FORMAT, KafkaSource
from weft.streams.spark.data_sources import register_source

__all__ = ["FORMAT", "DataLoss", "KafkaSource", "SourceUnavailable", "register"]


def register(spark: SparkSession, *, python: str = sys.executable) -> None:
    """Register the format ``weft_kafka`` for ``spark.read`` and ``spark.readStream`` in this session.

    Args:
        spark: The session.
        python: See `register_source`.
    """
    register_source(spark, KafkaSource, python=python)
