"""Kafka JSON into a table, compared with the same query into plain Parquet, from one run: `python -m
tests.benchmarks.writer`.

Both queries read the same topic of an embedded broker, decode the same JSON with the same expressions, and append; one
with Spark's own Parquet sink, one with `weft.write_stream`. First throughput (large batches), then latency (10,000
rows a batch: from the trigger to the commit that makes the rows visible), and what of a trigger Spark spends on what.
Runs are interleaved; medians. The ratios matter, the seconds depend on the machine.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from weft import Table, write_stream
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.kafka import register
from weft.streams.write.decode import decode_messages

TOPIC = "orders"
PARTITIONS = 4
LATENCY_ROWS = 10_000
LATENCY_BATCHES = 20
WAIT_SECONDS = 600  # a run that takes longer has hung
MESSAGE = {
    "order_id": "bigint",
    "status": "string",
    "amount": "decimal(12,2)",
    "customer": "string",
    "updated": "timestamp",
}
SELECT = {
    "order_id": "order_id",
    "status": "lower(status)",
    "amount": "amount",
    "customer": "customer",
    "updated": "updated",
}
CONFIG = {
    "key": ["order_id"],
    "columns": {
        "order_id": "bigint",
        "status": "string",
        "amount": "decimal(12,2)",
        "customer": "string",
        "updated": "timestamp",
    },
    "groups": {"order": {"columns": ["status", "amount", "customer", "updated"], "ordering": ["updated"]}},
    "streams": {"orders": {"groups": ["order"]}},
}


@dataclass
class Measured:
    """Results of one way to write: seconds of every run, and of every batch milliseconds from trigger to commit, and
    those of each part of the trigger, as Spark reports them.
    """

    seconds: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    parts: list[dict[str, int]] = field(default_factory=list)


def produce(broker: EmbeddedBroker, rows: int) -> None:
    broker.create_topics({TOPIC: PARTITIONS})
    producer = broker.producer()
    generator = random.Random(7)
    start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    for i in range(rows):
        value = {
            "order_id": generator.randrange(rows),
            "status": generator.choice(("NEW", "PAID", "SHIPPED")),
            "amount": generator.randrange(100_000) / 100,
            "customer": f"customer-{generator.randrange(10_000)}",
            "updated": (start + dt.timedelta(milliseconds=i * 10)).isoformat(),
        }
        producer.produce(TOPIC, json.dumps(value).encode(), partition=i % PARTITIONS)
        if i % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(WAIT_SECONDS) == 0


def decoded(spark: SparkSession, broker: EmbeddedBroker, per_batch: int, *, keep_source: bool) -> DataFrame:
    messages = (
        spark.readStream.format("weft_kafka")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch)
        .load()
    )
    return decode_messages(messages, MESSAGE, select=SELECT, where="order_id IS NOT NULL", keep_source=keep_source)


def finish(start: Callable[[], StreamingQuery]) -> tuple[float, StreamingQuery]:
    began = time.perf_counter()
    query = start()
    assert query.awaitTermination(WAIT_SECONDS), "the query has hung"
    return time.perf_counter() - began, query


def run_parquet(spark: SparkSession, broker: EmbeddedBroker, folder: Path, rows: int, per_batch: int) -> Measured:
    frame = decoded(spark, broker, per_batch, keep_source=False)
    target = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    seconds, query = finish(lambda: target.trigger(availableNow=True).start(str(folder / "data")))
    assert spark.read.parquet(str(folder / "data")).count() == rows
    progress = [batch for batch in query.recentProgress if batch.numInputRows]
    parts = [dict(batch.durationMs) for batch in progress]
    return Measured([seconds], [float(part["triggerExecution"]) for part in parts], parts)


def run_weft(spark: SparkSession, broker: EmbeddedBroker, folder: Path, rows: int, per_batch: int) -> Measured:
    table = Table.create(folder / "table", CONFIG)
    visible: dict[int, int] = {}
    stored: list[int] = []

    def note(report: object) -> None:
        visible[report.batch_id] = report.committed_at_ms  # type: ignore[attr-defined]
        stored.append(report.commit.rows)  # type: ignore[attr-defined]

    frame = decoded(spark, broker, per_batch, keep_source=True)
    seconds, query = finish(
        lambda: write_stream(
            frame, table.uri, "orders", checkpoint=str(folder / "checkpoint"), once=True,
            dead_letter=str(folder / "dead"), on_commit=note,
        )
    )  # fmt: skip
    assert sum(stored) == rows
    progress = [batch for batch in query.recentProgress if batch.numInputRows]
    began = {batch.batchId: dt.datetime.fromisoformat(batch.timestamp).timestamp() * 1000 for batch in progress}
    latencies = [visible[batch] - at for batch, at in began.items()]
    return Measured([seconds], latencies, [dict(batch.durationMs) for batch in progress])


def measure(spark: SparkSession, broker: EmbeddedBroker, rows: int, per_batch: int, runs: int) -> dict[str, Measured]:
    results = {"parquet": Measured(), "weft": Measured()}
    for number in range(runs + 1):
        for name, run in (("parquet", run_parquet), ("weft", run_weft)):
            with tempfile.TemporaryDirectory() as folder:
                result = run(spark, broker, Path(folder), rows, per_batch)
            if number:  # the first warms up
                results[name].seconds += result.seconds
                results[name].latencies += result.latencies
                results[name].parts += result.parts
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--batch", type=int, default=200_000, help="rows per batch in the measurement of throughput")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master(f"local[{os.cpu_count()}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    with EmbeddedBroker() as broker:
        produce(broker, arguments.rows)
        results = measure(spark, broker, arguments.rows, arguments.batch, arguments.runs)
        plain = statistics.median(results["parquet"].seconds)
        print(f"throughput: {arguments.rows} messages, {arguments.batch} a batch, median of {arguments.runs} runs")
        for name, result in results.items():
            seconds = statistics.median(result.seconds)
            print(f"  {name:8} {seconds:6.2f} s {arguments.rows / seconds:10,.0f} rows/s   x {plain / seconds:.2f}")
    with EmbeddedBroker() as broker:
        rows = LATENCY_ROWS * LATENCY_BATCHES
        produce(broker, rows)
        results = measure(spark, broker, rows, LATENCY_ROWS, 1)
        print(f"latency: {LATENCY_ROWS} rows a batch, {LATENCY_BATCHES} batches, trigger to visible")
        for name, result in results.items():
            *_, high = statistics.quantiles(result.latencies, n=10)
            print(f"  {name:8} median {statistics.median(result.latencies):6.0f} ms   90 % below {high:6.0f} ms")
            for part in sorted(result.parts[0]):
                print(f"    {part:20} {statistics.median(batch.get(part, 0) for batch in result.parts):6.0f} ms")
    spark.stop()


if __name__ == "__main__":
    main()
