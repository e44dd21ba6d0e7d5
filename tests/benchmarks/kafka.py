"""Throughput from Kafka to Spark: ``weft_kafka`` compared with a bare consumer of the same messages.

    python tests/benchmarks/kafka.py [--messages 1000000] [--partitions 4] [--rounds 3]

Both read the same topic of an embedded broker, in turns in one run, so that a busy machine slows both. The bare
consumer is one process that polls large batches with the fetch settings of the source and ignores the content. Spark
has two cores, runs ``Trigger.AvailableNow`` into the noop sink, and is timed whole (start of the query to its end) and
for the reading batch alone.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession

import weft.streams.kafka
from weft.streams.demo.embedded_broker import EmbeddedBroker

TOPIC = "orders"
BOUND_SECONDS = 300


def produce(broker: EmbeddedBroker, messages: int, partitions: int) -> None:
    broker.create_topics({TOPIC: partitions})
    producer = broker.producer()
    for i in range(messages):
        value = b'{"order_id":%d,"status":"paid","amount":%d.50,"ts":%d}' % (i, i % 1000, 1_700_000_000_000 + i)
        producer.produce(TOPIC, key=b"%d" % i, value=value, partition=i % partitions)
        if i % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(BOUND_SECONDS) == 0


def read_bare(broker: EmbeddedBroker, messages: int, partitions: int) -> float:
    """Seconds to receive every message in this process."""
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "bare",
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 50,
        "fetch.message.max.bytes": 8 * 1024 * 1024,
        "fetch.queue.backoff.ms": 10,
    }
    began = time.perf_counter()
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(partitions)])
    received = 0
    while received < messages:
        polled = consumer.consume(min(20_000, messages - received), 0.1)
        assert not any(message.error() for message in polled)
        received += len(polled)
        assert time.perf_counter() - began < BOUND_SECONDS
    consumer.close()
    return time.perf_counter() - began


def read_spark(spark: SparkSession, broker: EmbeddedBroker, messages: int) -> tuple[float, float]:
    """Seconds of the whole query, and of its reading batch."""
    with tempfile.TemporaryDirectory() as checkpoint:
        began = time.perf_counter()
        query = (
            spark.readStream.format("weft_kafka")
            .option("kafka.bootstrap.servers", broker.bootstrap_servers)
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(BOUND_SECONDS)
        seconds = time.perf_counter() - began
    (batch,) = [progress for progress in query.recentProgress if progress.numInputRows]
    assert batch.numInputRows == messages
    return seconds, batch.durationMs["triggerExecution"] / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument(
        "--partitions", type=int, default=4, help="number of partitions; each keeps about 5 MB, compressed"
    )
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    weft.streams.kafka.register(spark)
    with EmbeddedBroker() as broker:
        produce(broker, chosen.messages, chosen.partitions)
        rounds: list[tuple[float, float, float]] = []
        for number in range(chosen.rounds + 1):
            bare = read_bare(broker, chosen.messages, chosen.partitions)
            whole, batch = read_spark(spark, broker, chosen.messages)
            if number > 0:  # the first round starts Spark's Python workers and compiles its code
                rounds.append((bare, whole, batch))
            name = f"round {number}" if number else "warm-up"
            print(f"{name}: bare {bare:.2f} s, batch {batch:.2f} s, query {whole:.2f} s")
    print(f"{chosen.messages} messages, {chosen.partitions} partitions, medians of {chosen.rounds} rounds")
    for name, column in (("bare consumer", 0), ("weft_kafka, query", 1), ("weft_kafka, batch", 2)):
        seconds = statistics.median(times[column] for times in rounds)
        ratio = statistics.median(times[column] / times[0] for times in rounds)  # of one round: the machine may be busy
        print(f"  {name:20} {seconds:6.2f} s  {chosen.messages / seconds:12,.0f} messages/s  {ratio:5.2f} x bare")
    spark.stop()


if __name__ == "__main__":
    main()
