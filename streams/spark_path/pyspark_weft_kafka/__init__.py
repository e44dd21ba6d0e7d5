"""Lets Spark find ``format("weft_kafka")`` by itself; see `pyspark_weft`."""

from weft.streams.kafka.kafka_source import KafkaSource as DefaultSource

__all__ = ["DefaultSource"]
